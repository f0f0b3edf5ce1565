"""``fj-cli spool status``: pending and dead records of a spool."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click
import msgspec

from fastjournal.clock import SystemClock
from fj_cli.instants import show_instant
from fj_cli.options import DONE, IO_FAILED, json_option
from fj_cli.output import note, wants_json, write_json, write_line, write_table
from fj_cli.times import format_duration

if TYPE_CHECKING:
    from fastjournal.spool.status import SlotStatus, SpoolStatus, UnreadableSlot

_NAMES_SHOWN = 5


@click.command("status")
@click.argument(
    "directory",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=str),
)
@json_option
def command(directory: str, as_json: bool | None) -> int:
    """Show the slots of the spool DIR, what is pending and dead, and since when.

    In JSON: one object a slot, then one with the sums, whose "slot" is null. Exit code 74: a slot
    cannot be read; it is named, and the others are shown.
    """
    from fastjournal.spool.status import spool_status

    status = spool_status(directory, strict=False)
    oldest = status.oldest_pending_us
    now_us = SystemClock().now_us()
    age_us = None if oldest is None else max(0, now_us - oldest)
    if wants_json(as_json):
        _write_json(status, age_us)
    else:
        _write_table(directory, status, now_us, age_us)
    for slot in status.unreadable:
        note(f"fj-cli: {slot.path}: {slot.error}")
    return IO_FAILED if status.unreadable else DONE


def _write_json(status: SpoolStatus, age_us: int | None) -> None:
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
        }
    )


def _write_table(directory: str, status: SpoolStatus, now_us: int, age_us: int | None) -> None:
    rows = [_row(slot, now_us) for slot in status.slots]
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
        write_line(f"nothing of a spool: {status.ignored_count:,} ({_some_of(status.ignored)})")
    write_line(f"forwarder: {'running' if status.forwarder_running else 'not running'}")
    if status.pending and not status.forwarder_running:
        note("nothing is sent while no forwarder runs; start one: fj-forwarder --spool DIR")


def _row(slot: SlotStatus, now_us: int) -> tuple[str, ...]:
    return (
        slot.name,
        f"{slot.pending:,}",
        f"{slot.pending_bytes:,}",
        f"{slot.erased:,}",
        f"{slot.damaged_bytes:,}",
        f"{slot.waiting_bytes:,}",
        "" if slot.oldest_pending_us is None else show_instant(slot.oldest_pending_us, now_us),
    )


def _some_of(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMES_SHOWN])
    return shown if len(names) <= _NAMES_SHOWN else f"{shown} ..."
