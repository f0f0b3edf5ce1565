"""Leasing scan: chooses entries while it searches, and leases them afterwards, in steps. Pure.

Entries that are chosen may change before they are leased: each is looked at again then.
"""

from __future__ import annotations

from collections.abc import Hashable

from fastjournal import limits
from fastjournal.cmdlog.format import workq
from fastjournal.limits import WRITTEN_BYTES_A_UNIT
from fastjournal.protocol import Request
from fastjournald.engine.context import DATA, READ_ONLY, SCARCE, Context
from fastjournald.engine.handlers.scan.page import Eligibility, ScanPage
from fastjournald.engine.handlers.scan.search import TakeResult
from fastjournald.tables.entry import Entry
from fastjournald.tables.value_cache import Missing, Unreadable

_LEASE_WORK = 20
"""Work of an entry that is leased, in units of about a microsecond at the worst."""


class Leasing:
    """Entries that a scan leases.

    Args:
        session: Session that asked.
        request: The GET.
        page: Gets their pairs.
        eligibility: Which entries may be leased.
    """

    __slots__ = (
        *("_chosen", "_eligibility", "_page", "_request", "_seen", "_session"),
        *("leased", "no_room_for"),
    )

    def __init__(
        self, session: Hashable, request: Request, page: ScanPage, eligibility: Eligibility
    ) -> None:
        self._session = session
        self._request = request
        self._page = page
        self._eligibility = eligibility
        self._chosen: list[tuple[bytes, Entry]] = []
        """Entries to be leased, and the key under which each was found first."""
        self._seen: set[int] = set()
        """Addresses of the chosen entries: each is leased once."""
        self.leased: list[Entry] = []
        """Entries of the reply, all leased under the token of the scan."""
        self.no_room_for: bytes | None = None
        """A key that did not fit the page any more, so the next one begins there."""

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to be leased."""
        return not self._chosen

    def choose(self, context: Context, entry: Entry, key: bytes, now: int) -> TakeResult | str:
        """Choose an entry that the search has found."""
        if id(entry) in self._seen or not self._eligibility.takes_room(entry):
            return TakeResult.LEFT_OUT
        if len(self._chosen) >= self._page.number_max:
            return TakeResult.PAGE_FULL
        self._chosen.append((key, entry))
        self._seen.add(id(entry))
        return TakeResult.YES

    def step(self, context: Context, now: int, unreadable: Unreadable) -> str | Missing | None:
        """Lease some of what was chosen, as far as it may be leased still, and fits the page.

        Returns:
            An error, where nothing may be leased now, the first pair takes too much memory, or a
            value cannot be read; values to be read, where one that is to be leased is on disk only.
        """
        self._page.keep_to_ration(context)
        number = limits.SCAN_STEP_WORK // _LEASE_WORK
        chosen, self._chosen = self._chosen[:number], self._chosen[number:]
        context.store.work += _LEASE_WORK * len(chosen)
        if not self._eligibility.token:
            if context.read_only:
                return READ_ONLY
            self._seen.clear()
        self._eligibility.clear_taken()
        leased: list[tuple[bytes, Entry]] = []
        outcome = self._reserve(context, chosen, leased, now, unreadable)
        if outcome is None and leased:
            self._lease(context, leased, now)
        return outcome

    def _reserve(
        self,
        context: Context,
        chosen: list[tuple[bytes, Entry]],
        leased: list[tuple[bytes, Entry]],
        now: int,
        unreadable: Unreadable,
    ) -> str | Missing | None:
        """Move entries from ``chosen`` to ``leased`` and take room for them; the rest waits."""
        page, store = self._page, context.store
        work_over = store.work + limits.SCAN_STEP_WORK
        for at, (key, _) in enumerate(chosen):
            entry = store.find(key)
            if entry is None or not self._is_eligible(context, entry, now):
                continue
            if entry.is_missing(self._request.flags & DATA, leases=True):
                self._chosen = chosen[at:] + self._chosen
                if leased:
                    return None
                return page.missing(entry, (other for _, other in chosen[at:]), unreadable)
            first = not (leased or page.pairs)
            if first and page.is_too_large(context, entry):
                return SCARCE
            if not page.reserve(entry, key, first=first):
                self.no_room_for = key
                self._chosen.clear()
                return None
            self._seen.add(id(entry))
            leased.append((key, entry))
            if entry.extra.starts >= workq.ATTEMPTS_MAX:
                # it becomes a new job, for workq
                store.work += entry.full_bytes() // WRITTEN_BYTES_A_UNIT
                if store.work > work_over:
                    self._chosen = chosen[at + 1 :] + self._chosen
                    return None
        return None

    def _is_eligible(self, context: Context, entry: Entry, now: int) -> bool:
        return (
            id(entry) not in self._seen
            and not self._eligibility.leaves_out(context, entry, now)
            and self._eligibility.takes_room(entry)
        )

    def _lease(self, context: Context, leased: list[tuple[bytes, Entry]], now: int) -> None:
        """Lease these, under the token of those before, and add their pairs."""
        store, eligibility = context.store, self._eligibility
        entries = [entry for _, entry in leased]
        if not eligibility.token:
            chosen = entries + [entry for _, entry in self._chosen]
            eligibility.token = context.tokens.issue(
                chosen, context.tokens.deadline(self._request.timeout, now)
            )
        token = eligibility.token
        self.leased += entries
        moved = []
        for entry in entries:
            if store.move_expiry(entry, None, now):
                moved.append(entry)
            store.dequeue(entry)
            store.rules.note_delivery(entry.domain, now)
        unproven = context.unproven(entries, leased=True)
        context.journal.leases.leased(entries, token, now, touched=moved, delivered=unproven)
        store.begin_work(entries, token, self._session, now)
        for key, entry in leased:
            self._page.add(context, entry, key, now)
