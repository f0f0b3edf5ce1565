"""Opcode 8 of Kestrel journals: a continue or a state dump, whichever the rest of the file allows.

The last program writes a *continue*, which confirms a transaction and adds an item. The description
of the format has a *state dump*: how many open transactions follow as pairs of ADD_XID and
REMOVE_TENTATIVE. It ends its file, for the pairs behind it say again what is open.

The look-ahead that decides is bounded for a whole file, or a crafted one would be read again and
again: once to its end as records, and for pairs as many bytes as it has.
"""

from __future__ import annotations

import struct
from typing import Literal, TypeAlias

from fastjournal.foreign.kestrel_records import (
    BrokenRecordError,
    KestrelRecord,
    Opcode,
    read_fields,
    read_record,
)
from fastjournal.foreign.windowed_file import WINDOW_BYTES, WindowedFile

Opcode8: TypeAlias = Literal["auto", "continue", "state-dump"]
"""Meaning of opcode 8; auto: the one with which the rest of the file is records."""

_STATE_DUMP = struct.Struct("<Ii")
_PAIRS = (Opcode.REMOVE_TENTATIVE, Opcode.REMOVE_TENTATIVE_XID)
_LOOKAHEAD_BYTES_MIN = 4 * WINDOW_BYTES


class RecordReader:
    """Reader of the records of one file, from its begin on.

    Args:
        file: The file.
        opcode8: Meaning of opcode 8.
    """

    def __init__(self, file: WindowedFile, opcode8: Opcode8 = "auto") -> None:
        self._file = file
        self._opcode8 = opcode8
        self._lookahead_bytes = file.size + _LOOKAHEAD_BYTES_MIN
        """Bytes that may still be looked at for pairs."""
        self._whole = False
        """With opcode 8 as a continue, all that follows is records."""

    def read(self, offset: int) -> KestrelRecord:
        """Return the record at an offset before the end of the file.

        Args:
            offset: Begin of the file, or the end of the record that was read last.

        Raises:
            BrokenRecordError: There is none, or opcode 8 has no certain meaning.
        """
        file = self._file
        if self._opcode8 == "continue" or file.read(offset, 1)[0] != Opcode.CONTINUE:
            return read_record(file, offset)
        xid, count = _STATE_DUMP.unpack(read_fields(file, offset + 1, _STATE_DUMP.size))
        dump = KestrelRecord(Opcode.STATE_DUMP, offset, file.size, xid, open_count=count)
        if self._opcode8 == "state-dump":
            if count < 0:
                raise BrokenRecordError(f"a state dump of {count} transactions", torn=False)
            return dump
        pairs = self._follow_pairs(offset + 1 + _STATE_DUMP.size, count)
        if pairs == "whole":
            return dump
        try:
            record = read_record(file, offset)
        except BrokenRecordError:
            if pairs == "torn":
                return dump
            raise
        return dump if pairs == "torn" and self._breaks(record.end) else record

    def _follow_pairs(self, offset: int, count: int) -> Literal["whole", "torn", "not"]:
        """Return whether so many pairs stand there, and nothing else up to the end of the file."""
        file = self._file
        if count < 0:
            return "not"
        try:
            for _ in range(count):
                if offset == file.size:
                    return "torn"
                record = read_record(file, offset)
                if record.opcode is not Opcode.ADD_XID:
                    return "not"
                self._charge(record.end - offset)
                offset = record.end
                if offset == file.size:
                    return "torn"
                follower = read_record(file, offset)
                if follower.opcode in _PAIRS:
                    offset = follower.end
        except BrokenRecordError as error:
            if self._lookahead_bytes < 0:
                raise
            return "torn" if error.torn and file.read(offset, 1)[0] == Opcode.ADD_XID else "not"
        return "whole" if offset == file.size else "not"

    def _charge(self, size: int) -> None:
        """Count what a look at a record of this size costs: at most a window that is read."""
        self._lookahead_bytes -= min(size, WINDOW_BYTES)
        if self._lookahead_bytes < 0:
            raise BrokenRecordError(
                "opcode 8 has too often either meaning;"
                " 'fj-cli import kestrel --opcode-8' sets one",
                torn=False,
            )

    def _breaks(self, offset: int) -> bool:
        """Return whether the rest of the file is no records, where opcode 8 is a continue.

        Where it does break, a state dump ends the file: so this reads the rest of a file once.
        """
        try:
            while not self._whole and offset < self._file.size:
                offset = read_record(self._file, offset).end
        except BrokenRecordError:
            return True
        self._whole = True
        return False
