"""A small service manager: holds listening sockets, and starts daemons that take them over."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from tests.integration.programs import installed

DEADLINE_S = 60

HAND_OVER = """
import fcntl, os, sys
# first out of the way of the numbers that they get
high = [fcntl.fcntl(int(n), fcntl.F_DUPFD_CLOEXEC, 100) for n in sys.argv[1].split()]
for number, descriptor in enumerate(high, 3):
    os.dup2(descriptor, number)
os.closerange(3 + len(high), 100)
os.environ.setdefault("LISTEN_FDS", str(len(high)))
os.environ.setdefault("LISTEN_PID", str(os.getpid()))
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Becomes the daemon, as the child of a service manager does."""


TAKE_OVER = """
import sys
from fastjournal.errors import ConfigError
from fastjournald.config.socket_activation import take_over_sockets
try:
    take_over_sockets()
except ConfigError as error:
    print(error)
else:
    sys.exit("taken over")
"""


class Descriptor(Protocol):
    """A file or a socket."""

    def fileno(self) -> int: ...


class SocketManager:
    """Service manager with the sockets of fastjournald.socket and a service with Type=notify.

    Args:
        directory: Gets the log, the unix socket and the notify socket; its path is short.
        options: More command line options of the daemon.
    """

    def __init__(self, directory: Path, *options: str) -> None:
        self.directory = directory
        self.options = options
        self.unix_path = directory / "unix"
        self.tcp = _listening(socket.AF_INET, ("127.0.0.1", 0))
        self.unix = _listening(socket.AF_UNIX, str(self.unix_path))
        host, port = self.tcp.getsockname()
        self.addresses = [f"{host}:{port}", f"unix:{self.unix_path}"]
        self._states = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._states.settimeout(DEADLINE_S)
        self._states.bind(str(directory / "notify"))
        self.daemon: subprocess.Popen[bytes] | None = None

    def launch(self, *sockets: socket.socket, **variables: str) -> subprocess.Popen[bytes]:
        """Start a daemon on sockets, by default both, and return at once."""
        command = [installed("fastjournald"), "--cmdlog-path", str(self.directory / "log")]
        held = sockets or (self.tcp, self.unix)
        self.daemon = self._hand_over(held, [*command, *self.options], variables)
        return self.daemon

    def take_over(self, *held: Descriptor, **variables: str) -> str:
        """Let a process only take descriptors over, and return the error."""
        child = self._hand_over(held, [sys.executable, "-c", TAKE_OVER], variables)
        assert child.wait(DEADLINE_S) == 0, self.said()
        return self.said()

    def _hand_over(
        self, held: Sequence[Descriptor], command: list[str], variables: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        descriptors = [each.fileno() for each in held]
        by_number = " ".join(map(str, descriptors))
        with open(self.directory / "err", "ab") as stderr:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", HAND_OVER, by_number, *command],
                pass_fds=sorted(set(descriptors)),
                env={
                    **os.environ,
                    "NOTIFY_SOCKET": str(self.directory / "notify"),
                    "LISTEN_FDNAMES": ":".join(["listen"] * len(descriptors)),
                    **variables,
                },
                stdout=stderr,
                stderr=stderr,
            )

    def start(self, **variables: str) -> list[str]:
        """Start a daemon on both sockets, and return what it said until it was ready."""
        self.launch(**variables)
        return self.states_until("READY=1")

    def states_until(self, last: str) -> list[str]:
        """Return the states that the daemon sends, up to one."""
        states: list[str] = []
        while last not in states:
            states += self._states.recv(4096).decode().splitlines()
        return states

    def end(self, number: signal.Signals) -> int:
        """Send the daemon a signal, and return its exit code; nothing that it said is left."""
        assert self.daemon is not None
        self.daemon.send_signal(number)
        status = self.daemon.wait(DEADLINE_S)
        self._states.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                self._states.recv(4096)
        self._states.settimeout(DEADLINE_S)
        return status

    def said(self) -> str:
        """Return what the daemons wrote to standard error."""
        return (self.directory / "err").read_text(encoding="utf-8")

    def __enter__(self) -> SocketManager:
        return self

    def __exit__(self, *_: object) -> None:
        if self.daemon is not None:
            self.daemon.kill()
            self.daemon.wait()
        for held in (self.tcp, self.unix, self._states):
            held.close()


def _listening(family: socket.AddressFamily, address: tuple[str, int] | str) -> socket.socket:
    listener = socket.socket(family)
    listener.bind(address)
    listener.listen(1024)
    return listener


@contextlib.contextmanager
def other_descriptors() -> Iterator[dict[str, Descriptor]]:
    """Sockets and a file that no daemon can listen on, by what they are."""
    with (
        open(os.devnull, "rb") as file,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        socket.socket() as silent,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        abstract.bind(f"\0fastjournal-test-{os.getpid()}")
        abstract.listen()
        yield {"file": file, "udp": udp, "not listening": silent, "abstract": abstract}
