"""Output of fj-cli: JSON for programs, and text that harms no terminal."""

from __future__ import annotations

from typing import Any

import pytest

from fastjournal.client.core.results import Entry
from fastjournal.protocol import Meta, State, ValueType
from fj_cli.output import entry_fields, put_bytes, show_bytes, show_field
from fj_cli.shared_options import NAME


@pytest.mark.parametrize(
    ("data", "fields"),
    [
        (b"plain", {"value": "plain"}),
        ("ünïcode\n".encode(), {"value": "ünïcode\n"}),
        (b"", {"value": ""}),
        (b"\xff\x00", {"value_b64": "/wA="}),
    ],
)
def test_bytes_are_text_where_they_are_utf_8_and_else_base64(
    data: bytes, fields: dict[str, Any]
) -> None:
    found: dict[str, Any] = {}
    put_bytes(found, "value", data)
    assert found == fields


def test_terminal_gets_no_control_characters() -> None:
    shown = show_bytes(b"a\x1b[2Jb\n\xffc\xc2\x9b")
    assert shown == "a\\x1b[2Jb\\n\\xffc\\u009b"
    assert shown.isprintable()
    assert show_bytes(b"long text", 5) == "long…"
    assert show_bytes("größe".encode()) == "größe"


def test_argument_that_is_not_utf_8_keeps_its_bytes() -> None:
    assert NAME.convert("a\udcff", None, None) == b"a\xff"


def test_journal_entry_shows_the_parts_of_its_key_and_the_delay_it_has() -> None:
    entry = Entry(
        b"d:007:0000000000000009:x:y",
        b"u",
        ValueType.STRING,
        b"v",
        Meta(not_before_us=50, attempts=2, state=State.PERSISTENT | State.JOURNAL, expires_us=0),
        77,
    )
    fields = entry_fields(entry)
    assert {name: fields[name] for name in list(fields)[:10]} == {
        "key": "d:007:0000000000000009:x:y",
        "uri": "u",
        "domain": "d",
        "priority": 7,
        "not_before_us": 50,
        "id": "x:y",
        "type": "string",
        "value": "v",
        "token": 77,
        "attempts": 2,
    }
    assert fields["state"] == ["persistent", "journal"]
    assert fields["expires_us"] is None


def test_entry_that_was_found_by_its_uri_shows_the_key_that_it_is_known_by() -> None:
    fields = entry_fields(Entry(b"https://a/", b"d:1:2:x", ValueType.BUFFER, b""))
    assert (fields["key"], fields["uri"], fields["domain"]) == ("d:1:2:x", "https://a/", "d")
    linked = entry_fields(Entry(b"plain", b"other", ValueType.BUFFER, b""))
    assert (linked["key"], linked["uri"]) == ("plain", "other")


@pytest.mark.parametrize(
    ("value_type", "data", "value"),
    [
        (ValueType.VOID, b"", None),
        (ValueType.INTEGER, b"\xff", -1),
        (ValueType.FLOAT, b"\x3f\x80\0\0", 1.0),
        (ValueType.BOOLEAN, b"\1", True),
        (ValueType.BUFFER, b"x", "x"),
        (ValueType.INTEGER, b"abc", "abc"),
        (ValueType.BOOLEAN, b"", ""),
    ],
)
def test_value_has_the_json_type_that_it_stands_for(
    value_type: ValueType, data: bytes, value: object
) -> None:
    fields = entry_fields(Entry(b"plain", value_type=value_type, value=data))
    assert fields == {"key": "plain", "type": value_type.name.lower(), "value": value}


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("entries", 1234567, "1,234,567"),
        ("uptime_us", 90_000_000, "1m 30s"),
        ("created_us", 0, ""),
        ("token", 1_000_000, "1000000"),
        ("read_only", False, "False"),
        ("keys", ["a"], '["a"]'),
        ("expires_us", None, ""),
        ("state", "ready", "ready"),
    ],
)
def test_field_is_shown_as_what_its_name_says(name: str, value: object, shown: str) -> None:
    assert show_field(name, value) == shown


def test_value_of_a_type_that_is_not_known_is_shown_as_bytes() -> None:
    assert entry_fields(Entry(b"k", value_type=9, value=b"x")) == {
        "key": "k",
        "type": "9",
        "value": "x",
    }
