"""Replies and notifications: the bytes of a ``JR`` message, encoder and decoder.

All integers are big endian and unsigned; times are microseconds. Layout:

    offset size  field
    0      2     magic "JR"
    2      2     version, 1
    4      2     identifier of the request
    6      2     flags
    8      8     timestamp, an instant: the daemon's clock
    16     8     timeout               flag TIMEOUT (bit 3)
           8     ttl                   flag TTL (bit 14)
           2     count                 flag COUNT (bit 13): that many pairs, else none
           1|2   error size            2 with KEY16 (bit 0)
           n     error, ASCII          empty: success
           1|2   cursor size           flag CURSOR (bit 8)
           n     cursor
           ...   the pairs

A pair; the flags are those of the reply:

    size  field
    1|2   key size              2 with KEY16 (bit 0)
    n     key
    1|2   second key size       TWO_KEYS (bit 7)
    n     second key
    1|2|4 value size            by VALUE (bits 1-2): 0 no value, 1 u8, 2 u16, 3 u32
    1     value type            the value size counts it: 0 is malformed
    n-1   value data
    68    metadata block        META (bit 15)

The metadata block:

    offset size  field
    0      8 * 8 timestamp, created, modified, accessed, expires, ttl, worked on until, not before
    64     1     priority
    65     1     state
    66     2     attempts

Source: docs/protocol.md.
"""

from __future__ import annotations

import sys
from collections import deque
from struct import Struct
from typing import Final

from fastjournal import _native
from fastjournal.errors import BadRequestError, ProtocolError
from fastjournal.limits import ERROR_SENTENCE_BYTES_MAX
from fastjournal.protocol.constants import REPLY_MAGIC, VALUE_MASK, VALUE_SHIFT, VERSION, Flag
from fastjournal.protocol.framing import (
    U8,
    U8_MAX,
    U16,
    U16_MAX,
    U32,
    U64,
    StructError,
    check_start,
    magic_word,
)
from fastjournal.protocol.messages import Meta, Pair, Reply, Request

_META: Final = Struct(">8QBBH")
META_BYTES: Final = _META.size
PAIR_BYTES: Final = 2 * U16.size + U32.size + 1
"""A pair's sizes and value type at their widest."""
REPLY_BYTES: Final = 64
"""Upper bound of a reply's fields before its pairs, without the cursor."""
_VALUE_HEADS: Final = (Struct(""), Struct(">BB"), Struct(">HB"), Struct(">IB"))
"""Value size and type, by VALUE."""

# Plain integers: the operators of IntFlag cost too much for the hot path.
_KEY16: Final = int(Flag.KEY16)
_TWO_KEYS: Final = int(Flag.TWO_KEYS)
_META_FLAG: Final = int(Flag.META)


def add_pairs(parts: list[bytes], pairs: list[Pair], flags: int) -> None:
    """Append the bytes of the pairs to ``parts``.

    Args:
        parts: Pieces that are joined later.
        pairs: Their sizes fit the widths that the flags say.
        flags: Those of the reply: KEY16, VALUE (not 0), TWO_KEYS, META.

    Raises:
        BadRequestError: Some pairs have metadata and others have not.
        struct.error: A number does not fit its field.
    """
    key_size = (U16 if flags & _KEY16 else U8).pack
    value_head = _VALUE_HEADS[(flags & VALUE_MASK) >> VALUE_SHIFT].pack
    two_keys = flags & _TWO_KEYS
    with_meta = bool(flags & _META_FLAG)
    for pair in pairs:
        key = pair.key
        value = pair.value
        head = value_head(len(value) + 1, pair.value_type)
        if two_keys:
            second = pair.second_key
            parts += (key_size(len(key)), key, key_size(len(second)), second, head, value)
        else:
            parts += (key_size(len(key)), key, head, value)
        meta = pair.meta
        if (meta is not None) is not with_meta:
            raise BadRequestError("some pairs of a reply have metadata and others have not")
        if meta is not None:
            parts.append(
                _META.pack(
                    meta.timestamp_us,
                    meta.created_us,
                    meta.modified_us,
                    meta.accessed_us,
                    meta.expires_us,
                    meta.ttl_us,
                    meta.worked_on_until_us,
                    meta.not_before_us,
                    meta.priority,
                    meta.state,
                    meta.attempts,
                )
            )


def pair_bytes_min(flags: int) -> int:
    """Return the size of the smallest pair of a reply with these flags."""
    key_size = U16.size if flags & _KEY16 else U8.size
    return (
        (2 * key_size if flags & _TWO_KEYS else key_size)
        + _VALUE_HEADS[(flags & VALUE_MASK) >> VALUE_SHIFT].size
        + (META_BYTES if flags & _META_FLAG else 0)
    )


def read_pairs(data: bytes, start: int, reply: Reply, count: int) -> tuple[int, int]:
    """Append the pairs that are whole to ``reply.pairs``, until it has ``count``.

    Returns:
        Where they end, and 0; or where a pair that is cut short starts, and the bytes needed of
        it, at least.

    Raises:
        ProtocolError: A value size is 0.
    """
    pairs = reply.pairs
    if pairs is None:
        return start, 0
    append, flags = pairs.append, reply.flags
    wide = flags & _KEY16
    two_keys = flags & _TWO_KEYS
    value_width = (flags & VALUE_MASK) >> VALUE_SHIFT
    wide_size = U16 if value_width == 2 else U32
    with_meta = flags & _META_FLAG
    value_type = 0
    second_key = value = b""
    meta = None
    end = len(data)
    at = start
    try:
        for _ in range(len(pairs), count):
            if wide:
                (size,) = U16.unpack_from(data, at)
                at += 2
            else:
                size = data[at]
                at += 1
            key = data[at : at + size]
            at += size
            if two_keys:
                if wide:
                    (size,) = U16.unpack_from(data, at)
                    at += 2
                else:
                    size = data[at]
                    at += 1
                second_key = data[at : at + size]
                at += size
            if value_width:
                if value_width == 1:
                    size = data[at]
                    at += 1
                else:
                    (size,) = wide_size.unpack_from(data, at)
                    at += wide_size.size
                if size == 0:
                    raise ProtocolError("value size is 0", identifier=reply.identifier)
                at += size
                # Checked before the data: a claimed length may be false.
                if at > end:
                    break
                value_type = data[at - size]
                value = data[at - size + 1 : at]
            if with_meta:
                at += META_BYTES
                meta = Meta(*_META.unpack_from(data, at - META_BYTES))
            if at > end:
                break
            append(Pair(key, value_type, value, second_key, meta))
            start = at
        else:
            return start, 0
    except (IndexError, StructError):
        pass
    return start, max(at, end + 1) - start


_HEAD: Final = Struct(">IHHQ")
_HEAD_AND_NEXT: Final = Struct(">IHHQB")
"""The head and the byte after it, which every reply has: the error size of most of them."""
_SUCCESS: Final = Struct(">IH2xQx")
"""A reply without flags and error."""
_SUCCESS_OF: Final = Struct(">IHHQQx")
"""A reply with the flag TTL and no other, and without error."""
SUCCESS_BYTES: Final = _SUCCESS.size
"""Length of what ``encode_success`` returns."""
SUCCESS_BYTES_MAX: Final = _SUCCESS_OF.size
"""Length of what ``encode_success_of`` returns."""

_WORD: Final = magic_word(REPLY_MAGIC, VERSION)
_HEAD_BYTES: Final = _HEAD.size
_REPLY_BYTES_MIN: Final = _HEAD_AND_NEXT.size

# Plain integers: the operators of IntFlag cost too much for the hot path.
_TIMEOUT: Final = int(Flag.TIMEOUT)
_TTL: Final = int(Flag.TTL)
_COUNT: Final = int(Flag.COUNT)
_CURSOR: Final = int(Flag.CURSOR)
_GIVEN: Final = int(Flag.WORKED_ON | Flag.TWO_KEYS | Flag.LISTEN)
"""Flags that the encoder copies from ``Reply.flags``; the other bits follow from the fields."""


def encode_success(identifier: int, timestamp: int) -> bytes:
    """Return a reply that says success and nothing else, 17 bytes.

    Args:
        identifier: Identifier of the request.
        timestamp: The daemon's clock, an instant.
    """
    return _SUCCESS.pack(_WORD, identifier, timestamp)


def encode_successes(requests: list[Request], timestamp: int) -> list[bytes]:
    """Return such replies to several requests."""
    if _native.leaves is not None:
        replies: list[bytes] | None = _native.leaves.encode_successes(requests, timestamp)
        if replies is not None:
            return replies
    pack = _SUCCESS.pack
    return [pack(_WORD, request.identifier, timestamp) for request in requests]


def encode_success_of(identifier: int, timestamp: int, number: int) -> bytes:
    """Return a reply that says success and a number of entries, in its ttl; 25 bytes."""
    return _SUCCESS_OF.pack(_WORD, identifier, _TTL, timestamp, number)


def encode_error(identifier: int, timestamp: int, error: str) -> bytes:
    """Return a reply that says an error and nothing else.

    Args:
        identifier: Identifier of the request; 0 where it is not known.
        timestamp: The daemon's clock, an instant.
        error: A code, optionally one space and a sentence. Characters that are not ASCII are
            escaped; a text of more than 1,024 bytes is cut.
    """
    text = _error_bytes(error)
    wide = len(text) > U8_MAX
    head = _HEAD.pack(_WORD, identifier, _KEY16 if wide else 0, timestamp)
    return head + (U16 if wide else U8).pack(len(text)) + text


def encode_reply(reply: Reply) -> bytes:
    """Return the bytes of a reply, with the smallest widths that hold all of its sizes.

    The flags WORKED_ON, TWO_KEYS and LISTEN of ``reply.flags`` count, and no others. Second keys
    are sent with TWO_KEYS only; each pair carries a value, void where it has none.

    Raises:
        BadRequestError: It cannot be framed: a number, a key or the number of pairs is too large,
            or some pairs have metadata and others have not.
    """
    if _native.leaves is not None:
        data: bytes | None = _native.leaves.encode_reply(reply)
        if data is not None:
            return data
    pairs = reply.pairs
    key_bytes_max = value_bytes_max = 0
    if pairs:
        key_bytes_max = max([len(pair.key) for pair in pairs])
        if reply.flags & _TWO_KEYS:
            key_bytes_max = max(key_bytes_max, *[len(pair.second_key) for pair in pairs])
        value_bytes_max = max([len(pair.value) for pair in pairs])
    try:
        head, flags = _encode_head(reply, key_bytes_max, value_bytes_max)
        if not pairs:
            return head
        parts = [head]
        add_pairs(parts, pairs, flags)
    except StructError as struct_error:
        raise BadRequestError(f"a reply cannot be framed: {struct_error}") from struct_error
    return b"".join(parts)


def encode_reply_to(identifier: int, reply: Reply, timestamp: int) -> bytes:
    """Return the bytes of a reply to the request with this identifier, made at this instant."""
    reply.identifier = identifier
    reply.timestamp = timestamp
    return encode_reply(reply)


def _encode_head(reply: Reply, key_bytes_max: int, value_bytes_max: int) -> tuple[bytes, int]:
    """Return all bytes before the pairs, and the flags, which say how to encode the pairs."""
    flags = int(reply.flags) & _GIVEN
    error = _error_bytes(reply.error)
    cursor = reply.cursor
    pairs = reply.pairs
    options = b""
    if reply.timeout is not None:
        flags |= _TIMEOUT
        options = U64.pack(reply.timeout)
    if reply.ttl is not None:
        flags |= _TTL
        options += U64.pack(reply.ttl)
    if pairs is not None:
        flags |= _COUNT
        options += U16.pack(len(pairs))
        if pairs:
            value_size_max = value_bytes_max + 1
            width = 1 if value_size_max <= U8_MAX else 2 if value_size_max <= U16_MAX else 3
            flags |= width << VALUE_SHIFT
            if pairs[0].meta is not None:
                flags |= _META_FLAG
    key_size = U8.pack
    if max(key_bytes_max, len(error), 0 if cursor is None else len(cursor)) > U8_MAX:
        flags |= _KEY16
        key_size = U16.pack
    if cursor is not None:
        flags |= _CURSOR
    head = _HEAD.pack(_WORD, reply.identifier, flags, reply.timestamp)
    head += options + key_size(len(error)) + error
    if cursor is not None:
        head += key_size(len(cursor)) + cursor
    return head, flags


class ReplyEncoder:
    """Encodes a reply of many pairs in pieces, so that none of them takes long.

    Args:
        reply: As for ``encode_reply``.
        key_bytes_max: Size of its longest key or second key.
        value_bytes_max: Size of its longest value.

    Raises:
        BadRequestError: It cannot be framed, as far as that shows without the pairs.
    """

    __slots__ = ("_at", "_flags", "_pairs", "_pieces")

    def __init__(self, reply: Reply, key_bytes_max: int, value_bytes_max: int) -> None:
        try:
            head, self._flags = _encode_head(reply, key_bytes_max, value_bytes_max)
        except StructError as struct_error:
            raise BadRequestError(f"a reply cannot be framed: {struct_error}") from struct_error
        self._pieces = [head]
        self._pairs = reply.pairs or []
        self._at = 0

    def encode(self, pairs_max: int) -> bytes | None:
        """Encode so many more pairs; return the whole reply if these were the last.

        Raises:
            BadRequestError: A pair is none that the arguments promised.
        """
        pairs = self._pairs[self._at : self._at + pairs_max]
        parts: list[bytes] = []
        try:
            add_pairs(parts, pairs, self._flags)
        except StructError as struct_error:
            raise BadRequestError(f"a reply cannot be framed: {struct_error}") from struct_error
        self._pieces.append(b"".join(parts))
        self._at += len(pairs)
        return b"".join(self._pieces) if self._at == len(self._pairs) else None


def _error_bytes(error: str) -> bytes:
    return error.encode("ascii", "backslashreplace")[:ERROR_SENTENCE_BYTES_MAX] if error else b""


class ReplyReader:
    """Decodes replies from a stream of bytes; keeps the pairs of a reply that is cut short.

    Args:
        reply_bytes_max: The largest reply, in bytes.
    """

    __slots__ = ("_count", "_reply", "_reply_bytes_max", "_used")

    def __init__(self, reply_bytes_max: int) -> None:
        self._reply_bytes_max = reply_bytes_max
        self._reply: Reply | None = None
        """The reply whose pairs are being read; they are kept, so no pair is read twice."""
        self._count = 0
        """Pairs that it will have."""
        self._used = 0
        """Bytes of it that were decoded."""

    def read(self, data: bytes, ready: deque[Reply]) -> tuple[int, int]:
        """Append every whole reply at the start of ``data`` to ``ready``.

        Returns:
            The bytes used, and how many bytes from there on are needed, at least, to go on.

        Raises:
            ProtocolError: The next message cannot be framed; ``ready`` holds all before it.
        """
        unpack = _HEAD_AND_NEXT.unpack_from
        append = ready.append
        end = len(data)
        start = 0
        while True:
            if self._reply is None:
                while end - start >= _REPLY_BYTES_MIN:
                    word, identifier, flags, timestamp, error_size = unpack(data, start)
                    if word != _WORD or flags or error_size:
                        break
                    append(Reply(identifier, 0, timestamp))
                    start += _REPLY_BYTES_MIN
                if start == end:
                    return start, 0
                at, needed = self._read_head(data, start)
            else:
                at, needed = read_pairs(data, start, self._reply, self._count)
            self._used += at - start
            start = at
            if self._used + needed > self._reply_bytes_max:
                raise self._too_large(data, start)
            if needed:
                return start, needed
            reply = self._reply
            if reply is not None and len(reply.pairs or ()) == self._count:
                append(reply)
                self._reply = None
                self._used = 0

    def unfinished(self, rest: bytes | bytearray) -> int | None:
        """Return the identifier (0: not known) of the reply that is cut short; None: none is."""
        if self._reply is not None:
            return self._reply.identifier
        if not rest:
            return None
        return int.from_bytes(rest[4:6]) if len(rest) >= 6 else 0

    def _read_head(self, data: bytes, start: int) -> tuple[int, int]:
        """Read all before the pairs into ``_reply``; return where that ends and 0.

        Where it is cut short, return ``start`` and the bytes needed.
        """
        end = len(data)
        needed = check_start(data, start, REPLY_MAGIC, identifier_at=4)
        if needed or end - start < _REPLY_BYTES_MIN:
            return start, needed or _REPLY_BYTES_MIN
        _, identifier, flags, timestamp = _HEAD.unpack_from(data, start)
        at = start + _HEAD_BYTES
        timeout = ttl = cursor = None
        count = 0
        try:
            if flags & _TIMEOUT:
                (timeout,) = U64.unpack_from(data, at)
                at += 8
            if flags & _TTL:
                (ttl,) = U64.unpack_from(data, at)
                at += 8
            if flags & _COUNT:
                (count,) = U16.unpack_from(data, at)
                at += 2
            size_of = U16 if flags & _KEY16 else U8
            (size,) = size_of.unpack_from(data, at)
            at += size_of.size
            error = data[at : at + size]
            at += size
            if flags & _CURSOR:
                (size,) = size_of.unpack_from(data, at)
                at += size_of.size
                cursor = data[at : at + size]
                at += size
        except StructError:
            return start, max(at, end + 1) - start
        if at > end:
            return start, at - start
        if at - start + count * pair_bytes_min(flags) > self._reply_bytes_max:
            raise self._too_large(data, start)
        self._count = count
        self._reply = Reply(
            identifier,
            flags,
            timestamp,
            error.decode("ascii", "backslashreplace"),
            timeout,
            ttl,
            cursor,
            [] if flags & _COUNT else None,
        )
        return at, 0

    def _too_large(self, data: bytes, start: int) -> ProtocolError:
        return ProtocolError(
            f"reply is over {self._reply_bytes_max} bytes",
            code="too-large",
            identifier=self.unfinished(data[start : start + 6]) or 0,
        )


def decode_reply(data: bytes) -> Reply:
    """Return the one reply that ``data`` is.

    Raises:
        ProtocolError: It is not exactly one whole reply.
    """
    ready: deque[Reply] = deque()
    reader = ReplyReader(sys.maxsize)  # nothing can be claimed that is not there
    used, _ = reader.read(data, ready)
    if len(ready) != 1 or used != len(data):
        raise ProtocolError(
            f"{len(data)} bytes are not exactly one reply",
            identifier=reader.unfinished(data) or 0,
        )
    return ready[0]
