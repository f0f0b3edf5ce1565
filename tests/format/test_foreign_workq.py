"""Logs of workq as items: what an import of them starts from."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from fastjournal.cmdlog.format.layout import SEGMENT_HEADER, Command
from fastjournal.cmdlog.format.records import decode_record
from fastjournal.cmdlog.recovery.recover import recover
from fastjournal.errors import BadRequestError, LogCorruptError, LogLockedError
from fastjournal.foreign import open_workq
from fastjournal.testing.disk import SimulatedDisk
from fastjournal.testing.logs import START_US, SegmentBuilder

CORPUS = Path(__file__).parent / "data" / "workq"
LOG = "/log"
MB = 1_000_000


def a_disk(*segments: bytes) -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.mkdir(LOG)
    for number, data in enumerate(segments, 1):
        disk.create(f"{LOG}/{number:09d}.log").write(data)
    return disk


@pytest.mark.parametrize("name", sorted(path.stem for path in CORPUS.glob("*.json")))
def test_reader_of_workq_finds_what_a_daemon_finds_live_with_the_places_of_records(
    name: str,
) -> None:
    disk = a_disk(*(path.read_bytes() for path in sorted((CORPUS / name).iterdir())))
    live = list(recover(disk, LOG, now_us=START_US).state.jobs.values())
    with open_workq(disk, LOG) as journal:
        items = list(journal.items())
        assert (journal.count, journal.faults) == (len(live), [])
    for item, job in zip(items, live, strict=True):
        assert (item.key, item.value, item.timestamp) == (job.key, job.value, job.timestamp)
        reason = None if item.reason is None else item.reason.encode()
        assert (item.expires, reason) == (job.expires, job.reason)
        assert decode_record(disk.read(item.path), item.offset)[0].job_id == job.job_id


def test_job_without_any_time_has_the_smallest_timestamp_that_can_be_sent() -> None:
    log = SegmentBuilder(None, now_us=0)
    log.foreign(b"q", due_us=-1)
    with open_workq(a_disk(bytes(log)), LOG) as journal:
        (item,) = journal.items()
    assert item.timestamp == 1
    assert item.key.startswith(b"q:128:0000000000000000:")


def test_reader_of_workq_holds_the_values_of_one_segment_at_a_time() -> None:
    segments = []
    for number in range(8):
        log = SegmentBuilder(None, ids_from=1 + 100 * number)
        for _ in range(10):
            log.foreign(b"q", bytes(MB))
        segments.append(bytes(log))
    disk = a_disk(*segments)
    tracemalloc.start()
    try:
        with open_workq(disk, LOG) as journal:
            assert journal.count == 80
            assert sum(len(item.value) for item in journal.items()) == 80 * MB
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # a segment, the one before it, and the values that were cut out of both
    assert peak < 45 * MB


@pytest.mark.parametrize("cut", range(0, 400, 7))
def test_log_that_is_cut_anywhere_gives_the_jobs_before_the_cut(cut: int) -> None:
    log = SegmentBuilder(None)
    for number in range(5):
        log.foreign(b"q", b"%d" % number)
    whole = [end for end in (*log.offsets[1:], len(log.data)) if end <= cut]
    with open_workq(a_disk(SEGMENT_HEADER, bytes(log)[:cut]), LOG) as journal:
        assert [item.value for item in journal.items()] == [b"%d" % n for n in range(len(whole))]
        assert not any(fault.damage for fault in journal.faults)


@pytest.mark.parametrize("how", ["changed", "replaced"])
def test_record_that_changed_since_it_was_read_is_told_with_its_place(how: str) -> None:
    logs = [SegmentBuilder(None), SegmentBuilder(None, ids_from=5000 if how == "replaced" else 1)]
    for log in logs:
        log.foreign(b"q", b"value")
    disk = a_disk(bytes(logs[0]))
    with open_workq(disk, LOG) as journal:
        disk.unlink(f"{LOG}/000000001.log")
        if how == "changed":
            logs[1].data[40] ^= 1
        disk.create(f"{LOG}/000000001.log").write(bytes(logs[1]))
        message = "changed" if how == "replaced" else None
        with pytest.raises(LogCorruptError, match=message) as caught:
            list(journal.items())
    assert (caught.value.path, caught.value.offset) == (f"{LOG}/000000001.log", logs[0].offsets[0])


def test_log_that_is_read_keeps_a_server_from_starting_on_it() -> None:
    log = SegmentBuilder(None)
    log.result(Command.FAIL, log.foreign(b"q"))
    disk = a_disk(bytes(log))
    disk.create(f"{LOG}/append.lock")
    with (
        open_workq(disk, LOG),
        pytest.raises(LogLockedError),
    ):
        disk.lock(f"{LOG}/append.lock")
    disk.lock(f"{LOG}/append.lock").close()
    with pytest.raises(BadRequestError, match="no segment"), open_workq(a_disk(), LOG):
        pass
