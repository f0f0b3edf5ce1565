"""Prints changes as they come, until somebody has seen enough.

A line is written only when the reader has room for it: who pages through the output holds up this
program alone, which can be ended at any time, and the daemon folds what changes meanwhile.
"""

from __future__ import annotations

import os
import select
import signal
import stat
import sys
from collections.abc import AsyncIterator
from typing import Any

import trio

from fastjournal.client import Change, ChangeKind, Client, Entry
from fastjournal.clock import SystemClock
from fastjournal.errors import FastjournalError
from fastjournal.time_texts import format_stamp
from fj_cli.output import bytes_field, entry_fields, json_line, note, show_bytes, show_value


async def watch(client: Client, query: dict[str, Any], *, as_json: bool) -> None:
    """Print changes until SIGINT or SIGTERM, or until nobody reads the output any more.

    Args:
        client: Client of the daemon, not connected yet.
        query: Arguments of ``Client.listen``.
        as_json: One JSON object a line, else text.

    Raises:
        FastjournalError: The daemon is not there, stays away, or refuses it.
        OSError: The output takes nothing, for instance on a full disk.
    """
    line_of = change_line if not as_json else change_json
    failure: FastjournalError | OSError | None = None
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_end_on_signal, signals, nursery.cancel_scope)
            nursery.start_soon(_end_with_reader, nursery.cancel_scope)
            try:
                async with client, client.listen(**query) as changes:
                    note("watching; Ctrl-C ends it")
                    async for change in changes:
                        await _write(line_of(change, SystemClock().now_us()))
            except (FastjournalError, OSError) as error:
                failure = error
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


def change_json(change: Change, now_us: int) -> str:
    """Return a change as a JSON object on a line."""
    fields: dict[str, Any] = {"time_us": now_us, "change": change.kind.value}
    if change.kind is ChangeKind.SET:
        fields |= entry_fields(_entry(change))
    elif change.kind is not ChangeKind.MISSED:
        fields |= bytes_field("key", change.key)
    return json_line(fields)


def change_line(change: Change, now_us: int) -> str:
    """Return a change as a line for people."""
    words = f"{format_stamp(now_us)} {change.kind.value:6} {show_bytes(change.key)}"
    if change.kind is ChangeKind.SET:
        words += f"  {show_value(_entry(change))}"
    elif change.kind is ChangeKind.MISSED:
        words += "changes may be missing here: the connection was lost, or they came too fast"
    return words.rstrip()


def _entry(change: Change) -> Entry:
    return Entry(change.key, b"", change.value_type, change.value, change.meta)


async def _end_on_signal(signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
    async for _ in signals:
        scope.cancel()
        return


async def _end_with_reader(scope: trio.CancelScope) -> None:
    """End if standard output is a pipe whose reader ends, also while nothing changes."""
    fd = sys.stdout.fileno()
    if stat.S_ISFIFO(os.fstat(fd).st_mode):
        # the write end of a pipe has nothing to read: this is its error
        await trio.lowlevel.wait_readable(fd)
        scope.cancel()


async def _write(line: str) -> None:
    """Write a line to standard output, as the reader takes it.

    Raises:
        BrokenPipeError: Nobody reads it any more.
    """
    fd = sys.stdout.fileno()
    data = memoryview(f"{line}\n".encode(sys.stdout.encoding, "backslashreplace"))
    while data:
        try:
            await trio.lowlevel.wait_writable(fd)
        except PermissionError:
            # a file is always writable
            await trio.lowlevel.checkpoint()
        data = data[os.write(fd, data[: select.PIPE_BUF]) :]
