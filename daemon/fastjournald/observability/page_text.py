"""Page text: keys, instants and durations as people read them; bytes of clients are escaped."""

from __future__ import annotations

import re
import shlex
from base64 import b64encode
from urllib.parse import quote, quote_from_bytes

from fastjournal.client.core.delivery_reasons import error_line
from fastjournal.keys import shown_domain
from fastjournal.limits import INSTANT_US_MAX, PAGE_TEXT_MAX
from fastjournal.printable import safe_text
from fastjournal.time_texts import format_duration, format_instant, format_relative

_UNSEEN_BLANK = re.compile(r"^ | (?= )| $")
SECOND_US = 1_000_000
_SHORT_BYTES = 4 * (PAGE_TEXT_MAX + 1)
"""Bytes that are enough to see that a text is too long: a character has at most four."""


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


def line(data: bytes | None) -> str:
    """Return the line of an error that tells most, for a table; its blanks are one each."""
    text = error_line((data or b"").decode("utf-8", "backslashreplace"))
    text = safe_text(" ".join(text.split()))
    return text if len(text) <= PAGE_TEXT_MAX else f"{text[: PAGE_TEXT_MAX - 1]}…"


def lines(data: bytes | None) -> str:
    """Return an error with its lines; all other characters that are unseen are escaped."""
    text = (data or b"").decode("utf-8", "backslashreplace").replace("\t", "    ")
    return "\n".join(map(safe_text, text.rstrip().split("\n")))


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
    """Return a duration in whole seconds; a negative one, of a clock that was set back, as 0."""
    return format_duration(max(0, length_us) // SECOND_US * SECOND_US)


def relative(instant: int, now: int) -> str:
    """Return an instant relative to now; 0: a dash."""
    if instant > INSTANT_US_MAX:
        return "when it is resumed"
    return format_relative(instant, now) if instant else "-"


def kept(text: str) -> str:
    """Return a text for the query of a link."""
    return quote(text, safe="")


def served(name: bytes) -> str:
    """Return the domains for which a worker waits; a prefix of them ends in ``:``."""
    if name.endswith(b":"):
        return f"those that begin with {short(name[:-1])}"
    return short(shown_domain(name)) if name else "any domain"


def utc(instant: int) -> str:
    """Return an instant in UTC, to the second; 0: a dash."""
    if instant > INSTANT_US_MAX:
        return "it is resumed"
    return format_instant(instant // SECOND_US * SECOND_US) if instant else "-"
