"""Cursors: their bytes, and that nothing else is taken for one."""

from __future__ import annotations

import struct

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastjournald.engine.handlers.scan.page import (
    DOMAINS,
    EXPRESSION,
    RANGE,
    Cursor,
    decode_cursor,
    encode_cursor,
)

GOLDEN = [
    (Cursor(RANGE, 4, b"k7", b""), "01010004 0002 6b37 0000 0484044b"),
    (Cursor(EXPRESSION, 0xFFFF, b"\xff\0", b"a|b"), "0102ffff 0002 ff00 0003 617c62 d1e5ca34"),
    (Cursor(DOMAINS, 1, b"pages", b"p"), "01030001 0005 7061676573 0001 70 1ee8c68e"),
]
KINDS = (RANGE, EXPRESSION, DOMAINS)


def decode(data: bytes) -> Cursor | None:
    return decode_cursor(data, *KINDS)


@pytest.mark.parametrize(("cursor", "data"), GOLDEN, ids=["range", "expression", "domains"])
def test_cursor_has_these_bytes(cursor: Cursor, data: str) -> None:
    assert encode_cursor(cursor).hex() == data.replace(" ", "")
    assert decode(bytes.fromhex(data)) == cursor


@given(
    st.builds(
        Cursor,
        st.sampled_from(KINDS),
        st.integers(0, 0xFFFF),
        st.binary(max_size=40),
        st.binary(max_size=40),
    )
)
def test_cursor_of_every_kind_comes_back(cursor: Cursor) -> None:
    assert decode(encode_cursor(cursor)) == cursor


@pytest.mark.parametrize(
    "cursor", [cursor for cursor, _ in GOLDEN], ids=["range", "expression", "domains"]
)
def test_cursor_cut_short_longer_or_changed_anywhere_is_none(cursor: Cursor) -> None:
    data = encode_cursor(cursor)
    for end in range(len(data)):
        assert decode(data[:end]) is None
    assert decode(data + b"\0") is None
    for at in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[at] ^= 1 << bit
            assert decode(bytes(changed)) is None


@given(st.binary(max_size=60))
def test_cursor_is_nothing_else(data: bytes) -> None:
    assert decode(data) is None


@pytest.mark.parametrize("head", [(0, 1), (2, 1), (1, 0), (1, 4)])
def test_cursor_of_another_version_or_kind_is_none_although_its_checksum_is_right(
    head: tuple[int, int],
) -> None:
    body = struct.pack(">BBHH", *head, 4, 2) + b"k7" + struct.pack(">H", 0)
    assert decode(body + struct.pack(">I", google_crc32c.value(body))) is None


def test_cursor_of_another_kind_is_none() -> None:
    for cursor, _ in GOLDEN:
        data = encode_cursor(cursor)
        assert decode_cursor(data, *(kind for kind in KINDS if kind != cursor.kind)) is None
        assert decode_cursor(data, cursor.kind) == cursor
