"""Golden files of a release: log, remote log and spool, as this version writes them.

``python -m tests.format.golden`` writes the directory of ``NEWEST``, once: a new one follows a
change of a format, and what is there is released, and stays (docs/compatibility.md).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fastjournal.cmdlog.format.layout import SegmentInfo, pack_position
from fastjournal.protocol.constants import Flag, Function, ValueType
from fastjournal.remote.checkpoints import Uploads, adopt, upload_checkpoint
from fastjournal.remote.objects import Checkpoint, Epoch, SegmentRef, live_name
from fastjournal.remote.reader import Candidate, Fetch, LogReader, Restart, take_over
from fastjournal.remote.store import Overwrite, Steps, perform, run
from fastjournal.remote.writer import ChunkWriter
from fastjournal.spool import Spool
from fastjournal.spool.format import (
    CRC_BYTES,
    FILE_HEADER,
    HEAD_BYTES,
    RECORD_OVERHEAD,
    blank_ends,
    erased_ends,
    record_end,
)
from fastjournal.testing.clock import ManualClock
from fastjournal.testing.object_store import MemoryStore
from tests.property.compacted_log import LOG, CompactedLog
from tests.property.live_indexes import TakenIndex
from tests.property.subject import SECOND, START

DATA = Path(__file__).parent / "data"
NEWEST = "0.1.0"
"""The version whose golden files the present code writes."""
CONTENT = "content.json"
"""What waits in log, remote log and spool, and the present of the log."""
LOG_ID = "8b6e7b2e-52b9-4c0e-9d2c-3a1f0c9f7d11"

Files = dict[str, bytes]
"""Contents by path below the directory of a version."""


def key(number: int) -> bytes:
    return b"jobs:%d:0:%d" % (number % 3, number)


def build() -> CompactedLog:
    """Return a log in which most kinds of records stand, in some segments."""
    log = CompactedLog(cmdlog_seg_size=4096, tombstone_ttl=600)
    for number in range(60):
        log.done(Function.SET, key(number), b"job", uri=b"u%d" % (number % 40))
        log.pass_time(1)
        if number % 4 == 0:
            reply = log.ask(Function.NEXT, b"jobs", timeout=10 * SECOND, count=2)
            for pair in reply.pairs or ():
                how: dict[str, Any] = {"flags": Flag.WORKED_ON, "timeout": reply.timeout}
                if number % 16 == 4:
                    log.done(Function.RELEASE, pair.key, **how)
                elif number % 16 == 8:
                    log.done(Function.RELEASE, pair.key, b"boom", kind=ValueType.STRING, **how)
                elif number % 16 == 12:
                    log.done(Function.DELETE, pair.key, **how)
        if number % 10 == 5:
            log.ask(Function.BURY, key(number), b"bad", kind=ValueType.STRING)
            log.ask(Function.KICK, key(number - 10))
        if number % 10 == 7:
            log.done(Function.SET, b"plain", b"value", flags=Flag.OVERWRITE | Flag.PERSIST)
            log.ask(Function.RENAME, key(number), uri=b"jobs:9:0:r%d" % number)
            log.ask(Function.DELETE, key(number - 1), flags=Flag.OVERWRITE)
    log.done(Function.PAUSE, b"jobs", ttl=1000 * SECOND)
    log.pass_time(1)
    log.ask(Function.PURGE, b"jobs", count=3)
    log.clean_all()
    log.flush()
    return log


def live_of(log: CompactedLog) -> dict[str, list[object]]:
    """Return timestamp, token and value of each entry by its key."""
    return {
        entry.key.decode(): [entry.timestamp, entry.token, entry.value.decode()]
        for entry in log.engine.store
        if isinstance(entry.value, bytes)
    }


def log_files(log: CompactedLog) -> Files:
    """Return the segments."""
    return {name: log.disk.read(f"{LOG}/{name}") for name in log.segments()}


class _Remote:
    """A remote log in memory, of a log on a simulated disk."""

    def __init__(self, log: CompactedLog) -> None:
        self.store = MemoryStore()
        self._log = log

    def answer(self, request: Any) -> object:
        if isinstance(request, Restart | Fetch):
            return True
        path = getattr(request, "path", "")
        if path:
            request = Overwrite(request.name, self._log.disk.read(path))
        return perform(self.store, request)

    def run(self, steps: Steps[Any]) -> Any:
        return run(steps, self.answer)

    def links(self, sealed: list[SegmentInfo]) -> dict[SegmentRef, str]:
        return {
            SegmentRef(info.number, info.bytes, info.crc32c): f"{LOG}/{info.name}"
            for info in sealed
        }


def remote_files(log: CompactedLog) -> Files:
    """Return a remote log: adopted, taken over, with a checkpoint, its live index, and chunks.

    Args:
        log: Its log, to which more is appended.
    """
    remote = _Remote(log)
    log.roll()
    sealed = list(log.writer.sealed)
    now = log.clock.instant_us
    adopted = remote.links(sealed[:-2])
    remote.run(adopt(Epoch(0, LOG_ID, "one", bytes(16), -1), now, adopted))
    reader = LogReader(LOG_ID)
    candidate = Candidate("two", b"n" * 16, ("two:9923",), NEWEST)
    writer = ChunkWriter(remote.run(take_over(reader, candidate, now)), reader.end, now)
    remote.run(writer.store(0, 0, b"", now))
    for info in sealed[-2:]:
        data = log.disk.read(f"{LOG}/{info.name}")
        remote.run(writer.store(info.number, 0, data, now))
    writer.cut(pack_position(sealed[-1].number, sealed[-1].bytes))
    assert writer.cut_at is not None
    behind, time_us = writer.cut_at
    assert reader.base is not None
    uploads = Uploads(1, (reader.base, Checkpoint(now, tuple(sorted(adopted)))))
    remote.run(upload_checkpoint(behind, time_us, remote.links(sealed), uploads))
    files = [log.disk.read(f"{LOG}/{info.name}") for info in sealed]
    index = TakenIndex(log.engine.store, sealed, files, log.writer.next_number)
    remote.store.overwrite(live_name(behind), index.finish())
    log.done(Function.SET, key(1), b"behind the checkpoint", flags=Flag.OVERWRITE)
    log.flush()
    name = log.segments()[-1]
    data = log.disk.read(f"{LOG}/{name}")
    remote.run(writer.store(int(name.partition(".")[0]), 0, data, now))
    remote.run(writer.seal(now + SECOND))
    return remote.store.objects


def spool_files() -> tuple[Files, dict[str, str]]:
    """Return a slot with pending records, an erased one and a blank; values of waiting keys."""
    with TemporaryDirectory() as directory:
        with Spool(directory, clock=ManualClock(START)) as spool:
            waiting = {
                spool.append(uri="http://example.org/", value=b"page", priority=3).decode(): "page",
                spool.append(queue="mails", unique="7", value={"a": 7}).decode(): '{"a":7}',
                spool.append(key="mails:3:2000000000000000:k", value="text").decode(): "text",
            }
        (slot,) = Path(directory).glob("*.fjs")
        data = slot.read_bytes()
    first = data[len(FILE_HEADER) : record_end(data, len(FILE_HEADER))]
    frame = first[HEAD_BYTES:-CRC_BYTES]
    head, crc = erased_ends(frame)
    blank_head, blank_crc = blank_ends(100)
    data += head + frame + crc + blank_head + bytes(100 - RECORD_OVERHEAD) + blank_crc
    return {slot.name: data}, waiting


def build_all() -> Files:
    """Return all golden files of the present code, by path below the directory of a version."""
    log = build()
    content: dict[str, object] = {"now_us": log.clock.instant_us, "log": live_of(log)}
    parts = {"log": log_files(log), "remote": remote_files(log)}
    content["remote"] = live_of(log)
    parts["spool"], content["spool"] = spool_files()
    files = {f"{part}/{name}": data for part, each in parts.items() for name, data in each.items()}
    return {**files, CONTENT: f"{json.dumps(content, indent=1, sort_keys=True)}\n".encode()}


def files_of(directory: Path) -> Files:
    """Return the files below a directory."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def main() -> None:
    directory = DATA / NEWEST
    if directory.exists():
        sys.exit(f"{directory} is released, and stays: change NEWEST")
    for name, data in build_all().items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(data)


if __name__ == "__main__":
    main()
