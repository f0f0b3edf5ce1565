"""Snapshots: hard links of sealed segments, with live index and manifest, never changed later.

A snapshot is a directory named after the UTC time it was taken, ``20261120T101112.123456Z``. It
holds the segments under their own names, the live index ``LIVE`` (``cmdlog.live_index``), which
names the records of its live entries, and ``MANIFEST.json``::

    {"format": "fastjournal-snapshot", "version": 1, "taken_us": int,
     "segments": [{"name": "000000001.log", "number": 1, "bytes": int,
                   "crc32c": "8 hex digits", "first_us": int|null, "last_us": int|null,
                   "records": int, "min_us": int|null, "max_us": int|null}, ...],
     "records": int, "bytes": int, "archive_gaps": [...],
     "live": {"bytes": int, "crc32c": "8 hex digits"}}

``archive_gaps`` has the gaps of the archive (``cmdlog.archive``) that were known then;
without any it is left out. So is ``live`` of a snapshot that has no live index, as those of earlier
releases.

It is built as ``<name>.partial``: the segments are linked at once, the live index is written while
the log goes on, then come the manifest, a sync, and the rename into place: a directory with the
final name is whole. Removal first renames a snapshot back to ``<name>.partial``. A snapshot that
fails removes the files that it made. An interrupted one leaves links that only cost space;
``remove_partial_snapshots`` removes them.

A name alone is not believed when something is removed: a daemon may have started on a snapshot,
which is a log from then on, and a link may lead anywhere. Only a directory that holds what its
manifest lists and nothing else, such as a lock file, is removed.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import google_crc32c
import msgspec

from fastjournal.cmdlog.archive import Gap
from fastjournal.cmdlog.format.layout import SegmentInfo, segment_name
from fastjournal.cmdlog.live_index import LIVE_NAME, LiveIndex, ReadBytes, WrittenIndex
from fastjournal.cmdlog.locks import APPEND_LOCK
from fastjournal.disk import Disk, DiskFile
from fastjournal.errors import LogCorruptError, LogFailedError
from fastjournal.versioned_json import Crc32cDigits, decode_versioned

MANIFEST_NAME = "MANIFEST.json"
FORMAT = "fastjournal-snapshot"
VERSION = 1

_PARTIAL_SUFFIX = ".partial"
_NAME = re.compile(r"[0-9]{8}T[0-9]{6}\.[0-9]{6}Z")
_FILE = re.compile(rf"[0-9]{{9}}\.log|{re.escape(MANIFEST_NAME)}|{LIVE_NAME}")
_READ_BYTES = 1 << 20


class ManifestSegment(msgspec.Struct, frozen=True):
    """One segment in a manifest."""

    name: str
    number: int
    bytes: int
    crc32c: Crc32cDigits
    """CRC-32C of the whole file."""
    first_us: int | None
    last_us: int | None
    records: int
    min_us: int | None
    """Earliest time of a record, wherever a clock was set back; None: there is no record, or one
    without a time."""
    max_us: int | None
    """Latest time of a record."""


class ManifestLive(msgspec.Struct, frozen=True):
    """The live index in a manifest."""

    bytes: int
    crc32c: Crc32cDigits
    """CRC-32C of the whole file."""


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Contents of a snapshot."""

    format: str
    version: int
    taken_us: int
    """When it was taken, in microseconds since the Unix epoch."""
    segments: list[ManifestSegment]
    records: int
    bytes: int
    archive_gaps: tuple[Gap, ...] = ()
    """Parts of the history that the archive does not have."""
    live: ManifestLive | None = None
    """None: it has no live index."""

    @property
    def names(self) -> set[str]:
        """Names of all files of the snapshot."""
        found = {MANIFEST_NAME, *(segment.name for segment in self.segments)}
        return found if self.live is None else found | {LIVE_NAME}


def snapshot_name(now_us: int) -> str:
    """Return the name of the snapshot taken at this instant; names sort by time."""
    taken = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=now_us)
    return taken.strftime("%Y%m%dT%H%M%S.%fZ")


class PartialSnapshot:
    """Snapshot that is being taken: its segments are linked, its live index may be written.

    It ends by ``finish`` or ``remove``. ``begin_snapshot`` makes one.
    """

    def __init__(
        self,
        disk: Disk,
        path: str,
        segments: list[SegmentInfo],
        now_us: int,
        archive_gaps: tuple[Gap, ...],
    ) -> None:
        self.path = path
        """Its path when it is whole."""
        self._disk = disk
        self.place = path + _PARTIAL_SUFFIX
        """Directory of its files until then."""
        self._segments = segments
        self._now_us = now_us
        self._archive_gaps = archive_gaps
        self._live: DiskFile | None = None

    @property
    def live_path(self) -> str:
        """Path of the live index, until the snapshot has its name."""
        return f"{self.place}/{LIVE_NAME}"

    def create_live_index(self) -> DiskFile:
        """Create the file of the live index, for ``LiveIndexWriter``; ``finish`` syncs it.

        Raises:
            LogFailedError: It cannot be created; ``remove`` is due.
        """
        self._live = self._disk.create(self.live_path, like=self._like)
        return self._live

    def finish(self, written: WrittenIndex | None = None) -> str:
        """Write the manifest, make all of it durable, and give the directory its name.

        Args:
            written: The live index, from its writer; None: there is none.

        Returns:
            The path of the snapshot.

        Raises:
            LogFailedError: The snapshot was not taken, as by ``remove``.
        """
        disk = self._disk
        try:
            if self._live is not None:
                self._live.sync()
                self._live.close()
            manifest = disk.create(f"{self.place}/{MANIFEST_NAME}", like=self._like)
            try:
                manifest.write(
                    _encode_manifest(self._segments, self._now_us, self._archive_gaps, written)
                )
                manifest.sync()
            finally:
                manifest.close()
            disk.sync_directory(self.place)
            disk.rename(self.place, self.path)
        except LogFailedError:
            self.remove()
            raise
        disk.sync_directory(os.path.dirname(self.path))
        return self.path

    def remove(self) -> None:
        """Remove all of it; if the disk does not allow it, the next start of a daemon does."""
        if self._live is not None:
            self._live.close()
        with suppress(LogFailedError):
            _remove(self._disk, self.place)

    @property
    def _like(self) -> str | None:
        return f"{self.place}/{self._segments[-1].name}" if self._segments else None


def begin_snapshot(
    disk: Disk,
    log_directory: str,
    snapshot_directory: str,
    segments: list[SegmentInfo],
    now_us: int,
    archive_gaps: tuple[Gap, ...] = (),
) -> PartialSnapshot:
    """Link sealed segments into a new snapshot, which gets its name by ``finish``.

    Args:
        disk: Disk of both directories.
        log_directory: Directory of the log.
        snapshot_directory: Directory of snapshots, on the same file system; created if needed.
        segments: The sealed segments, ascending; they are synced, and not removed meanwhile.
        now_us: In microseconds since the Unix epoch.
        archive_gaps: Known gaps of the archive.

    Raises:
        LogFailedError: The snapshot was not taken; the log is unchanged, and nothing is left of the
            snapshot if the disk allows removals.
    """
    path = f"{snapshot_directory}/{snapshot_name(now_us)}"
    partial = PartialSnapshot(disk, path, segments, now_us, archive_gaps)
    place = path + _PARTIAL_SUFFIX
    try:
        disk.mkdir(place, like=log_directory)
        for info in segments:
            disk.link(f"{log_directory}/{info.name}", f"{place}/{info.name}")
    except LogFailedError:
        partial.remove()
        raise
    return partial


def take_snapshot(
    disk: Disk,
    log_directory: str,
    snapshot_directory: str,
    segments: list[SegmentInfo],
    now_us: int,
    archive_gaps: tuple[Gap, ...] = (),
) -> str:
    """Take a snapshot without a live index, and return its path; see ``begin_snapshot``."""
    partial = begin_snapshot(
        disk, log_directory, snapshot_directory, segments, now_us, archive_gaps
    )
    return partial.finish()


def is_snapshot(disk: Disk, path: str) -> bool:
    """Whether a directory is a snapshot: it has a manifest, and no daemon has started in it.

    Where one has, it is a copy that a log was restored from, and a log again.
    """
    return disk.exists(f"{path}/{MANIFEST_NAME}") and not disk.exists(f"{path}/{APPEND_LOCK}")


def enclosing_snapshot(disk: Disk, path: str) -> str | None:
    """Return the snapshot that a path is in, or is; None: none, so something may be written there.

    The path need not exist. A manifest of another program makes no snapshot.
    """
    place = os.path.realpath(path)
    while True:
        if is_snapshot(disk, place):
            with suppress(LogCorruptError):
                read_manifest(disk, place)
                return place
        if place == os.path.dirname(place):
            return None
        place = os.path.dirname(place)


def list_snapshots(disk: Disk, snapshot_directory: str) -> list[str]:
    """Return the paths of all snapshots, oldest first: no links, and no logs by now.

    Raises:
        LogFailedError: The directory cannot be read.
    """
    if not disk.exists(snapshot_directory):
        return []
    names = disk.listdir(snapshot_directory)
    paths = [f"{snapshot_directory}/{name}" for name in names if _NAME.fullmatch(name)]
    return [path for path in paths if disk.is_directory(path) and is_snapshot(disk, path)]


def remove_partial_snapshots(disk: Disk, snapshot_directory: str) -> list[str]:
    """Remove what interrupted snapshots left; only while none is being taken.

    Returns:
        The paths removed.

    Raises:
        LogFailedError: Something could not be removed.
    """
    if not disk.exists(snapshot_directory):
        return []
    removed = []
    for name in disk.listdir(snapshot_directory):
        stem, suffix = name[: -len(_PARTIAL_SUFFIX)], name[-len(_PARTIAL_SUFFIX) :]
        if suffix == _PARTIAL_SUFFIX and _NAME.fullmatch(stem):
            path = f"{snapshot_directory}/{name}"
            if disk.is_directory(path) and all(map(_FILE.fullmatch, disk.listdir(path))):
                _remove(disk, path)
                removed.append(path)
    return removed


def prune_snapshots(
    disk: Disk, snapshot_directory: str, keep: int, taken: str | None = None
) -> list[str]:
    """Remove the oldest snapshots of more than ``keep``; a directory with other files is kept.

    Args:
        disk: Disk of the snapshots.
        snapshot_directory: Directory of snapshots.
        keep: How many of the newest are kept, at least 1.
        taken: Path of the snapshot taken just now, which counts as the newest, independent of
            names: one with a later name was taken before the clock was set back, and is removed
            first.

    Returns:
        The removed paths, oldest first.

    Raises:
        LogFailedError: Something could not be removed; each snapshot is whole, or missing under its
            name.
    """
    removed = []
    untouched = [p for p in list_snapshots(disk, snapshot_directory) if _is_untouched(disk, p)]
    if taken is not None:
        untouched.sort(key=lambda path: (path <= taken, path))
    for path in untouched[: -max(keep, 1)]:
        partial = path + _PARTIAL_SUFFIX
        disk.rename(path, partial)
        if not _is_untouched(disk, partial):
            # a daemon has started on it just then
            disk.rename(partial, path)
            continue
        disk.sync_directory(snapshot_directory)
        _remove(disk, partial)
        removed.append(path)
    return removed


def _is_untouched(disk: Disk, path: str) -> bool:
    """Whether a directory holds the files that its manifest lists, and nothing else."""
    try:
        return read_manifest(disk, path).names == set(disk.listdir(path))
    except LogCorruptError:
        return False


def _remove(disk: Disk, path: str) -> None:
    for file in disk.listdir(path):
        disk.unlink(f"{path}/{file}")
    disk.rmdir(path)


def read_manifest(disk: Disk, path: str) -> Manifest:
    """Return the manifest of a snapshot.

    Raises:
        LogCorruptError: It is not one that this version can read, or contradicts itself.
        LogFailedError: It cannot be read.
    """
    file = f"{path}/{MANIFEST_NAME}"
    manifest = decode_manifest(disk.read(file), file)
    segments = manifest.segments
    if (
        any(segment.name != segment_name(segment.number) for segment in segments)
        or sum(segment.records for segment in segments) != manifest.records
        or sum(segment.bytes for segment in segments) != manifest.bytes
    ):
        raise LogCorruptError("names or sums in the manifest do not agree", path=file)
    return manifest


def decode_manifest(data: bytes, path: str) -> Manifest:
    """Return a manifest from its bytes.

    Raises:
        LogCorruptError: It is not one that this version can read.
    """
    return decode_versioned(data, Manifest, format_name=FORMAT, version=VERSION, path=path)


def verify_snapshot(disk: Disk, path: str) -> Manifest:
    """Read every byte of a snapshot and hold it against its manifest.

    Returns:
        The manifest.

    Raises:
        LogCorruptError: A file is missing, not listed, or differs in size or checksum; or the live
            index cannot be read, or is that of other segments.
        LogFailedError: Something cannot be read.
    """
    manifest = read_manifest(disk, path)
    listed = manifest.names
    present = set(disk.listdir(path))
    for name in sorted(listed ^ present):
        what = "is missing from the snapshot" if name in listed else "is not in the manifest"
        raise LogCorruptError(f"this file {what}", path=f"{path}/{name}")
    for segment in manifest.segments:
        _verify_file(disk, f"{path}/{segment.name}", segment)
    if manifest.live is not None:
        file = f"{path}/{LIVE_NAME}"
        _verify_file(disk, file, manifest.live)

        def read(place: int, size: int) -> bytes:
            return disk.read_slice(file, place, size)

        index = open_live_index(read, disk.size(file), file, manifest)
        for one in index.segments:
            index.read_records(read, one.number)
    return manifest


def _verify_file(disk: Disk, file: str, told: ManifestSegment | ManifestLive) -> None:
    size = disk.size(file)
    if size != told.bytes:
        raise LogCorruptError(f"{size} bytes, not {told.bytes}", path=file)
    crc = f"{_file_crc(disk, file):08x}"
    if crc != told.crc32c:
        raise LogCorruptError(f"checksum {crc}, not {told.crc32c}", path=file)


def open_live_index(read: ReadBytes, size: int, path: str, manifest: Manifest) -> LiveIndex:
    """Return the live index of a snapshot.

    Args:
        read: Reads the file.
        size: Its size.
        path: Its path, for errors.
        manifest: Manifest of the snapshot.

    Raises:
        LogCorruptError: It cannot be read, or is that of other segments.
    """
    index = LiveIndex.open(read, size, path)
    told = [(one.number, one.bytes, int(one.crc32c, 16)) for one in manifest.segments]
    if index.taken_us != manifest.taken_us or list(map(tuple, index.segments)) != told:
        raise LogCorruptError(
            "the live index is of other segments than those that the manifest lists",
            path=path,
            hint="restore the snapshot with all of its files, or take another snapshot",
        )
    return index


def _encode_manifest(
    segments: list[SegmentInfo],
    now_us: int,
    archive_gaps: tuple[Gap, ...],
    written: WrittenIndex | None,
) -> bytes:
    manifest = Manifest(
        format=FORMAT,
        version=VERSION,
        taken_us=now_us,
        segments=[
            ManifestSegment(
                name=info.name,
                number=info.number,
                bytes=info.bytes,
                crc32c=f"{info.crc32c:08x}",
                first_us=info.first_us,
                last_us=info.last_us,
                records=info.records,
                min_us=info.min_us,
                max_us=info.max_us,
            )
            for info in segments
        ],
        records=sum(info.records for info in segments),
        bytes=sum(info.bytes for info in segments),
        archive_gaps=archive_gaps,
        live=None if written is None else ManifestLive(written.bytes, f"{written.crc32c:08x}"),
    )
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"


def _file_crc(disk: Disk, path: str) -> int:
    crc, offset = 0, 0
    while piece := disk.read_slice(path, offset, _READ_BYTES):
        crc = google_crc32c.extend(crc, piece)
        offset += len(piece)
    return crc
