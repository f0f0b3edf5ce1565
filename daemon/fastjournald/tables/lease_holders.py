"""Lease holders: connections that hold leases, how many, and since when; for display. Pure.

A lease operation is an object shared by all entries that one request leases. These refer to it, so
the end of a lease finds it in O(1), and tokens that are equal by chance do no harm. It ends with
its last entry. The lease table does the frequent counting, this module the rare steps.
"""

from __future__ import annotations

from collections.abc import Hashable

import msgspec
from sortedcontainers import SortedKeyList

from fastjournald.tables.domain import Domain


class LeaseHolder(msgspec.Struct, eq=False, gc=False):
    """Connection that leases entries. No request depends on it."""

    name: str
    """Address, and the name of its access token."""
    session: Hashable
    """None: the connection has ended, and its leases continue."""
    number: int = 0
    """Number of its leased entries."""
    asked: tuple[bytes, ...] = ()
    """Domains that its last NEXT with work asked for, as ``waiters.names_of``; empty: no NEXT."""
    first: LeaseOperation | None = None
    """First of its current lease operations in the order of their begins (linked list)."""
    last: LeaseOperation | None = None
    inherited: SortedKeyList | None = None
    """Renewed leases that other connections began before ``last``; by their begins."""

    @property
    def connected(self) -> bool:
        """Whether the connection is open."""
        return self.session is not None

    def oldest(self) -> LeaseOperation:
        """Return the lease operation with the earliest begin; there must be one. O(1)."""
        first = self.first
        if self.inherited and (first is None or self.inherited[0].since < first.since):
            first = self.inherited[0]
        assert first is not None, "a holder without leases is not asked"
        return first

    def inherit(self, operation: LeaseOperation) -> None:
        """Take over a lease that another connection began. O(log n)."""
        last = self.last
        if last is None or last.since <= operation.since:
            self.append(operation)
            return
        if self.inherited is None:
            self.inherited = SortedKeyList(key=_begin)
        self.inherited.add(operation)

    def append(self, operation: LeaseOperation) -> None:
        """Append a lease operation, which began last. O(1)."""
        operation.previous = last = self.last
        if last is None:
            self.first = operation
        else:
            last.following = operation
        self.last = operation

    def insert_behind(self, operation: LeaseOperation, other: LeaseOperation) -> None:
        """Insert a lease operation after another with the same begin. O(log n)."""
        if not self.has_linked(other):
            assert self.inherited is not None
            self.inherited.add(operation)
            return
        operation.previous, operation.following = other, other.following
        other.following = operation
        if operation.following is None:
            self.last = operation
        else:
            operation.following.previous = operation

    def move_begins(self, step_us: int) -> None:
        """Move the begins of its leases by a step of the clock; unknown begins stay. O(n)."""
        operations = list(self.inherited or ())
        link = self.first
        while link is not None:
            operations.append(link)
            link = link.following
        inherited, self.inherited = self.inherited, None
        for operation in operations:
            if operation.since:
                operation.since = max(operation.since + step_us, 1)
        if inherited is not None:
            self.inherited = SortedKeyList(inherited, key=_begin)

    def has_linked(self, operation: LeaseOperation) -> bool:
        """Whether a lease operation is in the linked list. O(1)."""
        return operation.previous is not None or self.first is operation

    def remove(self, operation: LeaseOperation) -> None:
        """Remove a lease operation that has ended. O(1), O(log n) for an inherited one."""
        previous, following = operation.previous, operation.following
        if self.first is operation:
            self.first = following
        elif previous is None:
            assert self.inherited is not None
            self.inherited.remove(operation)
            return
        else:
            previous.following = following
        if following is None:
            self.last = previous
        else:
            following.previous = previous
        operation.previous = operation.following = None


class LeaseBatch(msgspec.Struct, eq=False, gc=False):
    """Entries of a lease operation that leased several."""

    until: int
    """End of their leases."""
    domains: list[Domain]
    """Domains that may have some of them."""


class LeaseOperation(msgspec.Struct, eq=False, gc=False):
    """Leases of one request: their begin and their holder."""

    since: int
    """Begin of the lease, before any renewal; 0: before the start of the daemon."""
    holder: LeaseHolder
    leased: Domain | LeaseBatch
    """Domain of its only entry, or the batch of several."""
    number: int = 1
    """Number of its entries that are still leased by it."""
    renews: int = 0
    """Token of the last TOUCH; 0: a lease that was not renewed."""
    previous: LeaseOperation | None = None
    following: LeaseOperation | None = None

    def domain(self) -> Domain | None:
        """Return the domain of one of its entries; None: unknown. O(domains), amortized.

        If other leases of the domain end at the same instant, it may be the domain of these.
        """
        batch = self.leased
        if not isinstance(batch, LeaseBatch):
            return batch
        while batch.domains:
            domain = batch.domains[0]
            if domain.has_leased(batch.until):
                return domain
            del batch.domains[0]
        return None

    def move(self, before: Domain, domain: Domain) -> None:
        """Change the domain of one of its entries, which are at most 1,000. O(domains)."""
        batch = self.leased
        if not isinstance(batch, LeaseBatch):
            self.leased = domain
            return
        if before in batch.domains and not before.has_leased(batch.until):
            batch.domains.remove(before)
        if domain not in batch.domains:
            batch.domains.append(domain)


def _begin(operation: LeaseOperation) -> tuple[int, int]:
    # the keys are unique: otherwise a removal scans all with the same begin
    return operation.since, id(operation)
