"""Live capture: copy-on-write capture of the live entries of a log at one instant. Pure.

A snapshot shows the log at the instant at which its last segment was sealed, and its live index
(``cmdlog.live_index``) names the record of each entry that was live then. Each entry is captured
once: by a walk over all entries in slices, or just before it is changed or removed. So nothing is
copied at the instant itself, with any number of entries.

Most entries equal their record, and only its position is captured. An entry with other records
(``EntryRecords.amended``) is captured with all fields that may have changed, so that call comes
*before* the change. Later entries have their records in later segments.

The walk visits the parts of the key table. An entry that was captured before the walk reached it,
and that still exists, is noted until then; the walk does not find a removed one.
"""

from __future__ import annotations

from array import array
from collections.abc import Container, Mapping
from typing import NamedTuple

from fastjournal.cmdlog.format.layout import OFFSET_BITS
from fastjournal.cmdlog.format.packed_entry import FACTS_BYTES, SEGMENT, unpack_facts, unpack_record
from fastjournal.cmdlog.live_index import LiveChanges
from fastjournald.tables.entry import NOTHING, Entry, EntryState
from fastjournald.tables.key_table import PARTS, KeyTable
from fastjournald.tables.value_cache import NUMBER_BYTES_MAX, NUMBER_TYPES

RUN_ENTRIES = 8192
"""Entries of a run: to sort so many offsets takes a millisecond, and nothing else runs then."""
RUN_CHANGES = 1024
"""The same for entries that are taken with their changes."""
_KEPT_ENTRIES_MAX = 1 << 20
"""So many entries are kept, 8 bytes each, where they are of so many segments that no run is full"""

_ABSENT = EntryState.ABSENT
SEGMENT_SHIFT = OFFSET_BITS - 8
"""From a position without its last byte to the segment."""
_HIGH_OFFSET_MASK = (1 << SEGMENT_SHIFT) - 1


class CapturedRun(NamedTuple):
    """Entries of one segment, as ``LiveIndexWriter.add_run`` takes them."""

    segment: int
    offsets: array[int]
    changes: dict[int, LiveChanges]


class LiveCapture:
    """Captures each entry that is live now, in its current state.

    Args:
        keys: All entries.
        amended: Job ids of entries that have other records besides their own.
        trimmed: As ``EntryRecords.trimmed``.
        superseded: As ``EntryRecords.superseded``.
        next_segment: Records from this segment on are newer than the snapshot.
    """

    def __init__(
        self,
        keys: KeyTable,
        amended: Container[bytes],
        trimmed: Mapping[bytes, int],
        superseded: Mapping[bytes, int],
        next_segment: int,
    ) -> None:
        self._keys = keys
        self._amended = amended
        self._trimmed = trimmed
        self._superseded = superseded
        self._next = next_segment.to_bytes(4, "big")
        self._part = -1
        """Number of the part of the key table that the walk visits."""
        self._keys_ahead: list[bytes] = []
        """Keys of that part to which the walk has not come."""
        self._ahead: list[Entry] = []
        """The entries of these keys when the walk reached that part."""
        self._walked: set[Entry] = set()
        """Entries of that part to which it has."""
        self._taken: set[Entry] = set()
        """Entries that the walk skips: they were captured before, and still exist."""
        self._runs: dict[int, CapturedRun] = {}
        self._kept = 0
        """Entries added to these since the last ``take_runs``, and perhaps some more."""
        self._full: list[CapturedRun] = []
        self.entries = 0
        """Entries in the runs that were taken so far."""

    @property
    def walked(self) -> bool:
        """Whether the walk is over: all that was live is taken."""
        return self._part >= PARTS

    # --- the walk -------------------------------------------------------------------------------

    def step(self, number: int) -> None:
        """Walk over so many keys."""
        if not self._ahead:
            self._part += 1
            self._walked.clear()
            if self.walked:
                return
            self._keys_ahead, self._ahead = self._keys.part(self._part)
        keys, entries = self._keys_ahead[-number:], self._ahead[-number:]
        del self._keys_ahead[-number:], self._ahead[-number:]
        # each under its primary key
        found = [entry for key, entry in zip(keys, entries, strict=True) if key == entry.key]
        self._walked.update(found)
        if self._taken:
            there = found
            found = [entry for entry in there if entry not in self._taken]
            self._taken.difference_update(there)
        for entry in found:
            # one that was removed since the walk reached this part is absent
            if (
                entry.run is not None
                and entry.state != _ABSENT
                and entry.facts[SEGMENT] < self._next
            ):
                self._take(entry)
        self._kept += len(found)

    def take_runs(self) -> list[CapturedRun]:
        """Return the runs to be written: full ones, and after the walk all."""
        if self.walked or self._kept >= _KEPT_ENTRIES_MAX:
            self._full += self._runs.values()
            self._runs.clear()
            self._kept = 0
        runs, self._full = self._full, []
        self.entries += sum(len(run.offsets) for run in runs)
        return runs

    # --- copy on write --------------------------------------------------------------------------

    def take(self, entry: Entry) -> None:
        """An entry is about to change."""
        # under load most of those that change are newer
        if (
            entry.facts[SEGMENT] < self._next
            and entry.run is not None
            and not self._is_taken(entry)
        ):
            self._take(entry)
            self._taken.add(entry)
            self._kept += 1

    def take_renamed(self, entry: Entry) -> None:
        """An entry is about to get another primary key: the walk may come to it, or come again."""
        self.take(entry)
        if entry.run is not None and entry.facts[SEGMENT] < self._next:
            self._taken.add(entry)

    def take_gone(self, entry: Entry) -> None:
        """The record of an entry is about to be dead."""
        self.take(entry)
        if self._taken:
            self._taken.discard(entry)

    # --- inside ---------------------------------------------------------------------------------

    def _is_taken(self, entry: Entry) -> bool:
        part = self._keys.part_of(entry.key)
        return part < self._part or entry in self._walked or entry in self._taken

    def _take(self, entry: Entry) -> None:
        """Take an entry as it is, which was live."""
        # a microsecond for each entry is a second for a million (tests.bench.bench_snapshot)
        high, low, _ = unpack_record(entry.facts, FACTS_BYTES)
        segment = high >> SEGMENT_SHIFT
        run = self._runs.get(segment)
        if run is None:
            run = self._runs[segment] = CapturedRun(segment, array("Q"), {})
        _, offsets, changes = run
        offset = (high & _HIGH_OFFSET_MASK) << 8 | low
        offsets.append(offset)
        if entry.extra is not NOTHING and (job_id := entry.job_id) in self._amended:
            changes[offset] = self._changes(entry, job_id)
        if len(offsets) >= RUN_ENTRIES or len(changes) >= RUN_CHANGES:
            self._full.append(self._runs.pop(segment))

    def _changes(self, entry: Entry, job_id: bytes) -> LiveChanges:
        _, not_before, arrival, timestamp, created, value_type = unpack_facts(entry.facts)
        extra, value = entry.extra, entry.value
        changed: bytes | tuple[int, int] | None = None
        kept = self._trimmed.get(job_id)
        if kept is not None:
            changed = kept, len(value)
        elif (
            value_type in NUMBER_TYPES
            and isinstance(value, bytes)
            and len(value) <= NUMBER_BYTES_MAX
        ):
            # ADD or NOT may have changed it
            changed = value
        superseded = self._superseded.get(job_id)
        return LiveChanges(
            entry.key,
            entry.uri,
            extra.links or [],
            not_before,
            timestamp,
            created,
            extra.changed or created,
            extra.expires,
            extra.ttl,
            arrival,
            extra.attempts,
            extra.token,
            # not by a SET that is not persistent
            0 if superseded is None else superseded or extra.superseded,
            extra.reason,
            changed,
        )
