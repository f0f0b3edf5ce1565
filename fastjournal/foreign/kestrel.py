"""The journal of a Kestrel: reader and writer.

The reader reads to the end, queue by queue, then yields the items one by one. Open transactions at
the end are unfinished items: they wait, before the others. Reading keeps some 100 bytes for each
waiting item; the values are read again when the items are requested.

The writer writes one file for each domain, in queue order.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from fastjournal.disk import Disk
from fastjournal.errors import LogCorruptError
from fastjournal.foreign.formats import Format, require_format
from fastjournal.foreign.items import (
    Fault,
    FittedName,
    ForeignRecord,
    Item,
    OnProgress,
    QueueFacts,
    QueueNames,
    ReadProgress,
    domain_of,
    fit_name,
)
from fastjournal.foreign.journal_files import (
    NO_FILE,
    JournalFiles,
    WindowedFile,
    WindowedFiles,
    find_size,
    list_queues,
)
from fastjournal.foreign.kestrel_records import (
    VALUE_BYTES_MAX,
    WAITING,
    WITH_VALUE,
    WITH_XID,
    BrokenRecordError,
    KestrelQueue,
    KestrelRecord,
    Opcode,
    Opcode8,
    RecordReader,
    encode_addx,
    read_record,
)
from fastjournal.foreign.snapshot_entries import SnapshotEntry
from fastjournal.keys import journal_key_of
from fastjournal.limits import INSTANT_MAX, PRIORITY_DEFAULT

_EXPIRES_MAX = INSTANT_MAX // 1000 * 1000
"""Instants of Kestrel are whole milliseconds."""


class KestrelJournal:
    """The items that wait in all queues, or in those that are named.

    Attributes:
        count: How many.
        faults: Places that could not be read.
        queues: Queues with their items.
        not_carried: Empty: an entry holds all that an item has.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        opcode8: Opcode8 = "auto",
        on_progress: OnProgress | None = None,
        *,
        queues: Collection[bytes] | None = None,
    ) -> None:
        self.faults: list[Fault] = []
        self.not_carried: dict[str, int] = {}
        self._disk = disk
        self._paths: list[str] = []
        self._queues: dict[bytes, list[bytes]] = {}
        for name, records in _read_queues(
            disk,
            directory,
            self.faults,
            opcode8=opcode8,
            on_progress=on_progress,
            queues=queues,
        ):
            queue = KestrelQueue()
            for path, record in records:
                if not self._paths or self._paths[-1] != path:
                    self._paths.append(path)
                queue.apply(record, len(self._paths) - 1)
            self._queues[name] = list(queue.items())
        self.queues = [
            QueueFacts(domain_of(name), len(items)) for name, items in self._queues.items()
        ]
        self.count = sum(queue.items for queue in self.queues)

    def items(self) -> Iterator[Item]:
        """Yield the items of each queue in the order in which Kestrel hands them out.

        Raises:
            LogCorruptError: A record is not there any more as it was read before.
            LogFailedError: A file cannot be read any more.
        """
        files = WindowedFiles(self._disk)
        for name, items in self._queues.items():
            domain = domain_of(name)
            for packed in items:
                _, index, number, offset, size, added_ms, expiry_ms = WAITING.unpack(packed)
                path = self._paths[index]
                file = files.at(path)
                added = min(max(added_ms, 0) * 1000, INSTANT_MAX)
                yield Item(
                    key=journal_key_of(
                        domain,
                        b"kestrel-%b-%d" % (name, number),
                        not_before_us=added,
                        priority=PRIORITY_DEFAULT,
                    ),
                    value=_value(file, offset, (size, added_ms, expiry_ms)),
                    # the wire takes 0 for none
                    timestamp=added or 1,
                    expires=min(max(expiry_ms * 1000, 1), _EXPIRES_MAX) if expiry_ms else 0,
                    reason=None,
                    path=path,
                    offset=offset,
                )


def _value(file: WindowedFile, offset: int, expected: tuple[int, int, int]) -> bytes:
    """Return the value of a record, whose size and times have to be the same still."""
    try:
        record = read_record(file, offset)
    except BrokenRecordError as error:
        raise LogCorruptError(str(error), path=file.path, offset=offset) from error
    if (record.value_bytes, record.added_ms, record.expiry_ms) != expected:
        raise LogCorruptError("the record changed meanwhile", path=file.path, offset=offset)
    return file.read(record.value_at, record.value_bytes)


@contextmanager
def open_kestrel(
    disk: Disk,
    directory: str,
    *,
    opcode8: Opcode8 = "auto",
    on_progress: OnProgress | None = None,
) -> Iterator[KestrelJournal]:
    """Read the journals of all queues of a Kestrel. Writes nothing.

    Args:
        disk: Where they are.
        directory: Kestrel's ``queuePath``.
        opcode8: Meaning of opcode 8.
        on_progress: Called a few times a second while they are read.

    Raises:
        BadRequestError: There are no journals of Kestrel.
        LogFailedError: Something cannot be read.
    """
    require_format(disk, directory, Format.KESTREL, for_import=True)
    yield KestrelJournal(disk, directory, opcode8, on_progress)


def kestrel_records(
    disk: Disk,
    directory: str,
    faults: list[Fault],
    on_progress: OnProgress | None = None,
    *,
    value_bytes_max: int = VALUE_BYTES_MAX,
    queues: Collection[bytes] | None = None,
) -> Iterator[ForeignRecord]:
    """Yield every record that counts, queue by queue.

    Args:
        disk: Where they are.
        directory: Kestrel's ``queuePath``.
        faults: Gets the places that cannot be read.
        on_progress: Called a few times a second while they are read.
        value_bytes_max: Larger values are left out.
        queues: Names of the queues that are read; None: all.

    Raises:
        LogFailedError: Something cannot be read.
    """
    files = WindowedFiles(disk)
    for _, records in _read_queues(disk, directory, faults, on_progress=on_progress, queues=queues):
        for path, record in records:
            file = files.at(path)
            with_value = record.opcode in WITH_VALUE and record.value_bytes <= value_bytes_max
            yield ForeignRecord(
                path,
                record.offset,
                record.end - record.offset,
                _fields(record),
                file.read(record.value_at, record.value_bytes) if with_value else None,
            )


def _read_queues(
    disk: Disk,
    directory: str,
    faults: list[Fault],
    *,
    opcode8: Opcode8 = "auto",
    on_progress: OnProgress | None = None,
    queues: Collection[bytes] | None = None,
) -> Iterator[tuple[bytes, Iterator[tuple[str, KestrelRecord]]]]:
    """Yield each queue with its records, which are read as they are asked for."""
    found = list_queues(disk, directory)
    if queues is not None:
        found = {name: paths for name, paths in found.items() if name in queues}
    progress = ReadProgress(
        sum(find_size(disk, path) or 0 for paths in found.values() for path in paths), on_progress
    )
    for name, paths in found.items():
        yield name, _read_queue(disk, paths, faults, opcode8, progress)


def _read_queue(
    disk: Disk,
    paths: list[str],
    faults: list[Fault],
    opcode8: Opcode8,
    progress: ReadProgress,
) -> Iterator[tuple[str, KestrelRecord]]:
    for path in paths:
        if find_size(disk, path) is None:
            faults.append(Fault(path, 0, f"{NO_FILE}; Kestrel leaves it out", damage=True))
            continue
        file = WindowedFile(disk, path)
        reader, offset = RecordReader(file, opcode8), 0
        while offset < file.size:
            try:
                record = reader.read(offset)
            except BrokenRecordError as error:
                torn = error.torn and path == paths[-1]
                left = f"{error}; Kestrel leaves out the {file.size - offset:,} bytes from here on"
                faults.append(Fault(path, offset, left, damage=not torn))
                break
            yield path, record
            progress.add(record.end - offset)
            offset = record.end


def _fields(record: KestrelRecord) -> dict[str, Any]:
    fields: dict[str, Any] = {"opcode": record.opcode.name.lower()}
    if record.opcode in WITH_XID:
        fields["xid"] = record.xid
    if record.opcode in WITH_VALUE:
        fields |= {
            "added_ms": record.added_ms,
            "expiry_ms": record.expiry_ms,
            "value_bytes": record.value_bytes,
        }
    if record.opcode is Opcode.STATE_DUMP:
        fields["open_transactions"] = record.open_count
    return fields


NAME_BYTES_MAX = 255 - len(".1795168989000.pack")
"""Kestrel makes names of files that are so much longer: those of older files, and of their pack."""
_NOT_ALLOWED = re.compile(rb"[\x00-\x20\x7f/.~]|\A\++\Z")
"""A name of nothing but ``+`` has no master queue, and Kestrel does not start on it."""
_MS_MAX = (2**63 - 1) // 1_000_000
"""Last instant of Kestrel's 64 bits of nanoseconds, in the year 2262. Kestrel does not start on a
later one, except the largest number, which is the end of time."""
_MS_END = 2**63 - 1


def _fit(domain: bytes) -> FittedName:
    return fit_name(domain, _NOT_ALLOWED, NAME_BYTES_MAX, utf8=True)


class KestrelWriter:
    """Writes entries that come sorted by domain.

    A queue is first in, first out: an earlier instant or a smaller priority only means that an item
    comes first. Kestrel has no buried items.
    """

    def __init__(self, files: JournalFiles, now_us: int, not_carried: Counter[str]) -> None:
        self._files = files
        self._now_us = now_us
        self._not_carried = not_carried
        self._names = QueueNames(_fit, not_carried)

    def leaves_out(self, entry: SnapshotEntry) -> str | None:
        """Return the kind of entries that are left out and that this is one of; None: it is not."""
        if entry.reason is not None:
            return "buried"
        return "values_too_large" if len(entry.value) > VALUE_BYTES_MAX else None

    def add(self, entry: SnapshotEntry) -> None:
        """Write an entry."""
        if self._names.enter(entry.domain):
            self._files.begin(os.fsdecode(self._names.name))
        lost = self._not_carried
        lost["priorities"] += entry.priority != PRIORITY_DEFAULT
        lost["delays"] += entry.not_before > self._now_us
        lost["attempts"] += entry.attempts > 0
        added = min(entry.not_before, self._now_us) // 1000
        expiry = max(entry.expires // 1000, 1) if entry.expires else 0
        if expiry > _MS_MAX:
            lost["expiries_after_2262"] += 1
            expiry = _MS_END
        self._files.write(encode_addx(entry.value, added, expiry))

    def finish(self) -> None:
        """End the journal."""
        self._files.end()

    def advice(self) -> str | None:
        """Return an option that the server needs; None: there is none."""
        return None
