"""Kinds of records by their effect on entries, and hashes of the keys in a record."""

from __future__ import annotations

from enum import IntEnum

from fastjournal.cmdlog.format.layout import Command
from fastjournal.cmdlog.format.operation_records import Change, End, Link, Rename, Resize, Value
from fastjournal.spark.decoding.byte_arrays import hash_of
from fastjournal.spark.decoding.rows import RecordRow


class RecordKind(IntEnum):
    """Kind of a record. Those up to ``LINKED`` make an entry."""

    ENTRY = 0
    """An entry with a key and perhaps a URI."""
    FOREIGN = 1
    """A job of workq's own."""
    LINKED = 2
    """An entry with further keys."""
    REMOVAL = 3
    CHANGE = 4
    """A change that has no effect on other jobs."""
    WRITE = 5
    """A change of the value, and so of the timestamp."""
    LINK = 6
    RENAME = 7
    DOUBTFUL = 8
    """A removal behind damage, which may be not applied."""
    SEGMENT = 9
    """No record, but facts about the whole segment."""
    CHAIN = 10
    """A statement about the segments of the log."""
    DAMAGE = 11


REMOVALS = (Command.COMPLETE, Command.DELETE, Command.EXPIRE)


def kind_of(row: RecordRow) -> int | None:
    """Return the kind of a record; None: it has no effect on any entry."""
    operation = row.operation
    if row.entry is not None:
        if row.foreign:
            return RecordKind.FOREIGN
        return RecordKind.LINKED if row.entry.links or row.entry.taken else RecordKind.ENTRY
    if row.record is None or (operation is not None and not isinstance(operation, Change)):
        return None
    if isinstance(operation, End):
        return RecordKind.REMOVAL if operation.removes else RecordKind.CHANGE
    if isinstance(operation, Value | Resize):
        return RecordKind.WRITE
    if isinstance(operation, Link):
        return RecordKind.LINK
    if isinstance(operation, Rename):
        return RecordKind.RENAME
    return RecordKind.REMOVAL if row.record.command in REMOVALS else RecordKind.CHANGE


def high_half(row: RecordRow) -> int | None:
    """Return the first half of the id of the job that a record concerns."""
    return int.from_bytes(row.target[:8], "big", signed=True) if row.target else None


def low_half(row: RecordRow) -> int | None:
    """Return the second half of the id of the job that a record concerns."""
    return int.from_bytes(row.target[8:], "big", signed=True) if row.target else None


def key_of(row: RecordRow) -> bytes | None:
    """Return the key in a record."""
    for source in (row.entry, row.completion, row.operation):
        # without a tombstone, a domain stands there
        if getattr(source, "timestamp", 0) is not None:
            key: bytes | None = getattr(source, "key", None)
            if key is not None:
                return key
    return None


def key_hash(row: RecordRow) -> int | None:
    """Return the hash of the key in a record."""
    key = key_of(row)
    return None if key is None else hash_of(key)


def uri_hash(row: RecordRow) -> int | None:
    """Return the hash of the URI of an entry."""
    uri = None if row.entry is None else row.entry.uri
    return None if uri is None else hash_of(uri)


def link_hashes(row: RecordRow) -> list[int] | None:
    """Return the hashes of the further keys of an entry; None: it has none."""
    return None if row.entry is None else [hash_of(key) for key in row.entry.links] or None
