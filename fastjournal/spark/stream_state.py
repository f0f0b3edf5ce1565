"""State of a stream of events between its batches: the live jobs, in a file for each offset.

    DIRECTORY/<stream>/000000007-000000065536-0a1b2c3d.state     end of a batch

The task that reads a batch loads the state at its begin, and writes the one at its end, atomically.
A batch that Spark repeats finds the same begin and writes the same end. A state goes when a later
batch is committed, for Spark asks for no earlier one again. Each stream (each checkpoint) has a
directory of its own, so several streams may share ``DIRECTORY``.
"""

from __future__ import annotations

import msgspec

from fastjournal.errors import LogCorruptError, LogFailedError
from fastjournal.spark.event_extractor import History
from fastjournal.spark.table_files import open_files

_FORMAT = "fastjournal-stream-state"
_VERSION = 1


class _State(msgspec.Struct):
    format: str
    version: int
    history: History


class StreamState:
    """States of one stream.

    Args:
        directory: Path or URI that the driver and all executors reach.
        stream: Identifier of the stream.

    Raises:
        LogFailedError: It cannot be reached.
    """

    def __init__(self, directory: str, stream: str) -> None:
        self._files, path = open_files(directory)
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
                "begin anew with another checkpoint",
            )
        try:
            state = msgspec.msgpack.decode(self._files.read(path), type=_State)
        except msgspec.MsgspecError as error:
            raise LogCorruptError(f"not a state of a stream: {error}", path=path) from error
        if (state.format, state.version) != (_FORMAT, _VERSION):
            raise LogCorruptError(
                f"a state of version {state.version}, and not {_VERSION}",
                path=path,
                hint="read it with the release that wrote it",
            )
        return state.history

    def save(self, name: str, history: History) -> None:
        """Write the state at an offset, atomically and durably."""
        data = msgspec.msgpack.encode(_State(_FORMAT, _VERSION, history))
        self._files.put(f"{self._path}/{name}.state", data)

    def remove_before(self, name: str) -> None:
        """Remove the states of offsets before one."""
        for found in self._files.names(self._path):
            if found < f"{name}.state":
                self._files.delete(f"{self._path}/{found}")
