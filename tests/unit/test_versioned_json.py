"""JSON files with format and version: errors name what cannot be understood."""

from __future__ import annotations

import msgspec
import pytest

from fastjournal.errors import LogCorruptError
from fastjournal.versioned_json import Crc32cDigits, decode_versioned


class Contents(msgspec.Struct):
    """Contents of a file of version 1."""

    format: str
    version: int
    crc32c: Crc32cDigits


def decoded(data: bytes) -> Contents:
    return decode_versioned(data, Contents, format_name="a-file", version=1, path="/file")


def test_versioned_json_gives_the_contents() -> None:
    data = b'{"format":"a-file","version":1,"crc32c":"0a1b2c3d","more":1}'
    assert decoded(data) == Contents("a-file", 1, "0a1b2c3d")


@pytest.mark.parametrize(
    ("data", "message", "hint"),
    [
        # what another version has changed is not told as damage
        (b'{"format":"a-file","version":2,"sums":[]}', "version 2", "the release that wrote it"),
        (b'{"format":"b-file","version":1}', "'b-file'", "the release that wrote it"),
        (b'{"format":"a-file","version":1}', "`crc32c`", None),
        (b'{"format":"a-file","version":1,"crc32c":"0A1B2C3D"}', "crc32c", None),
        (b'{"format":"a-file","version":1,"crc32c":"0a1b2c3d5"}', "crc32c", None),
        (b'{"format":"\xff"}', "not a file of format 'a-file'", None),
        (b"[" * 5000, "not a file of format 'a-file'", None),
        (b"", "not a file of format 'a-file'", None),
    ],
)
def test_versioned_json_errors_name_the_file_and_what_is_wrong(
    data: bytes, message: str, hint: str | None
) -> None:
    with pytest.raises(LogCorruptError, match=message) as caught:
        decoded(data)
    assert caught.value.path == "/file"
    assert hint in (caught.value.hint or "") if hint else caught.value.hint is None
