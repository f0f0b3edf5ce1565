"""Rows of the view ``entries``: the columns of a live entry, and entries one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from fastjournal.cmdlog.format.segments import pack_position
from fastjournal.cmdlog.live_index import LiveChanges
from fastjournal.cmdlog.recovery.replayed_entry import ReplayedEntry, replayed_entry
from fastjournal.errors import LogCorruptError
from fastjournal.keys import parse_journal_key
from fastjournal.spark.decoding.rows import RecordRow
from fastjournal.spark.decoding.view_columns import ARROW_TYPES, cut, text


class LiveEntry:
    """A live entry, and where the record that carries it stands.

    Args:
        job: The entry.
        segment: Number of the segment.
        offset: Where the record begins there.
    """

    __slots__ = ("job", "offset", "parts", "segment")

    def __init__(self, job: ReplayedEntry, segment: int, offset: int) -> None:
        self.job = job
        self.segment = segment
        self.offset = offset
        self.parts = parse_journal_key(job.key)
        """Parts of its key; None: it is a plain one."""


def live_entry(row: RecordRow, changes: LiveChanges | None) -> LiveEntry:
    """Return the entry that a record carries.

    Args:
        row: The record.
        changes: Changes by later records; None: it is as it stands there.

    Raises:
        LogCorruptError: The record carries no entry.
    """
    entry = row.entry
    if entry is None or row.record is None:
        raise LogCorruptError("the record carries no entry")
    if changes is not None:
        value = changes.value
        if isinstance(value, tuple):
            kept, size = value
            value = entry.value[:kept].ljust(size, b"\0")
        entry = msgspec.structs.replace(
            entry,
            key=changes.key,
            uri=changes.uri,
            links=changes.links,
            value=entry.value if value is None else value,
            timestamp=changes.timestamp,
            created=changes.created,
            modified=changes.modified,
            arrival=changes.arrival,
            not_before=changes.not_before,
            expires=changes.expires,
            ttl=changes.ttl,
            attempts=changes.attempts,
            token=changes.token,
            superseded=changes.superseded,
            reason=changes.reason,
        )
    position = pack_position(row.segment, row.offset)
    job = replayed_entry(entry, row.record.job_id, position, len(row.raw))
    return LiveEntry(job, row.segment, row.offset)


class EntryColumn(NamedTuple):
    """One column of the view ``entries``."""

    name: str
    kind: str
    value: Callable[[LiveEntry], Any]


def _of(name: str) -> Callable[[LiveEntry], Any]:
    return lambda found: getattr(found.job, name)


def _instant(name: str) -> Callable[[LiveEntry], Any]:
    return lambda found: cut(getattr(found.job, name))


def _text_of_part(name: str) -> Callable[[LiveEntry], str | None]:
    return lambda found: None if found.parts is None else text(getattr(found.parts, name))


def _state(found: LiveEntry) -> str:
    if found.job.token:
        return "worked_on"
    return "waiting" if found.job.reason is None else "buried"


ENTRY_COLUMNS = (
    EntryColumn("key", "bytes", _of("key")),
    EntryColumn("uri", "bytes", _of("uri")),
    EntryColumn("links", "list", _of("links")),
    EntryColumn("domain", "text", _text_of_part("domain")),
    EntryColumn("priority", "int", lambda f: None if f.parts is None else f.parts.priority),
    EntryColumn("not_before", "long", _instant("not_before")),
    EntryColumn("id", "text", _text_of_part("id")),
    EntryColumn("state", "text", _state),
    EntryColumn("value_type", "int", _of("value_type")),
    EntryColumn("value", "bytes", _of("value")),
    EntryColumn("timestamp", "long", _instant("timestamp")),
    EntryColumn("created", "long", _instant("created")),
    EntryColumn("modified", "long", _instant("modified")),
    EntryColumn("expires", "long", _instant("expires")),
    EntryColumn("ttl", "long", _instant("ttl")),
    EntryColumn("arrival", "long", _instant("arrival")),
    EntryColumn("attempts", "int", _of("attempts")),
    EntryColumn("worked_on_until", "long", _instant("token")),
    EntryColumn("superseded", "long", _instant("superseded")),
    EntryColumn("reason", "text", lambda f: None if f.job.reason is None else text(f.job.reason)),
    EntryColumn("job_id", "text", lambda f: f.job.job_id.hex()),
    EntryColumn("segment", "int", lambda f: f.segment),
    EntryColumn("offset", "long", lambda f: f.offset),
)
ENTRY_ARROW_SCHEMA = pa.schema(
    [(column.name, ARROW_TYPES[column.kind]) for column in ENTRY_COLUMNS]
)
_BY_NAME = {column.name: column for column in ENTRY_COLUMNS}


def entry_column(name: str, found: Sequence[LiveEntry]) -> pa.Array:
    """Return one column of entries."""
    column = _BY_NAME[name]
    return pa.array([column.value(one) for one in found], type=ARROW_TYPES[column.kind])
