"""Commands of a shell that the fork servers start: a directory for the front of its ``PATH``.

A page of commands starts up to a hundred programs by a shell, which knows nothing of
``programs.Program``. Each command in the directory is a small process (``forked_command.py``) that
asks here for its program, at a *door*: a socket with a thread. A program that the door starts is a
child of this process, has the arguments, environment, directory and standard streams of the
command, and the command ends as the program ends. Signals are passed on. A command that is killed
is a program that is killed: at the latest before the next program starts.

The installed script itself runs, in a new interpreter, where a fork would differ
(``programs.ForkServers``). A shell ignores SIGINT and SIGQUIT for what it starts in the background.
No difference here: the forked program ignores them, too.
"""

from __future__ import annotations

import marshal
import os
import selectors
import signal
import socket
import struct
import sys
import tempfile
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.integration import programs
from tests.integration.fork_server import MESSAGE_BYTES_MAX
from tests.integration.forked_command import STARTED
from tests.integration.programs import (
    PRELOADED,
    ForkServers,
    inherited,
    request_to_start,
    signal_bit,
)

COMMAND = """#!{python} -IS
import sys
sys.path.insert(0, {directory!r})
from forked_command import main
main({door!r}, {script!r})
"""

_BASE_PYTHON = os.path.realpath(sys.executable)
"""The interpreter outside of the virtual environment, whose packages a command does not need."""

_DEAD = (FileNotFoundError, ProcessLookupError)
"""A look into ``/proc`` for a process that is gone."""

_CREDENTIALS = struct.Struct("iII")
"""Process, user and group of a peer."""


@contextmanager
def forked_commands(commands: Collection[str] = tuple(PRELOADED)) -> Iterator[list[str]]:
    """Give directories for the front of the ``PATH`` of a shell; none where nothing is forked.

    Args:
        commands: Names of the programs that are forked.
    """
    servers = programs.open_servers()
    if servers is None:
        yield []
        return
    with tempfile.TemporaryDirectory(prefix="fj-") as directory:
        door = f"{directory}/door"
        for name in commands:
            command = Path(directory, name)
            command.write_text(
                COMMAND.format(
                    python=_BASE_PYTHON,
                    directory=str(Path(__file__).parent),
                    door=door,
                    script=programs.installed(name),
                )
            )
            command.chmod(0o755)
        opened = _Door(door, servers)
        try:
            yield [directory]
        finally:
            opened.close()


@dataclass
class _Command:
    """Command of a shell whose program runs."""

    channel: socket.socket
    pid: int
    program: int
    pidfd: int

    def is_killed(self) -> bool:
        """Whether the command is dead, or has a SIGKILL of which it will die."""
        try:
            status = _status(self.pid)
        except _DEAD:
            return True
        pending = int(status["SigPnd"], 16) | int(status["ShdPnd"], 16)
        return status["State"][0] in "ZX" or bool(pending & signal_bit(signal.SIGKILL))


class _Door:
    """Thread that starts programs for commands, and tells the commands how they end."""

    def __init__(self, path: str, servers: ForkServers) -> None:
        self._servers = servers
        self._commands: list[_Command] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(path)
        self._listener.listen()
        self._open, self._closed = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._closed, selectors.EVENT_READ, self._closed.close)
        self._thread = threading.Thread(target=self._serve, name="door of shell commands")
        self._thread.start()

    def close(self) -> None:
        """Kill all programs that run, and end."""
        self._open.close()
        self._thread.join()

    def _serve(self) -> None:
        with self._listener, self._selector:
            try:
                while self._closed.fileno() != -1:
                    for key, _ in self._selector.select():
                        # what is done for one can end another
                        if self._selector.get_map().get(key.fd) is key:
                            key.data()
            finally:
                for command in list(self._commands):
                    self._kill(command)

    def _accept(self) -> None:
        channel, _ = self._listener.accept()
        message, streams, _, _ = socket.recv_fds(channel, MESSAGE_BYTES_MAX, 3)
        for command in list(self._commands):
            if command.is_killed():
                self._kill(command)
        started = False
        try:
            started = self._start(channel, message, streams)
        except _DEAD:
            # the command is killed before it has a program
            pass
        finally:
            if not started:
                channel.close()
            for stream in streams:
                os.close(stream)

    def _start(self, channel: socket.socket, message: bytes, streams: list[int]) -> bool:
        """Start the program that a command asks for; False: it needs an interpreter of its own."""
        if not message:
            return False
        args, directory, environ = marshal.loads(message)
        credentials = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, _, _ = _CREDENTIALS.unpack(credentials)
        environment = {os.fsdecode(name): os.fsdecode(value) for name, value in environ.items()}
        ignored = _ignored(pid)
        server = self._servers.find_for(args[0], lambda: inherited(environment, str(pid), ignored))
        request = request_to_start(args, directory, environment, ignored=ignored)
        if server is None or len(request) > MESSAGE_BYTES_MAX or any(map(os.isatty, streams)):
            return False
        program = server.start(request, streams)
        command = _Command(channel, pid, program, os.pidfd_open(program))
        self._commands.append(command)
        self._selector.register(channel, selectors.EVENT_READ, lambda: self._pass_on(command))
        self._selector.register(command.pidfd, selectors.EVENT_READ, lambda: self._end(command))
        with suppress(ConnectionError):
            channel.send(STARTED)
        return True

    def _pass_on(self, command: _Command) -> None:
        try:
            signals = command.channel.recv(1)
        except ConnectionError:
            signals = b""
        if signals:
            signal.pidfd_send_signal(command.pidfd, signals[0])
        else:
            self._kill(command)

    def _kill(self, command: _Command) -> None:
        signal.pidfd_send_signal(command.pidfd, signal.SIGKILL)
        self._end(command)

    def _end(self, command: _Command) -> None:
        _, status = os.waitpid(command.program, 0)
        with suppress(ConnectionError):
            command.channel.send(b"%d" % os.waitstatus_to_exitcode(status))
        self._selector.unregister(command.channel)
        self._selector.unregister(command.pidfd)
        command.channel.close()
        os.close(command.pidfd)
        self._commands.remove(command)


def _ignored(pid: int) -> list[int]:
    """Return which of SIGINT and SIGQUIT a process ignores."""
    mask = int(_status(pid)["SigIgn"], 16)
    return [number for number in (signal.SIGINT, signal.SIGQUIT) if mask & signal_bit(number)]


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines)
