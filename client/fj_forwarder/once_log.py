"""Log deduplication: each name or code is logged once, up to a bound; others are only counted."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from fastjournal.printable import safe_text

if TYPE_CHECKING:
    from collections.abc import Collection

log = logging.getLogger("fj_forwarder")

NAMED_MAX: Final = 1000
"""So many names are logged one by one. The log stays readable, and the memory is bounded."""

_CODES_MAX: Final = 32
"""Error codes of delayed records that the log names; a daemon may invent any number."""

_CODE_CHARS_MAX: Final = 64


def printable_code(error: str) -> str:
    """Return the code of an error of a daemon, at most 64 characters, escaped where necessary."""
    return safe_text(error.partition(" ")[0])[:_CODE_CHARS_MAX]


class OnceLog:
    """Log of names, each once.

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


class DelayLog:
    """Log of delayed records: the first one with each error code; status.json has the others."""

    def __init__(self) -> None:
        self._codes: set[str] = set()
        """Codes that are in the log."""

    def log(self, path: str, offset: int, error: str) -> None:
        """Log a record that is delayed, unless its code was logged.

        Args:
            path: The slot.
            offset: Where the record starts in it, in bytes.
            error: The daemon's answer, which begins with a code.
        """
        code = printable_code(error)
        if code in self._codes or len(self._codes) >= _CODES_MAX:
            log.debug("a record is kept, to be sent again: %s", error)
            return
        self._codes.add(code)
        log.warning(
            "%s: the daemon answers %s to the record at offset %d; it is kept and tried again, as "
            "are others with this answer: see delayed_records in status.json",
            path,
            safe_text(error),
            offset,
        )
