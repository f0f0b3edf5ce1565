"""Restore: reading ahead, and records about segments that a checkpoint does not have.

Chunks never change, and a missing one may be written meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from fastjournal.cmdlog.recovery.recover import recover
from fastjournal.errors import LogCorruptError
from fastjournal.remote.checkpoints import adopt
from fastjournal.remote.objects import ChunkId, Epoch, SegmentRef, chunk_name
from fastjournal.remote.restore import CHUNKS_AHEAD, ReadAhead, restore_remote
from fastjournal.remote.store import Get, List, Request, perform, run
from fastjournal.testing.disk import SimulatedDisk
from fastjournal.testing.object_store import MemoryStore
from tests.property.compacted_log import LOG, CompactedLog


class Asked:
    """Answers requests, and counts them by name."""

    def __init__(self, chunks: int) -> None:
        self.objects = {chunk_name(ChunkId(1, number)): b"%d" % number for number in range(chunks)}
        self.gets: list[str] = []

    def __call__(self, request: Request) -> object:
        if not isinstance(request, Get):
            return "listed"
        self.gets.append(request.name)
        return self.objects.get(request.name)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(CHUNKS_AHEAD) as threads:
        yield threads


def get(number: int) -> Get:
    return Get(chunk_name(ChunkId(1, number)))


def test_read_ahead_reads_each_chunk_once(threads: ThreadPoolExecutor) -> None:
    asked = Asked(100)
    read = ReadAhead(asked, threads)

    assert [read(get(number)) for number in range(100)] == list(asked.objects.values())
    there = [name for name in asked.gets if name in asked.objects]
    assert sorted(there) == sorted(asked.objects)


def test_read_ahead_has_requests_under_way_at_once(threads: ThreadPoolExecutor) -> None:
    asked = Asked(100)
    together = threading.Barrier(CHUNKS_AHEAD, timeout=60)

    def answer(request: Request) -> object:
        if get(0) < request <= get(CHUNKS_AHEAD):
            together.wait()  # for as many others
        return asked(request)

    read = ReadAhead(answer, threads)

    assert [read(get(number)) for number in range(2)] == [b"0", b"1"]
    together.abort()


def test_read_ahead_asks_again_for_a_chunk_that_was_missing(threads: ThreadPoolExecutor) -> None:
    asked = Asked(1)
    read = ReadAhead(asked, threads)
    read(get(0))
    asked.objects[get(1).name] = b"written meanwhile"

    assert read(get(1)) == b"written meanwhile"
    assert read(get(2)) is None


def test_read_ahead_passes_other_requests_on(threads: ThreadPoolExecutor) -> None:
    asked = Asked(0)
    read = ReadAhead(asked, threads)

    assert read(List("log")) == "listed"
    assert read(Get("format.json")) is None
    assert asked.gets == ["format.json"]


class DiskStore(MemoryStore):
    """A store in memory that uploads the files of a simulated disk."""

    def __init__(self, disk: SimulatedDisk) -> None:
        super().__init__()
        self._disk = disk

    def overwrite(self, name: str, data: bytes | None, path: str = "") -> None:
        """Write an object from bytes or from a file."""
        self.objects[name] = self._disk.read(path) if data is None else data


def test_record_of_a_taker_about_a_segment_that_a_newer_checkpoint_has_not_does_not_count() -> None:
    """A taker that followed from an older checkpoint has that segment, and says how it is."""
    log = CompactedLog()
    log.fill(60)
    log.engine.journal.log.segment_rewritten(77, 100, 0, log.clock.instant_us, done=True)
    log.flush()
    log.roll()
    now_us = log.clock.instant_us
    with pytest.raises(LogCorruptError, match="missing"):
        recover(log.disk.kill(), LOG, now_us=now_us)

    found = recover(log.disk.kill(), LOG, now_us=now_us, listed=True)
    assert len(found.state.jobs) == 60

    store = DiskStore(log.disk)
    links = {
        SegmentRef(info.number, info.bytes, info.crc32c): f"{LOG}/{info.name}"
        for info in log.writer.sealed
    }
    run(adopt(Epoch(0, "log", "node", bytes(16), -1), 1, links), partial(perform, store))
    log.disk.mkdir("/scratch")
    restore_remote(store, log.disk, "/scratch/log", wait=lambda *_: None, now_us=now_us)
    assert len(recover(log.disk, "/scratch/log", now_us=now_us).state.jobs) == 60
