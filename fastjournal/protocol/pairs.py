"""The pairs of a reply: their bytes, encoder and decoder.

All integers are big endian and unsigned. Layout; the flags are those of the reply:

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

from struct import Struct
from typing import Final

from fastjournal.errors import BadRequestError, ProtocolError
from fastjournal.protocol.constants import VALUE_MASK, VALUE_SHIFT, Flag
from fastjournal.protocol.framing import U8, U16, U32, StructError
from fastjournal.protocol.messages import Meta, Pair, Reply

_META: Final = Struct(">8QBBH")
META_BYTES: Final = _META.size
PAIR_BYTES: Final = 2 * U16.size + U32.size + 1
"""A pair's sizes and value type at their widest."""
REPLY_BYTES: Final = 64
"""A reply's fields before its pairs have fewer bytes, but for the cursor."""
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
                # Looked at before the data are: what is claimed need not be there.
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
