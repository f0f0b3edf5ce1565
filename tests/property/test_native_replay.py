"""Native replay: the leaves in C find the records and entries that Python finds."""

from __future__ import annotations

import gc
import sys
from array import array
from contextlib import suppress
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import astuple

from fastjournal import _native
from fastjournal.cmdlog.format.layout import Command
from fastjournal.cmdlog.recovery import entry_blocks as blocks
from fastjournal.cmdlog.recovery.entry_blocks import BLOCK_RECORDS_MAX, entry_blocks, row_blocks
from fastjournal.cmdlog.recovery.replay_state import ReplayState
from fastjournal.cmdlog.recovery.replayed_entry import ReplayedEntry
from fastjournal.cmdlog.recovery.scan import (
    HEADER_BYTES,
    OFFSET,
    RecordRun,
    scan_piece,
    scan_segment,
)
from fastjournal.testing.logs import START_US, SegmentBuilder
from fastjournald.engine.engine import Engine
from fastjournald.recovery import bulk_load
from fastjournald.tables.domain import Domain
from fastjournald.tables.entry import Entry
from fastjournald.tables.key_table import KeyTable
from fastjournald.tables.signals import Signals
from tests.property.fuzzing import without_leaves

pytestmark = pytest.mark.skipif(_native.leaves is None, reason="no native leaves are built")

NUMBERS = st.sampled_from([0, 1, 127, 128, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**47 - 1])
OUTER = st.one_of(NUMBERS, st.sampled_from([2**63, 2**64 - 1]))
BYTES = st.one_of(st.binary(max_size=9), st.sampled_from([b"v" * 255, b"v" * 256, b"v" * 65_536]))
FIELDS = st.fixed_dictionaries(
    {"timestamp": OUTER, "arrival": NUMBERS, "value": BYTES, "value_type": st.integers(0, 255)},
    optional={
        "uri": st.one_of(st.none(), BYTES),
        "created": OUTER,
        "modified": OUTER,
        "not_before": st.integers(0, START_US),
    },
)
RARE = st.fixed_dictionaries(
    {},
    optional={
        "links": st.just([b"link"]),
        **{
            name: st.integers(0, 1)
            for name in ("expires", "ttl", "attempts", "token", "superseded", "first_due", "due")
        },
        "reason": st.sampled_from([None, b"", b"why"]),
        "error": st.sampled_from([None, b"", b"error"]),
        "taken": st.sampled_from([(), (0,)]),
        "erases": st.booleans(),
        "origin": st.integers(0, 255),
    },
)
KEYS = st.sampled_from([b"plain", b"example.org:128:1795165389000000:1", b"k" * 255, b"k" * 256])


@st.composite
def segments(draw: st.DrawFn) -> bytes:
    """Records of entries, plain ones and others, of two runs of the daemon, and further records."""
    log = SegmentBuilder()
    for _ in range(draw(st.integers(0, 6))):
        kind = draw(st.integers(0, 4))
        if kind == 0:
            log.simple(Command.DELETE, log.job_id())
            continue
        rare = draw(RARE) if kind == 1 else {}
        run = draw(st.sampled_from([b"one run!", b"another!"]))
        fields = draw(FIELDS) | rare
        for at in range(draw(st.integers(1, 10))):
            job_id = run + (len(log.offsets) << 8 | at).to_bytes(8, "big")
            log.entry(draw(KEYS), job_id=job_id, **fields)
    return bytes(log)


def rows_of(data: bytes, run: RecordRun) -> dict[int, tuple[object, ...]]:
    """Return the arguments of ReplayedEntry of each record that Python takes into a block."""
    with mock.patch.object(blocks, "BLOCK_RECORDS_MIN", 1):
        return {
            block.first + at: row
            for block in row_blocks(data, 7, run)
            for at, row in enumerate(block.rows)
        }


def leaf_entries(data: bytes, run: RecordRun, index: int) -> tuple[int, list[ReplayedEntry], int]:
    """Return what the leaf finds from a record on."""
    assert _native.leaves is not None
    offsets = (array(OFFSET, run.bodies), array(OFFSET, run.ends))
    found: tuple[int, list[ReplayedEntry], int] = _native.leaves.read_entries(
        ReplayedEntry, data, 7, run.start, *offsets, index
    )
    return found


def check_entries(data: bytes, run: RecordRun) -> None:
    """Check that the leaf takes the entries with nothing rare, and gives what Python gives."""
    rows = rows_of(data, run)
    expected = {index: astuple(ReplayedEntry(*row)) for index, row in rows.items()}
    plain = {
        index
        for index, row in rows.items()
        if len(row) <= 6 or (len(row) == 9 and not any(row[6:]))
    }
    index = 0
    while index < len(run):
        first, jobs, highest = leaf_entries(data, run, index)
        assert not plain & set(range(index, first))
        for at, job in enumerate(jobs, first):
            assert at in plain
            assert astuple(job) == expected[at]
            assert type(job.facts) is type(job.key) is type(job.value) is type(job.job_id) is bytes
        assert highest == max((job.arrival for job in jobs), default=0)
        assert len({job.job_id[:8] for job in jobs}) == bool(jobs)
        behind = first + len(jobs)
        if jobs and behind in plain:
            # of another run, or one too many
            assert expected[behind][4][:8] != jobs[0].job_id[:8] or len(jobs) == BLOCK_RECORDS_MAX
        index = max(behind, index + 1)


@given(segments())
def test_entries_are_those_of_python_whatever_they_have(data: bytes) -> None:
    (run,) = scan_segment(data).runs
    check_entries(data, run)


@given(segments(), st.data())
def test_entries_are_those_of_python_with_bytes_that_no_checksum_saw(
    data: bytes, draw: st.DataObject
) -> None:
    (run,) = scan_segment(data).runs
    broken = bytearray(data)
    for _ in range(draw.draw(st.integers(1, 4))):
        at = draw.draw(st.integers(HEADER_BYTES, len(data) - 1))
        broken[at] = draw.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0x90, 0xC0, 0xC4, 0xDC, 0xFF]))
    check_entries(bytes(broken), run)


@given(segments())
def test_blocks_give_every_entry_once_and_the_same_as_without_leaves(data: bytes) -> None:
    (run,) = scan_segment(data).runs
    rows = rows_of(data, run)
    found = [
        (block.first + at, astuple(job))
        for block in entry_blocks(data, 7, run)
        for at, job in enumerate(block.jobs)
    ]
    assert [at for at, _ in found] == sorted({at for at, _ in found})
    assert all(job == astuple(ReplayedEntry(*rows[at])) for at, job in found)


def test_block_of_many_entries_is_cut_at_its_bound() -> None:
    log = SegmentBuilder()
    for number in range(BLOCK_RECORDS_MAX + 9):
        log.entry(b"k%d" % number, job_id=b"one run!" + number.to_bytes(8, "big"), arrival=number)
    (run,) = scan_segment(bytes(log)).runs
    check_entries(bytes(log), run)
    sizes = [len(block.jobs) for block in entry_blocks(bytes(log), 7, run)]
    assert sizes == [BLOCK_RECORDS_MAX, 9]


@given(segments(), st.data())
@example(b"", None)
def test_scan_is_that_of_python_for_any_bytes_and_every_cut(
    data: bytes, draw: st.DataObject | None
) -> None:
    broken, start, stop = bytearray(data), HEADER_BYTES, len(data)
    if draw is not None:
        for _ in range(draw.draw(st.integers(0, 3))):
            at = draw.draw(st.integers(0, len(data) - 1))
            broken[at] = draw.draw(st.integers(0, 255))
        del broken[draw.draw(st.integers(0, len(data))) :]
        start = draw.draw(st.integers(0, len(data)))
        stop = draw.draw(st.integers(0, len(data)))
    found = scan_piece(bytes(broken), start, stop)
    scan = scan_segment(bytes(broken))
    with without_leaves():
        expected = scan_piece(bytes(broken), start, stop)
        expected_scan = scan_segment(bytes(broken))
    for ours, theirs in zip([found, *scan.runs], [expected, *expected_scan.runs], strict=True):
        assert ours.start == theirs.start
        assert list(ours.bodies) == list(theirs.bodies)
        assert list(ours.ends) == list(theirs.ends)
    assert scan.damage == expected_scan.damage


def test_references_are_steady_over_many_calls() -> None:
    log = SegmentBuilder()
    for number in range(40):
        log.entry(b"k%d" % number, job_id=b"one run!" + number.to_bytes(8, "big"), uri=b"u")
    data = bytes(log)
    (run,) = scan_segment(data).runs
    counts = []
    for _ in range(2):
        for _ in range(500):
            leaf_entries(data, run, 0)
            scan_piece(data, HEADER_BYTES, len(data))
        gc.collect()  # also what the tests before have left
        counts.append((sys.getallocatedblocks(), sys.getrefcount(ReplayedEntry)))
    assert abs(counts[1][0] - counts[0][0]) < 100
    assert counts[1][1] == counts[0][1]


def test_entries_of_a_class_that_refuses_them_raise_and_leave_nothing() -> None:
    log = SegmentBuilder()
    log.entry(b"key", job_id=b"one run!" + bytes(8))
    (run,) = scan_segment(bytes(log)).runs
    offsets = (array(OFFSET, run.bodies), array(OFFSET, run.ends))
    assert _native.leaves is not None
    with pytest.raises(TypeError, match="int"):
        _native.leaves.read_entries(int, bytes(log), 7, run.start, *offsets, 0)
    counts = []
    for _ in range(2):
        for _ in range(300):
            with suppress(TypeError):
                _native.leaves.read_entries(int, bytes(log), 7, run.start, *offsets, 0)
        gc.collect()
        counts.append(sys.getallocatedblocks())
    assert abs(counts[1] - counts[0]) < 100


LOADED_KEYS = st.one_of(
    st.binary(max_size=30),
    st.from_regex(rb"[ab]:[0-9]{1,3}:[0-9]{15,17}:[0-9a-z]*", fullmatch=True),
    st.from_regex(rb"[ab]?:?12?:?[0-9]{16}:?", fullmatch=True),
)


@given(st.lists(LOADED_KEYS, max_size=20))
def test_loaded_keys_have_the_queues_of_python(keys: list[bytes]) -> None:
    found = []
    for leaves in (_native.leaves, None):
        with mock.patch.object(_native, "leaves", leaves):
            loading = bulk_load._Loading(Engine().store, ReplayState(), {}, START_US)
            # the second time all queues are known
            for queues in (loading._queues_of(keys), loading._queues_of(keys)):
                found.append([(queue.domain.name, queue.priority) for queue in queues])
    assert found[0] == found[1] == found[2] == found[3]


@given(st.lists(LOADED_KEYS, max_size=20))
def test_loaded_keys_are_added_as_python_adds_them(keys: list[bytes]) -> None:
    tables = []
    entries = [Entry(bytes(47), key, None, b"", Domain(b"")) for key in keys]
    for leaves in (_native.leaves, None):
        with mock.patch.object(_native, "leaves", leaves):
            table = KeyTable(Signals())
            table.sorted_keys()
            table.add_keys(keys, entries)
            tables.append((list(table.items()), table.sorted_keys().pending))
    assert tables[0] == tables[1]


def test_key_without_a_hash_is_refused() -> None:
    assert _native.leaves is not None
    shards: list[dict[bytes, object]] = [{} for _ in range(256)]
    with pytest.raises(TypeError, match="unhashable"):
        _native.leaves.put_keys(shards, [b"key", []], [1, 2])
    with pytest.raises(ValueError, match="another number"):
        _native.leaves.put_keys(shards, [b"key"], [])
    with pytest.raises(ValueError, match="another number"):
        _native.leaves.put_keys(shards[1:], [b"key"], [1])
    assert _native.leaves.find_queues({}, [b"key", 1, b"a:128:1795165389000000:1"]) == [None] * 3
