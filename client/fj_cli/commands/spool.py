"""``fj-cli spool``, and ``status``: pending and dead records of a spool, and its forwarder."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

import click
import msgspec

from fastjournal.clock import SystemClock
from fastjournal.errors import SpoolFailedError
from fastjournal.time_texts import format_duration, format_when
from fj_cli.cli import LazyGroup
from fj_cli.output import note, wants_json, write_fields, write_json, write_line, write_table
from fj_cli.shared_options import DONE, DURATION, IO_FAILED, directory_argument, json_option
from fj_cli.text import safe_text

if TYPE_CHECKING:
    from fastjournal.spool.forwarder_status import ForwarderStatus
    from fastjournal.spool.status import SlotStatus, SpoolStatus, UnreadableSlot

SUBCOMMANDS = {
    "put": ("spool_put", "Append work, from arguments or JSON lines."),
    "dead": ("spool_dead", "List, show, retry and drop dead letters."),
    "status": ("spool", "Show slots, pending and dead counts."),
}


@click.group("spool", cls=LazyGroup, lazy=SUBCOMMANDS, words="spool")
def spool_command() -> None:
    """Append to a local spool, and look after it, without a daemon."""


_DROP_INS_SHOWN = 10
"""More of them are one row of the table."""


@click.command("status")
@directory_argument
@click.option("--watch", is_flag=True, help="Show what the forwarder does, live; reads no slots.")
@click.option("--interval", type=DURATION, default="1s", help="Time between two looks.")
@click.option("--count", type=click.IntRange(1), help="End after so many looks.")
@json_option
def spool_status_command(
    directory: str, watch: bool, interval: int, count: int | None, as_json: bool | None
) -> int:
    """Show the slots of the spool DIR, what is pending and dead, and what the forwarder does.

    The slots are read; the rest stands in status.json, which the forwarder writes each second. With
    --watch only that is shown, again and again, until Ctrl-C.

    In JSON: one object a slot, then one with the sums, whose "slot" is null and whose "forwarder"
    is the status file. With --watch one object a look. Exit code 74: a slot cannot be read; it is
    named, and the others are shown.
    """
    if watch:
        _watch(directory, interval / 1e6, count, as_json=wants_json(as_json))
        return DONE

    from fastjournal.spool.status import spool_status

    status = spool_status(directory, strict=False)
    oldest = status.oldest_pending_us
    now_us = SystemClock().now_us()
    age_us = None if oldest is None else max(0, now_us - oldest)
    forwarder = _read_status(directory)
    if wants_json(as_json):
        _write_json(status, age_us, _json_fields(forwarder, now_us))
    else:
        _write_table(directory, status, now_us, age_us)
        if forwarder is not None:
            written = format_when(forwarder.written_us, now_us)
            when = "" if forwarder.is_fresh(now_us) else f", as it was at {written}"
            write_fields(f"forwarder{when}", _shown_fields(forwarder, now_us))
    for slot in status.unreadable:
        note(f"fj-cli: {slot.path}: {slot.error}")
    return IO_FAILED if status.unreadable else DONE


def _read_status(directory: str) -> ForwarderStatus | None:
    """Return the status of the forwarder; None: there is none, or it cannot be read, and why."""
    from fastjournal.spool.forwarder_status import read_forwarder_status

    try:
        return read_forwarder_status(directory)
    except SpoolFailedError as error:
        note(f"fj-cli: {error}")
        return None


def _watch(directory: str, interval_s: float, count: int | None, *, as_json: bool) -> None:
    """Show the status file again and again."""
    is_live = not as_json and sys.stdout.isatty()
    with suppress(KeyboardInterrupt), _live() if is_live else nullcontext() as live:
        for number in itertools.count(1):
            status, now_us = _read_status(directory), SystemClock().now_us()
            if as_json:
                write_json({"time_us": now_us, "forwarder": _json_fields(status, now_us)})
            elif live is not None:
                live(_live_lines(status, now_us))
            else:
                for line in (*_live_lines(status, now_us), ""):
                    write_line(line)
            if number == count:
                return
            time.sleep(interval_s)  # the time between two looks that the user chose


@contextmanager
def _live() -> Iterator[Callable[[list[str]], None]]:
    """Give a function that shows lines on the terminal, in the place of those before."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(), auto_refresh=False) as live:
        yield lambda lines: live.update(Text("\n".join(map(safe_text, lines))), refresh=True)


def _live_lines(status: ForwarderStatus | None, now_us: int) -> list[str]:
    if status is None:
        return ["no status.json: no forwarder of this release has run here"]
    lines = [f"{name:18}  {value}" for name, value in _shown_fields(status, now_us) if value]
    if not status.is_fresh(now_us):
        lines.append(f"not running: this is from {format_when(status.written_us, now_us)}")
    return lines


def _write_json(status: SpoolStatus, age_us: int | None, forwarder: dict[str, Any] | None) -> None:
    slots: list[SlotStatus | UnreadableSlot] = [*status.slots, *status.unreadable]
    for slot in sorted(slots, key=lambda slot: slot.name):
        fields: dict[str, Any] = msgspec.structs.asdict(slot)
        write_json({"slot": fields.pop("name")} | fields)
    write_json(
        {
            "slot": None,
            "slots": len(status.slots),
            "unreadable": len(status.unreadable),
            "pending": status.pending,
            "dead": status.dead,
            "ignored": status.ignored_count,
            "ignored_names": status.ignored,
            "oldest_pending_us": status.oldest_pending_us,
            "oldest_pending_age_us": age_us,
            "forwarder_running": status.forwarder_running,
            "forwarder": forwarder,
        }
    )


def _write_table(directory: str, status: SpoolStatus, now_us: int, age_us: int | None) -> None:
    from fastjournal.spool.slots import is_drop_in

    drop_ins = [slot for slot in status.slots if is_drop_in(slot.name)]
    if len(drop_ins) <= _DROP_INS_SHOWN:
        drop_ins = []
    folded = {slot.name for slot in drop_ins}
    rows = [_row(slot, now_us) for slot in status.slots if slot.name not in folded]
    if drop_ins:
        rows.append(_row(_sum_of(drop_ins), now_us))
    rows += [(slot.name, "unreadable", "", "", "", "", "") for slot in status.unreadable]
    write_table(
        os.path.abspath(directory),
        ("slot", "pending", "bytes", "erased", "damaged bytes", "incomplete bytes", "oldest"),
        sorted(rows),
    )
    since = "" if age_us is None else f", the oldest for {format_duration(age_us)}"
    write_line(f"pending: {status.pending:,}{since}")
    write_line(f"dead: {status.dead:,}")
    if status.ignored_count:
        names = _some_of(status.ignored, status.ignored_count)
        write_line(f"nothing of a spool: {status.ignored_count:,} ({names})")
    write_line(f"forwarder: {'running' if status.forwarder_running else 'not running'}")
    if status.pending and not status.forwarder_running:
        note("nothing is sent while no forwarder runs; start one: fj-forwarder --spool DIR")


def _sum_of(drop_ins: list[SlotStatus]) -> SlotStatus:
    """Return one row for many drop-ins: there may be 100,000."""
    oldest = [slot.oldest_pending_us for slot in drop_ins if slot.oldest_pending_us is not None]
    return msgspec.structs.replace(
        drop_ins[0],
        name=f"{len(drop_ins):,} drop-ins",
        oldest_pending_us=min(oldest, default=None),
        **{name: sum(getattr(slot, name) for slot in drop_ins) for name in _COUNTS},
    )


def _row(slot: SlotStatus, now_us: int) -> tuple[str, ...]:
    oldest_us = slot.oldest_pending_us
    oldest = "" if oldest_us is None else format_when(oldest_us, now_us)
    return (slot.name, *(f"{getattr(slot, name):,}" for name in _COUNTS), oldest)


_COUNTS = ("pending", "pending_bytes", "erased", "damaged_bytes", "waiting_bytes")
"""Columns of a slot between its name and its oldest record."""

_NAMES_SHOWN = 5


def _some_of(names: list[str], count: int) -> str:
    """Return the first of some names, and whether there are more."""
    shown = ", ".join(names[:_NAMES_SHOWN])
    return shown if count <= _NAMES_SHOWN else f"{shown} ..."


def _json_fields(status: ForwarderStatus | None, now_us: int) -> dict[str, Any] | None:
    """Return the status as JSON has it; ``fresh``: a forwarder that works now has written it."""
    if status is None:
        return None
    return {"fresh": status.is_fresh(now_us), **msgspec.to_builtins(status)}


def _shown_fields(status: ForwarderStatus, now_us: int) -> list[tuple[str, str]]:
    """Return the names and values of a status, for people; empty values are left out."""
    connected, oldest, error = status.connected_us, status.oldest_pending_us, status.last_error_us
    daemon = f"not connected ({', '.join(status.servers)})"
    if status.server is not None and connected is not None:
        daemon = f"{status.server}, since {format_when(connected, now_us)}"
    unread = f", and {status.unread_bytes:,} bytes that were not read" * bool(status.unread_bytes)
    suspects = [f"{suspect.slot} at {suspect.offset}" for suspect in status.suspects]
    delayed = [
        f"{record.slot} at {record.offset}: {record.code or 'no answer'}, {record.tries} tries,"
        f" next {format_when(record.due_us, now_us)}"
        for record in status.delayed_records
    ]
    failed = "" if error is None else f"{format_when(error, now_us)}: {status.last_error}"
    return [
        ("daemon", daemon),
        ("done", f"{status.done:,}, {status.done_per_second:,.1f} a second"),
        ("replaced", _replaced(status)),
        ("pending", f"{status.pending:,}{unread}"),
        ("oldest", "" if oldest is None else format_when(oldest, now_us)),
        ("slots", f"{status.slots:,}"),
        ("in flight", f"{status.in_flight:,}"),
        ("delayed", _counted(status.delayed, delayed)),
        ("suspect", _counted(status.suspect, suspects)),
        ("dead", f"{status.dead:,} ({status.buried:,} were put there since the start)"),
        ("left out", _counted(status.left_out, status.left_out_names)),
        ("nothing of a spool", _counted(status.ignored, status.ignored_names)),
        ("last error", failed),
    ]


def _replaced(status: ForwarderStatus) -> str:
    elsewhere = status.replaced_elsewhere
    text = f"{status.replaced:,} waiting jobs"
    return f"{text}, {elsewhere:,} of them in another queue (same URI)" if elsewhere else text


def _counted(count: int, names: list[str]) -> str:
    return f"{count:,} ({_some_of(names, count)})" if names else f"{count:,}"
