"""Lease tokens (fencing tokens): instants at which leases end, no two of an entry alike. Pure."""

from __future__ import annotations

from fastjournal import limits
from fastjournald.tables.domain import Domain
from fastjournald.tables.entry import Entry

_LEASE_MS_MAX = limits.INSTANT_MAX // 1000 - 1
"""The last whole millisecond of which all microseconds are instants."""


class LeaseTokens:
    """Source of lease tokens.

    A token is the deadline, rounded up to whole milliseconds; the microseconds below are a counter,
    so that it differs from the tokens that an entry has or had before.

    Args:
        lease_us_default: Length of a lease that names none.
    """

    __slots__ = ("_lease_us_default", "count")

    def __init__(self, lease_us_default: int) -> None:
        self._lease_us_default = lease_us_default
        self.count = 0
        """Lease operations so far: the last three digits of the next token."""

    def lease_us_of(self, domain: Domain) -> int:
        """Return the default length of a lease in a domain."""
        limit = domain.limit
        default = self._lease_us_default
        return default if limit is None else limit.lease_us or default

    def deadline(self, timeout: int | None, now: int) -> int:
        """Return when a lease of that length ends; None or 0: of the default length."""
        return now + (timeout or self._lease_us_default)

    def issue(self, entries: list[Entry], deadline: int) -> int:
        """Return the token, and so the end, of a lease operation on these entries."""
        # where instants saturate, there is room for as many milliseconds as may be looked through
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

        A thousand have the same millisecond. Entries take two each, so one of the next is free.
        """
        taken = {entry.extra.token_before for entry in entries}
        taken.update(entry.extra.token for entry in entries)
        for tried in range(len(taken) + 1):
            token = (base + tried // 1000) * 1000 + self.count % 1000
            self.count += 1
            if token not in taken:
                return token
        raise AssertionError("entries have taken more tokens than they are")
