"""Export of a snapshot as the journal of another queue: atomic, with counts of what it lacks.

The journal is written into a directory ``<destination>.partial-<random>``, synced, and renamed.
An export that fails removes that directory; one that is killed leaves it, and it can be deleted.
Files and directory are readable by nobody who may not read the snapshot.
"""

from __future__ import annotations

import os
import re
import secrets
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol

import msgspec

from fastjournal.cmdlog.snapshot import MANIFEST_NAME, enclosing_snapshot, read_manifest
from fastjournal.disk import Disk
from fastjournal.errors import BadRequestError, LogFailedError
from fastjournal.foreign.beanstalkd import VERSION, BeanstalkdWriter, BinlogVersion
from fastjournal.foreign.formats import Format
from fastjournal.foreign.items import OnProgress
from fastjournal.foreign.journal_files import JournalFiles
from fastjournal.foreign.kestrel import KestrelWriter
from fastjournal.foreign.snapshot_entries import SnapshotEntries, SnapshotEntry
from fastjournal.foreign.workq import WorkqWriter

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


class JournalWriter(Protocol):
    """Writer of the journal of one kind of queue."""

    def leaves_out(self, entry: SnapshotEntry) -> str | None:
        """Return the kind of entries that are left out and that this is one of; None: it is not."""

    def add(self, entry: SnapshotEntry) -> None:
        """Write an entry."""

    def finish(self) -> None:
        """End the journal."""

    def advice(self) -> str | None:
        """Return an option that the server needs; None: there is none."""


class JournalExport(msgspec.Struct, frozen=True):
    """Result of an export."""

    format: str
    read: int
    """Live entries of the snapshot."""
    written: int
    left_out: dict[str, int]
    """Entries that the format does not hold, by kind."""
    not_carried: dict[str, int]
    """Written entries with a fact that the format does not hold, by kind."""
    files: int
    bytes: int
    advice: str | None
    """Option that the server needs."""


def export_journal(
    disk: Disk,
    snapshot: str,
    destination: str,
    to: Format,
    *,
    now_us: int,
    binlog_version: BinlogVersion = VERSION,
    on_progress: OnProgress | None = None,
) -> JournalExport:
    """Write the waiting and buried entries of a snapshot as the journal of another queue.

    Args:
        disk: Where both are.
        snapshot: Directory of the snapshot.
        destination: Directory that does not exist.
        to: Format of the journal.
        now_us: The present, in microseconds since the Unix epoch.
        binlog_version: Version of the binlogs of beanstalkd; other formats have one version.
        on_progress: Called a few times a second while the snapshot is read.

    Raises:
        BadRequestError: The destination exists, is in a snapshot, or is no path.
        LogCorruptError: The snapshot is damaged, or is none.
        LogFailedError: Something cannot be read or written; nothing is left of the export.
    """
    if not destination or _URI.match(destination):
        raise BadRequestError(
            f"{destination!r} is no path of a directory on this machine",
            hint=f"a journal of {to} goes into one: name it, and copy it from there",
        )
    destination = destination.rstrip("/") or "/"
    snapshot_there = enclosing_snapshot(disk, destination)
    if snapshot_there is not None:
        raise BadRequestError(
            f"{destination} is in the snapshot {snapshot_there}, which never changes",
            hint="name another directory",
        )
    if disk.exists(destination):
        raise BadRequestError(
            f"the destination {destination} exists",
            code="exists",
            hint="name a directory that does not",
        )
    read_manifest(disk, snapshot)
    temporary = f"{destination}.partial-{secrets.token_hex(4)}"
    disk.mkdir(temporary, like=snapshot)
    files = JournalFiles(disk, temporary, like=f"{snapshot}/{MANIFEST_NAME}")
    try:
        entries = SnapshotEntries(disk, snapshot, now_us, on_progress)
        writer = _writer(to, binlog_version)(files, now_us, entries.not_carried)
        written = _write(writer, entries)
        writer.finish()
        disk.sync_directory(temporary)
        disk.rename(temporary, destination)
    except BaseException:  # also an interrupt
        with suppress(LogFailedError):
            files.close()
        with suppress(LogFailedError):
            _remove(disk, temporary)
        raise
    disk.sync_directory(os.path.dirname(os.path.abspath(destination)))
    return JournalExport(
        format=to,
        read=entries.read,
        written=written,
        left_out={name: number for name, number in entries.left_out.items() if number},
        not_carried={name: number for name, number in entries.not_carried.items() if number},
        files=files.files,
        bytes=files.bytes,
        advice=writer.advice(),
    )


def _writer(
    to: Format, binlog_version: BinlogVersion
) -> Callable[[JournalFiles, int, Counter[str]], JournalWriter]:
    if to is Format.BEANSTALKD:
        return partial(BeanstalkdWriter, version=binlog_version)
    return KestrelWriter if to is Format.KESTREL else WorkqWriter


def _write(writer: JournalWriter, entries: SnapshotEntries) -> int:
    """Write the entries that the format holds, and return how many; count the others."""
    written = 0
    for entry in entries:
        kind = writer.leaves_out(entry)
        if kind is None:
            writer.add(entry)
            entries.not_carried.update(entry.not_carried)
            written += 1
        else:
            entries.left_out[kind] += 1
    return written


def _remove(disk: Disk, directory: str) -> None:
    for name in disk.listdir(directory):
        disk.unlink(f"{directory}/{name}")
    disk.rmdir(directory)
