"""Node of a remote log: its directory, what it waits for, and what it keeps aside."""

from __future__ import annotations

import errno
import uuid
from collections.abc import Callable
from typing import Any

import google_crc32c
import pytest

from fastjournal.cmdlog.format.layout import (
    SEGMENT_HEADER,
    Command,
    pack_position,
    segment_name,
)
from fastjournal.cmdlog.format.records import encode_simple, encode_time
from fastjournal.cmdlog.locks import list_segments, lock_append, lock_read
from fastjournal.errors import FencedError, LogFailedError, StoreRefusedError, StoreUnavailableError
from fastjournal.remote import reader as reader_module
from fastjournal.remote.checkpoints import create_log
from fastjournal.remote.local_log import LocalLog, read_remote_file, split_batches
from fastjournal.remote.node import Node, NodeOptions
from fastjournal.remote.objects import (
    FORMAT_NAME,
    Checkpoint,
    Chunk,
    ChunkId,
    ChunkKind,
    Epoch,
    SegmentRef,
    checkpoint_name,
    chunk_name,
    decode_format,
    encode_checkpoint,
    encode_chunk,
    segment_object,
)
from fastjournal.remote.reader import Candidate, LogReader, read_to_end, stored_end, take_over
from fastjournal.remote.store import Request, Steps, perform, run
from fastjournal.remote.writer import ChunkWriter, RemoteAck
from fastjournal.testing.disk import SimulatedDisk
from fastjournal.testing.object_store import MemoryStore

LOG = "8b6e7b2e-52b9-4c0e-9d2c-3a1f0c9f7d11"
DIRECTORY = "/log"
SECOND = 1_000_000


def record(time_us: int) -> bytes:
    return encode_simple(Command.DELETE, encode_time(time_us), uuid.UUID(int=time_us).bytes)


def described(number: int, content: bytes) -> SegmentRef:
    return SegmentRef(number, len(content), google_crc32c.value(content))


class Remote:
    """A remote log in memory, and its primary."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.run(create_log(Epoch(0, LOG, "creator", bytes(16), -1), 100))
        self.adopted = decode_format(self.store.objects[FORMAT_NAME], LOG).checkpoint
        self.writer: ChunkWriter

    def run(self, steps: Steps[Any]) -> Any:
        def answer(request: Any) -> object:
            return perform(self.store, request) if isinstance(request, Request) else True

        return run(steps, answer)

    def take(self, nonce: int) -> None:
        reader = LogReader(LOG)
        epoch = self.run(take_over(reader, Candidate("other", bytes([nonce]) * 16), 200))
        self.writer = ChunkWriter(epoch, reader.end, reader.time_us)
        self.beat()

    def beat(self, times: int = 1) -> None:
        for _ in range(times):
            self.run(self.writer.store(0, 0, b"", 300))

    def append(self, segment: int, offset: int, payload: bytes) -> None:
        self.run(self.writer.store(segment, offset, payload, 300))

    def checkpoint(self, segments: dict[int, bytes]) -> None:
        """Store a checkpoint behind the last chunk."""
        behind = self.writer.last
        refs = [described(number, content) for number, content in segments.items()]
        for ref, content in zip(refs, segments.values(), strict=True):
            self.store.objects[segment_object(behind.epoch, ref)] = content
        checkpoint = encode_checkpoint(Checkpoint(300, tuple(refs)))
        self.store.objects[checkpoint_name(behind)] = checkpoint

    def collect(self, up_to: ChunkId) -> None:
        for number in range(up_to.number + 1):
            self.store.objects.pop(chunk_name(ChunkId(up_to.epoch, number)), None)


@pytest.fixture
def remote() -> Remote:
    return Remote()


class Clock:
    """Every look at a clock is 10 ms after the one before."""

    def __init__(self) -> None:
        self.time_us = SECOND

    def now_us(self) -> int:
        self.time_us += 10_000
        return self.time_us


@pytest.fixture
def disk() -> SimulatedDisk:
    made = SimulatedDisk()
    made.mkdir(DIRECTORY)
    lock_append(made, DIRECTORY)
    lock_read(made, DIRECTORY).close()
    return made


def new_node(disk: SimulatedDisk, store: Any, ack: RemoteAck = RemoteAck.DURABLE) -> Node:
    clock = Clock()
    options = NodeOptions(
        name="node", ack=ack, takeover_after_us=SECOND, beat_us=SECOND // 3, poll_us=1000
    )
    return Node(
        store, disk, DIRECTORY, options, clock=clock, boottime_us=clock.now_us, recover=list
    )


def write(disk: SimulatedDisk, name: str, data: bytes) -> None:
    file = disk.create(f"{DIRECTORY}/{name}")
    file.write(data)
    file.sync()


def segments(disk: SimulatedDisk) -> dict[int, bytes]:
    numbers = list_segments(disk, DIRECTORY)
    return {number: disk.read(f"{DIRECTORY}/{segment_name(number)}") for number in numbers}


ONE = SEGMENT_HEADER + record(1)
TWO = SEGMENT_HEADER + record(2) + record(3)


def begin(remote: Remote) -> None:
    """Store segment 1 in a checkpoint, and segment 2 in two chunks behind it."""
    remote.take(1)
    remote.append(1, 0, ONE)
    remote.checkpoint({1: ONE})
    remote.append(2, 0, TWO[:-37])
    remote.append(2, len(TWO) - 37, TWO[-37:])


# --- the directory ------------------------------------------------------------------------------


def test_node_fetches_what_its_directory_lacks_and_takes_over(
    remote: Remote, disk: SimulatedDisk
) -> None:
    begin(remote)
    primary = new_node(disk, remote.store).run()

    assert primary is not None
    assert segments(disk) == {1: ONE, 2: TWO}
    assert primary.chunks.stored == pack_position(2, len(TWO))
    assert (primary.chunks.epoch.epoch, primary.chunks.number) == (2, 1)
    assert primary.base == ChunkId(1, 1)
    noted = read_remote_file(disk, DIRECTORY)
    assert noted is not None, "the epoch is noted once the log is replayed"
    assert (noted.log, noted.epoch) == (LOG, -1)


@pytest.mark.parametrize(
    ("there", "fetched"),
    [
        ({1: ONE, 2: TWO}, 0),
        ({1: ONE, 2: TWO[:-40]}, 0),
        ({1: ONE, 2: TWO[:-1]}, 0),
        ({1: ONE[:-1], 2: TWO}, 1),
        ({1: ONE[:-1] + b"x", 2: TWO}, 1),
        ({1: ONE + b"x", 2: SEGMENT_HEADER + b"x" * 40}, 1),
        ({1: ONE, 2: TWO + b"surplus", 3: b"surplus"}, 0),
    ],
    ids=["same", "short", "cut in a record", "cut segment", "other bytes", "longer", "surplus"],
)
def test_node_makes_its_directory_what_the_store_says(
    remote: Remote, disk: SimulatedDisk, there: dict[int, bytes], fetched: int
) -> None:
    begin(remote)
    assert new_node(disk, remote.store).run() is not None
    remote.take(3)
    for number in list_segments(disk, DIRECTORY):
        disk.unlink(f"{DIRECTORY}/{segment_name(number)}")
    for number, content in there.items():
        write(disk, segment_name(number), content)
    reads: list[str] = []
    store = Counting(remote.store, reads)

    assert new_node(disk, store).run() is not None

    assert segments(disk) == {1: ONE, 2: TWO}
    assert sum(name.startswith("segments/") for name in reads) == fetched


class Counting:
    """Notes the names of what is read."""

    def __init__(self, store: MemoryStore, reads: list[str]) -> None:
        self._store = store
        self._reads = reads

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._store, name)

        def noted(*arguments: Any) -> Any:
            if name.startswith("get"):
                self._reads.append(arguments[0])
            return call(*arguments)

        return noted


def test_cut_of_a_segment_leaves_its_links_as_they_are(disk: SimulatedDisk) -> None:
    """A snapshot may have a link of it."""
    write(disk, segment_name(1), TWO)
    disk.link(f"{DIRECTORY}/{segment_name(1)}", f"{DIRECTORY}/link")
    log = LocalLog(disk, DIRECTORY, lambda _: None)

    log.set_aside(log.surplus_behind(pack_position(1, len(TWO) - 37)), "")

    assert segments(disk) == {1: TWO[:-37]}
    assert disk.read(f"{DIRECTORY}/link") == TWO
    assert disk.read(f"{DIRECTORY}/{segment_name(1)}.surplus") == TWO[-37:]


def test_surplus_is_told_with_its_records_and_times(
    disk: SimulatedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    write(disk, segment_name(1), TWO)
    log = LocalLog(disk, DIRECTORY, lambda _: None)
    log.set_aside(log.surplus_behind(pack_position(1, len(TWO) - 37)), "")

    assert (
        f"segment=1 offset={len(TWO) - 37} kept=/log/000000001.log.surplus bytes=37 records=1"
        " first=1970-01-01T00:00:00.000003Z last=1970-01-01T00:00:00.000003Z"
    ) in caplog.text


# --- what a node waits for ----------------------------------------------------------------------


def told(node: Node, then: Callable[[str], object]) -> list[str]:
    """Call something whenever the node says what it does; return all of that."""
    said: list[str] = []

    def tell() -> None:
        said.append(node.status)
        then(node.status)

    node.on_standby = tell
    return said


def test_standby_with_a_full_disk_waits_for_room(remote: Remote, disk: SimulatedDisk) -> None:
    begin(remote)
    disk.fail_at(2, "write", errno.ENOSPC)
    node = new_node(disk, remote.store)
    said = told(node, lambda _: None)

    assert node.run() is not None

    assert segments(disk) == {1: ONE, 2: TWO}
    assert any("No space left on device" in status for status in said)


def test_standby_whose_disk_fails_ends(remote: Remote, disk: SimulatedDisk) -> None:
    begin(remote)
    disk.fail_at(2, "write", errno.EIO)

    with pytest.raises(LogFailedError, match="EIO"):
        new_node(disk, remote.store).run()


def test_standby_changes_no_segment_while_another_process_reads(
    remote: Remote, disk: SimulatedDisk
) -> None:
    begin(remote)
    assert new_node(disk, remote.store).run() is not None
    disk.unlink(f"{DIRECTORY}/{segment_name(1)}")
    write(disk, segment_name(1), b"other bytes")
    reading = lock_read(disk, DIRECTORY)
    node = new_node(disk, remote.store)

    def end_reading(status: str) -> None:
        if "another process reads" in status:
            assert segments(disk)[1] == b"other bytes"
            reading.close()

    said = told(node, end_reading)
    assert node.run() is not None
    assert segments(disk)[1] == ONE
    assert any("another process reads" in status for status in said)


class Failing:
    """A store that fails, or refuses, until it is told otherwise."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.error: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        if self.error is not None:
            raise self.error
        return getattr(self._store, name)


def test_node_waits_for_a_store_that_does_not_answer(remote: Remote, disk: SimulatedDisk) -> None:
    store = Failing(remote.store)
    store.error = StoreUnavailableError("the store is away")
    node = new_node(disk, store)
    said = told(node, lambda _: setattr(store, "error", None))

    assert node.run() is not None
    assert said == ["standby, waits: the store is away"]


def test_node_ends_where_the_store_refuses_it_at_the_start(
    remote: Remote, disk: SimulatedDisk
) -> None:
    store = Failing(remote.store)
    store.error = StoreRefusedError("wrong credentials")

    with pytest.raises(StoreRefusedError):
        new_node(disk, store).run()


def test_standby_that_the_store_refuses_later_waits(remote: Remote, disk: SimulatedDisk) -> None:
    begin(remote)
    store = Failing(remote.store)
    node = new_node(disk, store)

    def refuse_once(_: str) -> None:
        store.error = StoreRefusedError("credentials have expired") if len(said) == 1 else None

    said = told(node, refuse_once)
    assert node.run() is not None
    assert said[:3] == [
        "standby of other, epoch 1",
        "standby, waits: credentials have expired",
        "standby of other, epoch 1",
    ]


def test_node_that_waits_for_a_log_can_be_stopped(disk: SimulatedDisk) -> None:
    node = new_node(disk, MemoryStore())
    said = told(node, lambda _: node.stop())

    assert node.run() is None
    assert "waits for a remote log" in said[0]
    assert read_remote_file(disk, DIRECTORY) is None


class Late:
    """A store in which another node begins a log right before the first listing."""

    def __init__(self, remote: Remote) -> None:
        self._log = remote.store
        self._store = MemoryStore()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def list(self, folder: str, after: str = "", limit: int | None = None) -> Any:
        if folder == "epochs":
            self._store = self._log
        return self._store.list(folder, after, limit)


def test_node_that_waits_for_a_log_meets_one_that_begins_meanwhile(
    remote: Remote, disk: SimulatedDisk
) -> None:
    begin(remote)
    assert new_node(disk, Late(remote)).run() is not None
    assert segments(disk) == {1: ONE, 2: TWO}


def test_standby_follows_a_newer_checkpoint(remote: Remote, disk: SimulatedDisk) -> None:
    """Compaction has taken segment 1, and what is left of it is in segment 3."""
    begin(remote)
    node = new_node(disk, remote.store)
    three = SEGMENT_HEADER + record(4)
    added = False

    def checkpoint(status: str) -> None:
        nonlocal added
        if not added:
            added = True
            remote.append(3, 0, three)
            remote.checkpoint({2: TWO, 3: three})
            remote.collect(ChunkId(1, 2))

    told(node, checkpoint)
    primary = node.run()

    assert primary is not None
    assert segments(disk) == {2: TWO, 3: three}
    assert primary.base == ChunkId(1, 4)


# --- after the takeover -------------------------------------------------------------------------


def test_surplus_of_the_node_that_wrote_last_becomes_the_first_chunks(
    remote: Remote, disk: SimulatedDisk
) -> None:
    node = new_node(disk, remote.store, RemoteAck.ASYNC)
    first = node.run()
    assert first is not None
    node.store_log(first, lambda: write(disk, segment_name(1), ONE))
    write(disk, segment_name(2), TWO)

    node = new_node(disk, remote.store, RemoteAck.ASYNC)
    primary = node.run()
    assert primary is not None
    assert segments(disk) == {1: ONE, 2: TWO}
    node.store_log(primary, lambda: write(disk, segment_name(3), ONE))

    assert primary.chunks.stored == pack_position(3, len(ONE))
    noted = read_remote_file(disk, DIRECTORY)
    assert noted is not None
    assert noted.epoch == 2
    assert contents(remote) == {1: ONE, 2: TWO, 3: ONE}


def contents(remote: Remote) -> dict[int, bytes]:
    """What a reader of the remote log has."""
    other = SimulatedDisk()
    other.mkdir(DIRECTORY)
    lock_read(other, DIRECTORY).close()
    log = LocalLog(other, DIRECTORY, lambda request: perform(remote.store, request))
    run(read_to_end(LogReader(LOG)), log.answer)
    log.sync()
    return segments(other)


@pytest.mark.parametrize(("by_writer", "cause"), [(True, "seal"), (False, "silence")])
def test_seal_of_a_taker_is_left_to_it(
    by_writer: bool, cause: str, remote: Remote, disk: SimulatedDisk
) -> None:
    """The taker is about to create the next epoch; it may also be dead."""
    begin(remote)
    at = ChunkId(remote.writer.epoch.epoch, remote.writer.number)
    nonce = remote.writer.epoch.nonce if by_writer else b"t" * 16
    remote.store.objects[chunk_name(at)] = encode_chunk(Chunk(at, ChunkKind.SEAL, nonce, 400))

    primary = new_node(disk, remote.store).run()

    assert primary is not None
    assert primary.cause == cause


def test_node_beats_while_the_log_is_replayed(remote: Remote, disk: SimulatedDisk) -> None:
    node = new_node(disk, remote.store)
    primary = node.run()
    assert primary is not None
    with node.beating(primary) as look:
        while primary.chunks.number < 4:
            look()
    assert primary.lease.may_answer(primary.lease.sent_us + 1)


def test_replay_ends_where_another_node_has_taken_over(remote: Remote, disk: SimulatedDisk) -> None:
    node = new_node(disk, remote.store)
    primary = node.run()
    assert primary is not None
    remote.take(9)

    def replay() -> None:
        with node.beating(primary) as look:
            while True:
                look()

    with pytest.raises(FencedError, match="another node has taken over"):
        replay()


# --- rules --------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_header", [False, True])
@pytest.mark.parametrize("size_max", [37, 80, 150, 200, 10_000])
def test_batches_are_split_between_records_of_two_times(with_header: bool, size_max: int) -> None:
    batches = [record(1), record(2) * 3, record(3), record(4), record(5) * 2, record(6)]
    data = (SEGMENT_HEADER if with_header else b"") + b"".join(batches)
    pieces = list(split_batches(data, size_max))

    assert b"".join(pieces) == data
    ends = {len(data) - len(b"".join(batches[number:])) for number in range(1, 7)}
    at = 0
    for piece in pieces:
        at += len(piece)
        assert at in ends
        assert len(piece) <= size_max or piece in (*batches, SEGMENT_HEADER + batches[0])


@pytest.mark.parametrize("look", [1, 2, 3, 1000])
def test_stored_end_is_that_of_the_last_chunk_with_bytes(
    remote: Remote, monkeypatch: pytest.MonkeyPatch, look: int
) -> None:
    monkeypatch.setattr(reader_module, "STORED_LOOK", look)
    begin(remote)
    end = pack_position(2, len(TWO))
    remote.beat(5)
    remote.take(2)
    assert remote.run(stored_end(LOG, 1)) == end
    remote.beat(3)
    remote.take(3)
    assert remote.run(stored_end(LOG, 2)) == end, "epoch 2 has no chunk with bytes"
    assert remote.run(stored_end(LOG, 0)) == 0


def test_stored_end_is_that_of_a_checkpoint_where_chunks_were_collected(remote: Remote) -> None:
    begin(remote)
    remote.checkpoint({1: ONE, 2: TWO})
    remote.collect(remote.writer.last)
    remote.beat(2)
    remote.take(2)
    assert remote.run(stored_end(LOG, 1)) == pack_position(2, len(TWO))

    del remote.store.objects[checkpoint_name(ChunkId(1, 3))]
    del remote.store.objects[checkpoint_name(ChunkId(1, 1))]
    del remote.store.objects[checkpoint_name(ChunkId(0, remote.adopted))]
    assert remote.run(stored_end(LOG, 1)) is None, "nobody knows it any more"
