"""Texts of figures: numbers, durations, instants and names from the log, for people. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from fastjournal.printable import safe_text

UNKNOWN = "-"
"""Text of a figure that is not known."""
NAME_CHARACTERS = 90
"""A longer name is cut in the middle."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def count(number: float | None) -> str:
    """Return a number with separators; one that is not known is a dash."""
    return UNKNOWN if number is None else f"{number:,.0f}"


def duration(us: float | None) -> str:
    """Return microseconds as a person reads them, to two parts: ``3 d 4 h``."""
    if us is None:
        return UNKNOWN
    if us < 1000:
        return f"{us:.0f} us" if us else "0"
    if us < 1_000_000:
        return f"{us / 1000:.0f} ms"
    if us < 10_000_000:
        return f"{us / 1_000_000:.1f} s"
    seconds = int(us // 1_000_000)
    parts: list[str] = []
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        number, seconds = divmod(seconds, length)
        if number or parts:
            parts.append(f"{number} {unit}" if number else "")
    return " ".join(part for part in parts[:2] if part)


def short(us: float | None) -> str:
    """Return microseconds in one unit, for an axis: ``1.5 h``."""
    if us is None:
        return UNKNOWN
    units = (("d", 86_400e6), ("h", 3_600e6), ("min", 60e6), ("s", 1e6), ("ms", 1e3), ("us", 1.0))
    unit, length = next((one for one in units if us >= one[1]), units[-1])
    number = us / length
    return f"{f'{number:.3g}' if number < 999 else f'{number:,.0f}'} {unit}" if us else "0"


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
    """Return an instant (or microseconds since the Unix epoch) to the second."""
    if value is None:
        return UNKNOWN
    if isinstance(value, int):
        value = _EPOCH + timedelta(microseconds=value)
    return value.strftime("%Y-%m-%d %H:%M:%S")


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
