"""Lease table (visibility timeout): entries by the end of their lease, one worker a URI. Pure.

A lease (visibility timeout) ends at its token. Leases stand by domain, grouped by token; those of
superseded entries, which come back to no queue, stand with the plain ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from fastjournald.tables.domain import Domain, Leases
from fastjournald.tables.entry import NOTHING, Entry, Extra
from fastjournald.tables.entry_states import EntryState
from fastjournald.tables.scheduler import Scheduler
from fastjournald.tables.signals import Signals

_LEASED = EntryState.LEASED


class LeaseTable:
    """Leases of all domains.

    Args:
        scheduler: Has the domains, and their timer queue.
        signals: Told of deadlines.
    """

    def __init__(self, scheduler: Scheduler, signals: Signals) -> None:
        self._plain = scheduler.plain
        self._round_robin = scheduler.round_robin
        self._signals = signals
        self.by_uri: dict[bytes, Entry] = {}
        """URI to the entry that is leased for it."""
        self.count = 0
        """Number of leased entries."""
        self.plain_count = 0
        """Number of leased plain entries."""
        self.lost = 0
        """Leases that ran out so far."""

    def home(self, entry: Entry) -> Domain:
        """Return the domain whose leases an entry stands among. O(1)."""
        return self._plain if entry.superseded else entry.domain

    def begin(self, entries: list[Entry], token: int) -> None:
        """Lease entries, which are in no queue, until ``token``."""
        plain, by_uri = self._plain, self.by_uri
        self.count += len(entries)
        for entry in entries:
            entry.move_to(_LEASED)
            extra = entry.extra
            if extra is NOTHING:
                # as most are: without a call
                extra = entry.extra = Extra()
            elif type(extra) is not Extra:
                extra = entry.own()
            extra.token = token
            domain = entry.domain
            if domain is plain:
                self.plain_count += 1
            domain.leases.add(token, entry)
            if token < domain.wake or domain.held:
                self._round_robin.refresh(domain)
                self._signals.wake_at(token)
            if entry.uri is not None:
                by_uri[entry.uri] = entry

    def load(self, entry: Entry) -> None:
        """Take over a lease from the log; the timer queue is built later. O(1)."""
        entry.move_to(EntryState.LEASED)
        self.count += 1
        self.plain_count += not entry.journal
        self.home(entry).leases.add(entry.token, entry)
        if entry.superseded:
            self._note_superseded(entry)
        if entry.uri is not None:
            self.by_uri[entry.uri] = entry

    def extend(self, entry: Entry, token: int) -> Sequence[bytes]:
        """Let the lease of an entry end at ``token`` instead.

        Returns:
            The URIs for which it is leased: work on them has to wait for that.
        """
        home = self.home(entry)
        extra = entry.own()
        home.leases.discard(extra.token, entry)
        if extra.superseded:
            self._discard_superseded(entry)
        extra.token_before = extra.token
        extra.token = token
        home.leases.add(token, entry)
        if extra.superseded:
            self._note_superseded(entry)
        self._round_robin.refresh(home)
        self._signals.wake_at(token)
        return self._uris_of(entry)

    def end(self, entry: Entry) -> Sequence[bytes]:
        """End the lease of an entry; its next state is up to the caller.

        Returns:
            The URIs for which it was leased: other work on them may begin.
        """
        extra = entry.extra
        domain = entry.domain
        home = self._plain if extra.superseded else domain
        token = extra.token
        if home.leases.discard(token, entry) and token == home.wake:
            self._round_robin.refresh(home)
        self.count -= 1
        if domain is self._plain:
            self.plain_count -= 1
        if extra.superseded:
            self._discard_superseded(entry)
        extra.token_before = token
        extra.token = 0
        if extra.superseded:
            uris = self._uris_of(entry)
            for uri in uris:
                del self.by_uri[uri]
            return uris
        # the same for what nearly every entry is, at half the price
        if entry.uri is None:
            return ()
        del self.by_uri[entry.uri]
        return (entry.uri,)

    # --- superseded entries and RENAME ----------------------------------------------------------

    def supersede(self, entry: Entry, uri: bytes, timestamp: int) -> None:
        """Let a SET with this timestamp take a URI, or a link, from a leased entry."""
        self.by_uri[uri] = entry
        if not entry.superseded:
            home = self.home(entry)
            home.leases.discard(entry.token, entry)
            self._round_robin.refresh(home)
            # 0 says that none did
            entry.own().superseded = max(timestamp, 1)
            self._plain.leases.add(entry.token, entry)
            self._note_superseded(entry)

    def _note_superseded(self, entry: Entry) -> None:
        """Let a superseded entry, which stands among the plain leases, count for its domain."""
        domain = entry.domain
        if domain is not self._plain:
            if domain.superseded is None:
                domain.superseded = Leases()
            domain.superseded.add(entry.token, entry)
            if domain.held:
                self._round_robin.held.refresh(domain)

    def _discard_superseded(self, entry: Entry) -> None:
        superseded = entry.domain.superseded
        if superseded is not None:
            superseded.discard(entry.token, entry)

    def rekey(self, entry: Entry, old: bytes, before: Domain) -> int:
        """Let the lease of an entry follow that had a primary key and a domain before.

        Returns:
            How many entries have its token, which is how much there was to do.
        """
        self.plain_count += (entry.domain is self._plain) - (before is self._plain)
        home = self._plain if entry.superseded else before
        number = home.leases.number_of(entry.token)
        home.leases.rename(entry.token, old, entry)
        if self.home(entry) is not home:
            home.leases.discard(entry.token, entry)
            self._round_robin.refresh(home)
            entry.domain.leases.add(entry.token, entry)
            self._round_robin.refresh(entry.domain)
        if entry.superseded:
            if before.superseded is not None:
                before.superseded.rename(entry.token, old, entry)
                before.superseded.discard(entry.token, entry)
            self._note_superseded(entry)
        if entry.domain.limit is not None:
            self._round_robin.hold_or_free(entry.domain)
        return number

    def _uris_of(self, entry: Entry) -> list[bytes]:
        """Return the URI, and the links that newer entries have as theirs, if they wait for it."""
        uris = [] if entry.uri is None else [entry.uri]
        if entry.superseded and entry.links:
            uris += entry.links
        return [uri for uri in uris if self.by_uri.get(uri) is entry]
