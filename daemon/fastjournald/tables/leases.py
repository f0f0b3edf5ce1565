"""Lease table: leases (visibility timeouts) by token (fencing token); superseded entries. Pure.

A lease ends at its token. The token differs from that of the entry's lease before, unless a step of
the clock moved its end. At most one entry of a URI is leased. Leases are grouped by domain and end.
A superseded entry is one whose URI has a newer entry: it is never requeued, and its lease is in the
table of plain entries.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from fastjournal import _native, limits
from fastjournal.cmdlog.format.endings import superseded_by
from fastjournald.tables.domain import Domain, Leases
from fastjournald.tables.entry import LEASE, LOAD, NOTHING, Entry, EntryState, Extra
from fastjournald.tables.lease_holders import LeaseBatch, LeaseHolder, LeaseOperation
from fastjournald.tables.scheduler import Scheduler
from fastjournald.tables.signals import Signals

_LEASE_MS_MAX = limits.INSTANT_MAX // 1000 - 1
"""Last millisecond all of whose microseconds are valid instants."""


class LeaseTokens:
    """Source of lease tokens.

    A token is the deadline, rounded up to whole milliseconds, plus a counter in the last three
    digits (microseconds). It differs from the current and the previous token of the entry.

    Args:
        lease_us_default: Length of a lease that names none.
    """

    __slots__ = ("_lease_us_default", "count")

    def __init__(self, lease_us_default: int) -> None:
        self._lease_us_default = lease_us_default
        self.count = 0
        """Lease operations so far; the last three digits are those of the next token."""

    def lease_us_of(self, domain: Domain) -> int:
        """Return the default length of a lease in a domain."""
        limit = domain.limit
        default = self._lease_us_default
        return default if limit is None else limit.lease_us or default

    def deadline(self, timeout: int | None, now: int) -> int:
        """Return the end of a lease of this length; None or 0: the default length."""
        return now + (timeout or self._lease_us_default)

    def issue(self, entries: list[Entry], deadline: int) -> int:
        """Return a token, which is also the end, for a lease operation on these entries."""
        # near the largest instant: keep room for the milliseconds that ``_free_token`` may try
        base = min(-(-deadline // 1000), _LEASE_MS_MAX - 2 * len(entries) // 1000)
        token = base * 1000 + self.count % 1000
        self.count += 1
        for entry in entries:
            extra = entry.extra
            if token in (extra.token_before, extra.token):
                return self._free_token(entries, base)
        return token

    def _free_token(self, entries: list[Entry], base: int) -> int:
        """Return the first token from millisecond ``base`` on that is free for all entries.

        A millisecond has a thousand tokens. Each entry blocks at most two, so the search ends.
        """
        taken = {entry.extra.token_before for entry in entries}
        taken.update(entry.extra.token for entry in entries)
        for tried in range(len(taken) + 1):
            token = (base + tried // 1000) * 1000 + self.count % 1000
            self.count += 1
            if token not in taken:
                return token
        raise AssertionError("entries have taken more tokens than they are")


class LeaseTable:
    """Leases of all domains.

    Args:
        scheduler: Domains and their timer queue.
        signals: Receives deadlines.
    """

    def __init__(self, scheduler: Scheduler, signals: Signals) -> None:
        self._plain = scheduler.plain
        self._job_counts = scheduler.job_counts
        self._round_robin = scheduler.round_robin
        self._signals = signals
        self.by_uri: dict[bytes, Entry] = {}
        """URI to its leased entry."""
        self.count = 0
        """Number of leased entries."""
        self.plain_count = 0
        """Number of leased plain entries."""
        self.lost = 0
        """Leases that expired so far."""
        self.holding: dict[LeaseHolder, None] = {}
        """Sessions that hold leases. Leases of the time before the start have no holder."""
        self.name_of: Callable[[Hashable], str] = lambda _session: ""
        """Returns the display name of a session."""
        self._holders: dict[Hashable, LeaseHolder] = {}

    def home(self, entry: Entry) -> Domain:
        """Return the domain that counts the lease of an entry. O(1)."""
        return self._plain if entry.superseded else entry.domain

    def begin(self, entries: list[Entry], token: int, session: Hashable, now: int) -> None:
        """Lease entries, which are in no queue, until ``token`` to a session."""
        self.count += len(entries)
        holder = self._holders.get(session)
        if holder is None:
            holder = self._holder_of(session)
        number = len(entries)
        operation = LeaseOperation(now, holder, entries[0].domain, number)
        domains: list[Domain] = []
        if number > 1:
            operation.leased = LeaseBatch(token, domains)
        if not holder.number:
            self.holding[holder] = None
        holder.number += number
        # same as ``LeaseHolder.append``, without a call (tests.bench.bench_instructions)
        operation.previous = last = holder.last
        if last is None:
            holder.first = operation
        else:
            last.following = operation
        holder.last = operation
        if _native.leaves is None:
            self.plain_count += self._lease_each(entries, token, now, operation, domains)
        else:
            self.plain_count += _native.leaves.lease_entries(
                *(entries, token, now, operation, self._plain, self.by_uri),
                *(self._group_of, domains),
            )
        self._job_counts.deliver(entries, now)

    def _lease_each(
        self,
        entries: list[Entry],
        token: int,
        now: int,
        operation: LeaseOperation,
        domains: list[Domain],
    ) -> int:
        """Lease entries by one operation, and note its domains; return how many are plain."""
        plain, by_uri, plain_count = self._plain, self.by_uri, 0
        home: Domain | None = None
        group: dict[bytes, Entry] = {}
        Entry.move_all(entries, EntryState.LEASED, LEASE)
        for entry in entries:
            extra = entry.extra
            if extra is NOTHING:
                # same as ``own``, without a call (tests.bench.bench_instructions)
                extra = entry.extra = Extra()
            elif type(extra) is not Extra:
                extra = entry.own()
            extra.token = extra.leased_until = token
            extra.seen = now
            extra.lease = operation
            domain = entry.domain
            if domain is plain:
                plain_count += 1
            if domain is home:
                # without a call for each entry of a domain (tests.bench.bench_instructions)
                group[entry.key] = entry
            else:
                home = domain
                group = self._group_of(entry, token, domains)
            if entry.uri is not None:
                by_uri[entry.uri] = entry
        return plain_count

    def _group_of(self, entry: Entry, token: int, domains: list[Domain]) -> dict[bytes, Entry]:
        """Add the first entry of its domain to the leases; return those with this end."""
        domain, signals = entry.domain, self._signals
        if domain.leases.add(token, entry):
            domains.append(domain)
        if token < domain.wake or domain.held:
            self._round_robin.refresh(domain)
            if token < signals.deadline:
                signals.wake_at(token)
        return domain.leases.group(token)

    def bound(self, entries: list[Entry], attempts_max: int) -> None:
        """Set the bound on failed attempts for these leases."""
        for entry in entries:
            entry.own().attempts_max = attempts_max

    def load(self, entry: Entry) -> None:
        """Load a lease from the log; the timer queue is built later. O(1)."""
        entry.move_to(EntryState.LEASED, LOAD)
        self.count += 1
        self.plain_count += not entry.journal
        self.home(entry).leases.add(entry.leased_until, entry)
        if entry.superseded:
            self._note_superseded(entry)
        if entry.uri is not None:
            self.by_uri[entry.uri] = entry

    def is_renewed_from(self, entry: Entry, token: int) -> bool:
        """Whether the lease was renewed by a TOUCH with this token, so a retry is idempotent. O(1).

        True for the token of the last TOUCH, and for the token before the current one.
        """
        extra = entry.extra
        lease = extra.lease
        if lease is None or not lease.renews:
            return False
        return token in (lease.renews, extra.token_before)

    def holder_of(self, session: Hashable) -> LeaseHolder | None:
        """Return the lease holder of a session; None: it has leased nothing. O(1)."""
        return self._holders.get(session)

    def note_asked(self, session: Hashable, names: tuple[bytes, ...]) -> None:
        """Note the domains that the NEXT asked for which has just leased entries. O(1)."""
        self._holders[session].asked = names

    def end_session(self, session: Hashable) -> None:
        """Mark a session as ended: it begins no new lease."""
        holder = self._holders.pop(session, None)
        if holder is not None:
            holder.session = None

    def _holder_of(self, session: Hashable) -> LeaseHolder:
        """Return the lease holder of a session; create it if there is none."""
        holder = self._holders.get(session)
        if holder is None:
            holder = self._holders[session] = LeaseHolder(self.name_of(session), session)
        return holder

    def leave_operation(self, operation: LeaseOperation) -> None:
        """Remove one entry from a lease operation. O(1)."""
        holder = operation.holder
        holder.number -= 1
        operation.number -= 1
        if operation.number:
            return
        if operation is holder.first:
            # same as ``LeaseHolder.remove``, without a call (tests.bench.bench_instructions)
            holder.first = following = operation.following
            if following is None:
                holder.last = None
            else:
                following.previous = operation.following = None
        else:
            holder.remove(operation)
        if not holder.number:
            del self.holding[holder]

    def _renew_operation(self, entry: Entry, session: Hashable, shown: int) -> None:
        """Make the lease of an entry one that a session renewed with token ``shown``. O(log n)."""
        extra = entry.own()
        holder = self._holder_of(session)
        before: LeaseOperation | None = extra.lease
        if before is not None and before.holder is holder and type(before.leased) is Domain:
            before.renews = shown
            return
        since = 0 if before is None else before.since
        extra.lease = operation = LeaseOperation(since, holder, entry.domain, renews=shown)
        if not holder.number:
            self.holding[holder] = None
        holder.number += 1
        if before is not None and before.holder is holder:
            holder.insert_behind(operation, before)
        else:
            holder.inherit(operation)
        if before is not None:
            self.leave_operation(before)

    def _move(self, entry: Entry, home: Domain, other: Domain) -> None:
        """Move the lease of an entry to another domain's table. O(log n)."""
        home.leases.discard(entry.leased_until, entry)
        other.leases.add(entry.leased_until, entry)
        self._round_robin.refresh(home)

    def extend(self, entry: Entry, token: int, session: Hashable, *, shown: int) -> Sequence[bytes]:
        """Lease renewal: move the end of a lease to ``token`` for a session.

        ``shown``: the token with which the session proved its lease.

        Returns:
            The URIs of the lease: their waiting entries stay delayed until the new end.
        """
        extra = entry.own()
        self._renew_operation(entry, session, shown)
        extra.token_before = extra.token
        extra.token = token
        return self.move_end(entry, token)

    def move_end(self, entry: Entry, until: int) -> Sequence[bytes]:
        """Move the end of a lease; the token does not change. O(log n).

        Returns:
            As ``extend``.
        """
        home = self.home(entry)
        extra = entry.own()
        home.leases.discard(extra.leased_until, entry)
        if extra.superseded:
            self._discard_superseded(entry)
        extra.leased_until = until
        home.leases.add(until, entry)
        if extra.superseded:
            self._note_superseded(entry)
        operation: LeaseOperation | None = extra.lease
        if operation is not None and isinstance(operation.leased, LeaseBatch):
            # the caller moves all entries of the batch
            operation.leased.until = until
        self._round_robin.refresh(home)
        self._signals.wake_at(until)
        return self._uris_of(entry)

    def move_begins(self, step_us: int) -> None:
        """Add a clock step to the begin of all current leases. O(n)."""
        for holder in self.holding:
            holder.move_begins(step_us)

    def end(self, entry: Entry) -> Sequence[bytes]:
        """End the lease of an entry. The caller sets its next state.

        Returns:
            The URIs of the lease: their next entries may be leased.
        """
        extra = entry.extra
        domain = entry.domain
        home = self._plain if extra.superseded else domain
        until = extra.leased_until
        if home.leases.discard(until, entry) and until == home.wake:
            self._round_robin.refresh(home)
        operation = extra.lease
        if operation is not None:
            extra.lease = None
            if operation.number > 1:
                # as ``leave_operation``, without a call (tests.bench.bench_instructions)
                operation.number -= 1
                operation.holder.number -= 1
            else:
                self.leave_operation(operation)
        self.count -= 1
        if domain is self._plain:
            self.plain_count -= 1
        if extra.superseded:
            self._discard_superseded(entry)
        extra.token_before = extra.token
        extra.token = extra.leased_until = 0
        if extra.superseded:
            uris = self._uris_of(entry)
            for uri in uris:
                del self.by_uri[uri]
            return uris
        # same as ``_uris_of`` for entries that are not superseded, at half the cost
        if entry.uri is None:
            return ()
        del self.by_uri[entry.uri]
        return (entry.uri,)

    # --- superseded entries and RENAME ----------------------------------------------------------

    def supersede(self, entry: Entry, uri: bytes, timestamp: int) -> None:
        """Mark a leased entry as superseded: a SET with this timestamp took its URI or a link."""
        self.by_uri[uri] = entry
        if not entry.superseded:
            self._move(entry, self.home(entry), self._plain)
            entry.own().superseded = superseded_by(0, timestamp)
            self._note_superseded(entry)

    def _note_superseded(self, entry: Entry) -> None:
        """Count the lease of a superseded entry for the limits of its domain."""
        domain = entry.domain
        if domain is not self._plain:
            if domain.superseded is None:
                domain.superseded = Leases()
            domain.superseded.add(entry.leased_until, entry)
            if domain.held:
                self._round_robin.held.refresh(domain)

    def _discard_superseded(self, entry: Entry) -> None:
        superseded = entry.domain.superseded
        if superseded is not None:
            superseded.discard(entry.leased_until, entry)

    def rekey(self, entry: Entry, old: bytes, before: Domain) -> int:
        """Update the leases after RENAME changed the primary key and the domain of an entry.

        Returns:
            Number of leases with the same end, which is the work done.
        """
        self.plain_count += (entry.domain is self._plain) - (before is self._plain)
        home = self._plain if entry.superseded else before
        number = home.leases.number_of(entry.leased_until)
        home.leases.rename(entry.leased_until, old, entry)
        if self.home(entry) is not home:
            self._move(entry, home, entry.domain)
            self._round_robin.refresh(entry.domain)
        if entry.superseded:
            if before.superseded is not None:
                before.superseded.rename(entry.leased_until, old, entry)
                before.superseded.discard(entry.leased_until, entry)
            self._note_superseded(entry)
        if entry.domain.limit is not None:
            self._round_robin.hold_or_free(entry.domain)
        operation: LeaseOperation | None = entry.extra.lease
        if operation is not None:
            operation.move(before, entry.domain)
        return number

    def _uris_of(self, entry: Entry) -> list[bytes]:
        """Return the URI, and the links that newer entries use as URI, that wait for this entry."""
        uris = [] if entry.uri is None else [entry.uri]
        if entry.superseded and entry.links:
            uris += entry.links
        return [uri for uri in uris if self.by_uri.get(uri) is entry]
