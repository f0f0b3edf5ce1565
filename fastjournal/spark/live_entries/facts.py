"""Facts of records: the few numbers that decide which entries are live, without values.

First stage of the view ``entries`` and of the export, which ``fastjournal.spark.live_entries.plan``
explains. A row is a record with an effect on entries; its ``place`` sorts as the log does. Each
segment has one more row, of kind ``SEGMENT``: ``key`` is the number of workq's own jobs in it,
``timestamp`` by how much serial numbers of ours lead before them, ``high`` the size and ``low`` the
checksum of the file. No pyspark here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fastjournal.cmdlog.format.operation_records import unpack_operation
from fastjournal.cmdlog.recovery.segment_chain import CHAIN_RECORDS, Chain, Seal
from fastjournal.spark.decoding.byte_arrays import Mask, Numbers, Offsets
from fastjournal.spark.decoding.rows import RecordKind
from fastjournal.spark.decoding.vectorised.vectorised_reader import read_batches
from fastjournal.spark.storage.files import LogDirectory, SegmentFile, check_chain

PLACE_BITS = 33
"""Bits of the offset in a place: the segment's number takes the 30 bits before them."""
FACTS_SCHEMA = pa.schema(
    [
        ("place", pa.int64()),
        ("kind", pa.int32()),
        ("high", pa.int64()),
        ("low", pa.int64()),
        ("key", pa.int64()),
        ("uri", pa.int64()),
        ("links", pa.list_(pa.field("element", pa.int64()))),
        ("timestamp", pa.int64()),
        ("note", pa.binary()),
    ]
)
"""``high`` and ``low`` are the job id; ``key``, ``uri`` and ``links`` are hashes."""
CHAIN_FACTS = (
    "SELECT place, kind, high AS bytes, low AS crc32c, note FROM {facts} "
    f"WHERE kind IN ({RecordKind.SEGMENT:d}, {RecordKind.CHAIN:d}) ORDER BY place"
)
"""Query of the rows that ``check_facts`` takes, with the name of a relation for ``facts``."""
_READ = (
    "segment", "offset", "_kind", "_high", "_low", "_key", "_uri", "_links", "timestamp",
    "_doubt", "_chain", "_bytes", "_crc32c", "foreign", "arrival",
)  # fmt: skip


def check_facts(source: LogDirectory, rows: Iterable[tuple[int, int, Any, Any, Any]]) -> None:
    """Check by the rows of ``CHAIN_FACTS`` that every segment is there, and what the log says.

    Raises:
        LogCorruptError: A segment is missing, or was cut or replaced.
    """
    chain = Chain()
    files: dict[int, Seal] = {}
    for place, kind, size, crc32c, note in rows:
        number = place >> PLACE_BITS
        if kind == RecordKind.CHAIN:
            operation = unpack_operation(bytes(note))
            assert isinstance(operation, CHAIN_RECORDS)
            chain.take(number, operation)
        elif size is not None:
            files[number] = Seal(size, crc32c)
    check_chain(source, chain, files)


def place_of(segment: int, offset: int) -> int:
    """Return the place of a record: places sort as the records of a log do."""
    return segment << PLACE_BITS | offset


def offset_of(place: Numbers) -> Offsets:
    """Return the offsets in their segment of records at these places."""
    return place & ((1 << PLACE_BITS) - 1)


def read_facts(files: Any, segment: SegmentFile, *, permissive: bool) -> Iterator[pa.RecordBatch]:
    """Yield the facts of one segment's records, in order; those of the segment come last.

    Args:
        files: The pyarrow file system that it is on.
        segment: Which one.
        permissive: Damage becomes a row of kind ``DAMAGE``; otherwise it ends the reading.

    Raises:
        LogCorruptError: Damage, with path and offset, where not ``permissive``.
        LogFailedError: The file cannot be read.
    """
    names = (*_READ, "_corrupt") if permissive else _READ
    arrivals = Arrivals()
    size = crc32c = None
    for batch in read_batches(files, segment, names, permissive=permissive):
        arrivals.number(batch)
        if size is None:
            size, crc32c = batch.column("_bytes")[0].as_py(), batch.column("_crc32c")[0].as_py()
        yield _facts_of(batch, segment.number)
    row = (
        place_of(segment.number, 0),
        RecordKind.SEGMENT,
        size,
        crc32c,
        arrivals.foreign,
        None,
        None,
    )
    columns = [[value] for value in (*row, arrivals.lead, None)]
    yield pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, FACTS_SCHEMA, strict=True)],
        schema=FACTS_SCHEMA,
    )


def _facts_of(batch: pa.RecordBatch, segment: int) -> pa.RecordBatch:
    kind = batch.column("_kind")
    chain = batch.column("_chain")
    note = chain
    doubtful = pc.greater(batch.column("_doubt"), 0)
    kind = pc.if_else(doubtful, pa.scalar(RecordKind.DOUBTFUL, pa.int32()), kind)
    if chain.null_count < len(chain):
        kind = pc.if_else(chain.is_valid(), pa.scalar(RecordKind.CHAIN, pa.int32()), kind)
    if "_corrupt" in batch.schema.names:
        corrupt = batch.column("_corrupt")
        kind = pc.if_else(corrupt.is_valid(), pa.scalar(RecordKind.DAMAGE, pa.int32()), kind)
        note = pc.coalesce(chain, corrupt.cast(pa.binary()))
    place = pc.add(batch.column("offset"), place_of(segment, 0))
    names = ("_high", "_low", "_key", "_uri", "_links", "timestamp")
    arrays = [place, kind, *(batch.column(name) for name in names), note]
    facts = pa.RecordBatch.from_arrays(arrays, schema=FACTS_SCHEMA)
    return facts if not kind.null_count else facts.filter(kind.is_valid())


class Arrivals:
    """Serial numbers of one segment's entries, as far as the segment alone tells them.

    Replay gives a job of workq's own the highest serial number so far in the log, and one more.

    Attributes:
        foreign: Jobs of workq's own so far.
        lead: The largest serial number of ours so far, less the jobs of workq's before it; None:
            there is none of ours.
    """

    def __init__(self) -> None:
        self.foreign = 0
        self.lead: int | None = None

    def number(self, batch: pa.RecordBatch) -> tuple[Mask, Numbers, Numbers]:
        """Go on with the columns ``foreign`` and ``arrival`` of the next records.

        Returns:
            Which are workq's own jobs; for each record their number so far; the lead so far.
        """
        foreign = batch.column("foreign")
        mask: Mask = np.asarray(foreign.fill_null(False).to_numpy(zero_copy_only=False), np.bool_)
        arrivals = batch.column("arrival")
        # entries have one, and the first record of a segment
        told: Mask = np.asarray(arrivals.is_valid().to_numpy(zero_copy_only=False), np.bool_)
        told &= ~mask
        arrival = arrivals.fill_null(0).to_numpy(zero_copy_only=False)
        numbers = np.cumsum(mask) + self.foreign
        start = -1 if self.lead is None else self.lead
        led = np.where(told, arrival - numbers, start)
        leads = np.maximum.accumulate(np.maximum(led, start)) if len(led) else led
        if told.any():
            self.lead = int(led.max()) if self.lead is None else max(self.lead, int(led.max()))
        self.foreign = int(numbers[-1]) if len(numbers) else self.foreign
        return mask, numbers, leads


def serial_numbers(numbers: Numbers, leads: Numbers, earlier: int, ahead: int) -> Numbers:
    """Return the serial numbers of workq's own jobs.

    Args:
        numbers: Their number in the segment, from ``Arrivals.number``.
        leads: The lead of ours before each, from there too.
        earlier: Jobs of workq's own in the segments before.
        ahead: By how much serial numbers of ours lead before the segment.
    """
    found: Numbers = earlier + numbers + np.maximum(max(ahead, 0), leads - earlier)
    return found
