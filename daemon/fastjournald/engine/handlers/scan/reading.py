"""Reading scan: puts the pairs of entries on the page as the search finds them. Pure."""

from __future__ import annotations

from fastjournal.protocol import Request
from fastjournald.engine.context import Context
from fastjournald.engine.handlers.arguments import DATA, SCARCE
from fastjournald.engine.handlers.scan.page import ScanPage
from fastjournald.engine.handlers.scan.search import TakeResult
from fastjournald.tables.entry import Entry


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
        """Add the pair of an entry that the search has found, as it stands now."""
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
