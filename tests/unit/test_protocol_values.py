"""Values: every type, written and read."""

from __future__ import annotations

import math

import pytest

from fastjournal.protocol import BadRequestError, Value, ValueType, decode_value, encode_value


@pytest.mark.parametrize(
    ("obj", "value_type", "text"),
    [
        (None, ValueType.VOID, ""),
        (b"", ValueType.BUFFER, ""),
        (b"\xff\x00", ValueType.BUFFER, "ff00"),
        ("", ValueType.STRING, ""),
        ("h\u00e9", ValueType.STRING, "68c3a9"),
        (0, ValueType.INTEGER, "0000000000000000"),
        (1, ValueType.INTEGER, "0000000000000001"),
        (-1, ValueType.INTEGER, "ffffffffffffffff"),
        (2**63 - 1, ValueType.INTEGER, "7fffffffffffffff"),
        (-(2**63), ValueType.INTEGER, "8000000000000000"),
        (1.0, ValueType.FLOAT, "3ff0000000000000"),
        (-0.5, ValueType.FLOAT, "bfe0000000000000"),
        (math.inf, ValueType.FLOAT, "7ff0000000000000"),
        (False, ValueType.BOOLEAN, "00"),
        (True, ValueType.BOOLEAN, "01"),
    ],
)
def test_object_is_written_as_its_own_type(obj: Value, value_type: ValueType, text: str) -> None:
    assert encode_value(obj) == (value_type, bytes.fromhex(text))
    assert encode_value(obj, value_type) == (value_type, bytes.fromhex(text))
    back = decode_value(value_type, bytes.fromhex(text))
    assert back == obj
    assert type(back) is type(obj)


@pytest.mark.parametrize(
    ("obj", "wanted", "text"),
    [
        ("h\u00e9", ValueType.BUFFER, "68c3a9"),
        (b"h\xc3\xa9", ValueType.STRING, "68c3a9"),
        (1, ValueType.FLOAT, "3ff0000000000000"),
    ],
)
def test_value_of_some_objects_is_written_as_another_type(
    obj: Value, wanted: ValueType, text: str
) -> None:
    assert encode_value(obj, wanted) == (wanted, bytes.fromhex(text))


@pytest.mark.parametrize(
    ("obj", "wanted"),
    [
        ([], None),
        ("\ud800", None),
        ("\ud800", ValueType.BUFFER),
        (2**63, None),
        (-(2**63) - 1, None),
        (10**400, ValueType.FLOAT),
        (b"\xff", ValueType.STRING),
        (b"", ValueType.VOID),
        (None, ValueType.BUFFER),
        ("1", ValueType.INTEGER),
        (1.0, ValueType.INTEGER),
        (True, ValueType.INTEGER),
        (True, ValueType.FLOAT),
        (False, ValueType.FLOAT),
        (1, ValueType.BOOLEAN),
        (1, ValueType.STRING),
        (1, ValueType.VOID),
    ],
)
def test_value_that_does_not_fit_its_type_is_refused(obj: Value, wanted: ValueType | None) -> None:
    with pytest.raises(BadRequestError) as caught:
        encode_value(obj, wanted)
    assert caught.value.code == "bad-value"


@pytest.mark.parametrize(
    ("value_type", "text", "obj"),
    [
        (3, "ff", -1),
        (3, "7f", 127),
        (3, "ff7f", -129),
        (3, "80000000", -(2**31)),
        (4, "3f800000", 1.0),
    ],
)
def test_shorter_numbers_are_read(value_type: int, text: str, obj: Value) -> None:
    assert decode_value(value_type, bytes.fromhex(text)) == obj


@pytest.mark.rule("Values: 3 integer", "Values: 4 float", "Values: 5 boolean")
@pytest.mark.parametrize(
    ("value_type", "text"),
    [
        (0, "00"),
        (2, "ff"),
        (3, ""),
        (3, "000000"),
        (3, "00" * 9),
        (4, "0000"),
        (4, "00" * 16),
        (5, ""),
        (5, "02"),
        (5, "0001"),
        (6, ""),
        (255, "00"),
        (-1, ""),
    ],
)
def test_data_that_do_not_have_the_form_of_their_type_are_refused(
    value_type: int, text: str
) -> None:
    with pytest.raises(BadRequestError) as caught:
        decode_value(value_type, bytes.fromhex(text))
    assert caught.value.code == "bad-value"
