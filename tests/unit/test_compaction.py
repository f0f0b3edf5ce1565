"""Compaction: the records that it removes from the log or keeps, and the faults that stop it."""

from __future__ import annotations

import errno
from itertools import permutations
from typing import Any

import pytest

from fastjournal.cmdlog.format.endings import DELETED, how_of
from fastjournal.cmdlog.format.envelope import unpack_completion
from fastjournal.cmdlog.format.layout import SEGMENT_HEADER, Command, SegmentInfo
from fastjournal.cmdlog.format.operation_records import (
    Operation,
    tag_of,
    unpack_operation,
)
from fastjournal.cmdlog.format.records import Record, decode_body, is_operation
from fastjournal.cmdlog.recovery.scan import scan_segment
from fastjournal.cmdlog.snapshot import take_snapshot, verify_snapshot
from fastjournal.errors import LogFailedError
from fastjournal.limits import COMPACTION_RETRY_US
from fastjournal.protocol.constants import Flag, Function, ValueType
from fastjournal.testing.disk import SimulatedDisk
from fastjournald.compaction.compact_segment import _write_pieces
from fastjournald.compaction.policy import live_bytes
from tests.property.compacted_log import LOG, CompactedLog
from tests.property.subject import SECOND

KEY = b"a:1:0:x"
OTHER = b"a:2:0:y"


def records(log: CompactedLog, info: SegmentInfo) -> list[Record]:
    """The records of a segment, but its first."""
    data = log.disk.read(f"{LOG}/{info.name}")
    found = []
    start = len(SEGMENT_HEADER)
    for run in scan_segment(data).runs:
        for body, end in zip(run.bodies, run.ends, strict=True):
            found.append(decode_body(data, start, body, end - 4))
            start = end
    return found[1:]


def by_number(log: CompactedLog, number: int) -> SegmentInfo:
    return next(info for info in log.writer.sealed if info.number == number)


def clean_sealed(log: CompactedLog) -> None:
    log.roll()
    for info in list(log.writer.sealed):
        log.clean(info)


def set_and_delete(log: CompactedLog, key: bytes) -> None:
    log.done(Function.SET, key, b"v")
    log.done(Function.DELETE, key)


def files(log: CompactedLog) -> dict[str, bytes]:
    return {name: log.disk.read(f"{LOG}/{name}") for name in log.segments()}


def half_dead(**options: int) -> tuple[CompactedLog, SegmentInfo]:
    """A log of one sealed segment, of which a third is live."""
    log = CompactedLog(cmdlog_seg_size=8192, **options)
    log.fill(30)
    info = log.roll()
    for number in range(20):
        log.done(Function.DELETE, b"fill/%d" % number)
    log.flush()
    return log, info


def test_segment_that_was_removed_is_not_back_after_a_power_loss() -> None:
    log = CompactedLog()
    log.fill(30)
    info = log.roll()
    log.empty(30)
    assert log.clean(info) == "removed"
    for seed in range(20):
        assert info.name not in log.disk.crash(seed).listdir(LOG)


def test_segment_that_was_rewritten_is_not_the_old_one_after_a_power_loss() -> None:
    log, info = half_dead()
    assert log.clean(info) == "rewritten"
    path = f"{LOG}/{info.name}"
    for seed in range(20):
        assert log.disk.crash(seed).read(path) == log.disk.read(path)


def test_segment_with_little_that_is_live_is_moved_to_the_end() -> None:
    log = CompactedLog(cmdlog_seg_size=8192)
    log.fill(30)
    info = log.roll()
    for number in range(28):
        log.done(Function.DELETE, b"fill/%d" % number, flags=Flag.OVERWRITE)
    before = log.entry(b"fill/29").job_id
    assert log.clean(info) == "moved"
    assert info.name not in log.segments()
    assert log.entry(b"fill/29").job_id != before
    log.check()


def test_writer_knows_the_true_state_of_a_rewritten_segment() -> None:
    log, info = half_dead()
    log.clean(info)
    log.roll()
    path = take_snapshot(log.disk, LOG, "/snapshots", list(log.writer.sealed), log.clock.instant_us)
    assert verify_snapshot(log.disk, path).records > 10


@pytest.mark.parametrize("over", [False, True])
def test_completion_leaves_no_tombstone_once_that_is_over(over: bool) -> None:
    log = CompactedLog(cmdlog_seg_size=65536, tombstone_ttl=5)
    log.fill(10)
    log.roll()
    log.done(Function.DELETE, b"fill/3")
    log.fill(50, key=b"gone/%d")
    log.empty(50, key=b"gone/%d")
    removal = log.roll()
    if over:
        log.pass_time(6)
    assert log.clean(removal) == "rewritten"
    (record,) = records(log, by_number(log, removal.number))
    done = unpack_completion(record.result)
    assert (done.timestamp is None, done.key == b"") == (over, over)
    assert how_of(done.facts) == DELETED
    log.pass_time(6)
    log.clean(by_number(log, removal.number))
    log.check()
    assert log.engine.store.find(b"fill/3") is None


def test_tombstone_stays_while_it_stands_and_no_longer() -> None:
    log = CompactedLog(tombstone_ttl=10)
    at = log.clock.instant_us
    log.fill(10)
    for number in range(10):
        log.done(Function.DELETE, b"fill/%d" % number)
    log.roll()
    log.clean_settled()
    log.restart()
    assert log.ask(Function.SET, b"fill/1", b"late", at=at - 1).code == "stale"
    log.pass_time(11)
    log.clean_settled()
    assert b"fill/1" not in b"".join(files(log).values())


def test_forgotten_tombstone_does_not_return() -> None:
    log = CompactedLog(cmdlog_seg_size=65536)
    log.fill(10, key=b"cold/%d")
    set_and_delete(log, b"key")
    first = log.roll()
    log.pass_time(1)
    log.done(Function.SET, b"key", b"w")
    log.fill(50)
    second = log.roll()
    log.done(Function.DELETE, b"key", flags=Flag.OVERWRITE)
    log.empty(50)
    log.flush()
    assert log.clean(second) == "rewritten"
    assert by_number(log, first.number)
    log.check()
    assert log.engine.store.tombstones.find(b"key", log.clock.instant_us) is None


def test_forgotten_tombstone_does_not_return_behind_a_later_entry_that_erased_none() -> None:
    log = CompactedLog(cmdlog_seg_size=65536)
    log.fill(10, key=b"cold/%d")
    set_and_delete(log, b"key")
    log.roll()
    log.pass_time(1)
    log.done(Function.SET, b"key", b"w")
    log.done(Function.DELETE, b"key", flags=Flag.OVERWRITE)
    log.done(Function.SET, b"key", b"x")
    log.fill(50)
    second = log.roll()
    log.empty(50)
    log.flush()
    log.clean(second)
    log.check()
    log.done(Function.DELETE, b"key", flags=Flag.OVERWRITE)
    log.roll()
    for info in log.writer.sealed[1:]:
        log.clean(info)
        log.check()
    assert log.engine.store.tombstones.find(b"key", log.clock.instant_us) is None


@pytest.mark.parametrize("order", list(permutations(range(3))))
@pytest.mark.parametrize("between", [0, 30])
@pytest.mark.parametrize("name", [b"a", b""])
def test_pause_that_was_ended_does_not_return(
    between: int, order: tuple[int, ...], name: bytes
) -> None:
    log = CompactedLog(cmdlog_seg_size=65536)
    log.fill(10)
    log.done(Function.PAUSE, name, ttl=1000 * SECOND)
    first = log.roll()
    log.done(Function.PAUSE, name, ttl=500 * SECOND)
    second = log.roll()
    log.pass_time(between)
    log.done(Function.PAUSE, name, ttl=0)
    third = log.roll()
    for at in order:
        log.clean((first, second, third)[at])
        log.check()
    assert not log.engine.store.rules.pauses


@pytest.mark.parametrize("name", [b"a", b""])
def test_pause_in_force_is_kept(name: bytes) -> None:
    log = CompactedLog()
    log.done(Function.PAUSE, name, ttl=1000 * SECOND)
    log.fill(10)
    info = log.roll()
    log.empty(10)
    log.clean(info)
    assert info.name not in log.segments()
    log.check()
    assert name in log.engine.store.rules.pauses


INTERVAL = b'{"interval_us":600000000}'


def deliver(log: CompactedLog, how: str) -> None:
    """Deliver and complete the entry under ``KEY``."""
    if how == "get":
        token = log.ask(Function.GET, KEY, timeout=SECOND).timeout
    elif how == "scan":
        token = log.ask(Function.GET, b"a:", uri=b"a:2:", timeout=SECOND, count=1).timeout
    elif how == "pop":
        assert log.ask(Function.NEXT, b"a", flags=Flag.OVERWRITE).pairs
        return
    else:
        token = log.ask(Function.NEXT, b"a", timeout=SECOND).timeout
    assert token is not None
    log.done(Function.DELETE, KEY, flags=Flag.WORKED_ON, timeout=token)


@pytest.mark.parametrize("order", list(permutations(range(3))))
@pytest.mark.parametrize("how", ["next", "get", "scan", "pop", "limit behind"])
@pytest.mark.parametrize("rest", [0, 10], ids=["moved", "rewritten"])
def test_compaction_keeps_the_last_delivery_while_its_interval_runs(
    how: str, order: tuple[int, ...], rest: int
) -> None:
    log = CompactedLog(cmdlog_seg_size=65536 if not rest else 4096)
    if how != "limit behind":
        log.done(Function.LIMIT, b"a", INTERVAL, kind=ValueType.STRING)
    log.done(Function.SET, OTHER, b"v")
    log.fill(rest, key=b"rest/%d")
    log.fill(10)
    first = log.roll()
    log.done(Function.SET, KEY, b"v")
    log.fill(10, key=b"more/%d")
    second = log.roll()
    deliver(log, how)
    delivered_at = log.clock.instant_us
    log.empty(10)
    log.empty(10, key=b"more/%d")
    if how == "limit behind":
        log.done(Function.LIMIT, b"a", INTERVAL, kind=ValueType.STRING)
    third = log.roll()
    log.pass_time(5)
    for at in order:
        log.clean((first, second, third)[at])
        log.check()
    log.restart()
    assert log.engine.store.rules.limits.waits_until(b"a") == delivered_at + 600 * SECOND
    assert not log.ask(Function.NEXT, b"a").pairs
    for _ in range(3):
        log.roll()
        log.clean_all()
        log.check()
    # and no longer than that
    log.pass_time(595)
    assert log.ask(Function.PEEK, b"a").pairs
    log.roll()
    log.pass_time(10**5)
    log.clean_settled()
    names = [tag_of(operation) for operation in operations(log)]
    assert "limit" in names
    # a segment of which most stays is left as it is
    assert rest or "delivered" not in names


def test_delivery_while_a_segment_is_compacted_is_known_after_a_restart() -> None:
    for pause in range(12):
        log = CompactedLog(cmdlog_seg_size=8192)
        log.done(Function.LIMIT, b"a", INTERVAL, kind=ValueType.STRING)
        log.done(Function.SET, KEY, b"v")
        log.fill(30)
        info = log.roll()
        log.empty(20 if pause % 2 else 30)
        pauses = iter(range(100))

        def come(log: CompactedLog = log, pauses: Any = pauses, pause: int = pause) -> None:
            if next(pauses) == pause // 2:
                deliver(log, "next")

        log.clean(info, come)
        log.check()


@pytest.mark.parametrize("step", [100, -100])
def test_compaction_keeps_the_last_delivery_whose_interval_a_step_of_the_clock_has_moved(
    step: int,
) -> None:
    log = CompactedLog()
    log.done(Function.LIMIT, b"a", INTERVAL, kind=ValueType.STRING)
    log.done(Function.SET, KEY, b"v")
    log.pass_time(200)
    deliver(log, "pop")
    log.pass_time(5)
    log.clock.step(step * SECOND)
    log.engine.clock_stepped(log.clock.instant_us, step * SECOND)
    ends = log.engine.store.rules.limits.waits_until(b"a")
    log.fill(10)
    log.empty(10)
    for _ in range(2):
        log.clean(log.roll())
        log.check()
    log.restart()
    assert log.engine.store.rules.limits.waits_until(b"a") == ends


def operations(log: CompactedLog) -> list[Operation]:
    """Return all operations of a log."""
    found = []
    for data in files(log).values():
        for start, body, end in scan_segment(data).spans():
            if is_operation(data, body):
                payload = decode_body(data, start, body, end - 4).payload
                found.append(unpack_operation(payload))
    return found


def superseded(**options: int) -> tuple[CompactedLog, int]:
    log = CompactedLog(**options)
    log.done(Function.SET, KEY, b"v", uri=b"u")
    reply = log.ask(Function.NEXT, b"a", timeout=1000 * SECOND)
    log.pass_time(1)
    log.done(Function.SET, OTHER, b"w", uri=b"u")
    assert reply.timeout is not None
    return log, reply.timeout


def test_superseded_work_stays_superseded() -> None:
    log, token = superseded()
    log.clean(log.roll())
    log.check()
    log.restart()
    assert log.entry(KEY).token == token
    assert log.entry(KEY).superseded
    assert log.entry(b"u").key == OTHER
    log.done(Function.RELEASE, KEY, flags=Flag.WORKED_ON, timeout=token)
    assert log.engine.store.find(KEY) is None


def test_superseded_work_that_has_its_key_back_stays_superseded() -> None:
    """It was restated as if no newer entry had ever taken a key from it."""
    log, _ = superseded()
    log.done(Function.DELETE, OTHER)
    log.done(Function.LINK, KEY, uri=b"u")
    log.clean(log.roll())
    log.check()
    log.restart()
    assert log.entry(KEY).superseded


def test_tombstone_erased_by_work_that_was_superseded_before_does_not_return() -> None:
    """Superseded work leaves a tombstone with the timestamp of the upsert: an earlier one."""
    log, token = superseded(cmdlog_seg_size=65536)
    log.fill(10, key=b"cold/%d")
    log.pass_time(1)
    set_and_delete(log, b"name")
    log.roll()
    log.pass_time(1)
    log.done(Function.RENAME, KEY, uri=b"name", flags=Flag.WORKED_ON, timeout=token)
    log.fill(50)
    second = log.roll()
    log.empty(50)
    log.done(Function.RELEASE, b"name", flags=Flag.WORKED_ON, timeout=token)
    log.check()
    log.clean(second)
    log.check()


@pytest.mark.parametrize("renewed", [False, True])
@pytest.mark.parametrize("copied", [1, 3])
def test_copy_forward_of_a_leased_entry_keeps_the_bound_of_its_lease(
    copied: int, renewed: bool
) -> None:
    log = CompactedLog(cmdlog_seg_size=8192)
    log.done(Function.SET, KEY, b"v")
    bound = {"value": b'{"attempts":1}', "kind": ValueType.STRING}
    token = log.ask(Function.NEXT, b"a", timeout=1000 * SECOND, **bound).timeout
    if renewed:
        log.ask(Function.TOUCH, KEY, flags=Flag.WORKED_ON, timeout=token, ttl=900 * SECOND)
    positions = {log.entry(KEY).position}
    for _ in range(copied):
        log.fill(10)
        log.empty(10)
        log.clean(log.roll())
        log.check()
        positions.add(log.entry(KEY).position)
    assert len(positions) == 1 + copied, "it was not copied"
    log.restart()
    log.pass_time(1001)
    entry = log.entry(KEY)
    assert (entry.reason, entry.extra.attempts) == (b"attempts reached max-attempts", 1)
    log.check()


@pytest.mark.parametrize("reason", [b"", b"why", b"why " * 50], ids=["leased", "short", "long"])
def test_copy_forward_of_a_leased_or_buried_entry_comes_once(reason: bytes) -> None:
    log = CompactedLog(cmdlog_seg_size=8192)
    for number in range(200):
        log.done(Function.SET, b"d:1:0:%d" % number, b"v", flags=Flag.OVERWRITE)
    while (reply := log.ask(Function.NEXT, b"d", count=50, timeout=10**6 * SECOND)).pairs:
        if reason:
            for pair in reply.pairs:
                how = {"flags": Flag.WORKED_ON, "timeout": reply.timeout}
                log.done(Function.BURY, pair.key, reason, **how)
    for _ in range(4):
        log.pass_time(300)
        log.clean_all()
        log.check()
    appended, size = log.writer.appended, log.log_bytes()
    assert size < 2.5 * log.engine.journal.records.live_bytes + 2 * 8192
    for _ in range(20):
        log.pass_time(300)
        log.clean_all()
    assert log.writer.appended == appended
    log.restart()
    log.check()
    # and it goes once it is over
    log.pass_time(10**6 + 1)
    if reason:
        log.ask(Function.KICK, b"d", count=200)
    log.clean_settled()


def test_superseded_work_stays_superseded_where_what_superseded_it_is_gone() -> None:
    log = CompactedLog(cmdlog_seg_size=8192)
    log.done(Function.SET, KEY, b"v", uri=b"u")
    log.ask(Function.NEXT, b"a", timeout=1000 * SECOND)
    log.roll()
    log.pass_time(1)
    log.done(Function.SET, OTHER, b"w", uri=b"u")
    log.fill(30)
    second = log.roll()
    log.done(Function.DELETE, OTHER, flags=Flag.OVERWRITE)
    log.empty(18)
    log.flush()
    assert log.clean(second) == "rewritten"
    log.check()
    log.restart()
    assert log.entry(KEY).superseded


def test_end_of_a_pause_stays_while_a_rewritten_segment_has_the_pause() -> None:
    log = CompactedLog(cmdlog_seg_size=10_000)
    log.done(Function.PAUSE, b"a", ttl=1000 * SECOND)
    log.fill(30)
    log.empty(18)
    first = log.roll()
    assert log.clean(first) == "rewritten"
    log.done(Function.PAUSE, b"a", ttl=0)
    log.fill(30, key=b"more/%d")
    log.empty(18, key=b"more/%d")
    assert log.clean(log.roll()) == "rewritten"
    log.check()
    assert not log.engine.store.rules.pauses


def test_entry_restated_after_a_start_still_says_that_it_erased_a_tombstone() -> None:
    log = CompactedLog(cmdlog_seg_size=8192)
    log.fill(20, key=b"cold/%d")
    set_and_delete(log, b"key")
    log.roll()
    log.pass_time(1)
    log.done(Function.SET, b"key", b"w")
    log.done(Function.LINK, b"key", uri=b"link")
    log.restart()
    log.clean(log.roll())
    log.done(Function.DELETE, b"key", flags=Flag.OVERWRITE)
    log.fill(30)
    log.empty(18)
    log.clean(log.roll())
    log.check()
    assert log.engine.store.tombstones.find(b"key", log.clock.instant_us) is None


def test_damaged_segment_is_left_alone() -> None:
    log, info = half_dead()
    path = f"{LOG}/{info.name}"
    data = bytearray(log.disk.read(path))
    data[400] ^= 1
    log.disk.unlink(path)
    log.disk.create(path).write(bytes(data))
    outcome = log.clean(info)
    assert outcome.startswith("damaged at offset")
    assert log.disk.read(path) == data
    assert log.clean_all() == [], "it rests"
    log.clock.instant_us += COMPACTION_RETRY_US
    assert log.clean_all() == [outcome]


def test_segment_that_cannot_be_read_is_left_alone() -> None:
    log, info = half_dead()
    before = files(log)
    log.disk.fail_at(1, "read")
    assert log.clean(info).startswith("not read")
    assert files(log) == before


@pytest.mark.parametrize("call", ["create", "write", "sync"])
def test_copy_for_which_there_is_no_room_leaves_everything_as_it_was(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, info = half_dead()
    before = files(log)

    def on_a_full_disk(disk: SimulatedDisk, path: str, parts: list[bytes]) -> int:
        disk.fail_at(1, call, errno.ENOSPC)
        return _write_pieces(disk, path, parts)

    monkeypatch.setattr("fastjournald.compaction.compact_segment._write_pieces", on_a_full_disk)
    assert log.clean(info).startswith("not rewritten")
    assert files(log) == before
    assert not log.disk.exists(f"{LOG}/{info.name}.rw")
    log.check()


def test_replacement_that_fails_ends_the_daemon() -> None:
    log, info = half_dead()
    log.disk.fail_at(1, "rename")
    with pytest.raises(LogFailedError):
        log.clean(info)


def test_removal_that_fails_ends_the_daemon() -> None:
    log = CompactedLog()
    log.fill(5)
    info = log.roll()
    log.empty(5)
    log.disk.fail_at(1, "unlink")
    with pytest.raises(LogFailedError):
        log.clean(info)


def test_snapshot_stays_as_it_was() -> None:
    log, info = half_dead()
    log.roll()
    path = take_snapshot(log.disk, LOG, "/snapshots", list(log.writer.sealed), log.clock.instant_us)
    before = log.disk.read(f"{path}/{info.name}")
    assert log.clean(info) == "rewritten"
    assert log.disk.read(f"{path}/{info.name}") == before
    verify_snapshot(log.disk, path)


def test_record_that_dies_while_its_segment_is_compacted_does_not_return() -> None:
    for pause in range(8):
        log, info = half_dead()
        pauses = iter(range(100))

        def die(log: CompactedLog = log, pauses: Any = pauses, pause: int = pause) -> None:
            if next(pauses) == pause:
                log.done(Function.DELETE, b"fill/25", flags=Flag.OVERWRITE)
                log.done(Function.SET, b"fill/26", b"new", flags=Flag.OVERWRITE)

        log.clean(info, die)
        log.check()


def test_compaction_frees_what_too_many_small_files_wait_for() -> None:
    log = CompactedLog(cmdlog_seg_size=16384, tombstone_ttl=1)
    log.fill(60)
    base = log.roll()
    for number in range(25):
        log.done(Function.DELETE, b"fill/%d" % number, flags=Flag.OVERWRITE)
        log.fill(5, key=b"gone/%d")
        log.empty(5, key=b"gone/%d")
        log.roll()
        log.pass_time(2)
        log.clean_all()
    for _ in range(3):
        log.clean_all()
    assert by_number(log, base.number).bytes < base.bytes
    assert len(log.segments()) < 20
    log.check()


def test_compaction_keeps_the_end_of_a_renamed_entry_until_its_record_is_gone() -> None:
    log = CompactedLog(cmdlog_seg_size=8192)
    log.fill(30)
    log.done(Function.SET, KEY, b"first", flags=Flag.PERSIST)
    base = log.roll()
    log.done(Function.RENAME, KEY, uri=OTHER, flags=Flag.PERSIST)
    log.fill(30, key=b"gone/%d")
    two = log.roll()
    log.pass_time(1)
    log.done(Function.SET, KEY, b"second", flags=Flag.PERSIST)
    log.done(Function.DELETE, OTHER, flags=Flag.OVERWRITE)
    log.empty(15, key=b"gone/%d")
    log.roll()
    for number in (15, 22):
        # the rename becomes the end of the entry that it renamed, and that stays
        assert log.clean(by_number(log, two.number)) == "rewritten"
        kept = records(log, by_number(log, two.number))
        assert [one.command for one in kept].count(Command.EXPIRE) == 1
        for more in range(number, number + 7):
            log.done(Function.DELETE, b"gone/%d" % more, flags=Flag.OVERWRITE)
    log.check()
    log.empty(30)
    assert log.clean(base) in ("removed", "moved", "rewritten")
    log.check()


def test_aborted_cleaning_leaves_nothing_that_harms() -> None:
    log, info = half_dead()
    before = log.state()

    def abort() -> None:
        if log.disk.exists(f"{LOG}/{info.name}.rw"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        log.clean(info, abort)
    log.restart()
    assert log.state() == before
    assert not log.disk.exists(f"{LOG}/{info.name}.rw")
    log.check()


@pytest.mark.parametrize("step", [7200, -7200], ids=["ahead", "back"])
def test_compaction_keeps_the_end_of_a_lease_that_a_step_of_the_clock_moved(step: int) -> None:
    log = CompactedLog(cmdlog_seg_size=2048)
    log.done(Function.SET, KEY, b"v")
    token = log.ask(Function.NEXT, b"a", timeout=60 * SECOND).timeout
    log.step_clock(step)
    until = log.entry(KEY).leased_until
    for _ in range(3):
        clean_sealed(log)
        log.restart()
        entry = log.entry(KEY)
        assert (entry.token, entry.leased_until, entry.extra.attempts) == (token, until, 0)
    copies = log.entry(KEY).job_id
    clean_sealed(log)
    assert log.entry(KEY).job_id == copies, "it is not copied for ever"
    log.pass_time(61)
    assert log.entry(KEY).extra.attempts == 1
    log.restart()
    assert log.entry(KEY).extra.attempts == 1


# --- live bytes -----------------------------------------------------------------------------------

LIVE_RECORDS = {
    "entries": lambda log, at: log.done(Function.SET, b"d:1:0:%04d" % at, b"v"),
    "completes": lambda log, at: (
        log.done(Function.SET, b"d:1:0:%04d" % at, b"v"),
        log.done(Function.DELETE, b"d:1:0:%04d" % at),
    ),
    "tombstones": lambda log, at: log.ask(Function.DELETE, b"gone/%04d" % at),
    "pauses": lambda log, at: log.done(Function.PAUSE, b"d%04d" % at, ttl=10**6 * SECOND),
    "limits": lambda log, at: log.done(
        Function.LIMIT, b"d%04d" % at, b'{"interval_us":50000000}', kind=ValueType.STRING
    ),
}
"""Kinds of records that compaction keeps, and how one of each comes into the log."""


def test_live_bytes_of_leased_and_buried_entries_are_more_than_those_of_waiting_ones() -> None:
    log = CompactedLog(cmdlog_seg_size=65536)
    for at in range(100):
        LIVE_RECORDS["entries"](log, at)
    waiting = live_bytes(log.engine.store)
    log.done(Function.BURY, b"d:1:0:0099")
    leased = log.ask(Function.NEXT, b"d", count=99, timeout=10**6 * SECOND)
    assert leased.pairs is not None
    assert waiting + 100 * 37 == live_bytes(log.engine.store) <= log.log_bytes()
    for pair in leased.pairs:
        log.done(Function.RELEASE, pair.key, flags=Flag.WORKED_ON, timeout=leased.timeout)
    log.clean_settled()
    assert live_bytes(log.engine.store) <= log.log_bytes()
