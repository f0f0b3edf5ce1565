"""Fetch of the records that make entries, by their offsets, from their segment.

Second stage of the view ``entries`` and of the export: ``live_entries.plan`` says which
records. Values are read only here, and only those of records that are chosen. No pyspark here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from fastjournal.errors import LogCorruptError
from fastjournal.spark.decoding.byte_arrays import (
    ByteStrings,
    Integers,
    Numbers,
    Offsets,
    SegmentBytes,
)
from fastjournal.spark.decoding.rows import decode_row, read_bytes
from fastjournal.spark.decoding.vectorised.chunk import Chunk, parts_of
from fastjournal.spark.decoding.vectorised.columns import VECTOR_COLUMNS
from fastjournal.spark.decoding.vectorised.decode import RecordArrays
from fastjournal.spark.decoding.vectorised.frames import Frames, valid_frames
from fastjournal.spark.decoding.vectorised.vectorised_reader import read_batches
from fastjournal.spark.live_entries.facts import Arrivals, serial_numbers
from fastjournal.spark.live_entries.partition_replay import ENTRY_ARROW_SCHEMA, PartReplay, to_batch
from fastjournal.spark.storage.files import LOG_IN_USE, SegmentFile

REPLAYED_SCHEMA = pa.schema(
    [
        ("label", pa.int64()),
        ("segment", pa.int32()),
        ("offset", pa.int64()),
        ("raw", pa.binary()),
        ("token", pa.binary()),
        ("ours", pa.bool_()),
        ("serial", pa.int64()),
        ("doubt", pa.int32()),
    ]
)
"""Records to replay. ``serial``: serial number of a job of workq's own."""
_STATES = pa.array(["waiting", "worked_on", "buried"])
_RAW = ("segment", "offset", "_raw", "_token", "_ours", "_doubt")


class Base(NamedTuple):
    """Serial numbers before a segment, see ``facts.serial_numbers``."""

    earlier: int = 0
    ahead: int = 0


# --- records that are entries as they stand -------------------------------------------------------


def read_entries(
    files: Any, segment: SegmentFile, offsets: Offsets, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the entries of records that need no replay.

    Args:
        files: The pyarrow file system that the segment is on.
        segment: Which one.
        offsets: Those of the records, ascending.
        names: Columns to build, from ``partition_replay.ENTRY_COLUMNS``.

    Raises:
        LogCorruptError: The segment is another one by now.
        LogFailedError: It cannot be read.
    """
    if not len(offsets):
        return
    data = read_bytes(files, segment)
    arrays = SegmentBytes(data)
    start, body, end = _choose(valid_frames(data, arrays), offsets, segment)
    for part in parts_of(start):
        records = RecordArrays(arrays, start[part], body[part], end[part])
        records.decode(contents=True, operations=True)
        irregular = records.irregular.copy()
        batch = entry_columns(Chunk(records, segment.number), names)
        if irregular.any():
            batch = batch.filter(pa.array(~irregular))
            yield _by_replay(data, segment, records, np.flatnonzero(irregular), names)
        if len(batch):
            yield batch


def _choose(frames: Frames, offsets: Offsets, segment: SegmentFile) -> Frames:
    """Return the frames of the records at these offsets."""
    index = np.searchsorted(frames.start, offsets)
    if (
        not len(frames.start)
        or not (frames.start[np.minimum(index, len(frames.start) - 1)] == offsets).all()
    ):
        raise LogCorruptError(
            "the segment was replaced while it was read", path=segment.path, hint=LOG_IN_USE
        )
    return Frames(frames.start[index], frames.body[index], frames.end[index])


def entry_columns(chunk: Chunk, names: Sequence[str]) -> pa.RecordBatch:
    """Return the columns of records that are entries as they stand.

    Args:
        chunk: The records.
        names: Columns to build, from ``partition_replay.ENTRY_COLUMNS``.
    """
    schema = pa.schema([ENTRY_ARROW_SCHEMA.field(name) for name in names])
    columns = [
        _state(chunk) if name == "state" else VECTOR_COLUMNS[name].array(chunk) for name in names
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


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


def _by_replay(
    data: bytes, segment: SegmentFile, records: RecordArrays, chosen: Offsets, names: Sequence[str]
) -> pa.RecordBatch:
    """Return the entries of records of rare forms."""
    replay = PartReplay()
    for index in chosen:
        start, behind = int(records.start[index]), int(records.behind[index])
        row = decode_row(data, segment, start, int(records.body[index]), behind)
        replay.feed(segment.number, start, row.raw, token=None, ours=True)
    return to_batch(list(replay.finish())).select(names)


# --- records to replay ----------------------------------------------------------------------------


def read_replayed(
    files: Any,
    segment: SegmentFile,
    offsets: Offsets,
    labels: Numbers,
    base: Base,
    *,
    permissive: bool,
) -> Iterator[pa.RecordBatch]:
    """Yield the records at these offsets with their labels, as ``REPLAYED_SCHEMA``.

    Args:
        files: The pyarrow file system that the segment is on.
        segment: Which one.
        offsets: Those of the records, ascending.
        labels: Those of the records.
        base: Serial numbers before the segment.
        permissive: Damage is passed over.

    Raises:
        LogCorruptError: Damage, where not ``permissive``; or the segment is another one by now.
        LogFailedError: It cannot be read.
    """
    arrivals = Arrivals()
    found = 0
    names = (*_RAW, "foreign", "arrival")
    for batch in read_batches(files, segment, names, permissive=permissive):
        is_foreign, numbers, leads = arrivals.number(batch)
        places = batch.column("offset").to_numpy()
        index = np.searchsorted(offsets, places)
        chosen = np.flatnonzero(offsets[np.minimum(index, len(offsets) - 1)] == places)
        if not len(chosen):
            continue
        found += len(chosen)
        serial = serial_numbers(numbers, leads, base.earlier, base.ahead)
        batch = batch.append_column("serial", pa.array(serial, mask=~is_foreign))
        batch = batch.append_column("label", pa.array(_labels_at(labels, index, chosen)))
        columns = ("label", *_RAW[:2], "_raw", "_token", "_ours", "serial", "_doubt")
        rows = batch.select(columns).take(pa.array(chosen))
        yield pa.RecordBatch.from_arrays(rows.columns, schema=REPLAYED_SCHEMA)
    if found < len(offsets):
        raise LogCorruptError(
            "the segment was replaced while it was read", path=segment.path, hint=LOG_IN_USE
        )


def _labels_at(labels: Numbers, index: Offsets, chosen: Offsets) -> Numbers:
    found = np.zeros(len(index), np.int64)
    found[chosen] = labels[index[chosen]]
    return found
