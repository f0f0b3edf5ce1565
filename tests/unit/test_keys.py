"""Journal keys: what is one, what is a plain key, and the canonical form that is written."""

from __future__ import annotations

import pytest

from fastjournal.client.core.calls import bury
from fastjournal.client.core.calls.base import key_bytes
from fastjournal.errors import BadRequestError
from fastjournal.keys import (
    JournalKey,
    build_journal_key,
    default_id,
    journal_key_of,
    parse_journal_key,
)


@pytest.mark.rule("Keys: The form of a journal key")
@pytest.mark.parametrize(
    ("key", "parts"),
    [
        (b"d:0:0:", JournalKey(b"d", 0, 0, b"")),
        (b"d:255:18446744073709551615:x", JournalKey(b"d", 255, 2**64 - 1, b"x")),
        (b"d:007:0000000000000099:a:b:c", JournalKey(b"d", 7, 99, b"a:b:c")),
        (b"\xff\0:1:2:\xfe", JournalKey(b"\xff\0", 1, 2, b"\xfe")),
    ],
)
def test_key_of_four_parts_is_a_journal_key(key: bytes, parts: JournalKey) -> None:
    assert parse_journal_key(key) == parts


@pytest.mark.rule("Keys: The form of a journal key")
@pytest.mark.parametrize(
    "key",
    [
        b"",
        b"plain",
        b"d:1:2",
        b":1:2:x",
        b"d::2:x",
        b"d:1::x",
        b"d:256:2:x",
        b"d:0001:2:x",
        b"d:-1:2:x",
        b"d:+1:2:x",
        b"d: 1:2:x",
        b"d:1:18446744073709551616:x",
        b"d:1:000000000000000000001:x",
        b"d:1:2e3:x",
        "d:1:٣:x".encode(),
    ],
)
def test_key_of_any_other_form_is_plain(key: bytes) -> None:
    assert parse_journal_key(key) is None


def test_canonical_form_sorts_in_the_order_of_work() -> None:
    order = [(0, 0), (0, 99), (7, 5), (7, 10**15), (128, 0), (255, 1)]
    keys = [journal_key_of("d", "x", at, p) for p, at in order]
    assert keys[0] == b"d:000:0000000000000000:x"
    assert keys == sorted(keys)
    parsed = [parse_journal_key(key) for key in keys]
    assert [(key.priority, key.not_before_us) for key in parsed if key] == order


@pytest.mark.parametrize(
    ("domain", "id", "priority", "at"),
    [
        ("", "x", 1, 0),
        ("a:b", "x", 1, 0),
        ("d", "x", 256, 0),
        ("d", "x", -1, 0),
        ("d", "x", 1, -1),
        ("d", "x", 1, 2**64),
        ("d", "x" * 4096, 1, 0),
        ("\udcff", "x", 1, 0),
        ("d", "\udcff", 1, 0),
    ],
)
def test_part_outside_its_bounds_is_refused(domain: str, id: str, priority: int, at: int) -> None:
    with pytest.raises(BadRequestError) as refused:
        build_journal_key(domain, id, not_before_us=at, priority=priority)
    assert refused.value.code == "bad-key"


def test_text_without_a_utf8_form_is_refused_as_a_key_and_escaped_as_a_reason() -> None:
    with pytest.raises(BadRequestError, match="character 1"):
        key_bytes("k\udcff")
    assert key_bytes(b"k\xff") == b"k\xff"
    assert bury("k", reason="why\udcff").request.value == b"why\\udcff"


def test_default_id_differs_with_the_timestamp_the_uri_and_without_one_the_writer() -> None:
    ids = [
        default_id(5, b"u", "w"),
        default_id(6, b"u", "w"),
        default_id(5, b"v", "w"),
        default_id(5, None, "w"),
        default_id(5, None, "x"),
    ]
    assert len(set(ids)) == len(ids)
    assert default_id(5, b"u", "w") == default_id(5, b"u", "x")


def test_key_that_is_neither_text_nor_bytes_is_a_mistake_of_the_program() -> None:
    with pytest.raises(TypeError, match="domain is str or bytes, not int"):
        build_journal_key(5, "id")
