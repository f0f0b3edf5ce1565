"""The command that a worker runs for an entry: its environment, its input, its end."""

from __future__ import annotations

import base64
import contextlib
import errno
import os
import signal
import subprocess
from collections.abc import Mapping

import trio

from fastjournal.client.core.results import Entry
from fj_cli.command_group import reap_orphans, signal_group
from fj_cli.command_stderr import CommandStderr, open_command_stderr
from fj_cli.output import plain_value, type_name

_VALUE_BYTES_MAX = 32 * 1024
"""A larger value is on standard input only: Linux takes 128 KiB for one variable."""

_GONE_S = 5
"""After SIGKILL: what is left then, the kernel holds; the entry need not wait for it."""

_LOOK_S = 0.05
_TRANSIENT = (errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""No file descriptor, process or memory is free: of the worker, its user or the machine."""

NOT_STARTED, NOT_FOUND = 126, 127
"""Exit codes of a command that cannot be run, and of one that is not there, as a shell has them."""


def environment_of(
    entry: Entry, *, attempts: int, daemon: Mapping[str, str], base: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of the command.

    Args:
        entry: Entry that it works on.
        attempts: How often it was tried before.
        daemon: Variables of the daemon's address, TLS files and token file, so that the command can
            use ``fj-cli`` itself.
        base: The environment to add to.
    """
    environment = {k: v for k, v in base.items() if not k.startswith("FASTJOURNAL_")}
    environment |= daemon

    def put(name: str, data: bytes) -> None:
        if b"\0" in data:
            environment[f"FASTJOURNAL_{name}_B64"] = base64.b64encode(data).decode()
        else:
            environment[f"FASTJOURNAL_{name}"] = os.fsdecode(data)

    put("KEY", entry.key)
    put("ATTEMPTS", b"%d" % attempts)
    put("VALUE_TYPE", type_name(entry.value_type).encode())
    if len(entry.value) <= _VALUE_BYTES_MAX:
        put("VALUE", input_of(entry))
    if entry.uri:
        put("URI", entry.uri)
    if entry.unique is not None:
        put("UNIQUE", entry.unique)
    parts = entry.journal_key
    if parts is not None:
        put("DOMAIN", parts.domain)
        put("ID", parts.id)
        put("PRIORITY", b"%d" % parts.priority)
        put("NOT_BEFORE_US", b"%d" % parts.not_before_us)
    return environment


def input_of(entry: Entry) -> bytes:
    """Return what the command reads: the bytes as they are, numbers and truths as text."""
    value = plain_value(entry)
    if isinstance(value, bytes):
        return value
    return b"" if value is None else str(value).lower().encode()


class Child:
    """Command that was started, and its process group. ``run`` has to follow."""

    def __init__(
        self, process: trio.Process, stderr: CommandStderr | None, children: Children
    ) -> None:
        self._process = process
        self._stderr = stderr
        self._children = children
        self._is_ending = False

    async def run(self, data: bytes, *, kill_after_s: float) -> int:
        """Give the command its input and wait for its end.

        Other processes of its group run on, also where they keep the input open. When this is
        cancelled, the whole group gets SIGTERM, and what is left of it after ``kill_after_s``
        SIGKILL.

        Returns:
            Its exit code, negative for a signal.
        """
        process = self._process
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_feed, process, data)
                code = await process.wait()
                nursery.cancel_scope.cancel()
        finally:
            self._is_ending = True
            if process.returncode is None:
                with trio.CancelScope(shield=True):
                    await _end_group(process, kill_after_s)
            if self._stderr is not None:
                self._stderr.read_rest()
            self._children.ended(process)
        return code

    @property
    def last_line(self) -> str:
        """The last line that it wrote to standard error, without control characters."""
        return "" if self._stderr is None else self._stderr.last_line.text

    def suspend(self) -> None:
        """Stop the group, unless it is being ended."""
        if not self._is_ending:
            # SIGTSTP stops nothing in a session without a terminal
            signal_group(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Continue the group."""
        if not self._is_ending:
            signal_group(self._process.pid, signal.SIGCONT)


class Children:
    """Child processes of a worker: commands, and orphans of these that it has adopted.

    Args:
        nursery: Tasks in it pass on what commands write to standard error, also after their end.
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._own: set[int] = set()
        self._starting = 0

    async def start(self, argv: list[str], environment: Mapping[str, str]) -> Child:
        """Start a command; ``Child.run`` has to follow.

        It is the leader of a session of its own, so that Ctrl-C and Ctrl-Z in the terminal are the
        worker's to act on.

        Raises:
            OSError: It cannot be run; ``is_transient`` says whether that is the command's fault.
        """
        stderr = open_command_stderr()
        self._starting += 1
        try:
            process = await trio.lowlevel.open_process(
                argv,
                stdin=subprocess.PIPE,
                stderr=None if stderr is None else stderr.writing,
                env=environment,
                start_new_session=True,
            )
            self._own.add(process.pid)
        finally:
            self._starting -= 1
            self.reap_orphans()
            if stderr is not None:
                stderr.close_writing()
                # also where it was not started: then it is at its end
                self._nursery.start_soon(stderr.pass_on)
        return Child(process, stderr, self)

    def ended(self, process: trio.Process) -> None:
        """Note the end of a command; its zombie may have hidden those of orphans."""
        if process.returncode is not None:
            self._own.discard(process.pid)
        self.reap_orphans()

    def reap_orphans(self) -> None:
        """Wait for orphans that have ended, and for no command: its exit code is its task's."""
        if not self._starting:  # a command may have ended whose number is not known yet
            reap_orphans(self._own)


def is_transient(error: OSError) -> bool:
    """Whether the system lacks something at the moment, so that nothing is said of the command."""
    return error.errno in _TRANSIENT


async def _feed(process: trio.Process, data: bytes) -> None:
    assert process.stdin is not None, "a pipe was asked for"
    async with process.stdin:
        with contextlib.suppress(trio.BrokenResourceError):  # it need not read it
            await process.stdin.send_all(data)


async def _end_group(process: trio.Process, kill_after_s: float) -> None:
    """End the command and all of its group; return when nothing of it runs."""
    for number, patience_s in ((signal.SIGTERM, kill_after_s), (signal.SIGKILL, _GONE_S)):
        with trio.move_on_after(patience_s):
            signal_group(process.pid, number)
            signal_group(process.pid, signal.SIGCONT)  # a stopped one would not take it
            await process.wait()
            while signal_group(process.pid, 0):  # noqa: ASYNC110 - nobody tells of the last one
                await trio.sleep(_LOOK_S)
            return
