"""No damage to a log is ever taken for something else: state is right, or it is refused."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fastjournal.cmdlog.format.envelope import pack
from fastjournal.cmdlog.format.layout import SEGMENT_HEADER, Command
from fastjournal.cmdlog.format.operation_records import Erasure, Lease, Tombstone
from fastjournal.cmdlog.format.records import decode_record, encode_record
from fastjournal.cmdlog.recovery.recover import Recovered, recover, verify
from fastjournal.cmdlog.recovery.scan import scan_segment
from fastjournal.cmdlog.recovery.segment_reader import pack_segment, packed_bytes_max
from fastjournal.errors import LogCorruptError, LogError
from fastjournal.testing.disk import SimulatedDisk
from fastjournal.testing.logs import START_US, SegmentBuilder
from fastjournal.testing.workq_rules import assert_workq_accepts
from tests.property.packer import ALONE

pytestmark = pytest.mark.usefixtures("both_forms")

LOG = "/log"
NOW = START_US + 3_600_000_000
SECOND = 1_000_000
LEASE, BATCH = 4, 9
"""Indexes of the heads of the groups of ``a_log``; each has two members."""


def a_log() -> SegmentBuilder:
    log = SegmentBuilder()
    one = log.entry(b"p:128:0000000000000001:a", uri=b"u", value=b"")
    two = log.entry(b"p:128:0000000000000001:b", value=b"v")
    log.operation(Tombstone(b"t", START_US))
    log.lease([one, two], START_US + 60 * SECOND)
    log.now_us += SECOND
    log.entry(b"p:128:0000000000000001:c", uri=b"u")
    log.simple(Command.TIMEOUT_ATTEMPT, two)
    log.batch(2)
    log.complete(one, b"p:128:0000000000000001:a")
    log.fail(two, b"why")
    log.operation(Erasure(b"t"))
    log.entry(b"plain")
    return log


def a_disk(*segments: bytes) -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.mkdir(LOG)
    for number, data in enumerate(segments, 1):
        disk.create(f"{LOG}/{number:09d}.log").write(data)
    return disk


def files(disk: SimulatedDisk) -> dict[str, bytes]:
    names = [name for name in disk.listdir(LOG) if not name.endswith(".lock")]
    return {name: disk.read(f"{LOG}/{name}") for name in names}


def contents(result: Recovered) -> object:
    state = result.state
    jobs = {
        job_id: [getattr(job, name) for name in job.__struct_fields__ if name != "position"]
        for job_id, job in state.jobs.items()
    }
    keys = {key: job.job_id for key, job in state.keys.items()}
    return jobs, keys, state.tombstones, state.last_token


def without(log: SegmentBuilder, index: int) -> bytes:
    """The log without one record, and with its group as repair mends it."""
    data = bytes(log)
    ends = [*log.offsets[1:], len(data)]
    records = [data[start:end] for start, end in zip(log.offsets, ends, strict=True)]
    if index in (LEASE + 1, LEASE + 2):
        head, _ = decode_record(records[LEASE])
        payload = pack(Lease.bare(1, START_US + 60 * SECOND))
        records[LEASE] = encode_record(msgspec.structs.replace(head, payload=payload))
    records[index] = b""
    if index in (BATCH + 1, BATCH + 2):
        records[BATCH] = b""
    return SEGMENT_HEADER + b"".join(records)


def flips() -> list[int]:
    log = a_log()
    return list(range(len(log.offsets)))


@pytest.mark.parametrize("index", flips())
def test_damage_of_a_bit_is_refused_or_cut_and_repair_loses_that_record_alone(
    index: int, both_forms: str
) -> None:
    """Recovery is tried with one bit of each byte, the scan that it sees them through with all.

    With a worker: a worker packs none of these segments, so it changes only what comes behind:
    blocks of few entries, and the repaired segment.
    """
    log = a_log()
    data = bytes(log)
    ends = [*log.offsets[1:], len(data)]
    start, end = log.offsets[index], ends[index]
    expected = contents(recover(a_disk(without(log, index)), LOG, now_us=NOW))
    last = index == len(ends) - 1
    buffer = memoryview(bytearray(packed_bytes_max(len(data))))
    for at in range(start, end):
        for bit in range(8):
            bad = bytearray(data)
            bad[at] ^= 1 << bit
            if both_forms != ALONE:
                assert pack_segment(1, bytes(bad), buffer) is None
            if bit != at % 8:
                scan = scan_segment(bytes(bad))
                assert scan.usable_bytes == start
                assert scan.torn == last
                assert [end for _, _, end in scan.spans()] == [*ends[:index], *ends[index + 1 :]]
                continue
            disk = a_disk(bytes(bad))
            if last:
                result = recover(disk, LOG, now_us=NOW)
                assert contents(result) == expected
            else:
                with pytest.raises(LogCorruptError) as caught:
                    recover(disk, LOG, now_us=NOW)
                assert (caught.value.path, caught.value.offset) == (f"{LOG}/000000001.log", start)
                assert files(disk) == {"000000001.log": bytes(bad)}
                result = recover(disk, LOG, now_us=NOW, repair=True)
                assert contents(result) == expected
                again = recover(disk, LOG, now_us=NOW)
                assert contents(again) == expected
                assert again.diagnostics == []
            (found,) = result.diagnostics
            assert found.kept is not None
            assert disk.read(found.kept) == bad[start:end]


@pytest.mark.parametrize("at", range(8))
def test_damage_of_a_bit_in_the_header_is_refused_and_repaired(at: int) -> None:
    data = bytes(a_log())
    for bit in range(8):
        bad = bytearray(data)
        bad[at] ^= 1 << bit
        disk = a_disk(bytes(bad))
        with pytest.raises(LogCorruptError):
            recover(disk, LOG, now_us=NOW)
        recover(disk, LOG, now_us=NOW, repair=True)
        assert disk.read(f"{LOG}/000000001.log") == data


def test_record_lost_anywhere_leaves_a_log_that_workq_replays() -> None:
    log = a_log()
    for index, start in enumerate(log.offsets[:-1]):
        bad = bytearray(bytes(log))
        bad[start + 20] ^= 1
        disk = a_disk(bytes(bad))
        recover(disk, LOG, now_us=NOW, repair=True)
        assert_workq_accepts([disk.read(f"{LOG}/000000001.log")], now_us=0), index


def two_segments() -> tuple[bytes, bytes]:
    second = SegmentBuilder(1, ids_from=1000)
    ids = [second.entry(b"q:000:0000000000000001:%d" % number) for number in range(3)]
    second.lease(ids, START_US + 90 * SECOND)
    second.complete(ids[0], b"q:000:0000000000000001:0")
    return bytes(a_log()), bytes(second)


pieces = st.one_of(
    st.binary(max_size=40),
    st.integers(0, 700).map(bytes),
    st.tuples(st.integers(0, 900), st.integers(1, 300)).map(
        lambda span: two_segments()[0][span[0] : span[0] + span[1]]
    ),
)
edits = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 1200), st.integers(0, 300), pieces),
    min_size=1,
    max_size=5,
)


@given(edits)
@example([(1, 0, 0, two_segments()[0][1:103])])
@example([(1, 103, 0, two_segments()[0][:103])])
@example([(1, 8, 0, b"?" + two_segments()[0][8:103])])
def test_damage_of_any_kind_is_reported_changes_nothing_and_can_be_repaired(
    changes: list[tuple[int, int, int, bytes]],
) -> None:
    segments = [bytearray(data) for data in two_segments()]
    for number, at, length, piece in changes:
        segments[number][at : at + length] = piece
    original = [bytes(data) for data in segments]
    disk = a_disk(*original)
    diagnostics = verify(disk, LOG)
    before = files(disk)
    if any(found.damage for found in diagnostics):
        with pytest.raises(LogCorruptError):
            recover(disk, LOG, now_us=NOW)
        assert files(disk) == before
        result = recover(disk, LOG, now_us=NOW, repair=True)
    else:
        result = recover(disk, LOG, now_us=NOW)
    for found in result.diagnostics:
        if found.kind == "damaged" and found.bytes:
            assert found.kept is not None
            source = original[int(found.path[len(LOG) + 1 : len(LOG) + 10]) - 1]
            assert disk.read(found.kept) == source[found.offset : found.offset + found.bytes]
    again = recover(disk, LOG, now_us=NOW)
    assert contents(again) == contents(result)
    assert not any(found.damage for found in again.diagnostics)


@given(st.lists(st.one_of(st.binary(max_size=300), pieces), min_size=1, max_size=3))
def test_recovery_of_any_bytes_raises_nothing_but_errors_of_the_log(segments: list[bytes]) -> None:
    disk = a_disk(*segments)
    try:
        recover(disk, LOG, now_us=NOW)
    except LogError:
        recover(disk, LOG, now_us=NOW, repair=True)
    recover(disk, LOG, now_us=NOW)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"FJ\x01", b"", b"FJ"]),
            st.one_of(
                st.binary(max_size=60),
                st.recursive(
                    st.one_of(
                        st.none(),
                        st.integers(-(2**63), 2**64 - 1),
                        st.binary(max_size=9),
                        st.sampled_from(["lease", "batch", "segment", "touch", "tombstone"]),
                    ),
                    lambda inner: st.lists(inner, max_size=18),
                    max_leaves=20,
                ).map(msgspec.msgpack.encode),
            ),
            st.sampled_from(["fj.op", "fj.kv", "name", ""]),
            st.sampled_from(Command),
        ),
        max_size=6,
    )
)
def test_recovery_of_any_valid_records_raises_nothing_but_errors_of_the_log(
    contents_of: list[tuple[bytes, bytes, str, Command]],
) -> None:
    log = SegmentBuilder()
    job_id = log.entry(b"p:128:0000000000000001:a")
    log.entry(b"behind")
    template, _ = decode_record(bytes(log), log.offsets[1])
    for magic, body, name, command in contents_of:
        record = msgspec.structs.replace(
            template,
            command=command,
            job_id=job_id,
            name=name,
            payload=magic + body,
            result=magic + body,
        )
        log.record(encode_record(record))
    disk = a_disk(bytes(log))
    try:
        recover(disk, LOG, now_us=NOW)
    except LogCorruptError:
        recover(disk, LOG, now_us=NOW, repair=True)
    recover(disk, LOG, now_us=NOW)
