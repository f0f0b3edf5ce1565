"""Search of a scan: examines keys in byte order, in steps, until a page is full. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum, auto
from itertools import chain, islice
from typing import TypeAlias

from fastjournal import limits
from fastjournal.limits import MATCHED_KEYS_MAX, MATCHED_WORK_MAX, SORTED_KEYS_A_UNIT
from fastjournald.engine.context import Context
from fastjournald.engine.handlers.scan.page import Eligibility, ScanPage
from fastjournald.engine.key_filter import KeyFilter, LongMatches
from fastjournald.tables.entry import Entry
from fastjournald.tables.value_cache import Missing, Unreadable

# Work that a step counts, in units of about a microsecond at the worst.
_KEY_WORK = 1
_MATCH_WORK = 2
_BYTE_INSTRUCTIONS = 100
"""Bytes of a key times instructions of an expression, for a unit of work."""
_PAIR_WORK = 5
_EXPIRY_WORK = 20
_AHEAD_WORK = 10


class TakeResult(Enum):
    """Outcome of an entry that is offered to a page."""

    YES = auto()
    WITH_EXPIRY = auto()
    """It was taken, and its expiry moved."""
    LEFT_OUT = auto()
    PAGE_FULL = auto()
    VALUE_MISSING = auto()


# each key asks for these, and to look a member up in its class takes longer
_YES, _WITH_EXPIRY, _LEFT_OUT = TakeResult.YES, TakeResult.WITH_EXPIRY, TakeResult.LEFT_OUT


Take: TypeAlias = Callable[[Context, Entry, bytes, int], TakeResult | str]
"""Offers an entry under a key to a page, now; an error ends the scan."""


class KeySearch:
    """Search for the entries of one page.

    Args:
        keys: The key filter.
        page: Asks for values that are missing.
        eligibility: Which entries count.
        take: Takes them.
    """

    __slots__ = (
        *("_eligibility", "_keys", "_matched", "_page", "_reader", "_reader_version", "_take"),
        "_work_left",
        *("is_over", "next_key"),
    )

    def __init__(
        self, keys: KeyFilter, page: ScanPage, eligibility: Eligibility, take: Take
    ) -> None:
        self._keys = keys
        self._page = page
        self._eligibility = eligibility
        self._take = take
        self.next_key: bytes | None = keys.start
        """Next key of the search, in the end of the next page; None: there is none."""
        self.is_over = False
        self._matched: dict[bytes, bool] = {}
        """Which of the next keys match, as far as a thread has found that out."""
        self._reader: Iterator[bytes] = iter(())
        """Yields what follows ``next_key``, as long as the index has this version."""
        self._reader_version: tuple[int, int, int] | None = None
        self._work_left = 0

    def step(
        self, context: Context, now: int, unreadable: Unreadable
    ) -> str | Missing | LongMatches | None:
        """Look at some more keys, until there is no more, or one too many for the page.

        Returns:
            An error, where memory is scarce and the first pair takes too much of it, or a value
            cannot be read; values to be read, where the search has come to one on disk only; keys
            to be matched in a thread.
        """
        self._work_left = limits.SCAN_STEP_WORK
        outcome = self._look(context, now, unreadable)
        context.store.work += limits.SCAN_STEP_WORK - self._work_left
        return outcome

    def _look(
        self, context: Context, now: int, unreadable: Unreadable
    ) -> str | Missing | LongMatches | None:
        keys, find, leaves_out = self._keys, context.store.find, self._eligibility.leaves_out
        instructions = keys.instructions
        for key in self._from_next_key(context):
            if self._work_left <= 0:
                self.next_key = key
                return None
            self._work_left -= _KEY_WORK
            entry = find(key)
            if entry is None:
                continue
            if instructions:
                matched = self._matched.get(key)
                if matched is None:
                    if keys.takes_long(key):
                        self.next_key = key
                        return self._long_matches(context)
                    self._work_left -= _MATCH_WORK + len(key) * instructions // _BYTE_INSTRUCTIONS
                    matched = keys.matches_inside(key)
                if not matched:
                    continue
            if leaves_out(context, entry, now):
                continue
            taken = self._take(context, entry, key, now)
            if taken is _YES:
                self._work_left -= _PAIR_WORK
            elif taken is _WITH_EXPIRY:
                self._work_left -= _PAIR_WORK + _EXPIRY_WORK
            elif taken is not _LEFT_OUT:
                self.next_key = key
                if isinstance(taken, str):
                    return taken
                if taken is TakeResult.VALUE_MISSING:
                    return self._page.missing(entry, self._ahead(context, now), unreadable)
                self.is_over = True
                return None
        self.next_key = None
        self.is_over = True
        return None

    def _from_next_key(self, context: Context) -> Iterator[bytes]:
        """Return the keys from ``next_key`` on; go on reading where the index is the same."""
        index = context.store.keys.sorted_keys()
        if self._reader_version == index.version:
            assert self.next_key is not None
            return chain((self.next_key,), self._reader)
        context.store.work += index.unsorted // SORTED_KEYS_A_UNIT
        self._reader_version = index.version
        self._reader = self._next_keys(context)
        return self._reader

    def _long_matches(self, context: Context) -> LongMatches:
        """Return the next keys, to be matched in a thread before the search continues."""
        keys: list[bytes] = []
        room = MATCHED_WORK_MAX
        for key in self._next_keys(context):
            keys.append(key)
            room -= self._keys.instructions * len(key)
            if room < 0 or len(keys) == MATCHED_KEYS_MAX:
                break
        self._work_left -= _KEY_WORK * len(keys)
        matches = LongMatches(self._keys, keys)
        self._matched = matches.found
        return matches

    def _ahead(self, context: Context, now: int) -> Iterator[Entry]:
        """Yield entries that the search will come to, as it looks now."""
        keys = self._keys
        for key in islice(self._next_keys(context), limits.SCAN_STEP_WORK // _AHEAD_WORK):
            if keys.takes_long(key):
                return
            entry = context.store.find(key)
            if entry is None or (keys.instructions and not keys.matches_inside(key)):
                continue
            if not self._eligibility.leaves_out(context, entry, now):
                yield entry

    def _next_keys(self, context: Context) -> Iterator[bytes]:
        assert self.next_key is not None
        return context.store.keys.sorted_keys().between(self.next_key, self._keys.stop)
