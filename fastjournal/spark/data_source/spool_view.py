"""Spool directories as the view ``spool``: a row for each record that waits, or cannot be sent.

States: ``pending``, a request that a forwarder will send; ``dead``, a piece in ``dead/`` with its
reason; ``suspect``, bytes of a slot that are no whole record: damage, which a forwarder will put
into ``dead/``, or a record at the end that its writer has not finished. Sent records are left out.

One partition is one slot, or the dead letters of a spool. A directory is local to the executors.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from fastjournal.errors import ProtocolError, SpoolFailedError
from fastjournal.keys import JournalKey, parse_journal_key
from fastjournal.protocol import Function, Request, decode_request
from fastjournal.spark.decoding.view_columns import ARROW_TYPES, CORRUPT_COLUMN, cut, text
from fastjournal.spark.query.requested_schema import RequestedColumn, cast_batch
from fastjournal.spool import DeadDirectory, Kind, Reason, SlotReader, list_slots
from fastjournal.spool.slots import open_slot

PENDING, DEAD, SUSPECT = "pending", "dead", "suspect"
BATCH_ROWS = 2048
BATCH_BYTES = 4 * 1024 * 1024


_FUNCTIONS = {function.value: function.name for function in Function}


class SpoolRow(NamedTuple):
    """One record or piece of a spool."""

    state: str
    path: str
    """File that has its bytes."""
    slot: str
    offset: int | None
    """Offset in the slot."""
    size: int
    request: Request | None = None
    """None: its bytes are no request."""
    journal: JournalKey | None = None
    """The parts of the key, where it is a journal key."""
    code: str | None = None
    reason: str | None = None
    put_us: int | None = None
    corrupt: str | None = None


class SpoolColumn(NamedTuple):
    """One column of the view."""

    name: str
    kind: str
    value: Callable[[SpoolRow], Any]


def _of_request(name: str) -> Callable[[SpoolRow], Any]:
    return lambda row: getattr(row.request, name, None)


def _function(row: SpoolRow) -> str | None:
    if row.request is None:
        return None
    return _FUNCTIONS.get(row.request.function, str(row.request.function))


SPOOL_COLUMNS = (
    SpoolColumn("state", "text", lambda row: row.state),
    SpoolColumn("slot", "text", lambda row: row.slot),
    SpoolColumn("file", "text", lambda row: row.path),
    SpoolColumn("offset", "long", lambda row: row.offset),
    SpoolColumn("size", "long", lambda row: row.size),
    SpoolColumn("function", "text", _function),
    SpoolColumn("key", "bytes", _of_request("key")),
    SpoolColumn("domain", "text", lambda row: row.journal and text(row.journal.domain)),
    SpoolColumn("priority", "int", lambda row: row.journal and row.journal.priority),
    SpoolColumn("not_before", "long", lambda row: row.journal and cut(row.journal.not_before_us)),
    SpoolColumn("id", "text", lambda row: row.journal and text(row.journal.id)),
    SpoolColumn("uri", "bytes", _of_request("second_key")),
    SpoolColumn("value", "bytes", _of_request("value")),
    SpoolColumn("timestamp", "long", lambda row: row.request and cut(row.request.timestamp)),
    SpoolColumn("code", "text", lambda row: row.code),
    SpoolColumn("reason", "text", lambda row: row.reason),
    SpoolColumn("put_us", "long", lambda row: row.put_us),
)
"""Columns; ``code``, ``reason`` and ``put_us`` of dead letters."""


class SlotPartition(InputPartition):
    """One slot, or the dead letters of a spool."""

    def __init__(self, directory: str, slot: str | None) -> None:
        super().__init__(slot)
        self.directory = directory
        self.slot = slot
        """Path of the slot; None: the dead letters."""


class SpoolReader(DataSourceReader):
    """Reads the records of spools.

    Args:
        directories: The spools.
        columns: Columns to build, in this order.
        permissive: A slot that cannot be read becomes a row.
    """

    def __init__(
        self, directories: Sequence[str], columns: list[RequestedColumn], *, permissive: bool
    ) -> None:
        self._directories = directories
        self._columns = columns
        self._permissive = permissive

    def partitions(self) -> list[InputPartition]:
        """Return one partition for each slot, and one for the dead letters of each spool."""
        found: list[InputPartition] = []
        for directory in self._directories:
            found += [SlotPartition(directory, slot.path) for slot in list_slots(directory)]
            found.append(SlotPartition(directory, None))
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a slot, or of the dead letters."""
        assert isinstance(partition, SlotPartition)
        rows: list[SpoolRow] = []
        size = 0
        for row in self._rows(partition):
            rows.append(row)
            size += row.size
            if len(rows) >= BATCH_ROWS or size >= BATCH_BYTES:
                yield self._batch(rows)
                rows, size = [], 0
        if rows:
            yield self._batch(rows)

    def _rows(self, partition: SlotPartition) -> Iterator[SpoolRow]:
        if partition.slot is None:
            yield from _dead_rows(partition.directory)
            return
        try:
            yield from _slot_rows(partition.slot)
        except SpoolFailedError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return  # sent and deleted since the directory was listed
            if not self._permissive:
                raise
            yield _row(SUSPECT, partition.slot, None, 0)._replace(corrupt=str(error))

    def _batch(self, rows: list[SpoolRow]) -> pa.RecordBatch:
        arrays = []
        for column in self._columns:
            value = _VALUES[column.source]
            kind = ARROW_TYPES[_KINDS[column.source]]
            arrays.append(pa.array([value(row) for row in rows], kind))
        names = [column.name for column in self._columns]
        return cast_batch(pa.RecordBatch.from_arrays(arrays, names), self._columns)


_CORRUPT = SpoolColumn(CORRUPT_COLUMN.name, CORRUPT_COLUMN.kind, lambda row: row.corrupt)
_VALUES = {column.name: column.value for column in (*SPOOL_COLUMNS, _CORRUPT)}
_KINDS = {column.name: column.kind for column in (*SPOOL_COLUMNS, _CORRUPT)}


def _slot_rows(path: str) -> Iterator[SpoolRow]:
    with SlotReader(path) as reader:
        while pieces := reader.read(BATCH_ROWS, bytes_max=BATCH_BYTES):
            for piece in pieces:
                if piece.kind is Kind.PENDING:
                    yield _row(PENDING, path, piece.offset, len(piece.data), piece.data)
                elif piece.kind is Kind.DAMAGE:
                    row = _row(SUSPECT, path, piece.offset, piece.end - piece.offset)
                    yield row._replace(reason="no record begins here")
        if reader.waiting_bytes:
            row = _row(SUSPECT, path, reader.position, reader.waiting_bytes)
            yield row._replace(reason="the record at the end is not finished")


def _dead_rows(directory: str) -> Iterator[SpoolRow]:
    for piece in DeadDirectory(directory).list():
        try:
            with open(open_slot(piece.raw_path, os.O_RDONLY), "rb") as file:
                raw = file.read()
        except SpoolFailedError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                continue  # taken away since the directory was listed
            raise
        why: Reason | None = piece.reason
        row = _row(DEAD, piece.raw_path, None, len(raw), raw)
        if why is not None:
            row = row._replace(slot=why.slot, offset=why.offset, code=why.code)
            row = row._replace(reason=why.reason, put_us=why.put_us)
        yield row


def _row(
    state: str, path: str, offset: int | None, size: int, frame: bytes | None = None
) -> SpoolRow:
    slot = path.rpartition("/")[2]
    request = None
    if frame is not None:
        with suppress(ProtocolError):
            # a dead letter may be no request: that is why it is dead
            request = decode_request(frame)
    journal = None if request is None else parse_journal_key(request.key)
    return SpoolRow(state, path, slot, offset, size, request, journal)
