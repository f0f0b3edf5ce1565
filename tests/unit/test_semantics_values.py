"""ADD, NOT and TRUNCATE: every sentence of docs/protocol.md about them, by example."""

from __future__ import annotations

import math
import struct

import pytest

from fastjournal.protocol.constants import Flag, ValueType
from fastjournal.protocol.messages import Reply
from tests.property.subject import SECOND, START, Subject

INTEGER, FLOAT, BOOLEAN = ValueType.INTEGER, ValueType.FLOAT, ValueType.BOOLEAN
BUFFER, STRING = ValueType.BUFFER, ValueType.STRING


def i(number: int, width: int = 8) -> bytes:
    return number.to_bytes(width, "big", signed=True)


def f(number: float, width: int = 8) -> bytes:
    return struct.pack(">f" if width == 4 else ">d", number)


def told(reply: Reply) -> bytes:
    """The value that a successful reply brings."""
    assert reply.error == ""
    assert reply.pairs is not None
    (pair,) = reply.pairs
    return pair.value


# --- ADD ------------------------------------------------------------------------------------------


@pytest.mark.warm_only
@pytest.mark.parametrize("key", [b"", b"k" * 4097])
def test_empty_or_oversize_key_is_bad_key(s: Subject, key: bytes) -> None:
    assert s.add(key, i(1), INTEGER).code == "bad-key"
    assert s.flip(key).code == "bad-key"
    assert s.truncate(key, 1) == "bad-key"


@pytest.mark.warm_only
@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("sign", [1, -1])
def test_sum_that_does_not_fit_is_overflow_and_changes_nothing(
    s: Subject, width: int, sign: int
) -> None:
    edge = 2 ** (8 * width - 1) - 1 if sign > 0 else -(2 ** (8 * width - 1))
    s.set(b"p", i(edge, width), kind=INTEGER, at=START)
    before = s.pair(b"p")
    assert s.add(b"p", i(sign, 1), INTEGER, at=START + 1).code == "overflow"
    assert s.pair(b"p") == before
    assert told(s.add(b"p", i(-sign, 1), INTEGER)) == i(edge - sign, width)


@pytest.mark.warm_only
@pytest.mark.parametrize(
    ("stored", "added", "total"),
    [
        (f(1.5), f(0.25), "3ffc000000000000"),
        (f(1.5, 4), f(0.25, 8), "3fe00000"),
        # the sum is made of doubles, and rounded once: 16777216 + 1.5 is nearest to ...18
        (f(16777216.0, 4), f(1.5, 8), "4b800001"),
        # exactly between two: to the even one
        (f(16777216.0, 4), f(1.0, 8), "4b800000"),
        (f(0.1, 4), f(0.2, 4), "3e99999a"),
        (f(3.4028234e38, 4), f(1e30, 8), "7f7fffff"),
        (f(math.inf), f(1.0), "7ff0000000000000"),
        (f(1.0, 4), f(-math.inf, 8), "ff800000"),
        (f(5e-324), f(-5e-324), "0000000000000000"),
    ],
)
def test_floats_are_added_as_doubles_and_rounded_to_the_stored_width(
    s: Subject, stored: bytes, added: bytes, total: str
) -> None:
    s.set(b"p", stored, kind=FLOAT)
    assert told(s.add(b"p", added, FLOAT)).hex() == total


@pytest.mark.warm_only
def test_add_keeps_nan(s: Subject) -> None:
    s.set(b"p", f(math.nan, 4), kind=FLOAT)
    assert math.isnan(struct.unpack(">f", told(s.add(b"p", f(1.0), FLOAT)))[0])
    s.set(b"q", f(math.inf), kind=FLOAT)
    assert math.isnan(struct.unpack(">d", told(s.add(b"q", f(-math.inf), FLOAT)))[0])


@pytest.mark.warm_only
@pytest.mark.parametrize(
    ("stored", "added"),
    [
        (f(1.7e308), f(1.7e308)),
        (f(-1.7e308), f(-1.7e308)),
        (f(3.4e38, 4), f(3.4e38, 4)),
        (f(1.0, 4), f(1e300, 8)),
        (f(-3.4e38, 4), f(-1e37, 8)),
    ],
)
def test_float_that_becomes_infinite_is_overflow(s: Subject, stored: bytes, added: bytes) -> None:
    s.set(b"p", stored, kind=FLOAT)
    assert s.add(b"p", added, FLOAT).code == "overflow"
    assert s.value(b"p") == stored


@pytest.mark.parametrize(
    ("kind", "stored", "added_kind", "added"),
    [
        pytest.param(INTEGER, i(1), FLOAT, f(1.0), marks=pytest.mark.warm_only),
        pytest.param(FLOAT, f(1.0), INTEGER, i(1), marks=pytest.mark.warm_only),
        (STRING, b"1", INTEGER, i(1)),
        (BUFFER, i(1), INTEGER, i(1)),
        pytest.param(BOOLEAN, b"\1", INTEGER, i(1), marks=pytest.mark.warm_only),
        pytest.param(ValueType.VOID, b"", FLOAT, f(1.0), marks=pytest.mark.warm_only),
    ],
)
def test_value_of_another_type_is_type_mismatch(
    s: Subject, kind: int, stored: bytes, added_kind: int, added: bytes
) -> None:
    s.set(b"p", stored, kind=kind)
    assert s.add(b"p", added, added_kind).code == "type-mismatch"
    assert s.value(b"p") == stored


@pytest.mark.warm_only
@pytest.mark.parametrize(("kind", "stored"), [(INTEGER, b"abc"), (INTEGER, b""), (FLOAT, b"ab")])
def test_stored_bytes_that_are_no_number_are_bad_value(
    s: Subject, kind: int, stored: bytes
) -> None:
    s.set(b"p", stored, kind=kind)
    assert s.add(b"p", i(1) if kind == INTEGER else f(1.0), kind).code == "bad-value"


@pytest.mark.warm_only
def test_add_to_a_missing_key_is_not_found_or_creates_it_with_overwrite(s: Subject) -> None:
    assert s.add(b"p", i(3, 2), INTEGER).code == "not-found"
    assert s.value(b"p") is None
    assert told(s.add(b"p", i(3, 2), INTEGER, flags=Flag.OVERWRITE)) == i(3, 2)
    assert told(s.add(b"p", i(4, 8), INTEGER, flags=Flag.OVERWRITE)) == i(7, 2)


@pytest.mark.warm_only
def test_journal_key_makes_a_journal_entry(s: Subject) -> None:
    s.add(b"a:1:%d:x" % (s.now + SECOND), i(3), INTEGER, flags=Flag.OVERWRITE)
    assert s.jobs() == []
    s.later(SECOND)
    assert s.jobs(b"a") == [b"a:1:%d:x" % s.now]


@pytest.mark.warm_only
@pytest.mark.parametrize("at", [START - 5, START + 5])
def test_value_change_takes_the_later_timestamp_and_is_never_stale(s: Subject, at: int) -> None:
    s.set(b"p", i(1), kind=INTEGER, at=START)
    accessed = s.meta(b"p").accessed_us
    s.later(SECOND)
    (pair,) = s.add(b"p", i(1), INTEGER, at=at, flags=Flag.META).pairs or ()
    meta = pair.meta
    assert (meta.timestamp_us, meta.modified_us, meta.accessed_us) == (
        max(START, at),
        s.now,
        accessed,
    )
    assert meta.created_us == START


@pytest.mark.warm_only
def test_timestamp_too_far_ahead_is_clock_skew(s: Subject) -> None:
    at = START + 60 * SECOND + 1
    s.set(b"p", i(1), kind=INTEGER)
    s.set(b"b", b"\1", kind=BOOLEAN)
    assert s.add(b"p", i(1), INTEGER, at=at).code == "clock-skew"
    assert s.add(b"none", i(1), INTEGER, at=at, flags=Flag.OVERWRITE).code == "clock-skew"
    assert s.add(b"none", i(1), INTEGER, at=at).code == "not-found"
    assert s.flip(b"b", at=at).code == "clock-skew"
    assert s.truncate(b"p", 1, at=at) == "clock-skew"


# --- NOT ------------------------------------------------------------------------------------------


@pytest.mark.warm_only
def test_not_flips_a_boolean_and_returns_it(s: Subject) -> None:
    s.set(b"p", b"\0", kind=BOOLEAN, at=START)
    s.later(SECOND)
    assert told(s.flip(b"p", at=START + 3)) == b"\1"
    assert told(s.flip(b"p", at=START + 2)) == b"\0"
    meta = s.meta(b"p")
    assert (meta.timestamp_us, meta.modified_us) == (START + 3, s.now)


@pytest.mark.parametrize(
    ("kind", "stored", "code"),
    [
        pytest.param(INTEGER, b"\1", "type-mismatch", marks=pytest.mark.warm_only),
        (BUFFER, b"\0", "type-mismatch"),
        pytest.param(BOOLEAN, b"\2", "bad-value", marks=pytest.mark.warm_only),
        pytest.param(BOOLEAN, b"", "bad-value", marks=pytest.mark.warm_only),
        pytest.param(BOOLEAN, b"\0\1", "bad-value", marks=pytest.mark.warm_only),
    ],
)
def test_not_takes_one_byte_0_or_1_of_a_boolean(
    s: Subject, kind: int, stored: bytes, code: str
) -> None:
    s.set(b"p", stored, kind=kind)
    assert s.flip(b"p").code == code
    assert s.value(b"p") == stored


# --- TRUNCATE -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [BUFFER, STRING])
@pytest.mark.parametrize(
    ("size", "left"), [(0, b""), (2, b"ab"), (5, b"abcde"), (8, b"abcde\0\0\0")]
)
def test_truncate_cuts_or_fills_up_with_zero_bytes(
    s: Subject, kind: int, size: int, left: bytes
) -> None:
    s.set(b"p", b"abcde", kind=kind, at=START)
    s.later(SECOND)
    assert s.truncate(b"p", size, at=START + 4) == ""
    pair = s.pair(b"p")
    assert (pair.value_type, pair.value) == (kind, left)
    assert pair.meta is not None
    assert (pair.meta.timestamp_us, pair.meta.modified_us) == (START + 4, s.now)


def test_size_is_at_most_max_value(s: Subject) -> None:
    s.set(b"p", b"abc")
    assert s.truncate(b"p", 1_000_001) == "too-large"
    assert s.truncate(b"none", 1_000_001) == "too-large"
    assert s.truncate(b"p", 1_000_000) == ""
    assert s.value(b"p") == b"abc" + bytes(999_997)
