"""Durations of the command line, as the clients take them: errors show what was written."""

from __future__ import annotations

from datetime import timedelta

from fastjournal.errors import BadRequestError
from fastjournal.limits import INSTANT_MAX, WAIT_WITHOUT_END
from fastjournal.time_texts import WRITE_DURATION
from fastjournal.times import to_timedelta


class Microseconds(int):
    """Microseconds of a duration, and what was written."""

    def __new__(cls, us: int, _text: str) -> Microseconds:
        """Take the number alone."""
        return super().__new__(cls, us)

    def __init__(self, _us: int, text: str) -> None:
        self.text = text


class _WrittenDuration(timedelta):
    """A duration that errors show as it was written."""

    text = ""

    def __str__(self) -> str:
        return self.text


FOREVER_US = INSTANT_MAX
"""As the microseconds of a wait: without end."""


def to_wait(us: int | None) -> float | timedelta | None:
    """Return the microseconds of a wait as the clients take it; None: no wait."""
    return WAIT_WITHOUT_END if us == FOREVER_US else to_duration_or_none(us)


def to_duration(us: int) -> timedelta:
    """Return microseconds as the clients take them; their errors show what was written."""
    if not isinstance(us, Microseconds):
        return to_timedelta(us)
    try:
        written = _WrittenDuration(microseconds=us)
    except OverflowError as error:
        raise BadRequestError(f"{us.text} is too long", hint=WRITE_DURATION) from error
    written.text = us.text
    return written


def to_duration_or_none(us: int | None) -> timedelta | None:
    """Return the same; None for None."""
    return None if us is None else to_duration(us)
