"""JSON that is strict, and that harms no terminal; text for people goes through ``safe_text``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from fastjournal.printable import NOT_PLAIN, safe_text

__all__ = ["json_text", "safe_text"]


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
    return text if text.isprintable() else NOT_PLAIN.sub(_json_escaped, text)


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
