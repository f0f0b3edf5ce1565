"""Fetch of live entries: the records at given positions of a segment, decoded column by column.

They are rows of the view ``entries``: columns of the view ``records``, and the state of an entry.

Only these records are read, in pieces of ``CHUNK_BYTES``, and each one's checksum is checked. An
entry that later records changed, and one of a rare form, is decoded alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from fastjournal.cmdlog.format.layout import CRC_BYTES, SIMPLE_BODY_BYTES, TIME_BYTES
from fastjournal.cmdlog.live_index import LiveChanges, LiveRecords, ReadBytes
from fastjournal.errors import LogCorruptError
from fastjournal.keys import parse_journal_key
from fastjournal.spark.decoding.byte_arrays import (
    END_BYTES,
    ByteStrings,
    Integers,
    Mask,
    Offsets,
    SegmentBytes,
)
from fastjournal.spark.decoding.rows import RecordRow, decode_row
from fastjournal.spark.decoding.vectorised.chunk import Chunk, parts_of
from fastjournal.spark.decoding.vectorised.columns import VECTOR_COLUMNS
from fastjournal.spark.decoding.vectorised.decode import ENVELOPE_FIELDS, RecordArrays
from fastjournal.spark.decoding.vectorised.frames import Frames, right_checksums
from fastjournal.spark.decoding.view_columns import CORRUPT_COLUMN, READABLE, Column, to_batch
from fastjournal.spark.storage.files import SegmentFile


def _state_of_row(row: RecordRow) -> str | None:
    if row.entry is None:
        return None
    if row.entry.token:
        return "worked_on"
    return "waiting" if row.entry.reason is None else "buried"


_NAMES = (
    "key", "uri", "links", "domain", "priority", "not_before", "id", "state", "value_type", "value",
    "timestamp", "created", "modified", "expires", "ttl", "arrival", "attempts", "worked_on_until",
    "superseded", "reason", "job_id", "segment", "offset",
)  # fmt: skip
_KNOWN = READABLE | {"state": Column("state", "text", _state_of_row)}

ENTRY_COLUMNS = tuple(_KNOWN[name] for name in _NAMES)
ENTRY_ARROW_SCHEMA = pa.schema([(column.name, column.arrow) for column in ENTRY_COLUMNS])
_COLUMNS = {column.name: column for column in (*ENTRY_COLUMNS, CORRUPT_COLUMN)}
READABLE_SCHEMA = ENTRY_ARROW_SCHEMA.append(pa.field(CORRUPT_COLUMN.name, CORRUPT_COLUMN.arrow))
_LAST_RECORD_BYTES = 4096
"""Bytes read of the last record of a piece, before its size is known."""
_STATES = pa.array(["waiting", "worked_on", "buried"])
_HINT = "read another snapshot; option mode=permissive leaves out what cannot be read"


def read_entries(
    read: ReadBytes,
    segment: SegmentFile,
    records: LiveRecords,
    names: Sequence[str],
    *,
    permissive: bool,
) -> Iterator[pa.RecordBatch]:
    """Yield the entries that records at some places of a segment carry.

    Args:
        read: Takes offset and size; returns so many bytes of the segment, or fewer at its end.
        segment: Which one.
        records: The places, and changes by later records.
        names: Columns to build, of ``READABLE_SCHEMA``; one at least.
        permissive: A damaged record becomes a row with ``_corrupt``; otherwise it ends the reading.

    Raises:
        LogCorruptError: A record is damaged, or carries no entry, where not ``permissive``.
        LogFailedError: The segment cannot be read.
    """
    offsets = np.asarray(records.offsets, np.int64)
    changed = np.sort(np.fromiter(records.changes, np.int64, len(records.changes)))
    for part in parts_of(offsets):
        piece = _RecordPiece(read, segment, offsets[part])
        if piece.damage and not permissive:
            raise piece.damage[0]
        yield from piece.batches(records.changes, changed, names)
        for error in piece.damage:
            if not permissive:
                raise error
            yield damage_row(names, segment.number, error)


def damage_row(names: Sequence[str], segment: int | None, error: LogCorruptError) -> pa.RecordBatch:
    """Return the row of damage, of mode permissive."""
    error.hint = None
    told = {"segment": segment, "offset": error.offset, CORRUPT_COLUMN.name: str(error)}
    fields = [READABLE_SCHEMA.field(name) for name in names]
    arrays = [pa.array([told.get(field.name)], field.type) for field in fields]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


class _RecordPiece:
    """Records at places side by side, read together.

    Args:
        read: Reads the segment.
        segment: Which one.
        offsets: The places, ascending; few enough for ``CHUNK_BYTES``.
    """

    def __init__(self, read: ReadBytes, segment: SegmentFile, offsets: Offsets) -> None:
        self._segment = segment
        self._first = int(offsets[0])
        self._data = _read_records(read, self._first, int(offsets[-1]), segment.bytes)
        self._arrays = SegmentBytes(self._data)
        self.damage: list[LogCorruptError] = []
        """Errors of the records that cannot be read."""
        frames, valid = _frames_at(self._data, self._arrays, offsets - self._first)
        for offset in offsets[~valid].tolist():
            self._add_damage(offset, "the record of a live entry is damaged")
        self._frames = Frames(*(column[valid] for column in frames))

    def _add_damage(self, offset: int, why: str) -> None:
        path = self._segment.path
        self.damage.append(LogCorruptError(why, path=path, offset=offset, hint=_HINT))

    def batches(
        self, changes: Mapping[int, LiveChanges], changed: Offsets, names: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the entries: those without changes by later records, then the others.

        Args:
            changes: Changes by offset.
            changed: The offsets of these, ascending.
            names: Columns to build.
        """
        start, body, end = self._frames
        if not len(start):
            return
        last_field = max(map(_last_field, names))
        records = RecordArrays(self._arrays, start, body, end, last_field)
        records.decode(contents=last_field >= 0, operations=False)
        single = records.irregular | _are_in(start + self._first, changed)
        if last_field >= 0:
            carries = single.copy()
            carries[records.entries.rows] = True
            single |= ~carries
        if not single.all():
            chunk = Chunk(records, self._segment.number)
            columns = [self._column(name, chunk) for name in names]
            batch = pa.RecordBatch.from_arrays(columns, names)
            yield batch.filter(pa.array(~single)) if single.any() else batch
        found = list(self._single(np.flatnonzero(single), changes))
        if found:
            yield to_batch(found, [_COLUMNS[name] for name in names])

    def _column(self, name: str, chunk: Chunk) -> pa.Array:
        if name == "offset":
            return pa.array(chunk.arrays.start + self._first)
        if name == "state":
            return _state(chunk)
        if name == CORRUPT_COLUMN.name:
            return pa.nulls(len(chunk.arrays), CORRUPT_COLUMN.arrow)
        return VECTOR_COLUMNS[name].array(chunk)

    def _single(self, rows: Offsets, changes: Mapping[int, LiveChanges]) -> Iterator[RecordRow]:
        """Yield entries that are decoded one by one."""
        start, body, end = (column[rows].tolist() for column in self._frames)
        for at, inner, behind in zip(start, body, end, strict=True):
            offset = at + self._first
            try:
                row = decode_row(self._data, self._segment, at, inner, behind + CRC_BYTES)
                row.offset = offset
                yield change_entry(row, changes.get(offset))
            except LogCorruptError as error:
                self._add_damage(offset, error.message)


def _last_field(name: str) -> int:
    """Return the number of the last field of envelopes that a column needs."""
    if name == "state":
        return ENVELOPE_FIELDS.index("reason")
    return VECTOR_COLUMNS[name].last_field if name in VECTOR_COLUMNS else -1


def _are_in(offsets: Offsets, chosen: Offsets) -> Mask:
    """Return which offsets are among others, which ascend."""
    if not len(chosen):
        return np.zeros(len(offsets), np.bool_)
    index = np.minimum(np.searchsorted(chosen, offsets), len(chosen) - 1)
    found: Mask = chosen[index] == offsets
    return found


def _read_records(read: ReadBytes, first: int, last: int, stop: int) -> bytes:
    """Return the bytes from the first record to after the last one, and ``END_BYTES`` zeros.

    A size beyond the segment, which ends at ``stop``, is damage: that is not read.
    """
    data = read(first, last - first + _LAST_RECORD_BYTES)
    head = SegmentBytes(data[last - first :] + bytes(END_BYTES))
    size = head.uvarints(np.array([TIME_BYTES]))
    behind = last + int(size.end[0]) + int(size.numbers[0]) + CRC_BYTES
    read_to = first + len(data)
    rest = read(read_to, behind - read_to) if read_to < behind <= stop else b""
    return b"".join((data, rest, bytes(END_BYTES)))


def _frames_at(data: bytes, arrays: SegmentBytes, start: Offsets) -> tuple[Frames, Mask]:
    """Return the frames of records, and whether each is one whose checksum is right."""
    size = arrays.uvarints(start + TIME_BYTES)
    stop = len(data) - END_BYTES
    valid = size.valid & (size.numbers >= SIMPLE_BODY_BYTES) & (size.numbers <= stop)
    end = size.end + np.where(valid, size.numbers, 0).astype(np.int64)
    valid &= end + CRC_BYTES <= stop
    valid[valid] = right_checksums(data, arrays, start[valid], end[valid])
    return Frames(start, size.end, end), valid


def _state(chunk: Chunk) -> pa.Array:
    entries = chunk.arrays.entries
    state = np.zeros(len(entries.rows), np.int64)
    reason = entries.fields.get("reason")
    if isinstance(reason, ByteStrings) and reason.none is not None:
        state[~reason.none] = 2
    token = entries.fields.get("token")
    if isinstance(token, Integers):
        state[token.numbers > 0] = 1
    return _STATES.take(chunk.numbers(entries.rows, state, entries.valid, "long"))


def change_entry(row: RecordRow, changes: LiveChanges | None) -> RecordRow:
    """Return the row of the record that carries an entry, with the current entry.

    Args:
        row: The record; it is changed.
        changes: Changes by later records; None: the entry equals its record.

    Raises:
        LogCorruptError: The record carries no entry.
    """
    entry = row.entry
    if entry is None:
        raise LogCorruptError("the record carries no entry")
    if changes is not None:
        changed: dict[str, Any] = msgspec.structs.asdict(changes)
        value = changes.value
        if value is None:
            changed["value"] = entry.value
        elif isinstance(value, tuple):
            kept, size = value
            changed["value"] = entry.value[:kept].ljust(size, b"\0")
        row.entry = msgspec.structs.replace(entry, **changed)
        row.journal = parse_journal_key(changes.key)
    return row
