"""Requests: the bytes of an ``FJ`` message, encoder and decoder.

All integers are big endian and unsigned; times are microseconds. Layout:

    offset size  field
    0      2     magic "FJ"
    2      2     version, 1
    4      2     function
    6      2     identifier
    8      2     flags
    10     8     timestamp, an instant
    18     8     timeout               flag TIMEOUT (bit 3)
           8     ttl                   flag TTL (bit 14)
           2     count                 flag COUNT (bit 13), or a GET whose QUERY is RANGE
           1|2   key size              2 with KEY16 (bit 0)
           n     key
           1|2   second key size       QUERY (bits 7-8) is RANGE
           n     second key
           1|2|4 value size            by VALUE (bits 1-2): 0 no value, 1 u8, 2 u16, 3 u32
           1     value type            the value size counts it: 0 is malformed
           n-1   value data

A function that this version does not know has the same fields. Source: docs/protocol.md.
"""

from __future__ import annotations

from collections import deque
from struct import Struct
from typing import Final

from fastjournal import _native
from fastjournal.errors import BadRequestError, ProtocolError
from fastjournal.protocol.constants import (
    QUERY_MASK,
    QUERY_SHIFT,
    REQUEST_MAGIC,
    VALUE_MASK,
    VALUE_SHIFT,
    VERSION,
    Flag,
    Function,
    Query,
)
from fastjournal.protocol.framing import (
    U8,
    U8_MAX,
    U16,
    U16_MAX,
    U32,
    U32_MAX,
    U64,
    U64_MAX,
    StructError,
    check_start,
    magic_word,
)
from fastjournal.protocol.messages import Request

_HEAD: Final = Struct(">IHHHQ")
_HEAD_AND_NEXT: Final = Struct(">IHHHQB")
"""The head and the byte after it, which every request has: the key size of most of them."""

_WORD: Final = magic_word(REQUEST_MAGIC, VERSION)
_HEAD_BYTES: Final = _HEAD.size
_REQUEST_BYTES_MIN: Final = _HEAD_AND_NEXT.size

# Plain integers: the operators of IntFlag cost more than the whole decoding of a request.
_KEY16: Final = int(Flag.KEY16)
_TIMEOUT: Final = int(Flag.TIMEOUT)
_TTL: Final = int(Flag.TTL)
_COUNT: Final = int(Flag.COUNT)
_PERSIST: Final = int(Flag.PERSIST)
_PERSIST_ALIAS: Final = int(Flag.PERSIST_ALIAS)
_QUERY: Final = QUERY_MASK
_RANGE: Final = int(Query.RANGE) << QUERY_SHIFT
_VALUE: Final = VALUE_MASK
_VALUE_U8: Final = 1 << VALUE_SHIFT
_VALUE_U16: Final = 2 << VALUE_SHIFT
_VALUE_U32: Final = 3 << VALUE_SHIFT
_GET: Final = int(Function.GET)

_OPTIONAL: Final = _KEY16 | _TIMEOUT | _TTL | _COUNT | _PERSIST_ALIAS
"""A request without these has its key size directly after the head."""

_GIVEN: Final = ~(_KEY16 | _VALUE | _TIMEOUT | _TTL | _COUNT | _PERSIST_ALIAS)
"""Flags that the encoder copies from ``Request.flags``; the rest follow from the fields."""


class RequestReader:
    """Takes requests off a stream of bytes; keeps nothing between calls but its limit.

    Args:
        value_bytes_max: The largest value data, without the type byte.
    """

    __slots__ = ("_value_size_max",)

    def __init__(self, value_bytes_max: int) -> None:
        self._value_size_max = value_bytes_max + 1

    def read(self, data: bytes, ready: deque[Request]) -> tuple[int, int]:
        """Append every whole request at the start of ``data`` to ``ready``.

        Returns:
            The bytes used, and how many bytes from there on are needed, at least, to go on.

        Raises:
            ProtocolError: The next message cannot be framed; ``ready`` holds all before it.
        """
        start = 0
        if _native.leaves is not None:
            start = _native.leaves.read_requests(data, self._value_size_max, ready)
            if start == len(data):
                return start, 0
        # One pass without a call per request: this loop is the hot path of a daemon without the
        # native leaf. ``at`` is always the place of the first byte that was not looked at, so that
        # where the data end too early (IndexError, StructError) it says how much is missing.
        unpack = _HEAD_AND_NEXT.unpack_from
        append = ready.append
        value_size_max = self._value_size_max
        end = len(data)
        at = start
        try:
            while end - start >= _REQUEST_BYTES_MIN:
                word, function, identifier, flags, timestamp, size = unpack(data, start)
                if word != _WORD:
                    break
                timeout = ttl = count = second_key = value_type = None
                value = b""
                query = flags & _QUERY
                if flags & _OPTIONAL or (function == _GET and query == _RANGE):
                    at = start + _HEAD_BYTES
                    if flags & _PERSIST_ALIAS:
                        flags = flags & ~_PERSIST_ALIAS | _PERSIST
                    if flags & _TIMEOUT:
                        (timeout,) = U64.unpack_from(data, at)
                        at += 8
                    if flags & _TTL:
                        (ttl,) = U64.unpack_from(data, at)
                        at += 8
                    if flags & _COUNT or (function == _GET and query == _RANGE):
                        (count,) = U16.unpack_from(data, at)
                        at += 2
                    if flags & _KEY16:
                        (size,) = U16.unpack_from(data, at)
                        at += 2
                    else:
                        size = data[at]
                        at += 1
                else:
                    at = start + _REQUEST_BYTES_MIN
                key = data[at : at + size]
                at += size
                if query == _RANGE:
                    if flags & _KEY16:
                        (size,) = U16.unpack_from(data, at)
                        at += 2
                    else:
                        size = data[at]
                        at += 1
                    second_key = data[at : at + size]
                    at += size
                width = flags & _VALUE
                if width:
                    if width == _VALUE_U8:
                        size = data[at]
                        at += 1
                    elif width == _VALUE_U16:
                        (size,) = U16.unpack_from(data, at)
                        at += 2
                    else:
                        (size,) = U32.unpack_from(data, at)
                        at += 4
                    if not 0 < size <= value_size_max:
                        raise self._bad_value_size(size, identifier)
                    # Checked before the data: a claimed length may be false.
                    body_end = at + size
                    if body_end > end:
                        at = body_end
                        break
                    value_type = data[at]
                    value = data[at + 1 : body_end]
                    at = body_end
                elif at > end:
                    break
                append(
                    Request(
                        function,
                        identifier,
                        flags,
                        timestamp,
                        key,
                        second_key,
                        value_type,
                        value,
                        timeout,
                        ttl,
                        count,
                    )
                )
                start = at
        except (IndexError, StructError):
            pass
        if start == end:
            return start, 0
        needed = check_start(data, start, REQUEST_MAGIC, identifier_at=6) or _REQUEST_BYTES_MIN
        return start, max(needed, at - start, end - start + 1)

    def unfinished(self, rest: bytes | bytearray) -> int | None:
        """Return the identifier (0: not known) of the request that is cut short; None: none is."""
        if not rest:
            return None
        return int.from_bytes(rest[6:8]) if len(rest) >= 8 else 0

    def _bad_value_size(self, size: int, identifier: int) -> ProtocolError:
        if size == 0:
            return ProtocolError("value size is 0", identifier=identifier)
        return ProtocolError(
            f"value has {size - 1} bytes, over {self._value_size_max - 1}",
            code="too-large",
            identifier=identifier,
        )


_READER: Final = RequestReader(U32_MAX)
"""It keeps nothing between calls."""


def decode_request(data: bytes) -> Request:
    """Return the one request that ``data`` is.

    Raises:
        ProtocolError: It is not exactly one whole request.
    """
    ready: deque[Request] = deque()
    used, _ = _READER.read(data, ready)
    if len(ready) != 1 or used != len(data):
        raise ProtocolError(
            f"{len(data)} bytes are not exactly one request",
            identifier=_READER.unfinished(data) or 0,
        )
    return ready[0]


def encode_request(request: Request) -> bytes:
    """Return the bytes of a request, with the smallest widths that hold its sizes.

    Bits of ``request.flags`` that follow from the fields are ignored; bit 12 becomes bit 9. A GET
    whose query is RANGE always carries a count: 0, no limit, where none is given.

    Raises:
        BadRequestError: It cannot be framed: a number or a key is too large, a value has no type,
            the second key and the QUERY flag contradict each other.
    """
    flags = int(request.flags)
    if flags & _PERSIST_ALIAS:
        flags |= _PERSIST
    flags &= _GIVEN
    query = flags & _QUERY
    key = request.key
    second_key = request.second_key
    value_type = request.value_type
    value = request.value
    if second_key is None:
        if query == _RANGE:
            raise BadRequestError("QUERY is RANGE, and there is no second key")
        wide = len(key) > U8_MAX
    else:
        if query not in (0, _RANGE):
            raise BadRequestError("a second key needs QUERY to be RANGE")
        flags |= _RANGE
        wide = len(key) > U8_MAX or len(second_key) > U8_MAX
    try:
        key_size = U8.pack
        if wide:
            flags |= _KEY16
            key_size = U16.pack
        options = b""
        if request.timeout is not None:
            flags |= _TIMEOUT
            options = U64.pack(request.timeout)
        if request.ttl is not None:
            flags |= _TTL
            options += U64.pack(request.ttl)
        if request.count is not None:
            flags |= _COUNT
            options += U16.pack(request.count)
        elif request.function == _GET and flags & _QUERY == _RANGE:
            options += b"\0\0"
        parts = [options, key_size(len(key)), key]
        if second_key is not None:
            parts += (key_size(len(second_key)), second_key)
        if value_type is not None:
            size = len(value) + 1
            if size <= U8_MAX:
                flags |= _VALUE_U8
                value_size = U8.pack(size)
            elif size <= U16_MAX:
                flags |= _VALUE_U16
                value_size = U16.pack(size)
            else:
                flags |= _VALUE_U32
                value_size = U32.pack(size)
            parts += (value_size, U8.pack(value_type), value)
        elif value:
            raise BadRequestError("a value needs its type")
        head = _HEAD.pack(_WORD, request.function, request.identifier, flags, request.timestamp)
    except StructError as error:
        raise _out_of_range(request) from error
    return head + b"".join(parts)


def _out_of_range(request: Request) -> BadRequestError:
    """Name the field that struct could not pack."""
    second_key = b"" if request.second_key is None else request.second_key
    bounds = (
        ("function", request.function, U16_MAX),
        ("identifier", request.identifier, U16_MAX),
        ("flags", request.flags, U16_MAX),
        ("timestamp", request.timestamp, U64_MAX),
        ("timeout", request.timeout or 0, U64_MAX),
        ("ttl", request.ttl or 0, U64_MAX),
        ("count", request.count or 0, U16_MAX),
        ("key size", len(request.key), U16_MAX),
        ("second key size", len(second_key), U16_MAX),
        ("value type", request.value_type or 0, U8_MAX),
        ("value size", len(request.value) + 1, U32_MAX),
    )
    for name, number, most in bounds:
        if not 0 <= number <= most:
            return BadRequestError(f"{name} {number} is not 0 to {most}")
    return BadRequestError("a field of the request is not an integer")
