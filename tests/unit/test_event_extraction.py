"""Event extraction: kinds of events that a record alone does not tell."""

from __future__ import annotations

from typing import Any

import pytest

from fastjournal.protocol.constants import Flag, Function, ValueType
from fastjournal.spark.history.event_rows import POPPED, UNDELIVERED, EventRow
from tests.property.compacted_log import LOG, CompactedLog
from tests.property.test_event_extraction import events_of_segment

DOMAIN = b"a"


def key(number: int) -> bytes:
    return b"a:1:0:%d" % number


class Told:
    """A log, and the events of what was appended since the last look."""

    def __init__(self) -> None:
        self.log = CompactedLog(cmdlog_seg_size=1 << 20)

    def set(self, *numbers: int, **how: Any) -> None:
        for number in numbers:
            self.log.pass_time(1)
            self.log.done(Function.SET, key(number), b"v", **how)
        self.log.pass_time(1)

    def events(self) -> list[EventRow]:
        self.log.flush()
        info = self.log.roll()
        return events_of_segment(info.name, self.log.disk.read(f"{LOG}/{info.name}"))

    def kinds(self) -> list[str]:
        return [str(event.event) for event in self.events()]


def test_removals_of_one_batch_are_a_purge_or_were_popped() -> None:
    told = Told()
    told.set(1, 2, 3, 4)
    assert told.kinds() == ["set"] * 4
    told.log.ask(Function.NEXT, DOMAIN, flags=Flag.OVERWRITE, count=2)
    told.log.pass_time(1)
    told.log.ask(Function.PURGE, DOMAIN, count=9)
    events = told.events()
    assert [(str(event.event), event.reason) for event in events] == [
        ("completed", POPPED),
        ("completed", POPPED),
        ("purged", None),
        ("purged", None),
    ]
    assert [event.wait_us for event in events] == [4_000_000, 3_000_000, None, None]


def test_dead_letter_that_is_deleted_is_no_purge() -> None:
    told = Told()
    told.set(1)
    told.log.done(Function.BURY, key(1), b"bad", kind=ValueType.STRING)
    told.log.done(Function.BURY, key(1), b"worse", kind=ValueType.STRING)
    told.log.pass_time(1)
    told.log.done(Function.DELETE, key(1))
    assert told.kinds() == ["set", "buried", "deleted"]


def test_popped_entry_that_was_not_delivered_has_returned() -> None:
    told = Told()
    told.set(1)
    entry = told.log.engine.store.find(key(1))
    assert entry is not None
    told.log.ask(Function.NEXT, DOMAIN, flags=Flag.OVERWRITE)
    told.log.pass_time(1)
    told.log.engine.release_undelivered([(0, [entry])], 9, told.log.clock.instant_us)
    events = told.events()
    assert [(str(event.event), event.reason) for event in events] == [
        ("set", None),
        ("completed", POPPED),
        ("returned", UNDELIVERED),
    ]


def test_lease_that_is_lost_at_the_last_attempt_is_lost_and_buried() -> None:
    told = Told()
    told.log.done(Function.LIMIT, DOMAIN, b'{"attempts":1}', kind=ValueType.STRING)
    told.set(1)
    told.log.ask(Function.NEXT, DOMAIN, timeout=1_000_000)
    told.log.pass_time(1)
    events = told.events()
    assert [str(event.event) for event in events] == ["limited", "set", "leased", "lost", "buried"]
    assert [event.attempt for event in events] == [None, None, 1, 1, None]
    assert events[3].run_us == 1_000_000


def test_lease_that_is_lost_at_its_own_bound_is_lost_and_buried() -> None:
    told = Told()
    told.set(1)
    bound = {"value": b'{"attempts":1}', "kind": ValueType.STRING}
    told.log.ask(Function.NEXT, DOMAIN, timeout=1_000_000, **bound)
    told.log.pass_time(1)
    assert told.kinds() == ["set", "leased", "lost", "buried"]


def test_entry_that_expires_while_it_is_leased_ends_its_lease() -> None:
    told = Told()
    now = told.log.clock.instant_us
    told.set(1, timeout=now + 6_000_000)
    told.set(2, timeout=now + 6_000_000)
    told.log.ask(Function.NEXT, DOMAIN, timeout=5_000_000)
    told.log.pass_time(10)
    kinds = told.kinds()
    assert sorted(kinds) == ["expired", "expired", "leased", "lost", "set", "set"]
    assert kinds.index("lost") < len(kinds) - 1


def test_lease_after_so_many_that_workq_wants_a_new_job_is_an_event_like_others() -> None:
    told = Told()
    told.set(1)
    for _ in range(260):
        told.log.ask(Function.NEXT, DOMAIN, timeout=1_000_000)
        told.log.pass_time(2)
    kinds = told.kinds()
    assert kinds.count("set") == 1
    assert kinds.count("leased") == kinds.count("lost") == 260
    assert kinds.count("returned") == 0


def test_lease_goes_on_in_the_next_segment() -> None:
    told = Told()
    told.set(1)
    lease = told.log.ask(Function.NEXT, DOMAIN, timeout=100_000_000).timeout
    assert lease is not None
    assert told.kinds() == ["set", "leased"]
    told.log.pass_time(7)
    told.log.done(Function.DELETE, key(1), flags=Flag.WORKED_ON, timeout=lease)
    (event,) = told.events()
    assert (str(event.event), event.domain, event.run_us) == ("completed", "a", 7_000_000)


def test_purge_of_one_entry_is_purged_and_a_deletion_with_its_timestamp_is_not_popped() -> None:
    told = Told()
    told.set(1, 2)
    told.log.done(Function.DELETE, key(1), at=told.log.entry(key(1)).timestamp)
    assert told.log.ask(Function.PURGE, DOMAIN).ttl == 1
    assert told.kinds() == ["set", "set", "deleted", "purged"]


@pytest.mark.parametrize("by_uri", [True, False])
def test_set_without_persist_replaces_a_leased_entry_and_completes_nothing(by_uri: bool) -> None:
    told = Told()
    told.set(1, uri=b"u")
    token = told.log.ask(Function.NEXT, DOMAIN, timeout=5_000_000).timeout
    told.log.pass_time(1)
    if by_uri:
        told.log.ask(Function.SET, key(2), b"v", uri=b"u", persist=False)
        told.log.done(Function.RELEASE, key(1), flags=Flag.WORKED_ON, timeout=token)
        assert told.kinds() == ["set", "leased", "returned", "replaced"]
    else:
        told.log.ask(Function.SET, key(1), b"v", flags=Flag.OVERWRITE, persist=False)
        assert told.kinds() == ["set", "leased", "replaced"]


def test_failed_attempt_of_an_entry_whose_uri_is_taken_is_failed_and_replaced() -> None:
    told = Told()
    told.set(1, uri=b"u")
    token = told.log.ask(Function.NEXT, DOMAIN, timeout=5_000_000).timeout
    told.set(2, uri=b"u")
    how = {"flags": Flag.WORKED_ON, "timeout": token, "kind": ValueType.STRING}
    told.log.done(Function.RELEASE, key(1), b"boom", **how)
    events = told.events()
    assert [str(event.event) for event in events] == ["set", "leased", "set", "failed", "replaced"]
    assert (events[3].reason, events[3].attempt) == ("boom", 1)
    told.log.assert_replays()


def test_rename_onto_another_entry_replaces_it_also_behind_a_kick() -> None:
    told = Told()
    told.set(1, 2)
    told.log.done(Function.BURY, key(1), b"bad", kind=ValueType.STRING)
    told.log.done(Function.KICK, key(1))
    told.log.done(Function.RENAME, key(1), uri=key(2), flags=Flag.OVERWRITE)
    assert told.kinds() == ["set", "set", "buried", "kicked", "renamed", "replaced"]


def behind_a_gap(told: Told) -> None:
    """Forget everything: what was before is in segments that are missing."""
    told.events()


def leased(told: Told, number: int) -> dict[str, int]:
    """Lease an entry; return what a request shows of the lease."""
    told.log.pass_time(1)
    reply = told.log.ask(Function.NEXT, DOMAIN, timeout=60_000_000)
    assert [pair.key for pair in reply.pairs or ()] == [key(number)]
    assert reply.timeout is not None
    return {"flags": Flag.WORKED_ON, "timeout": reply.timeout}


@pytest.mark.parametrize("in_gap", [True, False])
def test_failed_attempt_behind_a_gap_is_no_returned_lease(in_gap: bool) -> None:
    told = Told()
    told.set(1)
    lease = leased(told, 1) if in_gap else {}
    behind_a_gap(told)
    lease = lease or leased(told, 1)
    told.log.pass_time(1)
    told.log.done(Function.RELEASE, key(1), b"boom", kind=ValueType.STRING, **lease)
    told.log.pass_time(120)
    again = leased(told, 1)
    told.log.pass_time(1)
    told.log.done(Function.RELEASE, key(1), **again)
    assert told.kinds() == [*["leased"][in_gap:], "failed", "leased", "returned"]


@pytest.mark.parametrize("in_gap", [True, False])
def test_completion_behind_a_gap_has_key_and_domain_of_its_tombstone(in_gap: bool) -> None:
    told = Told()
    told.set(1)
    lease = leased(told, 1) if in_gap else {}
    behind_a_gap(told)
    lease = lease or leased(told, 1)
    told.log.pass_time(1)
    told.log.done(Function.DELETE, key(1), **lease)
    *_, event = told.events()
    assert (event.event, event.key, event.domain, event.priority) == ("completed", key(1), "a", 1)


def test_entry_from_a_gap_that_expires_or_is_renamed_while_it_is_leased_is_told() -> None:
    told = Told()
    told.set(1, timeout=told.log.clock.instant_us + 5_000_000)
    told.set(2)
    behind_a_gap(told)
    told.log.pass_time(10)
    assert told.kinds() == ["expired"]
    lease = leased(told, 2)
    behind_a_gap(told)
    told.log.pass_time(1)
    told.log.done(Function.RENAME, key(2), uri=key(3), flags=Flag.OVERWRITE)
    told.log.pass_time(1)
    told.log.done(Function.RELEASE, key(3), **lease)
    assert told.kinds() == ["renamed", "returned"]


@pytest.mark.parametrize("step", [7200, -7200], ids=["ahead", "back"])
def test_lease_that_a_step_of_the_clock_moved_is_lost_at_its_end_and_returned_before(
    step: int,
) -> None:
    told = Told()
    told.set(1, 2)
    tokens = [told.log.ask(Function.NEXT, DOMAIN, timeout=60_000_000).timeout for _ in range(2)]
    told.log.step_clock(step)
    told.log.pass_time(30)
    told.log.done(Function.RELEASE, key(1), timeout=tokens[0], flags=Flag.WORKED_ON)
    told.log.pass_time(31)
    events = told.events()
    one, two = (event.serial for event in events[:2])
    assert [event.key for event in events[:2]] == [key(1), key(2)]
    assert [(str(event.event), event.serial) for event in events] == [
        *(("set", one), ("set", two), ("leased", one), ("leased", two)),
        *(("returned", one), ("lost", two)),
    ]
