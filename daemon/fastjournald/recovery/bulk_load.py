"""Bulk load: from what replay leaves to a store full of entries, each index built once, in order.

This decides how long a start takes and how much memory: most jobs are waiting entries about which
there is nothing special, and become entries a thousand at a time, field by field, in calls that
leave the interpreter's loop. These jobs go before the next entries are made, so that memory for
both is never needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import repeat
from typing import NamedTuple

from fastjournal import _native
from fastjournal.cmdlog.format.endings import LEASED_BYTES, UNKNOWN, pack_ending
from fastjournal.cmdlog.format.packed_entry import FACTS_BYTES, PRIORITY_AT, unpack_record
from fastjournal.cmdlog.recovery.replay_state import ReplayState
from fastjournal.cmdlog.recovery.replayed_entry import NO_COLD_FIELDS, ReplayedEntry
from fastjournal.keys import parse_journal_key
from fastjournald.engine.store import Store
from fastjournald.tables.domain import Domain
from fastjournald.tables.entry import (
    JOB_ID_REST,
    LOAD,
    NOTHING,
    RUN_KEPT_BYTES,
    Cold,
    Entry,
    EntryState,
    Extra,
)
from fastjournald.wal.journal import Journal
from fastjournald.wal.live_capture import SEGMENT_SHIFT

_TIMESTAMP_DIGITS = 16
"""Length of the instant in a canonical key."""
_COLON = 0x3A
PART_JOBS = 1024
"""Jobs whose entries are made together: they fit into the cache of the processor."""
LOADED_RUN_KEYS = 65_536
"""Keys that are sorted together for the key index. With more, the processor's caches have no room
for them; with fewer, the first scans merge more runs."""
_ABSENT, _PLAIN = EntryState.ABSENT, EntryState.PLAIN
_READY, _DELAYED = EntryState.READY, EntryState.DELAYED


class _Queue(NamedTuple):
    """Queue for the waiting entries of a domain and priority."""

    domain: Domain
    priority: int
    ready: list[Entry]
    delayed: list[Entry]


def load_store(store: Store, state: ReplayState, now: int) -> None:
    """Load the live entries of a log. O(n log n).

    Args:
        store: Empty, except its pauses.
        state: State after the last record. Its jobs and keys are consumed.
        now: Present instant.
    """
    taken = {key: job.key for key, job in state.superseded.items() if job.token}
    state.superseded.clear()
    state.keys.clear()
    jobs = list(state.jobs.values())
    state.jobs.clear()
    jobs.reverse()
    loading = _Loading(store, state, taken, now)
    loading.load(jobs)
    loading.put_in_order()


class _Loading:
    def __init__(
        self, store: Store, state: ReplayState, taken: Mapping[bytes, bytes], now: int
    ) -> None:
        self._store = store
        self._state = state
        self._taken = taken
        self._now = now
        self._queues: dict[bytes, _Queue] = {}
        """By what keys begin with, in the form that they have it: domain and priority."""
        self._ready: dict[bytes, list[Entry]] = {}
        self._delayed: dict[bytes, list[Entry]] = {}
        self._expiry: list[tuple[int, bytes]] = []
        self._run = bytes(RUN_KEPT_BYTES)
        """The part that entries of one run keep of their job ids."""

    def load(self, jobs: list[ReplayedEntry]) -> None:
        """Make entries of jobs, the last of which is first, and add them under their keys."""
        keys = self._store.keys
        self._store.entries += len(jobs)
        keys.begin_load()
        while jobs:
            part = jobs[: -PART_JOBS - 1 : -1]
            del jobs[-PART_JOBS:]
            self._load_part(part)
            keys.sort_loaded(LOADED_RUN_KEYS)
        keys.sort_loaded(1)

    def _load_part(self, jobs: list[ReplayedEntry]) -> None:
        """Make entries of some jobs, each field of all of them in one step."""
        keys = [job.key for job in jobs]
        uris = [job.uri for job in jobs]
        queues = self._queues_of(keys)
        facts = [job.facts for job in jobs]
        for index, queue in enumerate(queues):
            if facts[index][PRIORITY_AT] != queue.priority:
                facts[index] = bytes((queue.priority,)) + facts[index][1:]
        states = self._states_of(jobs, queues, facts)
        entries = list(
            map(
                Entry,
                facts,
                keys,
                uris,
                [job.value for job in jobs],
                [queue.domain for queue in queues],
                repeat(NOTHING),
                states,
                self._kept_ids([job.job_id for job in jobs], facts),
            )
        )
        for job, entry in zip(jobs, entries, strict=True):
            if job.changed:
                times = entry.own_times()
                times.changed = times.seen = job.changed
        self._count_records(facts)
        for entry, queue in zip(entries, queues, strict=True):
            queue.domain.entries += 1
            if entry.state == _READY:
                queue.ready.append(entry)
            elif entry.state == _DELAYED:
                queue.delayed.append(entry)
        store = self._store
        if _ABSENT not in states and store.values is None:
            store.keys.add_keys(keys, entries)
            if None in uris:
                entries = [entry for entry in entries if entry.uri is not None]
            store.keys.add_keys([uri for uri in uris if uri is not None], entries)
            return
        for job, entry, queue in zip(jobs, entries, queues, strict=True):
            if entry.state == _ABSENT:
                self._load_more(job, entry, queue)
                continue
            store.keys.add(entry)
            if store.values is not None:
                # in the order of the log, which is the order of eviction
                store.values.add(entry)

    def _states_of(
        self, jobs: list[ReplayedEntry], queues: list[_Queue], facts: list[bytes]
    ) -> list[int]:
        """Return the state of each entry; absent: it has more to it."""
        now = self._now.to_bytes(8, "big")
        plain = self._store.scheduler.plain
        return [
            _ABSENT
            if job.more is not NO_COLD_FIELDS or job.starts or job.token
            else _PLAIN
            if queue.domain is plain
            else _READY
            if fact[1:9] <= now
            else _DELAYED
            for job, queue, fact in zip(jobs, queues, facts, strict=True)
        ]

    def _kept_ids(self, ids: list[bytes], facts: list[bytes]) -> list[bytes]:
        """Return of each job id what its entry keeps; the entries of one run share it."""
        run = self._run
        kept: list[bytes] = []
        for job_id, fact in zip(ids, facts, strict=True):
            if job_id[RUN_KEPT_BYTES:] != fact[JOB_ID_REST]:
                kept.append(job_id)
                continue
            if not job_id.startswith(run):
                run = job_id[:RUN_KEPT_BYTES]
            kept.append(run)
        self._run = run
        return kept

    def _count_records(self, facts: list[bytes]) -> None:
        """Count the bytes of the records of entries as live."""
        journal = self._store.journal
        live = journal.usage.live
        records = [unpack_record(fact, FACTS_BYTES) for fact in facts]
        total = sum([size for _, _, size in records])
        journal.records.live_bytes += total
        segments = {position >> SEGMENT_SHIFT for position, _, _ in records}
        if len(segments) == 1:
            live[segments.pop()] += total
            return
        for position, _, size in records:
            live[position >> SEGMENT_SHIFT] += size

    def _queues_of(self, keys: list[bytes]) -> list[_Queue]:
        """Return where the entries of some keys go."""
        known = self._queues
        queues: list[_Queue] = []
        if _native.leaves is not None:
            queues = _native.leaves.find_queues(known, keys)
            if None not in queues:
                return queues
            queues = []
        for key in keys:
            # a canonical key that begins like one before it need not be taken apart
            at = key.find(b":", key.find(b":") + 1) + 1
            until = at + _TIMESTAMP_DIGITS
            queue = known.get(key[:at])
            if (
                queue is None
                or len(key) <= until
                or key[until] != _COLON
                or not key[at:until].isdigit()
            ):
                queue = self._queue_of(key, at)
            queues.append(queue)
        return queues

    def _queue_of(self, key: bytes, at: int) -> _Queue:
        parts = parse_journal_key(key)
        if parts is None:
            return _Queue(self._store.scheduler.plain, 0, [], [])
        name = parts.domain
        domain = self._store.scheduler.domain_of(name)
        name = domain.name
        queue = self._queues[key[:at]] = _Queue(
            domain,
            parts.priority,
            self._ready.setdefault(name, []),
            self._delayed.setdefault(name, []),
        )
        return queue

    def _load_more(self, job: ReplayedEntry, entry: Entry, queue: _Queue) -> None:
        store, more = self._store, job.more
        _tell_journal(store.journal, self._state, job, entry)
        entry.extra = Extra(
            changed=job.changed,
            seen=job.changed,
            token=job.token,
            leased_until=job.leased_until,
            starts=job.starts,
            expires=more.expires,
            ttl=more.ttl,
            attempts=more.attempts,
            leased=_leased(job) if job.token else b"",
            due=more.due,
            superseded=job.superseded,
            links=more.links or None,
            reason=more.reason,
            error=more.error,
            first_due=more.first_due,
            attempts_max=more.lease_attempts_max,
        )
        if more.cold_bytes:
            entry.value = Cold(more.cold_bytes)
        for key in entry.all_keys():
            if not job.superseded or self._taken.get(key) != entry.key:
                store.keys.put(key, entry)
        if store.values is not None:
            store.values.add(entry)
        if job.token:
            store.leases.load(entry)
            return
        if more.expires:
            self._expiry.append((more.expires, entry.key))
        if more.reason is not None:
            store.scheduler.bury(entry, more.reason, LOAD)
            return
        if not entry.journal:
            entry.move_to(_PLAIN, LOAD)
            return
        if more.due:
            store.scheduler.note_requeued(entry)
        if entry.not_before <= self._now:
            entry.move_to(_READY, LOAD)
            queue.ready.append(entry)
        else:
            entry.move_to(_DELAYED, LOAD)
            queue.delayed.append(entry)

    def put_in_order(self) -> None:
        """Build the other indexes of what was loaded."""
        store = self._store
        store.scheduler.load(self._ready, self._delayed)
        store.expiry.extend(self._expiry)
        for key, primary in self._taken.items():
            worked_on = store.find(primary)
            assert worked_on is not None
            store.leases.by_uri[key] = worked_on
        # an entry that waits for work on its URI is delayed until that ends
        for uri in store.leases.by_uri:
            entry = store.find(uri)
            if entry is not None and entry.state in (_READY, _DELAYED):
                store.requeue(entry, self._now)


def _leased(job: ReplayedEntry) -> bytes:
    """Return the facts of the lease of a job."""
    facts = pack_ending(UNKNOWN, job.arrival, job.attempts + 1, job.due, job.lease_start)
    return facts[:LEASED_BYTES]


def _tell_journal(journal: Journal, state: ReplayState, job: ReplayedEntry, entry: Entry) -> None:
    """Pass the facts to the journal that are not in the record of a job itself."""
    more, job_id = job.more, job.job_id
    if more.amended or job.starts or more.foreign:
        journal.records.amended[job_id] = entry
        if job.superseded:
            journal.records.superseded[job_id] = job.superseded
    if job_id in state.trimmed:
        journal.records.trimmed[job_id] = state.trimmed[job_id]
    if more.erases:
        journal.records.erasers.add(job_id)
