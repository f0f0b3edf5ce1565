"""Views whose rows are made one by one: journals of beanstalkd and Kestrel, and spools.

A thin adapter of the readers in ``fastjournal.foreign`` and ``fastjournal.spool`` to Spark. The
directory is local to the executors.

*Journals* as the views ``records`` and ``entries``. Queues of Kestrel have nothing in common, nor
have the files of beanstalkd where their records are shown as they are: a partition has queues, or
files, side by side, of about ``PARTITION_BYTES``. The records of one job of beanstalkd stand in
several files, so one task replays all of them for the view ``entries``.

*Spools* as the view ``spool``: a row for each record that waits, or cannot be sent. States:
``pending``, a request that a forwarder will send; ``dead``, a piece in ``dead/`` with its reason;
``suspect``, bytes of a slot that are no whole record: damage, which a forwarder will put into
``dead/``, or a record at the end that its writer has not finished. Sent records are left out. A
partition is one slot, or the dead letters of a spool.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from fastjournal.disk import OsDisk
from fastjournal.errors import LogCorruptError, ProtocolError, SpoolFailedError
from fastjournal.foreign.beanstalkd import BeanstalkdJournal, beanstalkd_records
from fastjournal.foreign.formats import Format, list_binlogs
from fastjournal.foreign.items import Fault, ForeignJournal, ForeignRecord, Item
from fastjournal.foreign.journal_files import find_size, list_queues
from fastjournal.foreign.kestrel import KestrelJournal, kestrel_records
from fastjournal.keys import JournalKey, parse_journal_key
from fastjournal.protocol import Function, Request, decode_request
from fastjournal.spark.decoding.view_columns import CORRUPT_COLUMN, Column, cut, text, to_batch
from fastjournal.spark.query.requested_schema import PartReader
from fastjournal.spool import DeadDirectory, Kind, Reason, SlotReader, list_slots
from fastjournal.spool.slots import open_slot

BATCH_ROWS = 2048
BATCH_BYTES = 4 * 1024 * 1024
PARTITION_BYTES = 64 * 1024 * 1024


def _fields(record: ForeignRecord) -> str:
    shown = {
        name: text(value) if isinstance(value, bytes) else value
        for name, value in record.fields.items()
    }
    return msgspec.json.encode(shown).decode()


def _part(name: str) -> Callable[[Item], Any]:
    def value(item: Item) -> Any:
        found = getattr(parse_journal_key(item.key), name)
        return text(found) if isinstance(found, bytes) else found

    return value


FOREIGN_COLUMNS: dict[str, tuple[Column, ...]] = {
    "records": (
        Column("file", "text", lambda record: record.path),
        Column("offset", "long", lambda record: record.offset),
        Column("size", "long", lambda record: record.size),
        Column("record", "text", _fields),
        Column("value", "bytes", lambda record: record.value),
    ),
    "entries": (
        Column("key", "bytes", lambda item: item.key),
        Column("domain", "text", _part("domain")),
        Column("priority", "int", _part("priority")),
        Column("not_before", "long", lambda item: cut(_part("not_before_us")(item))),
        Column("id", "text", _part("id")),
        Column("value", "bytes", lambda item: item.value),
        Column("timestamp", "long", lambda item: cut(item.timestamp)),
        Column("expires", "long", lambda item: cut(item.expires)),
        Column("reason", "text", lambda item: item.reason),
        Column("file", "text", lambda item: item.path),
        Column("offset", "long", lambda item: item.offset),
    ),
}
"""Columns of each view; ``record`` has the decoded fields of a record as JSON."""


class _RowReader(PartReader):
    """Reader of rows that are made one by one."""

    def _batches(
        self, rows: Iterable[Any], known: Mapping[str, Column], size_of: Callable[[Any], int]
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches of rows of about ``BATCH_BYTES``."""
        columns = [known[name] for name in self._names]
        batch: list[Any] = []
        size = 0
        for row in rows:
            batch.append(row)
            size += size_of(row)
            if len(batch) >= BATCH_ROWS or size >= BATCH_BYTES:
                yield to_batch(batch, columns)
                batch, size = [], 0
        if batch:
            yield to_batch(batch, columns)


class ForeignReader(_RowReader):
    """Reads a view of a foreign journal; see ``PartReader``."""

    def parts(self, directory: str) -> list[tuple[str, frozenset[Any]]]:
        """Return parts of about ``PARTITION_BYTES``."""
        return [(directory, names) for names in self._parts(OsDisk(), directory)]

    def _parts(self, disk: OsDisk, directory: str) -> list[frozenset[Any]]:
        """Return the names of queues or binlogs that a task reads, in their order."""
        if self._options.foreign is Format.KESTREL:
            queues = list_queues(disk, directory)
            return _side_by_side(
                (name, sum(find_size(disk, path) or 0 for path in paths))
                for name, paths in queues.items()
            )
        numbers = list_binlogs(disk, directory)
        if self._options.view == "entries":
            return [frozenset(numbers)]
        return _side_by_side(
            (number, find_size(disk, f"{directory}/binlog.{number}") or 0) for number in numbers
        )

    def batches(self, part: tuple[str, frozenset[Any]]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part of a journal."""
        faults: list[Fault] = []
        known = {column.name: _located(column) for column in FOREIGN_COLUMNS[self._options.view]}
        rows = chain(self._rows(*part, faults), self._damage(faults))
        yield from self._batches(rows, known | {_FAULT.name: _FAULT}, _bytes_of)

    def _rows(
        self, directory: str, names: frozenset[Any], faults: list[Fault]
    ) -> Iterable[Item | ForeignRecord]:
        """Return rows of queues of Kestrel by their names, or binlogs of beanstalkd by numbers."""
        disk = OsDisk()
        if self._options.view == "records":
            if self._options.foreign is Format.KESTREL:
                return kestrel_records(disk, directory, faults, queues=names)
            return beanstalkd_records(disk, directory, faults, binlogs=names)
        journal: ForeignJournal
        if self._options.foreign is Format.KESTREL:
            journal = KestrelJournal(disk, directory, queues=names)
        else:
            journal = BeanstalkdJournal(disk, directory)
        faults += journal.faults
        return journal.items()

    def _damage(self, faults: list[Fault]) -> Iterator[Fault]:
        """Yield the damage as rows; what a killed server leaves at the end is none."""
        for fault in faults:
            if fault.damage and not self._options.permissive:
                raise LogCorruptError(fault.message, path=fault.path, offset=fault.offset)
            if fault.damage:
                yield fault


def _side_by_side(sizes: Iterable[tuple[Any, int]]) -> list[frozenset[Any]]:
    """Return names in sets of about ``PARTITION_BYTES``, in their order."""
    found, names, size = [], list[Any](), 0
    for name, more in sizes:
        if names and size + more > PARTITION_BYTES:
            found.append(frozenset(names))
            names, size = [], 0
        names.append(name)
        size += more
    return [*found, frozenset(names)] if names else found


def _bytes_of(row: Item | ForeignRecord | Fault) -> int:
    return 0 if isinstance(row, Fault) else len(row.value or b"")


def _fault_text(row: Any) -> str | None:
    if not isinstance(row, Fault):
        return None
    return f"{row.path} at offset {row.offset}: {row.message}"


_FAULT = Column(CORRUPT_COLUMN.name, CORRUPT_COLUMN.kind, _fault_text)


def _located(column: Column) -> Column:
    """Return a column that has file and offset of damage too, and nothing else of it."""
    of_fault = {"file": "path", "offset": "offset"}.get(column.name)

    def value(row: Any) -> Any:
        if not isinstance(row, Fault):
            return column.value(row)
        return None if of_fault is None else getattr(row, of_fault)

    return column._replace(value=value)


PENDING, DEAD, SUSPECT = "pending", "dead", "suspect"


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


def _of_request(name: str) -> Callable[[SpoolRow], Any]:
    return lambda row: getattr(row.request, name, None)


def _function(row: SpoolRow) -> str | None:
    if row.request is None:
        return None
    return _FUNCTIONS.get(row.request.function, str(row.request.function))


SPOOL_COLUMNS = (
    Column("state", "text", lambda row: row.state),
    Column("slot", "text", lambda row: row.slot),
    Column("file", "text", lambda row: row.path),
    Column("offset", "long", lambda row: row.offset),
    Column("size", "long", lambda row: row.size),
    Column("function", "text", _function),
    Column("key", "bytes", _of_request("key")),
    Column("domain", "text", lambda row: row.journal and text(row.journal.domain)),
    Column("priority", "int", lambda row: row.journal and row.journal.priority),
    Column("not_before", "long", lambda row: row.journal and cut(row.journal.not_before_us)),
    Column("id", "text", lambda row: row.journal and text(row.journal.id)),
    Column("uri", "bytes", _of_request("second_key")),
    Column("value", "bytes", _of_request("value")),
    Column("timestamp", "long", lambda row: row.request and cut(row.request.timestamp)),
    Column("code", "text", lambda row: row.code),
    Column("reason", "text", lambda row: row.reason),
    Column("put_us", "long", lambda row: row.put_us),
)
"""Columns; ``code``, ``reason`` and ``put_us`` of dead letters."""


class SpoolReader(_RowReader):
    """Reads the records of spools; see ``PartReader``. A slot that cannot be read is damage."""

    def parts(self, directory: str) -> list[tuple[str, str | None]]:
        """Return one part for each slot, and one for the dead letters."""
        return [*((directory, slot.path) for slot in list_slots(directory)), (directory, None)]

    def batches(self, part: tuple[str, str | None]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a slot, or of the dead letters."""
        return self._batches(self._rows(*part), _OF_SPOOL, lambda row: row.size)

    def _rows(self, directory: str, slot: str | None) -> Iterator[SpoolRow]:
        """Yield the rows of the slot at a path, or of the dead letters."""
        if slot is None:
            yield from _dead_rows(directory)
            return
        try:
            yield from _slot_rows(slot)
        except SpoolFailedError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return  # sent and deleted since the directory was listed
            if not self._options.permissive:
                raise
            yield _row(SUSPECT, slot, None, 0)._replace(corrupt=str(error))


_OF_SPOOL = {column.name: column for column in SPOOL_COLUMNS} | {
    CORRUPT_COLUMN.name: CORRUPT_COLUMN._replace(value=lambda row: row.corrupt)
}


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
