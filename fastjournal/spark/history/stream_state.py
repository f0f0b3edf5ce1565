"""State of a stream of events between its batches: the live jobs, in a file for each offset.

    DIRECTORY/<stream>/000000007-000000065536-0a1b2c3d.state     end of a batch
    DIRECTORY/<stream>/000000007-000000065536-0a1b2c3d.segments  what cleanSource unlinks then

The task that reads a batch loads the state at its begin, and writes the one at its end, atomically.
A batch that Spark repeats finds the same begin and writes the same end. Several tasks may do so at
once, as in a self-join. A state goes when a later
batch is committed, for Spark asks for no earlier one again. Each stream (each checkpoint) has a
directory of its own, so several streams may share ``DIRECTORY``.
"""

from __future__ import annotations

import uuid

import google_crc32c
import msgspec

from fastjournal.errors import LogCorruptError, LogFailedError
from fastjournal.spark.history.extractor import History
from fastjournal.spark.records.archive_cleaning import ReadSegments
from fastjournal.spark.storage.table_files import open_files
from fastjournal.versioned_json import Crc32cDigits, decode_versioned

_FORMAT = "fastjournal-stream-state"
_SEGMENTS_FORMAT = "fastjournal-stream-segments"
_VERSION = 1
_ANEW = "begin anew with another checkpoint"


class _StateFile(msgspec.Struct):
    format: str
    version: int


class _HistoryState(_StateFile):
    history: History


class _Segments(_StateFile):
    segments: ReadSegments
    state_crc32c: Crc32cDigits | None = None
    """Checksum of the state beside it; None: an earlier release wrote none."""


class StreamState:
    """States of one stream.

    Args:
        directory: Path or URI that the driver and all executors reach.
        stream: Identifier of the stream.

    Raises:
        LogFailedError: It cannot be reached.
    """

    def __init__(self, directory: str, stream: str) -> None:
        self._files, path = open_files(directory, writer=uuid.uuid4().hex)
        self._path = f"{path}/{stream}"

    def load(self, name: str) -> History:
        """Return the state at an offset.

        Raises:
            LogFailedError: It is not there, or cannot be read.
            LogCorruptError: It cannot be understood.
        """
        path = f"{self._path}/{name}.state"
        if f"{name}.state" not in self._files.names(self._path):
            raise LogFailedError(
                "the state of the stream at this offset is not there",
                path=path,
                hint="the sink has to read each batch to its end, and stateDirectory has to stay; "
                + _ANEW,
            )
        data = self._files.read(path)
        try:
            head = msgspec.msgpack.decode(data, type=_StateFile)
            if (head.format, head.version) == (_FORMAT, _VERSION):
                self._check(name, data, path)
                return msgspec.msgpack.decode(data, type=_HistoryState).history
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise LogCorruptError(
                f"not a state of a stream: {error}", path=path, hint=_ANEW
            ) from error
        raise LogCorruptError(
            f"a file of format {head.format!r}, version {head.version}, and not {_FORMAT!r}, "
            f"version {_VERSION}",
            path=path,
            hint="read it with the release that wrote it",
        )

    def _check(self, name: str, data: bytes, path: str) -> None:
        """Check that a state has the checksum that stands beside it."""
        segments = self._segments(name)
        crc32c = None if segments is None else segments.state_crc32c
        if crc32c not in (None, f"{google_crc32c.value(data):08x}"):
            raise LogCorruptError(
                "not a state of a stream: it has another checksum", path=path, hint=_ANEW
            )

    def load_segments(self, name: str) -> ReadSegments | None:
        """Return the segments that are read at an offset; None: an earlier release wrote none.

        Raises:
            LogFailedError: The file cannot be read.
            LogCorruptError: It cannot be understood.
        """
        found = self._segments(name)
        return None if found is None else found.segments

    def _segments(self, name: str) -> _Segments | None:
        path = f"{self._path}/{name}.segments"
        if f"{name}.segments" not in self._files.names(self._path):
            return None
        return decode_versioned(
            self._files.read(path),
            _Segments,
            format_name=_SEGMENTS_FORMAT,
            version=_VERSION,
            path=path,
        )

    def save(self, name: str, history: History, segments: ReadSegments) -> None:
        """Write the state at an offset, and the segments before it, atomically and durably."""
        data = msgspec.msgpack.encode(_HistoryState(_FORMAT, _VERSION, history))
        crc32c = f"{google_crc32c.value(data):08x}"
        found = msgspec.json.encode(_Segments(_SEGMENTS_FORMAT, _VERSION, segments, crc32c))
        self._files.put(f"{self._path}/{name}.segments", found)
        self._files.put(f"{self._path}/{name}.state", data)

    def remove_before(self, name: str) -> None:
        """Remove the files of offsets before one, also those that a crash cut."""
        for found in self._files.names(self._path):
            if found.lstrip("_").partition(".")[0] < name:
                self._files.delete(f"{self._path}/{found}")
