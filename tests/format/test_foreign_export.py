"""Exports of snapshots as journals of other queues: held against the readers, and workq's rules."""

from __future__ import annotations

import itertools
import os
import stat
from pathlib import Path

import pytest

from fastjournal.cmdlog.format.operation_records import Limit
from fastjournal.disk import OsDisk
from fastjournal.errors import BadRequestError, LogCorruptError, LogFailedError
from fastjournal.foreign import open_beanstalkd, open_workq, snapshot_entries
from fastjournal.foreign.beanstalkd import VERSION
from fastjournal.foreign.formats import Format
from fastjournal.foreign.journal_export import export_journal
from fastjournal.limits import INSTANT_MAX
from fastjournal.testing.disk import SimulatedDisk
from fastjournal.testing.logs import SegmentBuilder
from fastjournal.testing.workq_rules import assert_workq_accepts
from tests.format.foreign_exports import (
    NOW,
    TARGETS,
    Target,
    each_target,
    export,
    exported,
    read_items,
    snapshot_of,
)

SECOND = 1_000_000
DAY = 86_400 * SECOND


def segments_of(disk: SimulatedDisk) -> list[bytes]:
    names = [name for name in disk.listdir("/out") if name.endswith(".log")]
    return [disk.read(f"/out/{name}") for name in names]


INSTANTS = [
    *(0, 1, NOW - 400 * DAY, NOW - 31 * DAY, NOW - 30 * DAY, NOW - DAY, NOW - 1, NOW, NOW + 1),
    *(NOW + 40 * DAY, 2**63, INSTANT_MAX),
]
EXPIRIES = [0, NOW + 1, NOW + DAY, NOW + 30 * DAY, NOW + 31 * DAY, 2**63, INSTANT_MAX]


def test_export_to_workq_loses_no_work_whenever_it_begins_and_expires() -> None:
    log = SegmentBuilder(0)
    for number, (instant, expires) in enumerate(itertools.product(INSTANTS, EXPIRIES)):
        fields = {"not_before": instant, "expires": expires, "arrival": number}
        for domain in (b"waits", b"buried"):
            job = log.entry(b"%b:128:%d:%d" % (domain, instant, number), **fields)
            if domain == b"buried":
                log.fail(job, b"why")
    done, found, disk = exported(TARGETS["workq"], log)
    assert (done.read, done.left_out) == (done.written, {})
    state = assert_workq_accepts(segments_of(disk), now_us=NOW)
    assert len(state.jobs) == len(found) == done.written
    assert len(state.ready("waits")) == 8 * len(EXPIRIES)
    assert len(state.scheduled("waits")) == 4 * len(EXPIRIES)
    # all but those that expire within a day live as long as workq lets any job live
    later = assert_workq_accepts(segments_of(disk), now_us=NOW + 30 * DAY - SECOND)
    assert len(later.ready("waits")) == 9 * (len(EXPIRIES) - 2)


def test_export_to_workq_keeps_the_order_of_the_work() -> None:
    log = SegmentBuilder(0)
    order = []
    # workq compares scheduled times beyond the year 2262 in no order
    for number, instant in enumerate([at for at in INSTANTS if at < 2**63] * 200):
        fields = {"not_before": instant, "arrival": number, "value": b"%d" % number}
        log.entry(b"q:128:%d:%d" % (instant, number), **fields)
        order.append((instant, number))
    _, _, disk = exported(TARGETS["workq"], log)
    state = assert_workq_accepts(segments_of(disk), now_us=NOW + 1)
    ready = [int(state.jobs[job].record.payload) for job in state.ready("q")]
    scheduled = [int(state.jobs[job].record.payload) for job in state.scheduled("q")]
    assert ready == [number for instant, number in sorted(order) if instant <= NOW + 1]
    assert scheduled == [number for instant, number in sorted(order) if instant > NOW + 1]


@each_target
def test_export_counts_what_a_format_does_not_hold(to: Target) -> None:
    log = SegmentBuilder(0)
    log.entry(b"plain")
    log.entry(b"q:128:0:1", uri=b"u", links=[b"x"], value=b"v" * 70_000, attempts=2)
    log.entry(b"q:128:0:2", expires=NOW - 1)
    later = NOW + SECOND
    log.entry(b"-:7:%d:3" % later, not_before=later, expires=later + 1, token=later)
    log.fail(log.entry(b"-:7:0:4"), b"why")
    done, found, _ = exported(to, log)
    common = {"plain_entries": 1, "expired": 1}
    assert done.left_out == common | ({"buried": 1} if to.format is Format.KESTREL else {})
    assert (
        done.not_carried
        == {"uris": 1, "further_keys": 1, "leases": 1}
        | {
            Format.BEANSTALKD: {"expiries": 1, "reasons": 1, "domains_renamed": 1},
            Format.KESTREL: {"priorities": 1, "delays": 1, "attempts": 1},
            Format.WORKQ: {"lives_cut_to_30_days": 2, "attempts": 1},
        }[to.format]
    )
    assert (done.read, done.written) == (5, len(found))
    server = "beanstalkd" if to.binlog_version == VERSION else "beanstalkd 1.5 or later"
    advice = f"start {server} with -z 70002, or it drops large jobs"
    assert done.advice == (advice if to.format is Format.BEANSTALKD else None)


@each_target
def test_export_counts_no_facts_of_entries_that_it_leaves_out(
    to: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastjournal.foreign import beanstalkd, kestrel, workq

    for writer, most in (
        (beanstalkd, "BODY_BYTES_MAX"),
        (kestrel, "VALUE_BYTES_MAX"),
        (workq, "LOG_PAYLOAD_BYTES_MAX"),
    ):
        monkeypatch.setattr(writer, most, 9)
    log = SegmentBuilder(0)
    log.entry(b"q:7:0:1", uri=b"u", links=[b"x"], value=b"v" * 10, token=NOW + DAY, attempts=2)
    done, found, _ = exported(to, log)
    assert found == []
    assert (done.written, done.left_out) == (0, {"values_too_large": 1})
    assert done.not_carried == {}
    log.fail(log.entry(b"q:128:0:2", uri=b"w", expires=NOW + DAY), b"why")
    done, found, _ = exported(to, log)
    kestrel = to.format is Format.KESTREL
    assert done.left_out == {"values_too_large": 1} | ({"buried": 1} if kestrel else {})
    assert done.not_carried.get("uris", 0) == done.written == len(found) == (not kestrel)


@each_target
def test_export_of_nothing_is_a_journal(to: Target) -> None:
    disk = SimulatedDisk()
    snapshot = snapshot_of(disk, SegmentBuilder(0))
    done = export(disk, snapshot, to)
    assert (done.read, done.written) == (0, 0)
    assert (
        disk.listdir("/out")
        == {
            Format.BEANSTALKD: ["binlog.1"],
            Format.KESTREL: [],
            Format.WORKQ: ["000000001.log"],
        }[to.format]
    )


@each_target
def test_export_leaves_values_on_the_disk_and_rotates_files(
    to: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastjournal.foreign import beanstalkd, snapshot_entries, workq

    monkeypatch.setattr(snapshot_entries, "VALUES_BYTES_MAX", 1000)
    monkeypatch.setattr(beanstalkd, "FILE_BYTES", 5000)
    monkeypatch.setattr(workq, "SEGMENT_BYTES_MAX", 5000)
    logs = [SegmentBuilder(0), SegmentBuilder(1, ids_from=5000)]
    values = []
    for number in range(40):
        values.append(b"%d" % number * 200)
        logs[number // 20].entry(b"q:128:0:%d" % number, value=values[-1], arrival=number)
    done, found, disk = exported(to, *logs)
    assert sorted(work.value for work in found) == sorted(values)
    assert done.files == len(disk.listdir("/out"))
    assert done.files == 1 if to.format is Format.KESTREL else done.files > 3
    assert done.bytes == sum(disk.size(f"/out/{name}") for name in disk.listdir("/out"))


def test_export_refuses_a_destination_that_exists_and_a_log_that_is_no_snapshot() -> None:
    disk = SimulatedDisk()
    log = SegmentBuilder(0)
    log.entry(b"q:128:0:1")
    snapshot = snapshot_of(disk, log)
    disk.mkdir("/out")
    with pytest.raises(BadRequestError, match="exists"):
        export_journal(disk, snapshot, "/out", Format.KESTREL, now_us=NOW)
    with pytest.raises(LogFailedError):
        export_journal(disk, "/log", "/new", Format.KESTREL, now_us=NOW)
    path = f"{snapshot}/000000001.log"
    data = bytearray(disk.read(path))
    data[60] ^= 1
    disk.unlink(path)
    disk.create(path).write(bytes(data))
    with pytest.raises(LogCorruptError) as caught:
        export_journal(disk, snapshot, "/new", Format.KESTREL, now_us=NOW)
    assert caught.value.path == path
    assert not disk.exists("/new")


@each_target
def test_export_has_modes_that_are_no_wider_than_those_of_the_snapshot(
    to: Target, tmp_path: Path
) -> None:
    log = SegmentBuilder(0)
    log.entry(b"q:128:0:1")
    disk = OsDisk()
    snapshot = snapshot_of(disk, log, directory=str(tmp_path))
    for name in os.listdir(snapshot):
        os.chmod(f"{snapshot}/{name}", 0o600)
    os.chmod(snapshot, 0o700)
    export(disk, snapshot, to, str(tmp_path / "out"))
    assert stat.S_IMODE(os.stat(tmp_path / "out").st_mode) == 0o700
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "out").iterdir()}
    assert modes == {0o600}


def test_export_to_workq_keeps_the_ids_of_its_jobs_and_none_is_there_twice() -> None:
    log = SegmentBuilder(0)
    job_id = "00112233445544668877990011223344"
    for domain in ("a", "b"):
        log.entry(f"{domain}:128:0:{job_id}".encode())
    disk = SimulatedDisk()
    export_journal(disk, snapshot_of(disk, log), "/out", Format.WORKQ, now_us=NOW)
    assert_workq_accepts(segments_of(disk))
    with open_workq(disk, "/out") as journal:
        first, second = (item.key.rpartition(b":")[2] for item in journal.items())
    assert first.decode() == job_id
    assert second != first


@each_target
def test_export_gives_no_two_domains_one_queue_also_where_one_has_the_new_name_of_the_other(
    to: Target,
) -> None:
    domains = [b"-x", b"_x_b597a201", b"a.b", b"a_b_e8a9d8d4", b"t" * 300]
    log = SegmentBuilder(0)
    for domain in domains:
        log.entry(domain + b":128:0:1", value=domain)
    _, found, _ = exported(to, log)
    queues = {work.domain for work in found}
    assert sorted(work.value for work in found) == sorted(domains)
    assert len(queues) == len(domains)


def test_export_to_beanstalkd_leaves_out_values_that_its_largest_limit_drops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from fastjournal.foreign import beanstalkd

    monkeypatch.setattr(beanstalkd, "BODY_BYTES_MAX", 9)
    log = SegmentBuilder(0)
    for size in (7, 8, 9):
        log.entry(b"q:7:0:%d" % size, value=b"v" * size)
    done, found, _ = exported(TARGETS["beanstalkd"], log)
    # a start counts the final CR LF
    assert [len(work.value) for work in found] == [7]
    assert done.left_out == {"values_too_large": 2}


def test_export_to_kestrel_has_no_expiry_that_its_clock_does_not_hold() -> None:
    latest = 9_223_372_036_854_999
    log = SegmentBuilder(0)
    for number, expires in enumerate((0, latest, latest + 1, INSTANT_MAX)):
        log.entry(b"q:128:1:%d" % number, expires=expires, arrival=number)
    done, found, _ = exported(TARGETS["kestrel"], log)
    end = INSTANT_MAX // 1000 * 1000
    assert [work.expires for work in found] == [0, latest - 999, end, end]
    assert done.not_carried == {"expiries_after_2262": 2}


def test_export_to_kestrel_has_no_name_of_nothing_but_plus_signs() -> None:
    log = SegmentBuilder(0)
    for domain in (b"+", b"++", b"+a", b"a+", b"a+b"):
        log.entry(domain + b":128:1:1")
    done, _, disk = exported(TARGETS["kestrel"], log)
    names = [name for name in disk.listdir("/out") if "+" not in name]
    assert [name[:2] for name in names] == ["__", "__"]
    assert sorted(set(disk.listdir("/out")) - set(names)) == ["+a", "a+", "a+b"]
    assert done.not_carried == {"domains_renamed": 2}


def test_export_to_kestrel_leaves_room_in_names_for_those_of_its_packs() -> None:
    log = SegmentBuilder(0)
    for size in (236, 237):
        log.entry(b"%b:128:0:1" % (b"q" * size))
    _, _, disk = exported(TARGETS["kestrel"], log)
    assert [len(name) for name in disk.listdir("/out")] == [236, 236]


@pytest.mark.parametrize("name", ["beanstalkd", "beanstalkd-5"])
def test_export_to_beanstalkd_cuts_times_that_no_put_command_has(name: str) -> None:
    most = (2**32 - 1) * SECOND
    log = SegmentBuilder(0)
    log.operation(Limit(b"a", 0, 0, most + 1, 0, again=False))
    log.operation(Limit(b"b", 0, 0, most, 0, again=False))
    log.entry(b"a:128:%d:1" % INSTANT_MAX, not_before=INSTANT_MAX)
    log.entry(b"b:128:%d:1" % (NOW + most), not_before=NOW + most)
    done, found, disk = exported(TARGETS[name], log)
    assert done.not_carried == {
        "limited_domains": 2,
        "delays_cut_to_136_years": 1,
        "leases_cut_to_136_years": 1,
    }
    assert [work.instant for work in found] == [NOW + most, NOW + most]
    with open_beanstalkd(disk, "/out") as journal:
        assert [queue.ttr_us for queue in journal.queues] == [(most, most, most)] * 2


@each_target
def test_export_is_refused_before_the_snapshot_is_read_where_nothing_can_be_written(
    to: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SimulatedDisk()
    snapshot = snapshot_of(disk, SegmentBuilder(0))
    disk.create("/file").write(b"")
    monkeypatch.delattr(snapshot_entries, "inspect_log")
    with pytest.raises(LogFailedError, match="cannot create directory"):
        export(disk, snapshot, to, "/file/out")


@each_target
def test_export_that_fails_anywhere_leaves_nothing_or_all(to: Target) -> None:
    log = SegmentBuilder(0)
    for name in (b"a", b"b", b"c"):
        log.entry(name + b":128:0:1")
    for count in range(1, 100):
        disk = SimulatedDisk()
        snapshot = snapshot_of(disk, log)
        before = disk.listdir("/")
        disk.fail_at(count)
        try:
            export(disk, snapshot, to)
        except (LogFailedError, LogCorruptError):
            if disk.exists("/out"):
                # the last call makes a name durable that is there already
                assert len(read_items(disk, to)) == 3
            else:
                assert disk.listdir("/") == before
        else:
            break
    assert 10 < count < 99


@each_target
def test_export_takes_nothing_of_one_that_was_killed_with_the_same_process_id(to: Target) -> None:
    disk = SimulatedDisk()
    log = SegmentBuilder(0)
    log.entry(b"q:128:0:1")
    snapshot = snapshot_of(disk, log)
    left = f"/out.partial-{os.getpid()}"
    disk.mkdir(left)
    disk.create(f"{left}/binlog.2").write(b"old")
    done = export(disk, snapshot, to)
    assert len(disk.listdir("/out")) == done.files == 1
    assert disk.listdir(left) == ["binlog.2"]
