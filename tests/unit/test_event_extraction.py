"""Event extraction: kinds of events that a record alone does not tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fastjournal.cmdlog.archive import MISSING, Gap, gaps_between
from fastjournal.cmdlog.recovery.recover import recover
from fastjournal.disk import OsDisk
from fastjournal.keys import build_journal_key
from fastjournal.protocol.constants import Flag, Function
from fastjournal.spark.history.event_rows import EventRow
from fastjournal.spark.history.extractor import extract_events
from fastjournal.spark.storage.files import SegmentFile
from fastjournal.testing.logs import SegmentBuilder
from fastjournal.testing.workq_rules import WorkqJobState, assert_workq_accepts
from fj_cli.demo.history_log import HistoryLog
from tests.property.compacted_log import LOG, CompactedLog
from tests.property.subject import SECOND, START
from tests.property.test_event_extraction import events_of_segment

DOMAIN = b"a"


def key(number: int) -> bytes:
    return b"a:1:0:%d" % number


class Told:
    """A log, and the events of what was appended since the last look."""

    def __init__(self) -> None:
        self.log = CompactedLog(cmdlog_seg_size=1 << 20, max_attempts=0, retry_delay=0)

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


def leased(told: Told, number: int) -> dict[str, int]:
    """Lease an entry; return what a request shows of the lease."""
    told.log.pass_time(1)
    reply = told.log.ask(Function.NEXT, DOMAIN, timeout=60_000_000)
    assert [pair.key for pair in reply.pairs or ()] == [key(number)]
    assert reply.timeout is not None
    return {"flags": Flag.WORKED_ON, "timeout": reply.timeout}


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


# --- event gaps -----------------------------------------------------------------------------------
# Gaps between archived segments: each number that is nowhere is in one, with its reason.


def known(first: int, last: int, reason: str = "dropped") -> Gap:
    return Gap(first, last, 1, 1, first * 10, last * 10, reason)  # type: ignore[arg-type] # any


def test_gaps_of_absurd_numbers_are_found_at_once() -> None:
    gaps = [known(5, 2**62), known(1, 2)]
    assert gaps_between([(3, 3), (2**61, 2**61)], gaps, 2**61) == [
        (1, 2, 10, 20, "dropped"),
        (4, 4, None, None, MISSING),
        (5, 2**61 - 1, 50, 2**62 * 10, "dropped"),
    ]


# --- demo history ---------------------------------------------------------------------------------
# Demo history: its log is one that the daemon could have written, and that workq starts on.


def key_history(number: int) -> bytes:
    return build_journal_key(b"a.example", b"%d" % number, not_before_us=START, priority=1)


@pytest.mark.parametrize("buried", [False, True])
def test_log_of_a_page_that_changes_again_is_one_that_workq_accepts(
    tmp_path: Path, buried: bool
) -> None:
    directory = str(tmp_path / "log")
    log = HistoryLog(Path(directory), 1 << 20)
    old = log.set(key_history(1), b"uri", START, START, None)
    if buried:
        log.lease(old, START, START + SECOND)
        log.bury(old, b"reason", START)
    now = START + 2 * SECOND
    new = log.set(key_history(2), b"uri", now, now, old)
    log.close()
    jobs = {
        number.bytes: job.state
        for number, job in assert_workq_accepts(directory).jobs.items()
        if job.record.name == "a.example"
    }
    assert jobs == {new: WorkqJobState.NEW} | ({} if buried else {old: WorkqJobState.COMPLETED})
    recovered = recover(OsDisk(), directory, now_us=now)
    assert list(recovered.state.jobs) == [new]
    assert recovered.state.tombstones[key_history(1)].timestamp == now


@pytest.mark.parametrize("last", [True, False])
def test_unfinished_group_is_told_only_where_a_further_segment_shows_that_it_ends_there(
    last: bool,
) -> None:
    log = SegmentBuilder()
    log.entry(key(0))
    log.batch(2)
    log.entry(key(1))
    data = bytes(log)
    segment = SegmentFile("000000001.log", 1, len(data), last=last, open=last)
    found = [event.key for event in extract_events(data, segment)]
    assert found == [key(0)] + ([] if last else [key(1)])


def test_pause_of_everything_is_an_event_without_a_domain() -> None:
    told = Told()
    for name, ttl in ((b"", 9), (b"", 0), (b"a", 9)):
        told.log.done(Function.PAUSE, name, ttl=ttl)
    events = [(str(event.event), event.domain) for event in told.events()]
    assert events == [("paused", None), ("resumed", None), ("paused", "a")]
