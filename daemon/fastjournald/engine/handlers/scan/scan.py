"""Scan: a GET of a range, an expression or a cursor, carried out in steps. Pure.

    get -> Scan.step, again and again: search -> lease -> encode a page

A step does bounded work, counted, not measured: the same requests give the same steps. Between two
steps any entry may be added, removed or changed. A reading scan adds the pair of an entry to the
page when the search finds it. Entries to be leased are checked again in the step that leases them.
"""

from __future__ import annotations

from collections.abc import Hashable

from fastjournal import limits
from fastjournal.limits import REQUEST_WORK, SORTED_KEYS_A_UNIT
from fastjournal.protocol import ReplyEncoder, Request
from fastjournald.engine.context import DATA, SCARCE, Context
from fastjournald.engine.handlers.scan.leasing import Leasing
from fastjournald.engine.handlers.scan.page import Eligibility, QueryPlan, ScanPage
from fastjournald.engine.handlers.scan.search import KeySearch, TakeResult
from fastjournald.engine.key_filter import KeyFilter, LongMatches
from fastjournald.engine.undelivered import DeliveredJobs, DeliveringReply
from fastjournald.tables.entry import Entry
from fastjournald.tables.value_cache import Missing, Unreadable


class Reading:
    """Entries that a scan reads.

    Args:
        request: The GET.
        page: Gets their pairs.
    """

    __slots__ = ("_page", "_request")

    def __init__(self, request: Request, page: ScanPage) -> None:
        self._request = request
        self._page = page

    def take(self, context: Context, entry: Entry, key: bytes, now: int) -> TakeResult | str:
        """Add the current pair of an entry that the search found."""
        page, request = self._page, self._request
        if entry.is_missing(request.flags & DATA, leases=False):
            return TakeResult.VALUE_MISSING
        first = not page.pairs
        if first and page.is_too_large(context, entry):
            return SCARCE
        if len(page.pairs) >= page.number_max or not page.reserve(entry, key, first=first):
            return TakeResult.PAGE_FULL
        context.store.access(entry, now)
        # a scan with TIMEOUT that does not lease sets the expiry
        asked = request.timeout
        moved = context.store.move_expiry(entry, asked, now)
        if moved and (asked is not None or not context.read_only):
            context.journal.touched(entry, now, is_instant=asked is not None)
        page.add(context, entry, key, now)
        return TakeResult.WITH_EXPIRY if moved else TakeResult.YES


_ENCODE_WORK = 2
"""Work of a pair that is encoded, in units of about a microsecond at the worst."""


class Scan:
    """A GET of many keys that is being carried out.

    Args:
        context: Context with the store that it looks through.
        session: The client's.
        request: The GET.
        plan: Its query plan.
    """

    __slots__ = (
        *("_eligibility", "_encoder", "_leasing", "_page", "_plan", "_search"),
        *("request", "session"),
    )

    def __init__(
        self, context: Context, session: Hashable, request: Request, plan: QueryPlan
    ) -> None:
        self.session = session
        self.request = request
        self._plan = plan
        self._eligibility = Eligibility(session, request)
        self._page = ScanPage(context, request, plan, leases=self._eligibility.leases)
        self._leasing = Leasing(session, request, self._page, self._eligibility)
        leases = self._eligibility.leases
        take = self._leasing.choose if leases else Reading(request, self._page).take
        self._search = KeySearch(plan.keys, self._page, self._eligibility, take)
        self._encoder: ReplyEncoder | None = None

    @property
    def leased(self) -> list[DeliveredJobs]:
        """Leases of the reply: none, or those under its token."""
        leased = self._leasing.leased
        return [(self._eligibility.token, leased)] if leased else []

    @property
    def keys(self) -> KeyFilter:
        """The keys that it is about."""
        return self._plan.keys

    @property
    def holds_much(self) -> bool:
        """Whether the page holds more memory than a scan that waits may have."""
        return self._page.bytes > limits.SCAN_HELD_BYTES_MAX

    def end_page(self) -> bool:
        """End the page, with a cursor to the rest, which may be empty.

        The next page begins where the search stopped: a page that has not begun goes on.

        Returns:
            Whether the search goes on no more, and what it asked for is not needed.
        """
        search = self._search
        if search.is_over or (not self._page.pairs and search.next_key == self._plan.keys.start):
            return False
        search.is_over = True
        return True

    def step(
        self, context: Context, now: int, unreadable: Unreadable
    ) -> str | bytes | Missing | LongMatches | None:
        """Do a step; return the error or the reply if it was the last one, or what it needs."""
        if context.grants is not None:
            # the token may have lost its rights meanwhile
            why_not = context.grants.check(context.store, self.session, self.request)
            if why_not:
                return why_not
        store = context.store
        if not self._search.is_over:
            index = store.keys.sorted_keys()
            if index.unsorted > limits.UNSORTED_KEYS_READ:
                store.work += index.sort_pending(limits.SORTED_KEYS) // SORTED_KEYS_A_UNIT
                return None
            if not self._page.pairs:
                self._page.keep_to_ration(context)
            return self._search.step(context, now, unreadable)
        if not self._leasing.is_over:
            return self._leasing.step(context, now, unreadable)
        if self._encoder is None:
            next_key = self._leasing.no_room_for or self._search.next_key
            self._encoder = self._page.encoder(next_key, self._eligibility.token, now)
        else:
            number = min(len(self._page.pairs), limits.SCAN_STEP_WORK // _ENCODE_WORK)
            store.work += REQUEST_WORK + _ENCODE_WORK * number
            reply = self._encoder.encode(limits.SCAN_STEP_WORK // _ENCODE_WORK)
            if reply is None or not self._leasing.leased:
                return reply
            delivery = DeliveringReply(reply)
            delivery.jobs = self._eligibility.token, self._leasing.leased
            return delivery
        return None
