"""Log deduplication: each name is logged once; beyond a bound one line has the number of others."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

log = logging.getLogger("fj_forwarder")

NAMED_MAX: Final = 1000
"""So many names are logged one by one. The log stays readable, and the memory is bounded."""


class OnceLog:
    """Names that were logged.

    Args:
        summary: Sentence behind "N further", for the names beyond the bound.
    """

    def __init__(self, summary: str) -> None:
        self._summary = summary
        self._logged: set[str] = set()
        self._summarized = 0
        """The number in the last summary."""

    def __len__(self) -> int:
        """Return how many names were logged."""
        return len(self._logged)

    def error(self, name: str, sentence: str) -> bool:
        """Log a sentence about a name, unless that was done; False: there are too many names."""
        if name in self._logged:
            return True
        if len(self._logged) >= NAMED_MAX:
            return False
        self._logged.add(name)
        log.error("%s", sentence)
        return True

    def prune(self, present: Collection[str]) -> None:
        """Drop the names that are not there any more: they are logged again when they come back."""
        self._logged.intersection_update(present)

    def summarize(self, further: int) -> None:
        """Log how many further names there are, each time that their number has doubled."""
        if further > 2 * self._summarized:
            log.error("%d further %s", further, self._summary)
            self._summarized = further
        elif not self._logged:
            self._summarized = 0
