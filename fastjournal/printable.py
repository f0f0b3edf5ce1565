"""Printable text: escapes what clients sent, for logs and terminals; the one place for that.

A key, a value, a reason or a message may hold terminal escapes (C0, DEL and C1 control characters),
controls of the direction of text, line separators, and halves of surrogate pairs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

NOT_PLAIN = re.compile(r"[^\x20-\x7e]")
"""Characters that may have to be escaped."""

_NAMED = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}


def safe_text(text: str) -> str:
    """Return text, with all characters escaped that can disturb a terminal or imitate a line."""
    return text if text.isprintable() else NOT_PLAIN.sub(_escaped, text)


def did_you_mean(name: str, names: Iterable[str]) -> str | None:
    """Return a hint with the known name that is most like this one, in any case; None: none is."""
    from difflib import get_close_matches  # noqa: PLC0415 - only where somebody mistyped

    known = {each.lower(): each for each in names}
    found = get_close_matches(name.lower(), known, n=1)
    return f"did you mean {known[found[0]]}?" if found else None


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    if character.isprintable():
        return character
    if character in _NAMED:
        return _NAMED[character]
    number = ord(character)
    # Bytes that are no text are \\xNN from 80 on: so characters are not.
    if number < 0x80:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number <= 0xFFFF else f"\\U{number:08x}"
