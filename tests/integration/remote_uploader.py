"""Test writers of a remote log by the rules of the code: of segments, of a daemon's directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import google_crc32c

from fastjournal.cmdlog.format.layout import SEGMENT_HEADER, segment_number, unpack_position
from fastjournal.cmdlog.live_index import LIVE_NAME
from fastjournal.cmdlog.snapshot import read_manifest
from fastjournal.disk import OsDisk
from fastjournal.errors import StoreUnavailableError
from fastjournal.remote.checkpoints import Collector, Retention, Uploads, adopt, upload_checkpoint
from fastjournal.remote.objects import Epoch, SegmentRef
from fastjournal.remote.reader import Append, Candidate, Fetch, LogReader, Restart, take_over
from fastjournal.remote.store import ObjectStore, Overwrite, Steps, repeating, run
from fastjournal.remote.writer import ChunkWriter

LOG = "8b6e7b2e-52b9-4c0e-9d2c-3a1f0c9f7d11"


def soon(tries: int, error: StoreUnavailableError) -> None:
    """Repeat at once, a few times."""
    if tries > 20:
        raise error


class RemoteWriter:
    """Primary of a remote log.

    Args:
        store: An empty prefix.
    """

    def __init__(self, store: ObjectStore, log: str = LOG) -> None:
        self._store, self._log_id = store, log
        self._perform = repeating(store, soon)
        self.now_us = 1000
        self.writer: ChunkWriter
        self._run(adopt(Epoch(0, log, "first", bytes(16), -1), self.now_us, {}))
        self.take(b"1" * 16)

    def take(self, nonce: bytes) -> None:
        """Begin the next epoch."""
        reader = LogReader(self._log_id)
        epoch = run(take_over(reader, Candidate("node", nonce), self.now_us), self._answer)
        assert epoch is not None
        self.writer = ChunkWriter(epoch, reader.end, reader.time_us)
        self.uploads = Uploads(epoch.epoch)
        self._run(self.writer.store(0, 0, b"", self.now_us))

    def put(self, number: int, data: bytes, piece_bytes: int, offset: int = 0) -> None:
        """Store a segment, or the rest of one, in chunks."""
        for at in range(offset, len(data), piece_bytes):
            piece = data[at : at + piece_bytes]
            self._run(self.writer.store(number, at, piece, self.now_us))

    def upload_segments(self, segments: Mapping[int, bytes], live: bytes = b"") -> None:
        """Upload a checkpoint of all that is stored.

        Args:
            segments: By number; some of them compacted.
            live: Its live index; empty: it has none.
        """
        links = {
            SegmentRef(number, len(data), google_crc32c.value(data)): str(number)
            for number, data in segments.items()
        }
        self.writer.cut(self.writer.stored)
        assert self.writer.cut_at is not None
        live_path = "0" if live else ""
        steps = upload_checkpoint(*self.writer.cut_at, links, self.uploads, live_path=live_path)
        contents = {0: live, **segments}

        def answer(request: Any) -> object:
            if isinstance(request, Overwrite) and request.data is None:
                request = request._replace(data=contents[int(request.path)])
            return self._perform(request)

        assert run(steps, answer)

    def collect(self, now_us: int) -> int:
        """Delete what the two newest checkpoints do not need."""
        retention = Retention(0)
        collector = Collector(self.writer.epoch, self.uploads, retention)
        return run(collector.collect(now_us), self._perform)

    def _run(self, steps: Steps[object]) -> object:
        return run(steps, self._perform)

    def _answer(self, request: Any) -> object:
        if isinstance(request, Restart):
            return None
        return True if isinstance(request, Append | Fetch) else self._perform(request)


class RemoteUploader(RemoteWriter):
    """Primary of a remote log, beside a daemon that knows nothing of it.

    The daemon compacts only what was archived: sealed segments are read from the archive.

    Args:
        store: An empty prefix.
        log: The daemon's log directory.
        archive: Its archive.
    """

    def __init__(self, store: ObjectStore, log: Path, archive: Path) -> None:
        self._log, self._archive = log, archive
        super().__init__(store)

    def upload(self, piece_bytes: int = 1 << 20) -> None:
        """Store all that the log has, while no client writes."""
        for number, path in sorted(self._segments().items()):
            data = path.read_bytes()
            segment, offset = unpack_position(self.writer.stored)
            if number < segment or not data.startswith(SEGMENT_HEADER):
                continue
            self.put(number, data, piece_bytes, offset if number == segment else 0)

    def checkpoint(self, snapshot: Path) -> None:
        """Upload a snapshot, which the daemon has just taken, as a checkpoint; its live index too,
        if it has one."""
        manifest = read_manifest(OsDisk(), str(snapshot))
        links = {
            SegmentRef(each.number, each.bytes, int(each.crc32c, 16)): str(snapshot / each.name)
            for each in manifest.segments
        }
        self.writer.cut(max(links).end)
        self.upload()
        assert self.writer.cut_at is not None
        live = str(snapshot / LIVE_NAME) if manifest.live is not None else ""
        uploaded = upload_checkpoint(*self.writer.cut_at, links, self.uploads, live_path=live)
        assert self._run(uploaded)

    def _segments(self) -> dict[int, Path]:
        found: dict[int, Path] = {}
        for folder in (self._log, self._archive):
            for path in folder.glob("*.log"):
                number = segment_number(f"{path.name[:9]}.log")
                if number is not None:
                    found[number] = path
        return found
