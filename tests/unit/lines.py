"""Counts executed lines: how much work a call does, whatever the machine's speed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class TooManyLinesError(AssertionError):
    """A call executed more lines than it may: a loop that ends late, or never."""


class Lines:
    """How many lines were executed."""

    def __init__(self) -> None:
        self.count = 0


@contextmanager
def lines_of(lines_max: int) -> Iterator[Lines]:
    """Count the lines that the block's calls execute.

    Raises:
        TooManyLinesError: They are more than ``lines_max``; the block ends there.
    """
    lines = Lines()

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            lines.count += 1
            if lines.count > lines_max:
                # once only: it is not counted
                sys.settrace(before)
                raise TooManyLinesError(f"more than {lines_max} lines, at {frame.f_code.co_name}")
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield lines
    finally:
        sys.settrace(before)
