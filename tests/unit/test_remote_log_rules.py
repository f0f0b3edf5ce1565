"""Rules of the remote log, one by one; the random walks over all of them are in tests/property."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fastjournal.cmdlog.format.layout import pack_position
from fastjournal.errors import (
    FencedError,
    ForeignRemoteLogError,
    LogCorruptError,
    RemoteLogCorruptError,
)
from fastjournal.remote import directory
from fastjournal.remote.checkpoints import (
    CHECKPOINT_US_MAX,
    Collector,
    Retention,
    Uploads,
    adopt,
    checkpoint_due,
    kept_checkpoints,
    restore_missing,
    upload_checkpoint,
)
from fastjournal.remote.directory import DirectoryCheck, Fit, Surplus, SurplusUse
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
    decode_chunk,
    decode_format,
    encode_checkpoint,
    encode_chunk,
    epoch_name,
    live_name,
    segment_object,
)
from fastjournal.remote.reader import (
    Append,
    Candidate,
    Fetch,
    LogReader,
    Restart,
    SilenceWatch,
    read_to_end,
    take_over,
)
from fastjournal.remote.store import Create, Get, Overwrite, Steps, perform, run
from fastjournal.remote.writer import ChunkWriter, PrimaryLease, RemoteAck, commit_position
from fastjournal.testing.object_store import MemoryStore

LOG = "8b6e7b2e-52b9-4c0e-9d2c-3a1f0c9f7d11"
SECOND = 1_000_000
NONCE = b"n" * 16


class Log:
    """A remote log in memory, and what a reader of it has read."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.read: list[bytes] = []
        self.restarts = 0
        self.before: Callable[[Any], None] = lambda _: None
        """Called before each request of the store."""
        self.run(adopt(Epoch(0, LOG, "one", b"a" * 16, -1), 100, {}))
        self.adopted = decode_format(self.store.objects[FORMAT_NAME], LOG).checkpoint

    def answer(self, request: Any) -> object:
        if isinstance(request, Restart):
            self.restarts += 1
            self.read.clear()
            return None
        if isinstance(request, Append):
            self.read.append(request.chunk.payload)
            return True
        if isinstance(request, Fetch):
            return segment_object(request.epoch, request.segment) in self.store.objects
        self.before(request)
        if isinstance(request, Overwrite) and request.data is None:
            request = Overwrite(request.name, request.path.encode())
        return perform(self.store, request)

    def run(self, steps: Steps[Any]) -> Any:
        return run(steps, self.answer)

    def take(self, nonce: bytes = NONCE) -> tuple[ChunkWriter, LogReader]:
        reader = LogReader(LOG)
        epoch = self.run(take_over(reader, Candidate("node", nonce), 200))
        writer = ChunkWriter(epoch, reader.end, reader.time_us)
        self.run(writer.store(0, 0, b"", 300))
        return writer, reader


@pytest.fixture
def log() -> Log:
    return Log()


# --- writer -------------------------------------------------------------------------------------


def test_writer_takes_its_own_chunk_of_an_earlier_try_as_stored(log: Log) -> None:
    writer, _ = log.take()
    log.before = lambda request: perform(log.store, request)  # an earlier try
    log.run(writer.store(1, 8, b"batch", 400))

    assert writer.stored == pack_position(1, 13)
    assert writer.last == ChunkId(1, 1)


def test_writer_repeats_a_create_that_is_said_to_exist_and_is_not_found(log: Log) -> None:
    writer, _ = log.take()
    steps = writer.store(1, 8, b"batch", 400)
    create = next(steps)

    steps.send(False)
    assert steps.send(None) == create


def test_writer_that_meets_a_seal_is_fenced_for_good(log: Log) -> None:
    writer, _ = log.take()
    log.take(b"m" * 16)

    with pytest.raises(FencedError, match="another node has taken over") as fenced:
        log.run(writer.store(1, 8, b"batch", 400))
    assert fenced.value.path == chunk_name(ChunkId(1, 1))
    assert writer.fenced
    with pytest.raises(FencedError):
        next(writer.store(1, 8, b"batch", 400))


@pytest.mark.parametrize("nonce", [NONCE, b"x" * 16], ids=["a copied machine", "another log"])
def test_writer_that_meets_other_data_is_refused(log: Log, nonce: bytes) -> None:
    writer, _ = log.take()
    chunk = Chunk(ChunkId(1, 1), ChunkKind.DATA, nonce, 350, 1, 8, b"other")
    log.store.create(chunk_name(chunk.id), encode_chunk(chunk))

    with pytest.raises(ForeignRemoteLogError, match="another writer uses epoch 1"):
        log.run(writer.store(1, 8, b"batch", 400))


def test_writer_has_one_request_under_way(log: Log) -> None:
    writer, _ = log.take()
    next(writer.store(1, 8, b"batch", 400))

    with pytest.raises(RuntimeError, match="under way"):
        next(writer.store(1, 13, b"batch", 400))


def test_writer_begins_an_epoch_with_an_empty_chunk() -> None:
    writer = ChunkWriter(Epoch(1, LOG, "node", NONCE, 0), 0, 0)

    with pytest.raises(RuntimeError, match="is empty"):
        next(writer.store(1, 8, b"batch", 400))


def test_writer_time_never_goes_back_also_over_epochs(log: Log) -> None:
    log.take()
    writer, _ = log.take(b"m" * 16)
    log.run(writer.store(1, 8, b"batch", 5))

    times = [
        decode_chunk(chunk, log.store.objects[chunk_name(chunk)]).time_us
        for chunk in (
            *(ChunkId(0, log.adopted + 1), ChunkId(1, 0), ChunkId(1, 1)),
            *(ChunkId(2, 0), ChunkId(2, 1)),
        )
    ]
    assert times == sorted(times)


def test_writer_that_seals_its_own_epoch_lets_a_standby_take_over(log: Log) -> None:
    writer, _ = log.take()
    log.run(writer.seal(500))

    reader = LogReader(LOG)
    log.run(read_to_end(reader))

    assert reader.sealed
    with pytest.raises(FencedError):
        next(writer.store(1, 8, b"batch", 600))


def test_commit_position_is_the_lower_one_unless_async() -> None:
    assert commit_position(10, 7, RemoteAck.DURABLE) == 7
    assert commit_position(5, 7, RemoteAck.DURABLE) == 5
    assert commit_position(10, 7, RemoteAck.ASYNC) == 10


def test_primary_lease_counts_from_when_the_stored_chunk_was_sent() -> None:
    lease = PrimaryLease(beat_us=5 * SECOND, takeover_after_us=15 * SECOND)
    lease.count_stored(100 * SECOND)

    assert lease.beat_due_us() == 105 * SECOND
    assert lease.may_answer(115 * SECOND - 1)
    assert not lease.may_answer(115 * SECOND)


# --- reader and standby -------------------------------------------------------------------------


def test_reader_goes_on_where_the_chunk_was_written_after_it_was_missing(log: Log) -> None:
    writer, _ = log.take()
    log.run(writer.store(1, 8, b"first", 400))
    reader = LogReader(LOG)
    log.run(reader.advance())
    for offset, batch in ((13, b"second"), (19, b"third")):
        log.run(writer.store(1, offset, batch, 500))

    assert not log.run(reader.confirm())
    log.run(read_to_end(reader))

    assert log.read == [b"first", b"second", b"third"]
    assert log.restarts == 2  # the takeover's, and this one


def test_reader_calls_the_same_hole_behind_the_same_checkpoint_damage(log: Log) -> None:
    writer, _ = log.take()
    for offset in (8, 13, 18):
        log.run(writer.store(1, offset, b"batch", 400))
    log.store.delete(chunk_name(ChunkId(1, 2)))

    with pytest.raises(RemoteLogCorruptError, match="the chunk is missing, and later"):
        log.run(read_to_end(LogReader(LOG)))


def test_reader_begins_anew_where_the_collector_has_overtaken_it(log: Log) -> None:
    writer, _ = log.take()
    log.run(writer.store(1, 8, b"batch", 400))
    reader = LogReader(LOG)

    def overtake(request: Any) -> None:
        if getattr(request, "name", "") == chunk_name(ChunkId(1, 0)):
            log.before = lambda _: None
            checkpoint(log, writer, SegmentRef(1, 13, 5))

    log.before = overtake
    log.run(read_to_end(reader))

    assert reader.base == ChunkId(1, 1)
    assert log.read == []


def checkpoint(log: Log, writer: ChunkWriter, segment: SegmentRef) -> Uploads:
    writer.cut(segment.end)
    assert writer.cut_at is not None
    uploads = Uploads(writer.epoch.epoch)
    behind, time_us = writer.cut_at
    assert log.run(upload_checkpoint(behind, time_us, {segment: "link"}, uploads))
    log.run(Collector(writer.epoch, uploads, Retention(-1000, newest=1)).collect(10_000))
    return uploads


def test_reader_stops_before_the_first_chunk_of_a_later_time(log: Log) -> None:
    writer, _ = log.take()
    for offset, time_us in ((8, 1000), (13, 2000), (18, 3000)):
        log.run(writer.store(1, offset, b"%05d" % time_us, time_us))
    reader = LogReader(LOG, until_us=2500)
    log.run(read_to_end(reader))

    assert log.read == [b"01000", b"02000"]
    assert reader.past_until


def test_reader_before_the_oldest_checkpoint_is_a_named_error(log: Log) -> None:
    with pytest.raises(RemoteLogCorruptError, match="no checkpoint whose segments are all there"):
        log.run(read_to_end(LogReader(LOG, until_us=99)))


def test_reader_of_an_empty_prefix_or_another_log_is_a_named_error(log: Log) -> None:
    with pytest.raises(ForeignRemoteLogError, match="belongs to the log"):
        log.run(read_to_end(LogReader("another")))
    log.store.objects.clear()
    with pytest.raises(RemoteLogCorruptError, match="the prefix holds no remote log"):
        log.run(read_to_end(LogReader(LOG)))


def test_taker_that_is_slower_becomes_a_standby(log: Log) -> None:
    slow = take_over(LogReader(LOG), Candidate("slow", b"s" * 16), 200)

    def overtake(request: Any) -> None:
        if isinstance(request, Create) and request.name == epoch_name(1):
            log.before = lambda _: None
            log.take()

    log.before = overtake
    assert log.run(slow) is None


def test_silence_watch_takes_over_after_silence_between_two_successful_reads() -> None:
    watch = SilenceWatch(15 * SECOND, pause_us_max=5 * SECOND)
    reads = [watch.read(at * SECOND, at * SECOND, chunks=0) for at in range(17)]

    assert reads.index(True) == 15


def test_silence_watch_begins_anew_after_a_chunk_a_failure_or_a_pause() -> None:
    for disturb in ("chunk", "failure", "pause"):
        watch = SilenceWatch(15 * SECOND, pause_us_max=5 * SECOND)
        for at in range(12):
            watch.read(at * SECOND, at * SECOND, chunks=0)
        now = 12 * SECOND
        if disturb == "pause":
            now += 10 * SECOND
        elif disturb == "failure":
            watch.fail()
        assert not watch.read(now, now, chunks=disturb == "chunk")
        for at in range(1, 15):
            assert not watch.read(now + at * SECOND, now + at * SECOND, chunks=0)
        assert watch.read(now + 15 * SECOND, now + 15 * SECOND, chunks=0)


def test_node_that_met_a_seal_leaves_the_epoch_of_a_faster_one_alone(log: Log) -> None:
    """It read the seal before the other node had created its epoch."""
    writer, _ = log.take()
    log.run(writer.seal(400))
    slow = LogReader(LOG)
    log.run(read_to_end(slow))
    assert slow.sealed
    faster, _ = log.take()

    assert log.run(take_over(slow, Candidate("slow", b"s" * 16), 500)) is None

    log.run(faster.store(0, 0, b"", 600))
    assert not faster.fenced


def test_takeover_at_once_takes_the_directory_of_the_newest_epoch() -> None:
    assert directory.takes_over_at_once(3, 3)
    assert not directory.takes_over_at_once(2, 3)
    assert not directory.takes_over_at_once(None, 3)


@pytest.mark.parametrize("noted_before_replay", [False, True])
def test_takeover_at_once_leaves_a_crash_loop_to_the_standby(noted_before_replay: bool) -> None:
    """A node dies in each replay. remote.json is written behind it, so it waits the next time."""
    newest, noted, restarts, last_sign = 1, 1, 0, 0
    for second in range(0, 600, 5):
        restarts_now = second % 10 == 0
        if restarts_now and directory.takes_over_at_once(noted, newest):
            newest, last_sign, restarts = newest + 1, second, restarts + 1
            if noted_before_replay:
                noted = newest
        if second - last_sign >= 15:
            break
    else:
        assert noted_before_replay, "the standby never had its turn"
        return
    assert not noted_before_replay
    assert restarts == 1


# --- checkpoints, collector, adoption -----------------------------------------------------------


def test_cut_is_the_last_chunk_before_the_sealed_segment_ends(log: Log) -> None:
    writer, _ = log.take()
    log.run(writer.store(1, 8, b"batch", 400))
    writer.cut(pack_position(1, 18))
    assert writer.cut_at is None
    log.run(writer.store(1, 13, b"batch", 500))
    log.run(writer.store(2, 0, b"later", 600))

    assert writer.cut_at == (ChunkId(1, 2), 500)


def test_checkpoint_copies_segments_of_the_epoch_before_within_the_store(log: Log) -> None:
    segment = SegmentRef(1, 13, 5)
    base = ChunkId(1, 4)
    requests: list[Any] = []
    log.before = requests.append
    log.store.objects[segment_object(1, segment)] = b"content"
    uploads = Uploads(2, (base, Checkpoint(1, (segment,))))
    log.run(upload_checkpoint(ChunkId(2, 3), 9, {segment: "link"}, uploads))

    assert log.store.objects[segment_object(2, segment)] == b"content"
    assert not [request for request in requests if isinstance(request, Overwrite)]


def test_checkpoint_with_another_list_stays(log: Log) -> None:
    behind, other = ChunkId(1, 3), encode_checkpoint(Checkpoint(5, ()))
    log.store.create(checkpoint_name(behind), other)

    found = log.run(upload_checkpoint(behind, 9, {SegmentRef(1, 13, 5): "link"}, Uploads(1)))

    assert found is None
    assert log.store.objects[checkpoint_name(behind)] == other


def test_collector_leaves_the_uploads_of_a_checkpoint_that_was_given_up(log: Log) -> None:
    writer, _ = log.take()
    log.run(writer.store(1, 8, b"batch", 400))
    uploads = checkpoint(log, writer, SegmentRef(1, 13, 5))
    collector = Collector(writer.epoch, uploads, Retention(-1000, newest=1))
    rewritten = {SegmentRef(1, 9, 6): "rewritten"}
    behind = ChunkId(1, 1)
    assert not log.run(upload_checkpoint(behind, 400, rewritten, uploads))
    log.run(collector.collect(10_000))
    log.run(writer.store(0, 0, b"", 500))

    assert log.run(upload_checkpoint(ChunkId(1, 2), 500, rewritten, uploads))
    log.run(collector.collect(10_000))

    segments = [name for name in log.store.objects if name.startswith("segments/")]
    assert segments == [segment_object(1, SegmentRef(1, 9, 6))]


def test_collector_of_a_former_writer_stops_where_its_successor_collects(log: Log) -> None:
    """Its newest checkpoint is listed, and gone when it is read: only a successor deletes it."""
    writer, _ = log.take()
    log.run(writer.store(1, 8, b"batch", 400))
    uploads = checkpoint(log, writer, SegmentRef(1, 13, 5))
    collector = Collector(writer.epoch, uploads, Retention(-1000, newest=1))
    log.run(collector.collect(10_000))
    newest, later = ChunkId(1, 2), {SegmentRef(2, 5, 7): "later"}
    log.run(writer.store(2, 0, b"later", 500))
    assert log.run(upload_checkpoint(newest, 500, later, uploads))

    def collect_newest(request: Any) -> None:
        if request == Get(checkpoint_name(newest)):
            log.store.delete(checkpoint_name(newest))

    log.before = collect_newest
    assert log.run(collector.collect(10_000)) == 0

    assert log.run(upload_checkpoint(ChunkId(1, 3), 600, later, uploads))


def test_checkpoint_has_its_live_index_until_it_is_collected(log: Log) -> None:
    writer, _ = log.take()
    log.run(writer.store(1, 8, b"batch", 400))
    uploads, links = Uploads(1), {SegmentRef(1, 13, 5): "link"}
    steps = upload_checkpoint(ChunkId(1, 1), 400, links, uploads, live_path="index")
    assert log.run(steps)
    assert log.store.objects[live_name(ChunkId(1, 1))] == b"index"

    log.run(writer.store(2, 0, b"later", 500))
    log.run(upload_checkpoint(ChunkId(1, 2), 500, {SegmentRef(2, 5, 7): "next"}, uploads))
    log.run(Collector(writer.epoch, uploads, Retention(-1000, newest=1)).collect(10_000))
    assert not [name for name in log.store.objects if name.startswith("live/")]


def test_retention_keeps_the_window_the_newest_before_it_and_the_two_newest() -> None:
    times = {ChunkId(1, number): number * 100 for number in range(10)}

    def kept(now_us: int, keep_us: int) -> list[int]:
        found = kept_checkpoints(times, now_us, Retention(keep_us))
        return sorted(chunk.number for chunk in found)

    assert kept(1000, 250) == [7, 8, 9]
    assert kept(10**9, 250) == [8, 9]
    assert kept(1000, 10**6) == list(range(10))


def test_collector_waits_for_a_checkpoint_of_its_own_epoch(log: Log) -> None:
    first, _ = log.take()
    log.run(first.store(1, 8, b"batch", 400))
    second, _ = log.take(b"m" * 16)
    before = dict(log.store.objects)

    uploads = Uploads(2)
    collector = Collector(second.epoch, uploads, Retention(-1000, newest=1))
    assert log.run(collector.collect(10_000)) == 0
    assert log.store.objects == before


def test_collector_keeps_seals_and_epochs_for_ever(log: Log) -> None:
    for nonce in (b"1" * 16, b"2" * 16, b"3" * 16):
        writer, _ = log.take(nonce)
        log.run(writer.store(1, 8, b"batch", 400))
    checkpoint(log, writer, SegmentRef(1, 13, 5))

    left = {name for name in log.store.objects if name.startswith(("log/", "epochs/"))}
    assert left == {
        *(epoch_name(epoch) for epoch in range(4)),
        *map(chunk_name, (ChunkId(0, log.adopted + 1), ChunkId(1, 2), ChunkId(2, 2))),
    }


def test_missing_segment_is_uploaded_again_and_another_loss_is_a_named_error(log: Log) -> None:
    writer, _ = log.take()
    log.run(writer.store(1, 8, b"batch", 400))
    segment = SegmentRef(1, 13, 5)
    uploads = checkpoint(log, writer, segment)
    newest = Checkpoint(400, (segment,))
    name = segment_object(1, segment)

    def look(links: dict[SegmentRef, str]) -> Any:
        return log.run(restore_missing(writer.epoch, newest, links, uploads))

    assert look({}) == []
    log.store.delete(name)
    with pytest.raises(RemoteLogCorruptError, match="somebody deleted parts") as lost:
        look({})
    assert lost.value.path == name
    assert look({segment: "link"}) == [segment]
    assert log.store.objects[name] == b"link"
    log.store.delete(FORMAT_NAME)
    with pytest.raises(RemoteLogCorruptError, match="somebody deleted parts"):
        look({})


def test_segment_that_the_successor_has_deleted_is_no_loss_of_the_former_writer(log: Log) -> None:
    writer, _ = log.take()
    log.run(writer.store(1, 8, b"batch", 400))
    segment = SegmentRef(1, 13, 5)
    uploads = checkpoint(log, writer, segment)
    log.take()
    log.store.delete(segment_object(1, segment))
    for links in ({}, {segment: "link"}):
        with pytest.raises(FencedError, match="another node has taken over"):
            log.run(restore_missing(writer.epoch, Checkpoint(400, (segment,)), links, uploads))
    assert segment_object(1, segment) not in log.store.objects


def test_adoption_counts_only_the_checkpoint_that_its_format_names() -> None:
    """A try dies with its checkpoint on the way; another one begins from another state."""
    log = Log()
    log.store.objects.clear()
    late = adopting(1, {SegmentRef(1, 9, 2): "b"})
    request = next(late)
    while not isinstance(request, Create) or not request.name.startswith("checkpoints/"):
        request = late.send(log.answer(request))
    log.run(adopting(2, {SegmentRef(1, 8, 1): "a"}))
    perform(log.store, request)

    reader = LogReader(LOG)
    log.run(take_over(reader, Candidate("node", NONCE), 200))
    assert reader.end == pack_position(1, 8)
    again = LogReader(LOG)
    log.run(read_to_end(again))
    assert again.here == ChunkId(1, 0)


def test_adoption_that_is_repeated_keeps_the_log(log: Log) -> None:
    before = dict(log.store.objects)
    log.run(adopting(3, {SegmentRef(1, 8, 1): "a"}))

    assert log.store.objects == before


def adopting(number: int, links: dict[SegmentRef, str]) -> Steps[None]:
    return adopt(Epoch(0, LOG, "one", bytes([number]) * 16, -1), 100, links)


def test_adoption_of_a_prefix_of_another_log_is_refused(log: Log) -> None:
    with pytest.raises(ForeignRemoteLogError, match="give each log a prefix of its own"):
        log.run(adopt(Epoch(0, "another", "two", b"b" * 16, -1), 100, {}))
    log.store.delete(FORMAT_NAME)
    with pytest.raises(ForeignRemoteLogError):
        log.run(adopt(Epoch(0, "another", "two", b"b" * 16, -1), 100, {}))


def test_checkpoint_is_due_by_age_or_by_bytes_behind_it() -> None:
    assert not checkpoint_due(CHECKPOINT_US_MAX - 1, 400, 100, 1000)
    assert checkpoint_due(CHECKPOINT_US_MAX, 0, 100, 1000)
    assert checkpoint_due(0, 1001, 100, 1000)
    assert not checkpoint_due(0, 400, 100, 10)
    assert checkpoint_due(0, 401, 100, 10)


# --- directory ----------------------------------------------------------------------------------


def test_directory_check_finds_what_the_store_has_not() -> None:
    check = DirectoryCheck()
    check.restart([SegmentRef(1, 100, 7)])
    chunk = Chunk(ChunkId(1, 0), ChunkKind.DATA, NONCE, 1, 2, 0, b"abcd")

    assert check.fit(chunk, b"abcd") is Fit.PRESENT
    later = Chunk(ChunkId(1, 1), ChunkKind.DATA, NONCE, 1, 2, 4, b"efgh")
    assert check.fit(later, b"ef") is Fit.WRITE
    hole = Chunk(ChunkId(1, 2), ChunkKind.DATA, NONCE, 1, 2, 9, b"x")
    assert check.fit(hole, b"") is Fit.HOLE
    back = Chunk(ChunkId(1, 2), ChunkKind.DATA, NONCE, 1, 1, 100, b"x")
    assert check.fit(back, b"") is Fit.HOLE

    assert check.end == pack_position(2, 8)
    surplus = check.surplus({1: 100, 2: 11, 3: 5})
    assert surplus == [Surplus(2, 8), Surplus(3, 0)]
    assert check.continues(surplus)
    assert not check.continues(check.surplus({1: 101, 2: 8}))


def test_surplus_goes_on_only_async_and_in_the_directory_that_wrote_last() -> None:
    assert directory.judge_surplus(RemoteAck.DURABLE, 3, 3) is SurplusUse.CUT
    assert directory.judge_surplus(RemoteAck.ASYNC, 3, 3) is SurplusUse.STORE
    assert directory.judge_surplus(RemoteAck.ASYNC, 2, 3) is SurplusUse.DIVERGED
    assert directory.judge_surplus(RemoteAck.ASYNC, None, 3) is SurplusUse.DIVERGED


def test_remote_file_round_trip_and_named_errors() -> None:
    data = directory.encode_remote_file(LOG, 4)
    found = directory.decode_remote_file(data, "remote.json")

    assert (found.log, found.epoch) == (LOG, 4)
    for bad in (b"", b"{}", data.replace(b'"version":1', b'"version":2')):
        with pytest.raises(LogCorruptError, match="format"):
            directory.decode_remote_file(bad, "remote.json")
