"""Watches whether the engine looks at values that were there before the present request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest

from fastjournal.protocol.constants import ValueType
from fastjournald.tables.entry import Cold, Entry

NUMBERS = (ValueType.INTEGER, ValueType.FLOAT, ValueType.BOOLEAN)
"""Types of values that never leave memory, if they are short."""


class _Older(bytes):
    """A value that was there before the present request."""


class ValueWatch:
    """Counts how often a value is looked at that another request had left behind.

    Where there is no such look, it makes no difference whether the value was in memory.

    Args:
        marks: Values in memory count too; else those only that have left it.
    """

    def __init__(self, *, marks: bool) -> None:
        self.looks = 0
        self._marks = marks
        self._counts = True

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Count from here to the end of the test."""
        slot = Entry.__dict__["value"]

        def look(entry: Entry) -> object:
            value = slot.__get__(entry, Entry)
            self.looks += self._counts and isinstance(value, (_Older, Cold))
            return value

        monkeypatch.setattr(Entry, "value", property(look, slot.__set__))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Count nothing in the block: the engine does not carry out a request."""
        before, self._counts = self._counts, False
        try:
            yield
        finally:
            self._counts = before

    def end_request(self, entries: Iterable[Entry]) -> None:
        """The values of these entries are older than the next request."""
        for entry in entries if self._marks else ():
            if type(entry.value) is bytes and entry.value and entry.value_type not in NUMBERS:
                entry.value = _Older(entry.value)
