"""Value reads of a request: cache misses, until the request can be carried out. Pure.

A value that was read for a request may leave memory again, or change, before all that it needs is
there: then it is read once more, together with the others.
"""

from __future__ import annotations

from fastjournal.protocol import Request
from fastjournald.engine.context import Context
from fastjournald.engine.engine import Missing
from fastjournald.engine.prefetch import missing_soon
from fastjournald.net.session_steps import ReadValues
from fastjournald.tables.entry import Entry


class ValueReads:
    """Reads for one request after the other.

    Args:
        context: Context of the engine.
    """

    __slots__ = ("_context", "_had", "unreadable")

    def __init__(self, context: Context) -> None:
        self.unreadable: dict[bytes, str] = {}
        """Reads that failed."""
        self._context = context
        self._had: dict[Entry, None] = {}
        """Entries whose values were read."""

    def step(self, missing: Missing, ahead: list[Request]) -> ReadValues:
        """Return the step that reads what is missing, and what the requests ahead will need."""
        place = missing.entries[0].state
        # but for what others took meanwhile
        self._had = {entry: None for entry in self._had if entry.state == place}
        in_vain = any(entry in self._had for entry in missing.entries)
        soon = missing_soon(self._context, missing, ahead)
        return ReadValues(soon, self._had if in_vain else ())

    def note(self, missing: Missing) -> None:
        """Note which of the values are in memory now."""
        for entry in missing.entries:
            if isinstance(entry.value, bytes):
                self._had[entry] = None

    def clear(self) -> None:
        """End the reads of a request: it was carried out."""
        self.unreadable, self._had = {}, {}
