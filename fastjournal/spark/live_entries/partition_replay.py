"""Replay of one part of a log: from records to entries, by the daemon's own rules.

Records can be replayed apart when no job id, key or URI stands in two parts. Each one is applied
alone (``cmdlog.recovery.replay``): so what comes of them is what the daemon's recovery makes of the
whole log. A start-attempt gets the token of its lease, because the others of its group may be in
other parts.

No pyspark here: ``live_entries.fetch`` runs it, in Spark's workers and in the processes
of the export.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from fastjournal.cmdlog.format.segments import pack_position, unpack_position
from fastjournal.cmdlog.recovery.replay import Replay
from fastjournal.cmdlog.recovery.replayed_entry import ReplayedEntry
from fastjournal.errors import LogCorruptError
from fastjournal.keys import parse_journal_key
from fastjournal.spark.decoding.view_columns import ARROW_TYPES, cut, text


class LiveEntry(NamedTuple):
    """A live entry, and where the record that carries it stands."""

    job: ReplayedEntry
    segment: int
    offset: int


class PartReplay:
    """Replays the records of one part of a log. Feed them in the order of their positions."""

    def __init__(self) -> None:
        self._replay = Replay()
        self._segment = -1
        self._serials: dict[int, int] = {}
        """Position of foreign jobs to their ``arrival``."""

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
            token: Token of a start-attempt in a lease, else None.
            ours: Whether fastjournald wrote the segment.
            serial: ``arrival`` of a foreign job, which counts through the whole log; None: that
                of this part.
            doubt: Why it may be that this removal is not applied; 0: it is.

        Raises:
            LogCorruptError: It cannot be understood.
        """
        if segment != self._segment:
            self._segment = segment
            # Tombstones have no part in what is live.
            self._replay.state.tombstones.clear()
        position = pack_position(segment, offset)
        if serial is not None:
            self._serials[position] = serial
        try:
            self._replay.apply(raw, position, ours=ours, token=token, doubt=doubt)
        except LogCorruptError as error:
            raise LogCorruptError(f"segment {segment}: {error.message}", offset=offset) from error

    def finish(self) -> Iterator[LiveEntry]:
        """Yield what is live behind the last record, each with its position in the log."""
        for job in self._replay.state.jobs.values():
            job.arrival = self._serials.get(job.position, job.arrival)
            yield LiveEntry(job, *unpack_position(job.position))


# --- as a table ---------------------------------------------------------------------------------


class EntryColumn(NamedTuple):
    """One column of the view ``entries``."""

    name: str
    kind: str
    value: Callable[[LiveEntry], Any]


def _of(name: str) -> Callable[[LiveEntry], Any]:
    return lambda found: getattr(found.job, name)


def _instant(name: str) -> Callable[[LiveEntry], Any]:
    return lambda found: cut(getattr(found.job, name))


def _id(found: LiveEntry) -> str | None:
    parts = parse_journal_key(found.job.key)
    return None if parts is None else text(parts.id)


def _state(found: LiveEntry) -> str:
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

ENTRY_ARROW_SCHEMA = pa.schema(
    [(column.name, ARROW_TYPES[column.kind]) for column in ENTRY_COLUMNS]
)


def to_batch(found: Sequence[LiveEntry]) -> pa.RecordBatch:
    """Return entries as an Arrow batch."""
    arrays = [
        pa.array([column.value(one) for one in found], type=ARROW_TYPES[column.kind])
        for column in ENTRY_COLUMNS
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ENTRY_ARROW_SCHEMA)


def chunked(found: Iterator[LiveEntry], *, rows: int, size: int) -> Iterator[list[LiveEntry]]:
    """Yield lists of at most ``rows`` entries, each ended by ``size`` bytes of values."""
    chunk: list[LiveEntry] = []
    left = size
    for one in found:
        chunk.append(one)
        left -= len(one.job.value) + len(one.job.key)
        if len(chunk) == rows or left <= 0:
            yield chunk
            chunk, left = [], size
    if chunk:
        yield chunk
