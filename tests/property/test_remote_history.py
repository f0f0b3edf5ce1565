"""History of a remote log: each event once, over epochs, compaction and collection."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import google_crc32c
import msgspec
import pytest

from fastjournal.cmdlog.archive import MISSING, ArchivedSegment, archived_segment
from fastjournal.disk import OsDisk
from fastjournal.errors import ForeignRemoteLogError
from fastjournal.remote.checkpoints import adopt
from fastjournal.remote.file_store import FileStore
from fastjournal.remote.objects import (
    HEADER_BYTES,
    Chunk,
    ChunkId,
    ChunkKind,
    Epoch,
    SegmentRef,
    chunk_name,
    decode_chunk,
    decode_header,
    encode_chunk,
)
from fastjournal.remote.store import perform, run
from fastjournal.spark.execution.cluster_tasks import Here
from fastjournal.spark.history.coverage import gaps_of
from fastjournal.spark.history.event_files import EventDirectory
from fastjournal.spark.history.remote_history import COLLECTED, DAMAGED
from fastjournal.spark.history.remote_taking import (
    find_work,
    read_taken,
    take_remote,
    take_work,
)
from tests.integration.remote_uploader import LOG as LOG_ID
from tests.integration.remote_uploader import RemoteWriter
from tests.property.compacted_log import LOG
from tests.property.event_archives import archived, counts_of, events_on, named, rows_of
from tests.property.event_ledger import EventLedger
from tests.property.ledger_run import LedgerRun

SEEDS = 6


class RemoteRun:
    """Night after night over the remote log of a ledger.

    Args:
        directory: Of the store and of the events.
        seed: Of everything random.
        collects: Whether the primary collects after each checkpoint.
    """

    def __init__(self, directory: Path, seed: int, *, collects: bool) -> None:
        self.url = f"file://{directory}/store"
        self.remote = RemoteWriter(FileStore(f"{directory}/store"))
        self.events = events_on(OsDisk(), f"{directory}/output")
        self.stored = 0
        """Number of the last segment that is stored."""
        self.nights = self.epochs = 0
        self._draw = random.Random(seed)
        self._collects = collects

    def store(self, run: LedgerRun) -> None:
        """Store what was sealed since, by one primary or two."""
        originals = {one.number: data for one, data in kept(run)}
        for number in sorted(originals):
            if number <= self.stored:
                continue
            if self._draw.random() < 0.2:
                self.epochs += 1
                self.remote.take(self._draw.randbytes(16))
            data, cut = originals[number], 0
            if self._draw.random() < 0.2:
                # with asynchronous acknowledgement a segment goes on in the next epoch
                cut = self._draw.randrange(len(data))
                self.remote.put(number, data[:cut], self._draw.randrange(50, 4000))
                self.epochs += 1
                self.remote.take(self._draw.randbytes(16))
            self.remote.put(number, data, self._draw.randrange(50, 4000), cut)
            self.stored = number

    def checkpoint(self, run: LedgerRun) -> None:
        """Upload a checkpoint of the log as compaction has left it, but for the last segment."""
        originals = {one.number: data for one, data in kept(run)}
        segments = {
            int(name[:9]): run.log.disk.read(f"{LOG}/{name}")
            for name in run.log.segments()
            if int(name[:9]) < self.stored
        }
        segments[self.stored] = originals[self.stored]
        self.remote.upload_segments(segments)
        if self._collects:
            self.remote.collect(self.remote.now_us)

    def night(self, run: LedgerRun) -> None:
        """Store, take a checkpoint, and read."""
        self.store(run)
        if not self.stored:
            return
        self.checkpoint(run)
        assert take_remote(self.url, self.events).faults == []
        self.nights += 1


def kept(run: LedgerRun) -> list[tuple[ArchivedSegment, bytes]]:
    """Return the segments of a run as they were sealed."""
    found = [(archived_segment(name), data) for name, data in sorted(run.kept.items())]
    return [(one, data) for one, data in found if one is not None]


@pytest.mark.parametrize("collects", [False, True])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_nights_over_a_remote_log_count_each_event_once(
    tmp_path: Path, seed: int, *, collects: bool
) -> None:
    remote = RemoteRun(tmp_path, seed, collects=collects)
    life = LedgerRun(EventLedger(seed), 300, remote.night)
    life.run()

    assert remote.nights >= 2
    assert remote.epochs >= 1
    assert counts_of(remote.events) == life.ledger.counts
    assert gaps_of(remote.events.segments()) == []
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")}
    assert take_remote(remote.url, remote.events).rows == 0
    again = events_on(OsDisk(), f"{tmp_path}/again")
    if not collects:
        take_remote(remote.url, again)
        assert rows_of(again) == rows_of(remote.events)
    assert before == {
        p.name: p.stat().st_mtime_ns for p in (tmp_path / "output").rglob("*.parquet")
    }


# --- planted faults -------------------------------------------------------------------------------


def sealed_segments(count: int) -> dict[int, bytes]:
    """Return so many segments of three SETs, as they were sealed."""
    run, _ = archived(count)
    return {one.number: data for one, data in kept(run)}


def begun(tmp_path: Path, count: int = 6) -> tuple[RemoteWriter, dict[int, bytes], str]:
    """Return a remote log with so many segments as chunks of 160 bytes, and its URL."""
    segments = sealed_segments(count)
    remote = RemoteWriter(FileStore(f"{tmp_path}/store"))
    for number, data in segments.items():
        remote.put(number, data, 160)
    return remote, segments, f"file://{tmp_path}/store"


def last_of(segments: dict[int, bytes], number: int) -> dict[int, bytes]:
    """Return what a checkpoint lists where compaction has removed all segments but the last."""
    return {number: segments[number]}


def chunks_of(tmp_path: Path, segment: int) -> list[Path]:
    """Return the chunks of a segment."""
    found = []
    for path in sorted((tmp_path / "store/log").rglob("*")):
        if path.is_file() and path.stat().st_size > HEADER_BYTES:
            chunk = ChunkId(int(path.parent.name), int(path.name))
            if decode_header(chunk, path.read_bytes()).segment == segment:
                found.append(path)
    return found


def gaps_after(events: EventDirectory) -> list[tuple[int, int, str]]:
    taken = read_taken(events)
    assert taken is not None
    return named(gaps_of(events.segments(), taken.gaps, taken.last))


def test_chunks_that_were_collected_before_they_were_taken_are_a_gap_that_stays(
    tmp_path: Path,
) -> None:
    remote, segments, url = begun(tmp_path, 7)
    events = events_on(OsDisk(), f"{tmp_path}/output")
    remote.upload_segments(last_of(segments, 7))
    for number in (1, 2):
        for path in chunks_of(tmp_path, number):
            path.unlink()
    # the history begins with what is there: nothing is missing before it
    assert take_remote(url, events).rows == 15
    assert gaps_after(events) == []

    more = sealed_segments(12)
    for number in range(8, 13):
        remote.put(number, more[number], 100)
    remote.upload_segments(last_of(more, 12))
    for number in (8, 9):
        for path in chunks_of(tmp_path, number):
            path.unlink()
    assert take_remote(url, events).rows == 9
    assert gaps_after(events) == [(8, 9, COLLECTED)]

    last = sealed_segments(13)
    remote.put(13, last[13], 100)
    remote.upload_segments(last_of(last, 13))
    assert take_remote(url, events).rows == 3
    assert gaps_after(events) == [(8, 9, COLLECTED)]


def test_chunks_behind_the_seal_that_the_next_epoch_names_do_not_count(tmp_path: Path) -> None:
    remote, segments, url = begun(tmp_path, 3)
    late = remote.writer
    remote.take(b"2" * 16)
    sealed = ChunkId(late.epoch.epoch, late.number)
    # a slow writer's request for a place behind the seal
    behind = sealed._replace(number=sealed.number + 1)
    data = Chunk(behind, ChunkKind.DATA, late.epoch.nonce, 1, 3, len(segments[3]), b"late")
    assert FileStore(f"{tmp_path}/store").create(chunk_name(behind), encode_chunk(data))
    remote.upload_segments(last_of(segments, 3))
    (tmp_path / "store" / f"segments/{sealed.epoch + 1:010d}").rename(tmp_path / "away")
    events = events_on(OsDisk(), f"{tmp_path}/output")
    assert take_remote(url, events) == (9, [])
    assert gaps_after(events) == []


def cut(data: bytes) -> bytes:
    return data[:-1]


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def no_header(data: bytes) -> bytes:
    return b"x" + data[1:]


def other_version(data: bytes) -> bytes:
    return data[:4] + b"\2" + data[5:]


def foreign(data: bytes) -> bytes:
    chunk = decode_chunk(ChunkId(1, int.from_bytes(data[14:22], "big")), data)
    return encode_chunk(msgspec.structs.replace(chunk, nonce=b"f" * 16))


def empty(data: bytes) -> bytes:
    return data[:0]


@pytest.mark.parametrize(
    ("harm", "which", "reason", "sentence"),
    [
        (flipped, 1, DAMAGED, "the checksum of its bytes is wrong"),
        (cut, 1, MISSING, ""),
        (no_header, 1, DAMAGED, "it begins with other bytes than FJRC"),
        (other_version, 1, DAMAGED, "it has version 2, this release reads 1"),
        (foreign, 1, DAMAGED, "another writer than that of epoch 1, node, has written it"),
        (empty, 1, MISSING, ""),
        (None, 1, MISSING, ""),
        (flipped, 0, DAMAGED, "the checksum of its bytes is wrong"),
        (None, -1, MISSING, ""),
    ],
)
def test_a_chunk_that_cannot_be_read_is_a_gap_of_its_segment(
    tmp_path: Path, harm: Callable[[bytes], bytes] | None, which: int, reason: str, sentence: str
) -> None:
    remote, segments, url = begun(tmp_path)
    remote.upload_segments(last_of(segments, 6))
    path = chunks_of(tmp_path, 4)[which]
    if harm is None:
        path.unlink()
    else:
        path.write_bytes(harm(path.read_bytes()))
    events = events_on(OsDisk(), f"{tmp_path}/output")
    outcome = take_remote(url, events)
    assert outcome.rows == 15
    assert gaps_after(events) == [(4, 4, reason)]
    assert [sentence in one and path.name in one for one in outcome.faults] == [True] * bool(
        sentence
    )


@pytest.mark.parametrize("harm", [None, no_header, other_version])
def test_without_the_head_of_a_segment_nobody_knows_what_was_before_it(
    tmp_path: Path, harm: Callable[[bytes], bytes] | None
) -> None:
    """Its first chunk may have been the last one of the segment before."""
    remote, segments, url = begun(tmp_path)
    remote.upload_segments(last_of(segments, 6))
    path = chunks_of(tmp_path, 4)[0]
    if harm is None:
        path.unlink()
    else:
        path.write_bytes(harm(path.read_bytes()))
    events = events_on(OsDisk(), f"{tmp_path}/output")
    assert take_remote(url, events).rows == 12
    assert [gap[:2] for gap in gaps_after(events)] in ([(3, 4)], [(3, 3), (4, 4)])


def test_segments_from_before_the_adoption_are_read_where_they_are_whole(tmp_path: Path) -> None:
    segments = sealed_segments(5)
    store, url = FileStore(f"{tmp_path}/store"), f"file://{tmp_path}/store"
    links = {}
    for number, data in segments.items():
        # compaction has rewritten the second one before
        data = data[:-40] if number == 2 else data
        path = tmp_path / str(number)
        path.write_bytes(data)
        links[SegmentRef(number, len(data), google_crc32c.value(data))] = str(path)
    run(adopt(Epoch(0, LOG_ID, "first", bytes(16), -1), 1, links), partial(perform, store))
    events = events_on(OsDisk(), f"{tmp_path}/output")
    assert take_remote(url, events) == (9, [])
    assert {one.number for one in events.segments()} == {3, 4, 5}
    assert gaps_after(events) == []


def test_a_segment_that_is_collected_while_it_is_read_is_read_from_its_chunks(
    tmp_path: Path,
) -> None:
    remote, segments, url = begun(tmp_path, 3)
    remote.upload_segments(segments)
    events = events_on(OsDisk(), f"{tmp_path}/output")
    work = find_work(url, events)
    assert all(one.name for one in work.plan.segments)
    (tmp_path / "store" / work.plan.segments[1].name).unlink()
    assert take_work(url, events, work, Here(), 1) == (9, [])
    assert gaps_after(events) == []


def test_events_of_another_log_are_an_error(tmp_path: Path) -> None:
    remote, segments, url = begun(tmp_path, 2)
    remote.upload_segments(segments)
    events = events_on(OsDisk(), f"{tmp_path}/output")
    take_remote(url, events)
    other = RemoteWriter(FileStore(f"{tmp_path}/other"), "another")
    other.put(1, segments[1], 100)
    other.upload_segments({1: segments[1]})
    with pytest.raises(ForeignRemoteLogError, match="the remote log is another"):
        take_remote(f"file://{tmp_path}/other", events)
