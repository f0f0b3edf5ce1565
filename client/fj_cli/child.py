"""The command that a worker runs for an entry: its environment, its input, its end."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
from collections.abc import Mapping

import trio

from fastjournal.client.results import Entry
from fj_cli.output import note, plain_value, type_name

_VALUE_BYTES_MAX = 32 * 1024
"""A larger value is on standard input only: Linux takes 128 KiB for one variable."""

_KILL_AFTER_S = 10
_NOT_STARTED = 126


def environment_of(
    entry: Entry, *, attempts: int, server: str, base: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of the command.

    Args:
        entry: What it works on.
        attempts: How often it was tried before.
        server: The daemon's address, so that the command can use ``fj-cli`` itself.
        base: The environment to add to.
    """
    environment = {k: v for k, v in base.items() if not k.startswith("FASTJOURNAL_")}

    def put(name: str, data: bytes) -> None:
        if b"\0" in data:
            environment[f"FASTJOURNAL_{name}_B64"] = base64.b64encode(data).decode()
        else:
            environment[f"FASTJOURNAL_{name}"] = os.fsdecode(data)

    put("SERVER", server.encode())
    put("KEY", entry.key)
    put("ATTEMPTS", b"%d" % attempts)
    put("VALUE_TYPE", type_name(entry.value_type).encode())
    if len(entry.value) <= _VALUE_BYTES_MAX:
        put("VALUE", input_of(entry))
    if entry.uri:
        put("URI", entry.uri)
    parts = entry.journal_key
    if parts is not None:
        put("DOMAIN", parts.domain)
        put("ID", parts.id)
        put("PRIORITY", b"%d" % parts.priority)
        put("NOT_BEFORE_US", b"%d" % parts.timestamp)
    return environment


def input_of(entry: Entry) -> bytes:
    """Return what the command reads: the bytes as they are, numbers and truths as text."""
    value = plain_value(entry)
    if isinstance(value, bytes):
        return value
    return b"" if value is None else str(value).lower().encode()


async def run_child(argv: list[str], data: bytes, environment: Mapping[str, str]) -> int:
    """Run the command to its end; return its exit code, negative for a signal.

    Of a command that cannot be run the exit code is 126, and standard error says why.

    It is the leader of a session of its own, so that Ctrl-C in the terminal is the worker's to act
    on. When this is cancelled, the whole session's group gets SIGTERM, and SIGKILL after 10 s.
    """
    try:
        done = await trio.run_process(
            argv,
            stdin=data,
            check=False,
            env=environment,
            start_new_session=True,
            deliver_cancel=_end_group,
        )
    except OSError as error:
        note(f"cannot run {argv[0]}: {error.strerror}")
        return _NOT_STARTED
    return done.returncode


async def _end_group(process: subprocess.Popen[bytes] | trio.Process) -> None:
    for number, pause_s in ((signal.SIGTERM, _KILL_AFTER_S), (signal.SIGKILL, 0)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        await trio.sleep(pause_s)
