"""Texts of figures: numbers, durations, instants and names from the log, for people. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

from fastjournal.printable import safe_text
from fastjournal.time_texts import format_duration, format_instant, format_round_duration

UNKNOWN = "-"
"""Text of a figure that is not known."""
NAME_CHARACTERS = 90
"""A longer name is cut in the middle."""


def count(number: float | None) -> str:
    """Return a number with separators; one that is not known is a dash."""
    return UNKNOWN if number is None else f"{number:,.0f}"


def duration(us: float | None) -> str:
    """Return microseconds as a person reads them, to two parts: ``3d 4h``."""
    return UNKNOWN if us is None else format_duration(us)


def short(us: float | None) -> str:
    """Return microseconds in one unit, for an axis: ``1.5h``."""
    return UNKNOWN if us is None else format_round_duration(us)


def short_count(number: float) -> str:
    """Return a number in one unit, for an axis: ``20 M``."""
    for unit, length in (("G", 1e9), ("M", 1e6)):
        if number >= length:
            return f"{number / length:,.12g} {unit}"
    return count(number)


def size(count: float | None) -> str:
    """Return bytes as a person reads them."""
    if count is None:
        return UNKNOWN
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1024
    raise AssertionError


def share(part: float | None, whole: float | None) -> str:
    """Return a part as per cent."""
    return UNKNOWN if part is None or not whole else f"{part / whole:.1%}"


def change(now: float | None, before: float | None) -> str:
    """Return the change against another number, with its sign."""
    if now is None or not before:
        return UNKNOWN
    return f"{(now - before) / before:+.0%}"


def instant(value: datetime | int | None) -> str:
    """Return an instant (or microseconds since the Unix epoch) in UTC, to the second."""
    if value is None:
        return UNKNOWN
    if isinstance(value, datetime):
        # one without a zone, of a stored table, is in UTC
        value = int(value.replace(tzinfo=value.tzinfo or UTC).timestamp()) * 1_000_000
    return format_instant(value // 1_000_000 * 1_000_000)


def name(value: str | bytes | None, characters: int = NAME_CHARACTERS) -> str:
    """Return a domain, URI or reason without controls, cut in the middle where it is long."""
    if value is None:
        return "(unknown)"
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
    text = safe_text(text)
    if len(text) > characters:
        half = characters // 2 - 1
        text = f"{text[:half]}…{text[-half:]}"
    return text or "(empty)"
