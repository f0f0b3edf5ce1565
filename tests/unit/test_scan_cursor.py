"""Cursors: their bytes, and that nothing else is taken for one."""

from __future__ import annotations

import struct

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.door.engine import EXPRESSION, RANGE, Cursor, decode_cursor, encode_cursor

GOLDEN = [
    (Cursor(RANGE, 4, b"k7", b""), "01010004 0002 6b37 0000 0484044b"),
    (Cursor(EXPRESSION, 0xFFFF, b"\xff\0", b"a|b"), "0102ffff 0002 ff00 0003 617c62 d1e5ca34"),
]


@pytest.mark.parametrize(("cursor", "data"), GOLDEN, ids=["range", "expression"])
def test_a_cursor_has_these_bytes(cursor: Cursor, data: str) -> None:
    assert encode_cursor(cursor).hex() == data.replace(" ", "")
    assert decode_cursor(bytes.fromhex(data)) == cursor


@given(
    st.builds(
        Cursor,
        st.sampled_from([RANGE, EXPRESSION]),
        st.integers(0, 0xFFFF),
        st.binary(max_size=40),
        st.binary(max_size=40),
    )
)
def test_every_cursor_comes_back(cursor: Cursor) -> None:
    assert decode_cursor(encode_cursor(cursor)) == cursor


@pytest.mark.parametrize("cursor", [cursor for cursor, _ in GOLDEN], ids=["range", "expression"])
def test_what_is_cut_short_longer_or_changed_anywhere_is_none(cursor: Cursor) -> None:
    data = encode_cursor(cursor)
    for end in range(len(data)):
        assert decode_cursor(data[:end]) is None
    assert decode_cursor(data + b"\0") is None
    for at in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[at] ^= 1 << bit
            assert decode_cursor(bytes(changed)) is None


@given(st.binary(max_size=60))
def test_nothing_else_is_a_cursor(data: bytes) -> None:
    assert decode_cursor(data) is None


@pytest.mark.parametrize("head", [(0, 1), (2, 1), (1, 0), (1, 3)])
def test_another_version_or_kind_is_none_although_its_checksum_is_right(
    head: tuple[int, int],
) -> None:
    body = struct.pack(">BBHH", *head, 4, 2) + b"k7" + struct.pack(">H", 0)
    assert decode_cursor(body + struct.pack(">I", google_crc32c.value(body))) is None
