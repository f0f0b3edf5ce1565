"""JSON files with a format and a version: decoding that names what cannot be understood.

Each begins with ``{"format": str, "version": int, ...}``. Both are looked at before the rest, which
another version may have changed.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, TypeAlias, TypeVar

import msgspec

from fastjournal.errors import LogCorruptError

Crc32cDigits: TypeAlias = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{8}$")]
"""CRC-32C as 8 hex digits."""

Contents = TypeVar("Contents")


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
    older: Collection[int] = (),
) -> Contents:
    """Return the contents of a file.

    Args:
        data: Its bytes.
        contents: Their type.
        format_name: Format that it has to have.
        version: Version that this release reads.
        path: Path of the file, for the error.
        older: Older versions that it reads too, whose files lack only optional members.
        hint: Advice for a file that cannot be understood; None: read it with the release that
            wrote it.

    Raises:
        LogCorruptError: It is damaged, of another format, or of another version.
    """
    try:
        head = msgspec.json.decode(data, type=_VersionHead)
        if head.format == format_name and head.version in (version, *older):
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
