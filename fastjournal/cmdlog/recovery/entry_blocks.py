"""Entry blocks: the entries in consecutive records of a segment, decoded in bulk. Pure.

Most records of a log carry ordinary entries of fastjournald. Adjacent ones are a block: their
fields are extracted from the segment as rows, which are the arguments of ``ReplayedEntry`` in their
order, and replay places them together (``cmdlog.recovery.replay``). Replay decodes every other
record, and entries with more rules: those with links, and those that name what they supersede.

Native leaves decode the plain entries of a block, without a row for each.

A block can be packed, in another process for example: a msgpack array of rows, which are decoded to
entries without a step of the interpreter for each.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from itertools import starmap
from typing import TypeAlias

import msgspec
from msgspec.structs import astuple

from fastjournal import _native
from fastjournal.cmdlog.format.envelope import MAGIC, MAGIC_BYTES, Envelope
from fastjournal.cmdlog.format.layout import (
    FIELDS_AT,
    JOB_ID_AT,
    JOB_TAIL_BYTES,
    OFFSET_BITS,
    RUN_BYTES,
    SHORT_FIELD_AT,
    SHORT_MAX,
    Command,
)
from fastjournal.cmdlog.format.records import OPERATION_HEAD, skip_head
from fastjournal.cmdlog.recovery.replayed_entry import (
    NO_COLD_FIELDS,
    ReplayedEntry,
    replayed_entry,
    replayed_facts,
)
from fastjournal.cmdlog.recovery.scan import OFFSET, OFFSET_MAX, RecordRun

BLOCK_RECORDS_MIN = 8
"""Fewer entries side by side are no block: one by one they take no longer."""
BLOCK_RECORDS_MAX = 1024
"""Their rows and entries stay in the cache of the processor."""

Row: TypeAlias = tuple[object, ...]

_decode_entry = msgspec.msgpack.Decoder(Envelope).decode
_decode_rows = msgspec.msgpack.Decoder(list[ReplayedEntry]).decode
_decode_plain_rows = msgspec.msgpack.Decoder(list[tuple[bytes | None, ...]]).decode
_PLAIN_ROW_FIELDS = 5
pack_rows = msgspec.msgpack.Encoder().encode
"""Takes a list of rows; returns what ``unpack_rows`` takes."""
_OPERATION_NAME_BYTES = OPERATION_HEAD[0]
_SCHEDULE = Command.SCHEDULE.value


class RowBlock(msgspec.Struct, gc=False):
    """Entries side by side, of one run of the daemon, as rows."""

    first: int
    """Index of the record of the first one in its run of valid records."""
    arrival: int
    """Highest serial number of them."""
    rows: list[Row]

    @property
    def plain(self) -> bool:
        """Whether no row has more than facts, key, URI, value and job id."""
        return max(map(len, self.rows)) == _PLAIN_ROW_FIELDS


class EntryBlock(msgspec.Struct, gc=False):
    """The same as entries."""

    first: int
    arrival: int
    jobs: list[ReplayedEntry]


def entry_blocks(data: bytes, number: int, run: RecordRun) -> Iterator[EntryBlock]:
    """Yield the blocks of a run of valid records, in ascending order.

    Args:
        data: The segment.
        number: Its number.
        run: From ``scan_segment``.
    """
    leaves = _native.leaves
    if leaves is None or len(data) > OFFSET_MAX:
        yield from _blocks_between(data, number, run, 0, len(run))
        return
    offsets = [
        each if isinstance(each, array) else array(OFFSET, each) for each in (run.bodies, run.ends)
    ]
    index = 0
    while index < len(run):
        found = leaves.read_entries(ReplayedEntry, data, number, run.start, *offsets, index)
        first, jobs, arrival = found
        # entries with more to them
        yield from _blocks_between(data, number, run, index, first)
        if len(jobs) >= BLOCK_RECORDS_MIN:
            yield EntryBlock(first, arrival, jobs)
        index = first + len(jobs)


def _blocks_between(
    data: bytes, number: int, run: RecordRun, first: int, stop: int
) -> Iterator[EntryBlock]:
    """Yield the blocks of some records of a run."""
    if stop - first < BLOCK_RECORDS_MIN:
        return
    part = RecordRun(run.offset(first), run.bodies[first:stop], run.ends[first:stop])
    for block in row_blocks(data, number, part):
        jobs = list(starmap(ReplayedEntry, block.rows))
        yield EntryBlock(first + block.first, block.arrival, jobs)


def unpack_rows(packed: bytes | memoryview, *, plain: bool) -> list[ReplayedEntry]:
    """Return the entries of packed rows; ``plain``: see ``RowBlock``."""
    if not plain:
        return _decode_rows(packed)
    # Entries created one by one are between their keys in memory, and leave holes when they are
    # freed.
    rows: Iterable[Row] = _decode_plain_rows(packed)
    return list(starmap(ReplayedEntry, rows))


def row_blocks(data: bytes, number: int, run: RecordRun) -> Iterator[RowBlock]:
    """Yield the blocks of a run of valid records as rows; see ``entry_blocks``."""
    base = number << OFFSET_BITS
    rows: list[Row] = []
    highest = 0
    run_before = numbers = b""
    fields_at, short_field_at, job_id_at = FIELDS_AT, SHORT_FIELD_AT, JOB_ID_AT
    end = run.start
    for index, (body, behind) in enumerate(zip(run.bodies, run.ends, strict=True)):
        start, end = end, behind
        entry = None
        if data[body] <= _SCHEDULE:
            name = data[body + fields_at]
            at = body + short_field_at + name
            behind_numbers = at + len(numbers)
            if numbers and behind_numbers + 1 < end and data.startswith(numbers, at):
                # those of the record before: there follows the length of the payload
                at = behind_numbers + (1 if data[behind_numbers] <= SHORT_MAX else 2)
                if name > SHORT_MAX or data[at - 1] > SHORT_MAX:
                    at = _payload_at(data, body)
            else:
                at = _payload_at(data, body)
                numbers = _numbers(data, body, at)
            if name == _OPERATION_NAME_BYTES and data.startswith(OPERATION_HEAD, body + fields_at):
                at = 0
            if at and data.startswith(MAGIC, at):
                entry = _read(data[at + MAGIC_BYTES : end - JOB_TAIL_BYTES])
        job_id = data[body + job_id_at : body + fields_at]
        if entry is None or job_id[:RUN_BYTES] != run_before or len(rows) == BLOCK_RECORDS_MAX:
            if len(rows) >= BLOCK_RECORDS_MIN:
                yield RowBlock(index - len(rows), highest, rows)
            rows = []
            highest = 0
            run_before = job_id[:RUN_BYTES]
            if entry is None:
                continue
        arrival = entry.arrival
        if arrival > highest:  # noqa: PLR1730 - max() takes three times as long
            highest = arrival
        rows.append(_row(entry, job_id, base | start, end - start))
    if len(rows) >= BLOCK_RECORDS_MIN:
        yield RowBlock(len(run) - len(rows), highest, rows)


def _read(payload: bytes) -> Envelope | None:
    """Return the entry in a payload; None: replay has to decode the record."""
    try:
        entry = _decode_entry(payload)
    except (msgspec.MsgspecError, ValueError):
        return None
    return None if entry.links or entry.superseded or entry.taken else entry


def _payload_at(data: bytes, body: int) -> int:
    """Return the offset of an entry's payload; 0: replay has to decode the record."""
    name = data[body + FIELDS_AT]
    numbers = skip_head(data, body + SHORT_FIELD_AT + name) if name <= SHORT_MAX else None
    return 0 if numbers is None else numbers.end()


def _numbers(data: bytes, body: int, payload_at: int) -> bytes:
    """Return the numbers between a job's name and the length of its payload; empty: no payload."""
    if not payload_at:
        return b""
    at = payload_at - 1
    while data[at - 1] > SHORT_MAX:
        at -= 1
    return data[body + SHORT_FIELD_AT + data[body + FIELDS_AT] : at]


def _row(entry: Envelope, job_id: bytes, position: int, record_bytes: int) -> Row:
    if (
        entry.modified != entry.created
        or entry.token
        or entry.expires
        or entry.first_due
        or entry.due
        or entry.attempts
        or entry.reason is not None
        or entry.error is not None
        or entry.erases
        or entry.ttl
    ):
        job = replayed_entry(entry, job_id, position, record_bytes)
        # the shared default must be that object after a packing, too
        return astuple(job) if job.more is not NO_COLD_FIELDS else astuple(job)[:-1]
    return replayed_facts(entry, position, record_bytes), entry.key, entry.uri, entry.value, job_id
