"""Value types: Python objects to the bytes of a value, and back.

    VOID     0  no data                                              None
    BUFFER   1  bytes                                                bytes
    STRING   2  UTF-8                                                str
    INTEGER  3  big endian two's complement of 1, 2, 4 or 8 bytes    int
    FLOAT    4  IEEE 754, big endian, of 4 or 8 bytes                float
    BOOLEAN  5  one byte, 0 or 1                                     bool

A dict or a list is written as JSON, a string; ``msgspec.json.decode`` reads it.
Numbers are written with 8 bytes, so that ADD has all the room there is. Source: docs/protocol.md.
"""

from __future__ import annotations

import struct
from typing import Any, TypeAlias

from fastjournal.errors import BadRequestError
from fastjournal.protocol.constants import ValueType

Value: TypeAlias = bytes | str | int | float | bool | None
Storable: TypeAlias = Value | dict[str, Any] | list[Any]
"""What a value may be made of; it is read as a ``Value``."""

_INTEGER_BYTES = (1, 2, 4, 8)
_FLOAT_FORMATS = {4: ">f", 8: ">d"}
_BOOLEANS = {b"\0": False, b"\1": True}


def encode_value(obj: Storable, type: ValueType | None = None) -> tuple[ValueType, bytes]:
    """Return the value type and data of a Python object.

    Args:
        obj: Object to store.
        type: The type to store it as, where that is not its own: BUFFER takes str too (as UTF-8),
            STRING takes bytes that are UTF-8, FLOAT takes int.

    Raises:
        BadRequestError: ``bad-value``: the object does not fit the type.
    """
    if isinstance(obj, dict | list):
        obj = _json_text(obj)
    wanted = natural_type(obj) if type is None else ValueType(type)
    if wanted is ValueType.VOID and obj is None:
        return wanted, b""
    if wanted in (ValueType.BUFFER, ValueType.STRING) and isinstance(obj, bytes | str):
        data = _encode_text(obj) if isinstance(obj, str) else obj
        if wanted is ValueType.STRING:
            decode_value(wanted, data)
        return wanted, data
    if wanted is ValueType.BOOLEAN and isinstance(obj, bool):
        return wanted, b"\1" if obj else b"\0"
    number = None if isinstance(obj, bool) else obj
    try:
        if wanted is ValueType.INTEGER and isinstance(number, int):
            return wanted, number.to_bytes(8, signed=True)
        if wanted is ValueType.FLOAT and isinstance(number, int | float):
            return wanted, struct.pack(">d", float(number))
    except OverflowError as error:
        raise _bad_value(f"{obj!r} does not fit 8 bytes") from error
    raise _bad_value(f"{obj!r} is not a value of type {wanted.name.lower()}")


def _json_text(obj: dict[str, Any] | list[Any]) -> str:
    """Return an object as JSON. Not by msgspec: it writes nan as null, without a word."""
    import json  # noqa: PLC0415 - few programs need it

    try:
        return json.dumps(obj, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise _bad_value(f"the value has no JSON form: {error}") from error


def natural_type(obj: Value) -> ValueType:
    """Return the value type that an object has by itself.

    Raises:
        BadRequestError: ``bad-value``: there is none for such an object.
    """
    for kind, value_type in _NATURAL_TYPES:
        if isinstance(obj, kind):
            return value_type
    raise _bad_value(f"{obj!r} has no value type")


# bool before int: True is an int too.
_NATURAL_TYPES: tuple[tuple[type, ValueType], ...] = (
    (type(None), ValueType.VOID),
    (bytes, ValueType.BUFFER),
    (str, ValueType.STRING),
    (bool, ValueType.BOOLEAN),
    (int, ValueType.INTEGER),
    (float, ValueType.FLOAT),
)


def decode_value(value_type: int, data: bytes) -> Value:
    """Return the Python object of a value's data.

    Raises:
        BadRequestError: ``bad-value``: the type is unknown, or the data do not have its form.
    """
    if value_type == ValueType.BUFFER:
        return data
    if value_type == ValueType.STRING:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise _bad_value(f"string is not UTF-8 at byte {error.start}") from error
    if value_type == ValueType.INTEGER and len(data) in _INTEGER_BYTES:
        return int.from_bytes(data, signed=True)
    if value_type == ValueType.FLOAT and len(data) in _FLOAT_FORMATS:
        number: float = struct.unpack(_FLOAT_FORMATS[len(data)], data)[0]
        return number
    if value_type == ValueType.BOOLEAN and data in _BOOLEANS:
        return _BOOLEANS[data]
    if value_type == ValueType.VOID and not data:
        return None
    raise _bad_value(f"{len(data)} bytes are not a value of type {value_type}")


def _encode_text(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise _bad_value(f"string has no UTF-8 form at character {error.start}") from error


def _bad_value(message: str) -> BadRequestError:
    return BadRequestError(message, code="bad-value")
