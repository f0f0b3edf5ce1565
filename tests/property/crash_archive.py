"""The archive of a daemon that crashes: each segment once, whole, whatever compaction has done."""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import NamedTuple

import google_crc32c

from fastjournal.cmdlog.archive import Archive, archived_segment
from fastjournal.cmdlog.format.layout import segment_name, unpack_position
from fastjournal.cmdlog.writer import LogWriter
from fastjournal.errors import LogFailedError
from fastjournal.testing.disk import SimulatedDisk
from fastjournald.config.options import Config
from fastjournald.engine.engine import Engine
from fastjournald.recovery.recover import open_archive

ARCHIVE = "/archive"


class Piece(NamedTuple):
    """Records that were appended, and where."""

    mark: int
    segment: int
    offset: int
    data: bytes


class CrashedArchive:
    """Drives the archive of a crashing daemon, and keeps what must be found in it.

    A reader takes files at any time: it keeps what it has read, by name.

    Args:
        config: Options, with the directories of log and archive.
        draw: Chance.
    """

    def __init__(self, config: Config, draw: Random) -> None:
        self._config = config
        self._draw = draw
        self._appended: list[Piece] = []
        self._acknowledged: list[Piece] = []
        self._taken: dict[str, bytes] = {}
        self._archive: Archive | None = None
        self.linked = 0
        """Segments found in the archive after crashes."""
        self.failures = 0
        """Attempts to archive that the disk refused."""

    # --- life -------------------------------------------------------------------------------------

    def start(self, disk: SimulatedDisk, engine: Engine, writer: LogWriter) -> None:
        """Do what a start does.

        Raises:
            LogFailedError: The disk failed.
        """
        self._engine, self._writer, self._disk = engine, writer, disk
        self._archive = open_archive(disk, self._config, engine.journal.usage, writer)
        assert self._archive.next <= writer.next_number
        self._appended = []
        plain = writer.append

        def append(data: bytes, records: int, now_us: int) -> int:
            position = plain(data, records, now_us)
            self._appended.append(Piece(writer.appended, *unpack_position(position), data))
            return position

        engine.journal.append_to(append)

    def acknowledge(self) -> None:
        """Remember the records that are settled: they must be found from now on."""
        settled = self._writer.settled
        while self._appended and self._appended[0].mark <= settled:
            self._acknowledged.append(self._appended.pop(0))

    def work(self) -> None:
        """Archive what is sealed; take a file, perhaps. A disk that fails ends nothing."""
        archive = self._archive
        assert archive is not None
        if infos := archive.waiting(self._writer.sealed):
            try:
                archive.take(infos)
            except LogFailedError:
                self.failures += 1
            self._engine.journal.usage.archived_before = archive.next
        if self._draw.random() < 0.3:
            with suppress(LogFailedError):
                self._read_one()

    def _read_one(self) -> None:
        names = [name for name in self._disk.listdir(ARCHIVE) if archived_segment(name)]
        if names:
            name = self._draw.choice(names)
            data = self._disk.read(f"{ARCHIVE}/{name}")
            assert self._taken.setdefault(name, data) == data
            self._disk.unlink(f"{ARCHIVE}/{name}")

    # --- what must hold ---------------------------------------------------------------------------

    def check(self, log: str) -> None:
        """After a crash and the start: each acknowledged record is there, and in one segment.

        Args:
            log: Directory of the log.
        """
        archive = self._archive
        assert archive is not None
        while archive.waiting(self._writer.sealed):
            self.work()
        assert not archive.gaps, "nothing was dropped or skipped"
        disk = self._disk.kill()
        files = {name: disk.read(f"{ARCHIVE}/{name}") for name in disk.listdir(ARCHIVE)}
        whole: dict[int, bytes] = {}
        for name, data in {**files, **self._taken}.items():
            segment = archived_segment(name)
            if segment is None:
                continue
            self.linked += name in files
            assert google_crc32c.value(data) == segment.crc32c, f"{name} is not whole"
            assert whole.setdefault(segment.number, data) == data, f"{name} came in two states"
        for piece in self._acknowledged:
            found = whole.get(piece.segment)
            if found is None:
                assert piece.segment >= archive.next
                found = disk.read(f"{log}/{segment_name(piece.segment)}")
            end = piece.offset + len(piece.data)
            assert found[piece.offset : end] == piece.data, f"{piece} is gone"
