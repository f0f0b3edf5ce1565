"""Parts of ``fastjournald.tables`` that tests use."""

from __future__ import annotations

from fastjournald.tables.domain import NEVER, Domain
from fastjournald.tables.entry import ARRIVAL_MAX, NOTHING, AccessTimes, Cold, Entry, Extra
from fastjournald.tables.entry_states import CAUSES, STATE_NAMES, Cause, EntryState
from fastjournald.tables.interval_index import FIRST, TOP, Intervals
from fastjournald.tables.key_index import KeyIndex
from fastjournald.tables.key_runs import KEY_BYTES, KeyRuns
from fastjournald.tables.signals import CHANGES, KEYS, READY, TIMER, VALUES, Signals
from fastjournald.tables.sorted_entries import NO_ENTRIES, SortedEntries
from fastjournald.tables.tombstones import (
    COMPLETION_BYTES,
    TOMBSTONE_RECORD_BYTES,
    TOMBSTONES_DROPPED,
    Tombstones,
)
from fastjournald.tables.value_cache import ENTRY_BYTES, TEXT_BYTES, VALUE_BYTES, Unreadable, Values
