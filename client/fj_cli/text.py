"""Text for terminals and for JSON: the one place where what came from elsewhere is escaped.

A key, a value, a reason or a message may hold terminal escapes (C0, DEL and C1 control characters),
controls of the direction of text, line separators, and halves of surrogate pairs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_NOT_ASCII_OR_CONTROL = re.compile(r"[^\x20-\x7e]")


def safe_text(text: str) -> str:
    """Return text with whatever could disturb a terminal, or feign a line of its own, escaped."""
    return text if text.isprintable() else _NOT_ASCII_OR_CONTROL.sub(_escaped, text)


def json_text(fields: Mapping[str, Any], *, ascii_only: bool = False) -> str:
    """Return a JSON object on one line, strict: no ``NaN``, and nothing that disturbs a terminal.

    A float that is not finite has no JSON form: it is the string ``NaN``, ``Infinity`` or
    ``-Infinity``.

    Args:
        fields: The object.
        ascii_only: Escape all that is not ASCII, for an output that cannot hold it.
    """
    try:
        text = json.dumps(fields, ensure_ascii=ascii_only, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json_text(_finite(fields), ascii_only=ascii_only)
    # All but ASCII stands inside of strings, where it may be escaped.
    return text if text.isprintable() else _NOT_ASCII_OR_CONTROL.sub(_json_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode()


def _json_escaped(match: re.Match[str]) -> str:
    character = match[0]
    return character if character.isprintable() else json.dumps(character)[1:-1]


def _finite(value: Any) -> Any:
    """Return a value of JSON in which floats that are not finite are strings."""
    if isinstance(value, float):
        spelled = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
        return spelled.get(str(value), value)
    if isinstance(value, Mapping):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value
