"""JSON files with format and version: errors name what cannot be understood."""

from __future__ import annotations

import msgspec
import pytest

from fastjournal.errors import LogCorruptError
from fastjournal.versioned_json import Crc32cDigits, decode_versioned, json_fault


class Contents(msgspec.Struct):
    """Contents of a file of version 1."""

    format: str
    version: int
    crc32c: Crc32cDigits


def decoded(data: bytes) -> Contents:
    return decode_versioned(data, Contents, format_name="a-file", version=1, path="/file")


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


@pytest.mark.parametrize(
    ("data", "half"),
    [
        (rb'{"d": "\ud800"}', (r"\ud800", 7)),
        (rb'{"d": "\uDBFFabcdefgh"}', (r"\uDBFF", 7)),
        (rb'{"d": "\ud83d\ude00\udc00"}', (r"\udc00", 19)),
        (rb'{"d": "\\\ud83d\ud83d\ude00"}', (r"\ud83d", 9)),
        (rb'{"d": "\ud800', (r"\ud800", 7)),
        (rb'{"d": "\\ud800', None),
        (rb'{"d": "\ud83d\ude00', None),
        (rb'{"d": 3}', None),
    ],
)
def test_json_fault_names_half_of_a_surrogate_pair(
    data: bytes, half: tuple[str, int] | None
) -> None:
    with pytest.raises(msgspec.DecodeError) as caught:
        msgspec.json.decode(data, type=dict[str, str])
    if half is None:
        assert json_fault(data, caught.value) == str(caught.value)
    else:
        escape, at = half
        told = json_fault(data, caught.value)
        assert told.startswith(f"{escape} (byte {at}) is half of a surrogate pair")
