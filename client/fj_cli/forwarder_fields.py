"""Fields of a forwarder's status file, for people and for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from fj_cli.instants import show_instant

if TYPE_CHECKING:
    from fastjournal.spool.forwarder_status import ForwarderStatus

_NAMES_SHOWN = 5


def some_of(names: list[str], count: int) -> str:
    """Return the first of some names, and whether there are more."""
    shown = ", ".join(names[:_NAMES_SHOWN])
    return shown if count <= _NAMES_SHOWN else f"{shown} ..."


def json_fields(status: ForwarderStatus | None, now_us: int) -> dict[str, Any] | None:
    """Return the status as JSON has it; ``fresh``: a forwarder that works now has written it."""
    if status is None:
        return None
    return {"fresh": status.is_fresh(now_us), **msgspec.to_builtins(status)}


def shown_fields(status: ForwarderStatus, now_us: int) -> list[tuple[str, str]]:
    """Return the names and values of a status, for people; empty values are left out."""
    connected, oldest, error = status.connected_us, status.oldest_pending_us, status.last_error_us
    daemon = f"not connected ({', '.join(status.servers)})"
    if status.server is not None and connected is not None:
        daemon = f"{status.server}, since {show_instant(connected, now_us)}"
    unread = f", and {status.unread_bytes:,} bytes that were not read" * bool(status.unread_bytes)
    suspects = [f"{suspect.slot} at {suspect.offset}" for suspect in status.suspects]
    delayed = [
        f"{record.slot} at {record.offset}: {record.code or 'no answer'}, {record.tries} tries,"
        f" next {show_instant(record.due_us, now_us)}"
        for record in status.delayed_records
    ]
    return [
        ("daemon", daemon),
        ("done", f"{status.done:,}, {status.done_per_second:,.1f} a second"),
        ("pending", f"{status.pending:,}{unread}"),
        ("oldest", "" if oldest is None else show_instant(oldest, now_us)),
        ("slots", f"{status.slots:,}"),
        ("in flight", f"{status.in_flight:,}"),
        ("delayed", _counted(status.delayed, delayed)),
        ("suspect", _counted(status.suspect, suspects)),
        ("dead", f"{status.dead:,} ({status.buried:,} were put there since the start)"),
        ("left out", _counted(status.left_out, status.left_out_names)),
        ("nothing of a spool", _counted(status.ignored, status.ignored_names)),
        (
            "last error",
            "" if error is None else f"{show_instant(error, now_us)}: {status.last_error}",
        ),
    ]


def _counted(count: int, names: list[str]) -> str:
    return f"{count:,} ({some_of(names, count)})" if names else f"{count:,}"
