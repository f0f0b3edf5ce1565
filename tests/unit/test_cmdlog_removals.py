"""A removal whose replacement is lost in damage is not applied; every other one is."""

from __future__ import annotations

import pytest

from fastjournal.cmdlog.format.endings import (
    COMPLETED,
    DELETED,
    REPLACED,
    REPLACED_BY_URI,
    REWRITTEN,
)
from fastjournal.cmdlog.format.layout import Command
from fastjournal.cmdlog.format.operation_records import Batch, End, Lease, Rename, Tombstone
from fastjournal.cmdlog.recovery.recover import Diagnostic, Recovered, recover, verify
from fastjournal.errors import LogCorruptError
from fastjournal.testing.disk import SimulatedDisk
from fastjournal.testing.logs import START_US, SegmentBuilder
from fastjournal.testing.workq_rules import assert_workq_accepts

pytestmark = pytest.mark.usefixtures("both_forms")

LOG = "/log"
NAME = f"{LOG}/000000001.log"
NOW = START_US + 3_600_000_000
KEY = b"pages:128:0000000000000001:a"
OTHER = b"pages:128:0000000000000001:b"
URI = b"http://a/"
AGAIN = Lease.bare(1, NOW + 9, again=True)
"""A lease that goes on, of an entry that is written again."""


def lost(log: SegmentBuilder, *records: int) -> SimulatedDisk:
    """A disk with the log, in which these records are zeros."""
    data = bytearray(bytes(log))
    ends = [*log.offsets[1:], len(data)]
    for index in records:
        start = log.offsets[index]
        data[start : ends[index]] = bytes(ends[index] - start)
    disk = SimulatedDisk()
    disk.mkdir(LOG)
    disk.create(NAME).write(bytes(data))
    return disk


def repaired(log: SegmentBuilder, *records: int) -> Recovered:
    """Lose records; all ways name the same; return what is there after the repair."""
    disk = lost(log, *records)
    before = disk.read(NAME)
    found = verify(disk, LOG)
    with pytest.raises(LogCorruptError):
        recover(disk, LOG, now_us=NOW)
    assert disk.read(NAME) == before
    result = recover(disk, LOG, now_us=NOW, repair=True)

    def told(diagnostics: list[Diagnostic]) -> list[tuple[str, int, int, str]]:
        return [(one.kind, one.offset, one.bytes, one.message) for one in diagnostics]

    assert told(result.diagnostics) == told(found)
    for one in result.diagnostics:
        assert one.kept is not None
        assert disk.read(one.kept) == before[one.offset : one.offset + one.bytes]
    again = recover(disk, LOG, now_us=NOW)
    assert again.diagnostics == []
    assert values(again) == values(result)
    assert_workq_accepts([disk.read(NAME)], now_us=0)
    return result


def values(result: Recovered) -> dict[bytes, bytes]:
    return {job.key: job.value for job in result.state.jobs.values()}


@pytest.mark.parametrize("told", [True, False])
def test_removal_of_an_overwritten_entry_is_not_applied_where_the_new_entry_is_lost(
    told: bool,
) -> None:
    log = SegmentBuilder()
    one = log.entry(b"k", value=b"one")
    log.entry(b"k", value=b"two")
    if told:
        log.remove(one, REPLACED + 1)
    else:
        log.simple(Command.DELETE, one)
    log.entry(b"behind")
    result = repaired(log, 2)
    assert values(result) == {b"k": b"one", b"behind": b"value"}
    assert "key b'k'" in result.diagnostics[1].message


@pytest.mark.parametrize("told", [0, REPLACED + 1])
def test_complete_of_an_entry_whose_uri_was_taken_is_not_applied_where_the_new_one_is_lost(
    told: int,
) -> None:
    log = SegmentBuilder()
    one = log.entry(KEY, uri=URI, value=b"one")
    log.entry(OTHER, uri=URI, value=b"two")
    log.complete(one, KEY, how=told)
    log.entry(b"behind")
    result = repaired(log, 2)
    assert values(result)[KEY] == b"one"
    assert result.state.tombstones == {}


def test_delete_of_a_renames_target_is_not_applied_where_the_rename_is_lost() -> None:
    log = SegmentBuilder()
    one = log.entry(b"target", value=b"one")
    two = log.entry(b"k", value=b"two")
    log.operation(Batch(2))
    log.operation(Rename(two, b"target", START_US + 5, b"k", b""))
    log.remove(one, REPLACED + 1)
    log.entry(b"behind")
    assert values(repaired(log, 4)) == {b"target": b"one", b"k": b"two", b"behind": b"value"}
    # nor where the entry is lost that is renamed
    assert values(repaired(log, 2)) == {b"target": b"one", b"behind": b"value"}
    assert values(recover(lost(log), LOG, now_us=NOW)) == {b"target": b"two", b"behind": b"value"}


def test_complete_of_superseded_work_is_not_applied_where_what_superseded_it_is_lost() -> None:
    log = SegmentBuilder()
    one = log.entry(KEY, uri=URI, value=b"one")
    log.lease([one], NOW)
    log.entry(OTHER, uri=URI, value=b"two")
    log.entry(b"between")
    log.complete(one, KEY, how=REPLACED_BY_URI)
    log.entry(b"behind")
    assert values(repaired(log, 4))[KEY] == b"one"
    # what is lost has nothing to do with it
    found = values(repaired(log, 5))
    assert found[OTHER] == b"two"
    assert KEY not in found


@pytest.mark.parametrize("told", [COMPLETED, 0])
def test_completion_of_work_behind_unrelated_damage_is_applied(told: int) -> None:
    log = SegmentBuilder()
    one = log.entry(KEY, uri=URI)
    log.lease([one], NOW)
    log.entry(b"unrelated", value=b"v" * 600)
    log.complete(one, KEY, how=told)
    log.entry(b"behind")
    result = repaired(log, 4)
    assert values(result) == {b"behind": b"value"}
    assert list(result.state.tombstones) == [KEY]


@pytest.mark.parametrize("key", [b"k", b"k" * 300], ids=["short", "long"])
def test_completion_of_a_lost_entry_also_ends_what_stood_there_before_it(key: bytes) -> None:
    log = SegmentBuilder()
    one = log.entry(key, value=b"one")
    two = log.entry(key, value=b"two")
    log.remove(one, REPLACED + 1)
    log.entry(b"between")
    log.complete(two, key, START_US + 9)
    log.entry(b"behind")
    result = repaired(log, 2)
    assert values(result) == {b"between": b"value", b"behind": b"value"}
    assert result.state.tombstones[key].timestamp == START_US + 9
    assert len(result.diagnostics) == 1


@pytest.mark.parametrize("newer_is_lost", [True, False])
def test_entry_stands_where_its_restatement_and_what_superseded_that_are_lost(
    newer_is_lost: bool,
) -> None:
    log = SegmentBuilder()
    one = log.entry(KEY, uri=URI, value=b"one")
    log.lease([one], NOW + 9)
    log.operation(Batch(4))
    new = log.entry(KEY, uri=URI, value=b"one")
    log.operation(AGAIN)
    log.simple(Command.START_ATTEMPT, new)
    log.remove(one, REWRITTEN + 3)
    log.entry(OTHER, uri=URI, value=b"two")
    log.complete(new, KEY, how=REPLACED_BY_URI)
    log.entry(b"behind")
    if newer_is_lost:
        assert values(repaired(log, 5, 9)) == {KEY: b"one", b"behind": b"value"}
    else:
        assert values(repaired(log, 5)) == {OTHER: b"two", b"behind": b"value"}


@pytest.mark.parametrize("tombstone", [True, False])
def test_deletion_of_a_lost_dead_letter_also_ends_what_stood_there_before_it(
    tombstone: bool,
) -> None:
    log = SegmentBuilder()
    one = log.entry(KEY, value=b"one")
    log.operation(Batch(2))
    new = log.entry(KEY, value=b"one")
    log.remove(one, REWRITTEN + 1)
    log.fail(new, b"bad")
    timestamp = log.now_us if tombstone else None
    log.operation(End(1, new, timestamp, KEY, bytes((DELETED,)), 0))
    log.simple(Command.DELETE, new)
    log.entry(b"behind")
    stands = {} if tombstone else {KEY: b"one"}
    assert values(repaired(log, 3)) == stands | {b"behind": b"value"}


def test_entry_that_cannot_be_understood_counts_as_lost() -> None:
    log = SegmentBuilder()
    one = log.entry(b"k", value=b"one")
    log.operation(Tombstone(b"t", 1))
    entry = SegmentBuilder(None, ids_from=1 << 70)
    entry.foreign(b"fj.kv", b"FJ\x01\x91\x01")
    log.record(bytes(entry)[entry.offsets[0] :])
    log.remove(one, REPLACED + 1)
    assert values(repaired(log)) == {b"k": b"one"}


@pytest.mark.parametrize("lost_records", [(3,), (3, 4)])
def test_removal_of_a_dead_letter_is_not_applied_where_the_new_entry_is_lost(
    lost_records: tuple[int, ...],
) -> None:
    log = SegmentBuilder()
    one = log.entry(KEY, value=b"one")
    log.fail(one, b"why")
    log.entry(KEY, value=b"two")
    log.remove_buried(one, REPLACED + 1)
    log.entry(b"behind")
    result = repaired(log, *lost_records)
    assert values(result) == {KEY: b"one", b"behind": b"value"}
    assert [job.reason for job in result.state.jobs.values()] == [b"why", None]


@pytest.mark.parametrize("lost_record", [1, 5])
def test_removal_of_a_dead_letter_is_applied_behind_other_damage(lost_record: int) -> None:
    log = SegmentBuilder()
    log.entry(b"unrelated", value=b"v" * 600)
    one = log.entry(KEY, value=b"one")
    log.fail(one, b"why")
    log.remove_buried(one, DELETED)
    log.entry(b"behind")
    found = values(repaired(log, lost_record))
    # the operation is what counts, and not the delete, which workq needs
    assert KEY not in found
