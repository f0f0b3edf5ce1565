"""Eligibility of entries for a scan: rights, flags of the request, locks, leases, limits. Pure."""

from __future__ import annotations

from collections.abc import Hashable

from fastjournal.protocol import Request
from fastjournald.engine.context import Context
from fastjournald.engine.handlers.arguments import UPDATE_TIMEOUT, WORKED_ON
from fastjournald.tables.entry import Entry
from fastjournald.tables.entry_states import EntryState


class Eligibility:
    """Decides which entries a scan returns, and which it may lease.

    Args:
        session: The client's.
        request: The GET.
    """

    __slots__ = ("_request", "_session", "_taken", "leases", "token")

    def __init__(self, session: Hashable, request: Request) -> None:
        self._session = session
        self._request = request
        self.leases = request.timeout is not None and not request.flags & UPDATE_TIMEOUT
        """Whether the scan leases all that it returns."""
        self.token = 0
        """Lease token of all that it leases; 0: nothing so far."""
        self._taken: dict[bytes, int] = {}
        """Entries taken of limited domains, that are not leased so far."""

    def leaves_out(self, context: Context, entry: Entry, now: int) -> bool:
        """Whether rights or the flags of the request leave an entry out, as it stands now."""
        if context.grants is not None and not context.grants.may_see(self._session, entry):
            return True
        request, store = self._request, context.store
        if request.timeout is not None and store.locks.locked_to(entry.key, self._session, now):
            return True
        if (self.leases or request.flags & WORKED_ON) and entry.state == EntryState.LEASED:
            return True
        return self.leases and (
            # no entry gets the token that it had before
            0 < self.token == entry.extra.token_before
            or entry.state == EntryState.BURIED
            or (entry.uri is not None and entry.uri in store.leases.by_uri)
        )

    def takes_room(self, entry: Entry) -> bool:
        """Whether the limit of its domain allows one more delivery, and if so take that."""
        domain = entry.domain
        if domain.limit is None:
            return True
        taken = self._taken.get(domain.name, 0)
        if taken >= domain.allowance():
            return False
        self._taken[domain.name] = taken + 1
        return True

    def clear_taken(self) -> None:
        """All that was taken is leased, or will not be."""
        self._taken.clear()
