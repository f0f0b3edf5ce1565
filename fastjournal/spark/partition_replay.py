"""Folding records into entries: the daemon's own replay, on a part of the log.

Records can be replayed apart when no job id, key or URI stands in two parts. What a part needs is
packed into segments again, which ``cmdlog.recovery.replay`` takes: so what it makes of them is what
the daemon's recovery makes of the whole log. A start-attempt of a lease gets an operation of its
own in front, because the others of its group may be in other parts.

No pyspark here: ``fastjournal.spark.entries_view`` runs it in Spark's workers, ``export`` by
itself.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from fastjournal.cmdlog.format.envelope import OPERATION_NAME, Lease, Operation, SegmentStart, pack
from fastjournal.cmdlog.format.records import NO_TIME, TIME_BYTES, Command, encode_head, encode_job
from fastjournal.cmdlog.format.segments import unpack_position
from fastjournal.cmdlog.recovery.replay import Replay
from fastjournal.cmdlog.recovery.replayed_entry import LiveJob
from fastjournal.cmdlog.recovery.scan import Run
from fastjournal.errors import LogCorruptError
from fastjournal.keys import parse_journal_key
from fastjournal.spark.columns import ARROW_TYPES, cut, sql_schema, text

_HEAD = encode_head(OPERATION_NAME.encode(), 1, 1, 0, 0, 0)
_NO_JOB = bytes(16)


class Found(NamedTuple):
    """A live entry, and where the record that carries it stands."""

    job: LiveJob
    segment: int
    offset: int


class PartReplay:
    """Replays the records of one part of a log. Feed them in the order of their positions."""

    def __init__(self) -> None:
        self._replay = Replay()
        self._segment = -1
        self._parts: list[bytes] = []
        self._size = 0
        self._bodies: list[int] = []
        self._doubtful: dict[int, int] = {}
        self._ends: list[int] = []
        self._adds: dict[int, tuple[array[int], array[int]]] = {}
        """By segment: where its adds stand in the packed segment, and where they came from."""
        self._serials: dict[tuple[int, int], int] = {}

    def feed(
        self,
        segment: int,
        offset: int,
        raw: bytes,
        *,
        token: int | None,
        ours: bool,
        serial: int | None = None,
        doubt: int = 0,
    ) -> None:
        """Take the next record.

        Args:
            segment: Number of its segment.
            offset: Where it stands there.
            raw: Its bytes.
            token: Of a start-attempt in a lease, else None.
            ours: Whether fastjournald wrote the segment.
            serial: ``arrival`` of a foreign job, which counts through the whole log; None: that
                of this part.
            doubt: Why it may be that this removal is not applied; 0: it is.

        Raises:
            LogCorruptError: Replay cannot understand an earlier record.
        """
        if segment != self._segment:
            self._end_segment()
            self._segment = segment
            if ours:
                self._add(_operation(SegmentStart(0)))
        if token is not None:
            self._add(_operation(Lease(1, token)))
        start = self._size
        if doubt:
            self._doubtful[start] = doubt
        if self._add(raw) <= Command.SCHEDULE:
            packed, original = self._adds.setdefault(segment, (array("Q"), array("Q")))
            packed.append(start)
            original.append(offset)
            if serial is not None:
                self._serials[segment, offset] = serial

    def finish(self) -> Iterator[Found]:
        """Yield what is live behind the last record, each with its position in the log.

        Raises:
            LogCorruptError: Replay cannot understand a record.
        """
        self._end_segment()
        state = self._replay.state
        for job in state.jobs.values():
            segment, start = unpack_position(job.position)
            packed, original = self._adds[segment]
            offset = original[bisect_left(packed, start)]
            job.arrival = self._serials.get((segment, offset), job.arrival)
            yield Found(job, segment, offset)

    def _add(self, raw: bytes) -> int:
        """Pack a record; return its command."""
        body = TIME_BYTES
        while raw[body] > 0x7F:
            body += 1
        body += 1
        self._bodies.append(self._size + body)
        self._parts.append(raw)
        self._size += len(raw)
        self._ends.append(self._size)
        return raw[body]

    def _end_segment(self) -> None:
        if not self._parts:
            return
        replay = self._replay
        replay.start_segment(self._segment, b"".join(self._parts), self._doubtful)
        replay.replay(Run(0, self._bodies, self._ends), last=False)
        if replay.damage:
            raise LogCorruptError(f"segment {self._segment}: {replay.damage[0].reason}")
        # Tombstones have no part in what is live.
        replay.state.tombstones.clear()
        self._parts, self._bodies, self._ends = [], [], []
        self._doubtful = {}
        self._size = 0


def _operation(operation: Operation) -> bytes:
    return encode_job(Command.ADD, NO_TIME, _NO_JOB, _HEAD, pack(operation), NO_TIME, NO_TIME)


# --- as a table ---------------------------------------------------------------------------------


class EntryColumn(NamedTuple):
    """One column of the view ``entries``."""

    name: str
    kind: str
    value: Callable[[Found], Any]


def _of(name: str) -> Callable[[Found], Any]:
    return lambda found: getattr(found.job, name)


def _instant(name: str) -> Callable[[Found], Any]:
    return lambda found: cut(getattr(found.job, name))


def _id(found: Found) -> str | None:
    parts = parse_journal_key(found.job.key)
    return None if parts is None else text(parts.id)


def _state(found: Found) -> str:
    if found.job.token:
        return "worked_on"
    return "waiting" if found.job.reason is None else "buried"


ENTRY_COLUMNS = (
    EntryColumn("key", "bytes", _of("key")),
    EntryColumn("uri", "bytes", _of("uri")),
    EntryColumn("links", "list", _of("links")),
    EntryColumn("domain", "text", lambda f: None if f.job.domain is None else text(f.job.domain)),
    EntryColumn("priority", "int", lambda f: None if f.job.domain is None else f.job.priority),
    EntryColumn("not_before", "long", _instant("not_before")),
    EntryColumn("id", "text", _id),
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

ENTRY_SCHEMA = sql_schema(ENTRY_COLUMNS)
ENTRY_ARROW_SCHEMA = pa.schema(
    [(column.name, ARROW_TYPES[column.kind]) for column in ENTRY_COLUMNS]
)


def to_batch(found: Sequence[Found]) -> pa.RecordBatch:
    """Return entries as an Arrow batch."""
    arrays = [
        pa.array([column.value(one) for one in found], type=ARROW_TYPES[column.kind])
        for column in ENTRY_COLUMNS
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ENTRY_ARROW_SCHEMA)


def chunked(found: Iterator[Found], *, rows: int, size: int) -> Iterator[list[Found]]:
    """Yield lists of at most ``rows`` entries, each ended by ``size`` bytes of values."""
    chunk: list[Found] = []
    left = size
    for one in found:
        chunk.append(one)
        left -= len(one.job.value) + len(one.job.key)
        if len(chunk) == rows or left <= 0:
            yield chunk
            chunk, left = [], size
    if chunk:
        yield chunk
