"""Lifecycle of a job: lease renewal, release, expired lease, failed attempt, burial. Pure.

A plain entry may be leased and buried in the same way, but it is never in a queue.
"""

from __future__ import annotations

from collections.abc import Hashable

from fastjournal.cmdlog.format.endings import (
    LEASE_LOST,
    LEASE_RETURNED,
    REPLACED_BY_URI,
    REPLACED_UNLOGGED,
    Backoff,
    end_of_lease,
)
from fastjournal.limits import ENTRY_WORK
from fastjournal.protocol.constants import ATTEMPTS_REACHED
from fastjournald.engine.store import Store
from fastjournald.tables.entry import END_LEASE, KICK, Entry, EntryState
from fastjournald.tables.value_cache import text_bytes

BURIED_AT_ATTEMPTS_MAX = ATTEMPTS_REACHED.encode()


class JobLifecycle:
    """Changes of the state of entries: leases, attempts, dead letters.

    Args:
        store: Entries.
        attempts_max: Failed attempts after which an entry is buried; 0: no limit.
        backoff: Delays after lost leases.
    """

    def __init__(self, store: Store, attempts_max: int, backoff: Backoff) -> None:
        self.store = store
        self._journal = store.journal
        self._job_counts = store.scheduler.job_counts
        self._attempts_max = attempts_max
        self._backoff = backoff

    # --- leases ---------------------------------------------------------------------------------

    def extend(self, entry: Entry, token: int, session: Hashable, now: int, *, shown: int) -> None:
        """Lease renewal: move the end of a lease to ``token`` for a session.

        ``shown``: the token with which the session proved its lease.
        """
        store = self.store
        store.before_change(entry)
        uris = store.leases.extend(entry, token, session, shown=shown)
        store.work += ENTRY_WORK * len(uris)
        # newer entries of these URIs are delayed until the new end
        for uri in uris:
            successor = store.find(uri)
            if successor is not None and successor.state == EntryState.DELAYED:
                store.requeue(successor, now)

    def release(self, entry: Entry, now: int, *, delayed: bool = False) -> None:
        """Release a lease, attempts unchanged: the entry is requeued, or dropped.

        ``delayed``: the entry has a new due time already.
        """
        if self._is_dropped(entry, now, LEASE_RETURNED):
            return
        until = self._stop_work(entry, now)
        self._journal.leases.returned(entry, now, delayed=delayed)
        self._wait_again(entry, until, now)

    def fail(self, entry: Entry, error: bytes, now: int, *, delayed: bool, is_last: bool) -> None:
        """End a lease because the attempt failed: the entry is requeued, buried or dropped.

        ``delayed``: the entry has a new due time already. ``is_last``: it was the last attempt.
        """
        self._job_counts.of_failing(entry.domain).attempts_failed += 1
        if entry.superseded or 0 < entry.expires <= now:
            self._journal.leases.failed_before_removal(entry, error, now)
        if self._is_dropped(entry, now, 0):
            return
        until = self._stop_work(entry, now)
        extra = entry.own()
        text_before = text_bytes(entry)
        extra.error = error
        extra.attempts += 1
        if is_last:
            self._job_counts.of_failing(entry.domain).buried += 1
            self.store.scheduler.bury(entry, error)
        self._retext(entry, text_before)
        self._journal.leases.failed(entry, now, delayed=delayed)
        if not is_last:
            self._wait_again(entry, until, now)

    def run_out(self, entry: Entry, now: int) -> None:
        """End an expired lease as a failed attempt: the entry is requeued, buried or dropped.

        From the second failed attempt on it is delayed.
        """
        self.store.leases.lost += 1
        self._job_counts.of_failing(entry.domain).leases_lost += 1
        if self._is_dropped(entry, now, LEASE_LOST):
            return
        is_last = self.is_last_attempt(entry)
        delayed = entry.journal and not is_last and self._back_off(entry, now)
        until = self._stop_work(entry, now)
        if is_last:
            self._bury(entry, BURIED_AT_ATTEMPTS_MAX, now, LEASE_LOST)
            extra = entry.own()
            extra.attempts = end_of_lease(until, now, extra.attempts, 0).attempts
            return
        self._journal.leases.lost(entry, now, delayed=delayed)
        self._wait_again(entry, until, now)

    def _back_off(self, entry: Entry, now: int) -> bool:
        """Delay a leased entry as its lost lease demands; return whether it is delayed."""
        attempts, not_before = entry.extra.attempts, entry.not_before
        end = end_of_lease(entry.leased_until, now, attempts, not_before, self._backoff)
        if end.not_before == not_before:
            return False
        self.store.before_change(entry)
        entry.not_before = end.not_before
        return True

    def attempts_max_of(self, entry: Entry) -> int:
        """Return the number of failed attempts after which an entry is buried; 0: never.

        It is the smaller of two bounds: that of the domain (or the daemon), and that of its lease.
        """
        limit = entry.domain.limit
        bound = self._attempts_max if limit is None else limit.attempts or self._attempts_max
        bound = max(bound, 0)
        of_lease = entry.extra.attempts_max
        return min(bound, of_lease) if bound and of_lease else bound or of_lease

    def is_last_attempt(self, entry: Entry, told: int = 0) -> bool:
        """Whether a leased entry is buried if this attempt fails.

        ``told``: one more bound, which came with the failure; 0: none.
        """
        bound, attempts = self.attempts_max_of(entry), entry.extra.attempts + 1
        return entry.journal and (0 < bound <= attempts or 0 < told <= attempts)

    def _is_dropped(self, entry: Entry, now: int, lease_end: int) -> bool:
        """Drop an entry at the end of its lease, if it is superseded or expired.

        ``lease_end``: how the lease ends, see ``cmdlog.format.endings``; 0: the log has it.
        """
        if entry.superseded:
            by_record = entry.job_id in self._journal.records.superseded
            how = REPLACED_BY_URI if by_record else REPLACED_UNLOGGED
            self.store.replace_by_uri(entry, entry.superseded, now, how | lease_end)
            return True
        if 0 < entry.expires <= now:
            self.store.remove(entry, now)
            self._journal.expired(entry, now, lease_end)
            return True
        return False

    def _stop_work(self, entry: Entry, now: int) -> int:
        """End the lease of an entry, which may expire again; return the former end of the lease."""
        until = entry.leased_until
        self.store.end_work(entry, now)
        if entry.extra.attempts_max:
            entry.extra.attempts_max = 0
        if entry.expires:
            self.store.watch_expiry(entry)
        return until

    def _wait_again(self, entry: Entry, until: int, now: int) -> None:
        extra = entry.own()
        end = end_of_lease(until, now, extra.attempts, entry.not_before)
        extra.attempts = end.attempts
        # after a lease, SETs may postpone a URI again
        extra.first_due = extra.due = end.first_due
        extra.leased = b""
        self.store.wait_again(entry, now, END_LEASE)

    # --- dead letters ---------------------------------------------------------------------------

    def bury(self, entry: Entry, reason: bytes, now: int) -> None:
        """Bury an entry, and end its lease; a superseded or expired one is dropped."""
        state = entry.state
        self.store.before_change(entry)
        if state == EntryState.BURIED:
            if reason != entry.reason:
                text_before = text_bytes(entry)
                entry.own().reason = reason
                self._retext(entry, text_before)
                with self.store.scheduler.facts_change(entry):
                    self._journal.buried_again(entry, now)
            return
        if state == EntryState.LEASED:
            if self._is_dropped(entry, now, LEASE_RETURNED):
                return
            self._stop_work(entry, now)
        else:
            self.store.dequeue(entry)
        self._bury(entry, reason, now)

    def _bury(self, entry: Entry, reason: bytes, now: int, lease_end: int = 0) -> None:
        text_before = text_bytes(entry)
        self._job_counts.of_failing(entry.domain).buried += 1
        self.store.scheduler.bury(entry, reason)
        self._retext(entry, text_before)
        self._journal.buried(entry, now, lease_end)
        entry.own().leased = b""

    def kick(self, entries: list[Entry], now: int) -> None:
        """Requeue dead letters: they become ready, or delayed until their due time.

        Their attempts are counted anew, so that they have as many as before they were buried.
        """
        for entry in entries:
            self.store.before_change(entry)
            self.store.scheduler.unbury(entry)
            extra = entry.own()
            text_before = text_bytes(entry)
            extra.reason, extra.attempts = None, 0
            self._retext(entry, text_before)
            extra.first_due = extra.due = max(entry.not_before, now)
        self._journal.kicked(entries, now)
        for entry in entries:
            self.store.wait_again(entry, now, KICK)

    def _retext(self, entry: Entry, before: int) -> None:
        """Count the memory of a new reason or error of an entry."""
        if self.store.values is not None:
            self.store.values.retext(entry, before)
