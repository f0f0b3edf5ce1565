"""Page text: keys, instants and durations as people read them; bytes of clients are escaped."""

from __future__ import annotations

import re
import shlex
from base64 import b64encode
from datetime import UTC, datetime
from urllib.parse import quote_from_bytes

from fastjournal.limits import PAGE_TEXT_MAX
from fastjournal.printable import safe_text

_UNSEEN_BLANK = re.compile(r"^ | (?= )| $")
SECOND_US = 1_000_000
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"))
_SHORT_BYTES = 4 * (PAGE_TEXT_MAX + 1)
"""Bytes that are enough to see that a text is too long: a character has at most four."""
_YEAR_9999_US = 253_402_300_799 * SECOND_US


def shown(data: bytes | None) -> str:
    r"""Return bytes as text, another text for all others; a backslash is ``\\``.

    Blanks at an end, and several in a row, are ``\x20``: a browser shows none there, so a link
    would be invisible, or have the text of another.
    """
    if data is None:
        return ""
    text = safe_text(data.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace"))
    return _UNSEEN_BLANK.sub(r"\\x20", text)


def sentence(text: str) -> str:
    """Return a text that may contain texts of clients, escaped."""
    return safe_text(text)


def typed(data: bytes) -> str:
    """Return bytes for the field of a form; empty where people cannot type them."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return ""
    return text if text.isprintable() else ""


def short(data: bytes | None) -> str:
    """Return bytes as text for a table, cut where they are long."""
    text = shown(data and data[:_SHORT_BYTES])
    return text if len(text) <= PAGE_TEXT_MAX else f"{text[: PAGE_TEXT_MAX - 1]}…"


def explain_command(key: bytes) -> str:
    """Return the command that explains an entry, to be copied into a shell."""
    text = typed(key)
    if not text:
        return f"fj-cli explain --b64 {b64encode(key).decode()}"
    return f"fj-cli explain {'-- ' if text.startswith('-') else ''}{shlex.quote(text)}"


def quoted(data: bytes) -> str:
    """Return bytes for the query of a link."""
    return quote_from_bytes(data, safe="")


def number(figure: int) -> str:
    """Return a number with commas between thousands."""
    return f"{figure:,}"


def duration(length_us: int) -> str:
    """Return a duration in its two largest units, in whole seconds."""
    seconds = max(0, length_us) // SECOND_US
    for size, unit in _UNITS:
        if seconds >= size:
            whole, rest = divmod(seconds, size)
            smaller = {"d": ("h", 3_600), "h": ("m", 60), "m": ("s", 1)}[unit]
            return f"{whole} {unit} {rest // smaller[1]} {smaller[0]}"
    return f"{seconds} s"


def relative(instant: int, now: int) -> str:
    """Return an instant in words relative to now; 0: a dash."""
    if not instant:
        return "-"
    away = instant - now
    return f"in {duration(away)}" if away > 0 else f"{duration(-away)} ago"


def utc(instant: int) -> str:
    """Return an instant in UTC, to the second; 0: a dash."""
    if not instant:
        return "-"
    if instant > _YEAR_9999_US:
        return "after the year 9999"
    moment = datetime.fromtimestamp(instant // SECOND_US, UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
