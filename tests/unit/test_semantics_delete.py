"""DELETE: every sentence of docs/protocol.md about it, by example."""

from __future__ import annotations

from typing import Any

import pytest

from fastjournal import limits
from fastjournal.protocol import decode_reply
from fastjournal.protocol.constants import Flag, Function
from tests.property.compacted_log import LOG, CompactedLog
from tests.property.model_parts import Rules
from tests.property.subject import SECOND, START, EngineSubject, Subject, request
from tests.unit.engine_work import Daemon, do_bounded, key_of

JOB = b"a:1:0:x"
URI = b"http://example.org/"


@pytest.mark.parametrize("by", [JOB, URI])
def test_deleting_by_any_key_deletes_the_value_and_all_its_keys(s: Subject, by: bytes) -> None:
    s.set(JOB, uri=URI)
    assert s.delete(by) == ""
    assert (s.value(JOB), s.value(URI)) == (None, None)
    assert s.jobs() == []


# --- nothing there --------------------------------------------------------------------------------


@pytest.mark.warm_only
@pytest.mark.parametrize("flags", [0, Flag.OVERWRITE])
def test_deleting_nothing_from_the_future_changes_nothing(s: Subject, flags: int) -> None:
    s.delete(b"q", at=START)
    for key in (b"p", b"q"):
        assert s.delete(key, at=START + 60 * SECOND + 1, flags=flags) == "not-found"
    assert [s.set(b"p", at=START), s.set(b"q", at=START), s.set(b"q", at=START + 1)] == [
        "",
        "stale",
        "",
    ]


# --- OVERWRITE ------------------------------------------------------------------------------------


def test_overwrite_leaves_no_tombstone(s: Subject) -> None:
    s.set(b"p", at=START)
    assert s.delete(b"p", at=START + 5, flags=Flag.OVERWRITE) == ""
    assert s.set(b"p", b"again", at=START) == ""


# --- completing a job -----------------------------------------------------------------------------


def test_worker_completes_its_job_with_the_token(s: Subject) -> None:
    s.set(JOB)
    assert s.delete(JOB, token=s.lease()) == ""
    assert s.value(JOB) is None


def test_delete_with_a_token_is_never_stale(s: Subject) -> None:
    s.set(JOB, at=START)
    assert s.delete(JOB, token=s.lease(), at=START - 999 * SECOND) == ""


@pytest.mark.parametrize("flags", [0, Flag.PERSIST])
@pytest.mark.parametrize("completed_at", [START - 9 * SECOND, START + 20, START + 99 * SECOND])
def test_tombstone_of_a_completion_has_the_timestamp_of_the_entry(
    s: Subject, completed_at: int, flags: int
) -> None:
    again = Flag.OVERWRITE | Flag.WORKED_ON | flags
    s.set(JOB, at=START, flags=again)
    token = s.lease()
    assert s.set(JOB, b"asked for meanwhile", at=START + 10, flags=again) == "worked-on"
    assert s.delete(JOB, token=token, at=completed_at, flags=flags) == ""
    assert s.set(JOB, at=START, flags=again) == "stale"
    assert s.set(JOB, b"asked for meanwhile", at=START + 10, flags=again) == ""
    assert s.value(JOB) == b"asked for meanwhile"


def test_completion_from_a_clock_far_ahead_is_replayed_as_it_was() -> None:
    s = Subject(EngineSubject(Rules()))
    s.set(JOB, at=START, flags=Flag.PERSIST)
    s.delete(JOB, token=s.lease(), at=START + 90 * SECOND)
    s.target.restart(s.now)
    assert [s.set(JOB, at=START), s.set(JOB, at=START + 1)] == ["stale", ""]


# --- which error, where several apply -------------------------------------------------------------


@pytest.mark.warm_only
def test_token_is_looked_at_whatever_the_timestamp(s: Subject) -> None:
    s.set(JOB)
    assert s.delete(JOB, token=1, at=START + 60 * SECOND) == "lease-lost"
    assert s.delete(JOB, token=1, at=START + 60 * SECOND + 1) == "lease-lost"
    assert s.delete(JOB, at=START + 60 * SECOND + 1) == "clock-skew"


# --- PURGE ----------------------------------------------------------------------------------------
# PURGE: every sentence of docs/protocol.md about it, by example.


LATE = b"a:1:%d:x" % (START + 10 * SECOND)


def purge(s: Subject, domain: bytes = b"a", count: int | None = 250, **fields: Any) -> int:
    reply = s.ask(request(Function.PURGE, domain, **{"at": START + 5, "count": count, **fields}))
    assert (reply.error, reply.timeout, reply.pairs) == ("", None, None)
    assert reply.ttl is not None
    return reply.ttl


def test_purge_deletes_what_nobody_works_on(s: Subject) -> None:
    for name in (b"leased", b"ready", b"buried", b"locked", b"mine"):
        s.set(b"a:1:0:" + name, uri=b"uri of " + name)
        if name == b"leased":
            token = s.lease(b"a")
    s.set(LATE)
    s.bury(b"a:1:0:buried")
    s.lock(b"a:1:0:locked", session="other")
    s.lock(b"a:1:0:mine")
    s.set(b"b:1:0:x")
    s.set(b"plain")
    assert purge(s) == 4
    assert purge(s) == 0
    for key in (b"a:1:0:leased", b"a:1:0:locked", b"b:1:0:x", b"plain"):
        assert s.get(key).error == ""
    assert s.get(b"uri of ready").code == s.get(LATE).code == "not-found"
    assert s.delete(b"a:1:0:leased", token=token) == ""


@pytest.mark.parametrize(("count", "number"), [(None, 1), (0, 0), (1, 1), (3, 3), (5, 5), (9, 6)])
def test_purge_deletes_so_many_ready_then_delayed_then_buried(
    s: Subject, count: int | None, number: int
) -> None:
    order = [b"a:1:5:x", b"a:2:0:y", b"a:9:%d:x" % (START + 7), LATE, b"a:0:0:x", b"a:3:0:x"]
    for key in reversed(order):
        s.set(key)
    for key in order[-2:]:
        s.bury(key)
    assert purge(s, count=count) == number
    left = [key for key in order if not s.get(key).error]
    assert left == order[number:]


def test_purged_entries_leave_tombstones_of_the_later_time(s: Subject) -> None:
    for key, at in ((b"a:1:0:x", START), (b"a:1:0:y", START + 50)):
        s.set(key, at=at)
    assert purge(s) == 2
    for key, at in ((b"a:1:0:x", START + 5), (b"a:1:0:y", START + 50)):
        assert s.set(key, at=at) == "stale"
        assert s.set(key, at=at + 1) == ""
    assert purge(s, flags=Flag.OVERWRITE) == 2
    assert s.set(b"a:1:0:x", at=START + 2) == ""


def test_purge_from_a_clock_far_ahead_leaves_tombstones_of_the_daemons_time(s: Subject) -> None:
    s.set(b"a:1:0:x")
    s.later(SECOND)
    assert purge(s, at=START + 3600 * SECOND) == 1
    assert s.set(b"a:1:0:x", at=START + SECOND) == "stale"
    assert s.set(b"a:1:0:x", at=START + SECOND + 1) == ""
    assert purge(s, at=1) == 1


def test_purge_works_while_the_disk_is_nearly_full_and_for_what_is_paused() -> None:
    s = Subject(EngineSubject(Rules()))
    s.set(b"a:1:0:x")
    s.pause(b"a", SECOND)
    s.target.engine.context.read_only = True
    assert purge(s) == 1
    assert s.stats(b"a")["entries"] == 0


@pytest.mark.warm_only
@pytest.mark.bounded_work("PURGE")
@pytest.mark.parametrize("kind", ["plain", "links", "long keys", "locked"])
def test_purge_does_bounded_work(kind: str) -> None:
    daemon = Daemon()
    number = limits.PURGE_LOOKS_MAX + 9 if kind == "locked" else 300
    for at in range(number):
        key = b"d:1:0:%04080d" % at if kind == "long keys" else key_of(at)
        daemon.set(key, b"uri/%d" % at)
        if kind == "links" and at < 100:
            daemon.links(key)
        if kind == "locked":
            daemon.ask(Function.BURY, key)
            daemon.ask(Function.LOCK, key, session=at)
    numbers = []
    while sum(numbers) < number:
        asked = do_bounded(daemon, lambda: daemon.ask(Function.PURGE, b"d", count=65_535))
        numbers.append(decode_reply(asked).ttl or 0)
        if not numbers[-1]:
            break
    if kind == "locked":
        # what is behind is not looked for
        assert numbers == [0]
        return
    assert sum(numbers) == number
    assert numbers[0] == limits.PURGE_ENTRIES_MAX or kind != "plain"
    assert daemon.store.entries == 0


@pytest.mark.warm_only
@pytest.mark.parametrize("flags", [Flag(0), Flag.OVERWRITE])
def test_purge_that_a_crash_cuts_deletes_nothing(flags: Flag) -> None:
    log = CompactedLog()
    for name in (b"a", b"b", b"c"):
        log.done(Function.SET, b"d:1:0:" + name, b"v")
    log.done(Function.BURY, b"d:1:0:b")
    before = log.log_bytes()
    assert log.ask(Function.PURGE, b"d", count=9, flags=flags).ttl == 3
    after = log.log_bytes()
    disk, (segment,) = log.disk, log.segments()
    for size in range(before, after + 1):
        log.disk = disk.kill()
        log.disk.truncate(f"{LOG}/{segment}", size)
        log.start()
        assert log.engine.store.counts().entries == (0 if size == after else 3)
