"""Bulk load: from what replay leaves to a store full of entries, each index built once, in order.

The loop decides how long a start takes and how much memory: most jobs are waiting entries about
which there is nothing special, and become entries right in it. A job goes before the next entry is
made, so that memory for both is never needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from fastjournal.cmdlog.format.packed_entry import FACTS_BYTES, unpack_record
from fastjournal.cmdlog.recovery.replay_state import ReplayState
from fastjournal.cmdlog.recovery.replayed_entry import NO_COLD_FIELDS, ReplayedEntry
from fastjournal.keys import parse_journal_key
from fastjournald.engine.store import Store
from fastjournald.tables.domain import Domain
from fastjournald.tables.entry import JOB_ID_REST, NOTHING, RUN_KEPT_BYTES, Cold, Entry, Extra
from fastjournald.tables.entry_states import EntryState
from fastjournald.wal.entry_records import SEGMENT_SHIFT
from fastjournald.wal.journal import Journal

_TIMESTAMP_DIGITS = 16
"""Length of the instant in a canonical key."""
_COLON = 0x3A
_ABSENT, _PLAIN = EntryState.ABSENT, EntryState.PLAIN
_READY, _DELAYED = EntryState.READY, EntryState.DELAYED


class _Queue(NamedTuple):
    """Where the waiting entries of a domain and priority go."""

    domain: Domain
    priority: int
    ready: list[Entry]
    delayed: list[Entry]


def load_store(store: Store, state: ReplayState, now: int) -> None:
    """Take over what is live in a log. O(n log n).

    Args:
        store: Empty, but for its pauses.
        state: Behind the last record. Its jobs and keys are used up.
        now: The present.
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

    def load(self, jobs: list[ReplayedEntry]) -> None:
        """Make entries of jobs, the last of which goes first, and put them under their keys."""
        store = self._store
        journal = store.journal
        live = journal.usage.live
        add = store.keys.add
        plain = store.scheduler.plain
        values = store.values
        known = self._queues
        now = self._now.to_bytes(8, "big")
        store.entries += len(jobs)
        run = b""
        while jobs:
            job = jobs.pop()
            key, uri, facts = job.key, job.uri, job.facts
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
            domain = queue.domain
            if facts[0] != queue.priority:
                facts = bytes((queue.priority,)) + facts[1:]
            job_id = job.job_id
            if job_id[RUN_KEPT_BYTES:] != facts[JOB_ID_REST]:
                kept_id = job_id
            else:
                if job_id[:RUN_KEPT_BYTES] != run:
                    run = job_id[:RUN_KEPT_BYTES]
                kept_id = run
            if job.more is not NO_COLD_FIELDS or job.starts or job.token:
                state = _ABSENT
            elif domain is plain:
                state = _PLAIN
            elif facts[1:9] <= now:
                state = _READY
            else:
                state = _DELAYED
            changed = job.changed
            entry = Entry(facts, key, uri, job.value, domain, NOTHING, state, kept_id)
            if changed:
                times = entry.own_times()
                times.changed = times.seen = changed
            domain.entries += 1
            position, _, size = unpack_record(facts, FACTS_BYTES)
            live[position >> SEGMENT_SHIFT] += size
            journal.records.live_bytes += size
            if state == _ABSENT:
                self._load_more(job, entry, queue)
                continue
            add(entry)
            if values is not None:
                values.add(entry)
            if state == _READY:
                queue.ready.append(entry)
            elif state == _DELAYED:
                queue.delayed.append(entry)

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
            starts=job.starts,
            expires=more.expires,
            ttl=more.ttl,
            attempts=more.attempts,
            superseded=job.superseded,
            links=more.links or None,
            reason=more.reason,
            error=more.error,
            first_due=more.first_due,
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
            store.scheduler.bury(entry, more.reason)
        elif not entry.journal:
            entry.move_to(_PLAIN)
        elif entry.not_before <= self._now:
            entry.move_to(_READY)
            queue.ready.append(entry)
        else:
            entry.move_to(_DELAYED)
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
        # what waits for work on its URI is delayed until that ends
        for uri in store.leases.by_uri:
            entry = store.find(uri)
            if entry is not None and entry.state in (_READY, _DELAYED):
                store.requeue(entry, self._now)


def _tell_journal(journal: Journal, state: ReplayState, job: ReplayedEntry, entry: Entry) -> None:
    """Tell the journal what is not said by the record of a job."""
    more, job_id = job.more, job.job_id
    if more.amended or job.starts or more.foreign:
        journal.records.amended[job_id] = entry
        if job.superseded:
            journal.records.displaced[job_id] = False
    if job_id in state.trimmed:
        journal.records.trimmed[job_id] = state.trimmed[job_id]
    if more.erases:
        journal.records.erasers.add(job_id)
