"""JSON files with a format and a version: decoding that names what cannot be understood.

Each begins with ``{"format": str, "version": int, ...}``. Both are looked at before the rest, which
another version may have changed. ``json_fault`` says what is wrong with JSON of anybody.
"""

from __future__ import annotations

import re
from typing import Annotated, TypeAlias, TypeVar

import msgspec

from fastjournal.errors import LogCorruptError

Crc32cDigits: TypeAlias = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{8}$")]
"""CRC-32C as 8 hex digits."""

Contents = TypeVar("Contents")

_ESCAPE = re.compile(rb"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)


class _VersionHead(msgspec.Struct):
    format: str
    version: int


def decode_versioned(
    data: bytes,
    contents: type[Contents],
    *,
    format_name: str,
    version: int,
    path: str,
    hint: str | None = None,
) -> Contents:
    """Return the contents of a file.

    Args:
        data: Its bytes.
        contents: Their type.
        format_name: Format that it has to have.
        version: Version that this release reads.
        path: Path of the file, for the error.
        hint: Advice for a file that cannot be understood; None: read it with the release that
            wrote it.

    Raises:
        LogCorruptError: It is damaged, of another format, or of another version.
    """
    try:
        head = msgspec.json.decode(data, type=_VersionHead)
        if head.format == format_name and head.version == version:
            return msgspec.json.decode(data, type=contents)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise LogCorruptError(
            f"not a file of format {format_name!r}: {error}", path=path, hint=hint
        ) from error
    raise LogCorruptError(
        f"a file of format {head.format!r}, version {head.version}, and not {format_name!r},"
        f" version {version}",
        path=path,
        hint=hint or "read it with the release that wrote it",
    )


def json_fault(data: bytes, error: Exception) -> str:
    """Return the sentence for JSON that was refused.

    Args:
        data: The JSON.
        error: The error of the decoder, which calls JSON truncated that has half of a surrogate
            pair near its end.
    """
    if isinstance(error, msgspec.DecodeError) and not isinstance(error, msgspec.ValidationError):
        half = _surrogate_half(data)
        if half is not None:
            escape = half[0].decode()
            return (
                f"{escape} (byte {half.start()}) is half of a surrogate pair, and no character:"
                " write both halves, or the character itself"
            )
    return str(error)


def _surrogate_half(data: bytes) -> re.Match[bytes] | None:
    """Return the first escape that is half of a surrogate pair, without the other half."""
    high: re.Match[bytes] | None = None
    for escape in _ESCAPE.finditer(data):
        code = int(escape[1], 16) if escape[1] else 0
        is_low = 0xDC00 <= code <= 0xDFFF
        if high is not None:
            if not is_low or escape.start() != high.end():
                return high
            high = None
        elif is_low:
            return escape
        elif 0xD800 <= code <= 0xDBFF:
            high = escape
    return high
