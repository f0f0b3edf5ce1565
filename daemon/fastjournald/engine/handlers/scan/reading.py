"""Reading scan: puts the pairs of entries on the page as the search finds them. Pure."""

from __future__ import annotations

from fastjournal.protocol import Request
from fastjournald.engine.context import Context
from fastjournald.engine.handlers.arguments import SCARCE
from fastjournald.engine.handlers.reply_pairs import is_missing, keep_expiry, move_expiry
from fastjournald.engine.handlers.scan.page import Page
from fastjournald.engine.handlers.scan.search import Taken
from fastjournald.tables.entry import Entry


class Reading:
    """Entries that a scan reads.

    Args:
        request: The GET.
        page: Gets their pairs.
    """

    __slots__ = ("_page", "_request")

    def __init__(self, request: Request, page: Page) -> None:
        self._request = request
        self._page = page

    def take(self, context: Context, entry: Entry, key: bytes, now: int) -> Taken | str:
        """Add the pair of an entry that the search has found, as it stands now."""
        page, request = self._page, self._request
        if is_missing(entry, request.flags, leases=False):
            return Taken.VALUE_MISSING
        first = not page.pairs
        if first and page.is_too_large(context, entry):
            return SCARCE
        if len(page.pairs) >= page.number_max or not page.reserve(entry, key, first=first):
            return Taken.PAGE_FULL
        context.store.access(entry, now)
        moved = move_expiry(context, entry, request, now)
        if moved:
            keep_expiry(context, entry, request, now)
        page.add(context, entry, key, now)
        return Taken.WITH_EXPIRY if moved else Taken.YES
