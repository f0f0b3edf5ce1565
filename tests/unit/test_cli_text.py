"""Text for terminals and JSON: nothing of it disturbs a terminal, and all JSON is strict."""

from __future__ import annotations

import json
import math
import sys
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fj_cli.text import json_text, safe_text

BAD = ("Cc", "Cf", "Cs", "Zl", "Zp", "Cn", "Co")
"""Categories of what moves the cursor, turns text around, ends lines, or is half a character."""

HOSTILE = "a\x1b[2J\x07\n\r\x7f\x85\x9b31m\u200b\u202e\u2066\u2028\u2029\ufeff\ud800z"


def test_terminal_text_has_every_disturbing_character_escaped() -> None:
    blocks = ["".join(map(chr, range(at, at + 64))) for at in range(0, sys.maxunicode, 64)]
    assert blocks[-1][-1] == chr(sys.maxunicode)
    shown = set().union(*map(safe_text, blocks))
    assert [hex(ord(c)) for c in shown if unicodedata.category(c) in BAD] == []
    assert safe_text("größe 漢字 \\ é") == "größe 漢字 \\ é"
    assert safe_text("\x1b[2J\n\x9b\u202e") == "\\x1b[2J\\n\\u009b\\u202e"


@pytest.mark.parametrize("ascii_only", [False, True])
def test_json_has_no_character_that_could_disturb_a_terminal(ascii_only: bool) -> None:
    text = json_text({HOSTILE: [HOSTILE, {"x": HOSTILE}]}, ascii_only=ascii_only)
    assert text.isprintable()
    assert json.loads(text) == {HOSTILE: [HOSTILE, {"x": HOSTILE}]}
    assert json_text({"k": "größe"}) == '{"k":"größe"}'
    assert json_text({"k": "größe"}, ascii_only=True).isascii()


def test_floats_that_json_does_not_have_are_strings() -> None:
    fields: dict[str, Any] = {"a": math.nan, "b": [math.inf, {"c": -math.inf}], "d": 1.5}
    assert json_text(fields) == '{"a":"NaN","b":["Infinity",{"c":"-Infinity"}],"d":1.5}'


@given(st.dictionaries(st.text(), st.text() | st.integers() | st.floats(allow_nan=False)))
def test_json_is_read_as_what_it_was(fields: dict[str, Any]) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    wanted = {n: _spelled(v) for n, v in fields.items()}
    for ascii_only in (False, True):
        text = json_text(fields, ascii_only=ascii_only)
        assert text.isprintable()
        assert json.loads(text, parse_constant=refuse) == wanted


def _spelled(value: Any) -> Any:
    return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, value)
