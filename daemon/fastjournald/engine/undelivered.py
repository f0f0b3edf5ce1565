"""Undelivered replies: release their leases, and restore entries that NEXT popped. Pure.

A connection may end after an entry is leased and before the reply is passed to the system: during a
sync, or with replies that the client does not read. No worker has seen the entry then. It is
requeued as if it had not been leased, attempts unchanged, and the log has that.
"""

from __future__ import annotations

from typing import TypeAlias

from fastjournal.limits import ENTRY_WORK
from fastjournald.engine.job_lifecycle import JobLifecycle
from fastjournald.engine.store import Store
from fastjournald.tables.entry import Entry

DeliveredJobs: TypeAlias = tuple[int, list[Entry]]
"""Result of one request for work: the lease token, or 0 where it popped the jobs; the entries."""


class DeliveringReply(bytes):
    """Encoded reply that delivers work, with that work: it may never be sent."""

    jobs: DeliveredJobs


def release_undelivered(
    jobs: JobLifecycle, deliveries: list[DeliveredJobs], number_max: int, now: int
) -> list[DeliveredJobs]:
    """Release undelivered leases and restore popped entries.

    Args:
        jobs: Lifecycle of the leased entries.
        deliveries: In any order; entries whose lease has ended or changed since stay unchanged.
        number_max: Most entries per call.
        now: Present instant.

    Returns:
        The rest.
    """
    store = jobs.store
    left: list[DeliveredJobs] = []
    store.work += ENTRY_WORK * min(number_max, sum(len(entries) for _, entries in deliveries))
    for token, entries in deliveries:
        for entry in entries[: max(number_max, 0)]:
            if token:
                _release(jobs, entry, token, now)
            else:
                _restore(store, entry, now)
        if len(entries) > number_max:
            left.append((token, entries[max(number_max, 0) :]))
        number_max -= len(entries)
    return left


def _release(jobs: JobLifecycle, entry: Entry, token: int, now: int) -> None:
    if entry.token == token and entry.leased_until > now and jobs.store.find(entry.key) is entry:
        jobs.release(entry, now)


def _restore(store: Store, entry: Entry, now: int) -> None:
    """Restore a popped entry, unless its key was set or deleted again, or it has expired."""
    deleted = store.tombstones.get(entry.key, now)
    if (
        (deleted is not None and deleted > entry.timestamp)
        or store.find(entry.key) is not None
        # newer work for the same resource
        or (entry.uri is not None and store.find(entry.uri) is not None)
        or 0 < entry.expires <= now
    ):
        return
    store.tombstones.discard(entry.key)
    if entry.links:
        entry.own().links = [link for link in entry.links if store.find(link) is None] or None
    entry.domain = store.scheduler.domain_of(entry.domain.name)
    store.journal.restored(entry, now)
    store.insert(entry, now)
