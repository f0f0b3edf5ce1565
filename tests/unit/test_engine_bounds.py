"""Bounded work: entries due, expired or erased at one instant are processed in bounded parts."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from fastjournal.cmdlog.format.layout import SEGMENT_HEADER
from fastjournal.cmdlog.recovery.replay import Replay
from fastjournal.cmdlog.recovery.scan import scan_segment
from fastjournal.limits import ENTRY_WORK, TOMBSTONE_BYTES
from fastjournal.protocol import Flag, Function, Reply, Request, decode_reply
from fastjournal.protocol.constants import QUERY_SHIFT, Query
from fastjournald.engine.engine import Engine, Scan, Settings, new_journal
from fastjournald.tables.tombstones import TOMBSTONES_DROPPED, Tombstones

NOW = 1_790_000_000_000_000
LATER = NOW + 10_000_000
PART = 8


class Daemon:
    """An engine and what it wrote."""

    def __init__(self) -> None:
        self.log: list[bytes] = [SEGMENT_HEADER]
        settings = Settings()
        self.engine = Engine(settings, new_journal(settings, self._append, bytes(8)))

    def _append(self, data: bytes, records: int, now: int) -> int:
        self.log.append(data)
        return 0

    def ask(self, function: Function, now: int, *, key: bytes = b"", **fields: object) -> Reply:
        flags = int(fields.pop("flags", 0))
        request = Request(function, 0, flags, now, key, **fields)
        answer = self.engine.handle("s", request, now)
        assert answer is not None
        return decode_reply(answer)

    def set(self, key: bytes, **fields: object) -> None:
        fields = {"value_type": 1, "flags": Flag.PERSIST, **fields}
        assert not self.ask(Function.SET, NOW, key=key, **fields).error

    def stats(self, now: int) -> dict[str, int]:
        reply = self.ask(Function.STATS, now)
        assert reply.pairs
        numbers: dict[str, int] = json.loads(reply.pairs[0].value)
        return numbers

    def until_settled(self, now: int) -> Iterator[None]:
        """Advance, part after part."""
        while (wake := self.engine.next_wake()) is not None and wake <= now:
            self.engine.advance(now)
            yield

    def attempts_by_log(self) -> dict[bytes, int]:
        data = b"".join(self.log)
        scan = scan_segment(data)
        replay = Replay()
        replay.start_segment(1, data)
        for run in scan.runs:
            replay.replay(run, last=True)
        return {job.key: job.attempts for job in replay.state.jobs.values()}


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Daemon:
    monkeypatch.setattr("fastjournald.engine.engine.ADVANCE_WORK_MAX", PART * ENTRY_WORK)
    monkeypatch.setattr("fastjournald.engine.dispatcher.READY_DOMAINS_MAX", PART)
    return Daemon()


def test_entries_that_become_due_at_one_instant_come_in_parts(daemon: Daemon) -> None:
    for number in range(3 * PART):
        daemon.set(b"d:1:%d:%d" % (LATER, number))
    assert daemon.stats(LATER)["due"] == PART
    assert daemon.stats(LATER)["due"] == PART
    assert daemon.stats(LATER + 1)["due"] == PART, "one request applies a part: others do not wait"
    assert daemon.engine.next_wake() == LATER
    assert sum(1 for _ in daemon.until_settled(LATER + 1)) == 2, "the timers apply the rest"
    assert daemon.stats(LATER + 1)["due"] == 3 * PART
    daemon.set(b"d:1:%d:x" % (LATER + 5))
    assert daemon.stats(LATER + 5)["due"] == 3 * PART + 1, "from here on requests do it again"
    daemon.engine.check()


def test_lives_that_end_at_one_instant_end_in_parts(daemon: Daemon) -> None:
    for number in range(2 * PART + 1):
        daemon.set(b"k%d" % number, timeout=LATER)
    assert daemon.stats(LATER)["entries"] == PART + 1
    assert sum(1 for _ in daemon.until_settled(LATER)) == 2
    assert daemon.stats(LATER)["entries"] == 0
    daemon.engine.check()


def test_lease_is_lost_at_its_end_also_where_that_was_not_applied_yet(daemon: Daemon) -> None:
    keys = [b"d:1:0:%d" % number for number in range(2 * PART)]
    for key in keys:
        daemon.set(key)
    tokens = {
        key: daemon.ask(Function.GET, NOW, key=key, flags=Flag.TIMEOUT, timeout=LATER - NOW).timeout
        for key in keys
    }
    late = max(token for token in tokens.values() if token)
    daemon.ask(Function.NOP, late)
    held = [key for key in keys if (entry := daemon.engine.store.find(key)) and entry.token]
    assert len(held) == PART
    for function in (Function.RELEASE, Function.DELETE, Function.TOUCH):
        about = {"key": held[0], "flags": Flag.WORKED_ON, "timeout": tokens[held[0]], "ttl": 1}
        assert daemon.ask(function, late, **about).code == "lease-lost"
    for _ in daemon.until_settled(late):
        pass
    assert daemon.attempts_by_log() == dict.fromkeys(keys, 1)
    daemon.engine.check()


def test_oldest_due_is_looked_for_in_so_many_domains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastjournald.engine.handlers.stats.OLDEST_DUE_LOOKS_MAX", 3)
    daemon = Daemon()
    for number in range(3):
        daemon.set(b"d%d:1:%d:x" % (number, NOW - 1000 + number))
    daemon.set(b"z:1:%d:x" % (NOW - 5000))
    assert daemon.stats(NOW)["oldest_due_us"] == 1000
    daemon.ask(Function.NEXT, NOW)
    assert daemon.stats(NOW)["oldest_due_us"] == 5000


def test_tombstones_whose_time_is_over_go_a_few_at_a_time() -> None:
    tombstones = Tombstones(ttl_us=1000, number_max=100)
    for number in range(50):
        tombstones.put(b"%d" % number, 1, NOW)
    tombstones.put(b"new", 1, NOW + 1000)
    assert len(tombstones) == 51 - TOMBSTONES_DROPPED
    assert tombstones.get(b"49", NOW + 1000) is None
    for number in range(50):
        tombstones.put(b"new%d" % number, 1, NOW + 1000)
    assert len(tombstones) == 51


def test_tombstones_are_bounded_in_number_and_the_oldest_go() -> None:
    tombstones = Tombstones(ttl_us=1000, number_max=3)
    for number in range(5):
        tombstones.put(b"%d" % number, number, NOW)
    assert tombstones.items() == [(b"2", 2), (b"3", 3), (b"4", 4)]


def test_tombstones_are_bounded_in_bytes_and_the_oldest_go() -> None:
    bytes_max = 100 * (TOMBSTONE_BYTES + 20)
    tombstones = Tombstones(ttl_us=1000, number_max=10_000, bytes_max=bytes_max)
    for number in range(1000):
        tombstones.put(b"%020d" % number, number, NOW)
    assert [key for key, _ in tombstones.items()] == [b"%020d" % n for n in range(900, 1000)]
    # a long one takes the place of a dozen
    tombstones.put(bytes(4096), 1, NOW)
    assert len(tombstones) == 88
    for number in range(100):
        tombstones.put(b"%04096d" % number, number, NOW)
        assert tombstones.bytes == sum(TOMBSTONE_BYTES + len(key) for key, _ in tombstones.items())
        assert tombstones.bytes <= bytes_max
    assert [timestamp for _, timestamp in tombstones.items()] == list(range(93, 100))
    # put again, and taken away
    tombstones.put(b"%04096d" % 94, 94, NOW)
    assert tombstones.discard(b"%04096d" % 95)
    assert not tombstones.discard(b"%04096d" % 95)
    assert tombstones.bytes == 6 * (TOMBSTONE_BYTES + 4096)
    for key, _ in tombstones.items():
        tombstones.discard(key)
    assert tombstones.bytes == 0


def test_tombstones_that_will_make_room_last_shorter() -> None:
    tombstones = Tombstones(ttl_us=1000, number_max=10_000, bytes_max=10 * (TOMBSTONE_BYTES + 20))
    tombstones.put(b"%020d" % 0, 0, NOW)
    assert tombstones.lasts_until(NOW + 100, NOW + 100) == NOW + 1100
    for number in range(5):
        tombstones.put(b"%020d" % number, 0, NOW + 10)
    assert tombstones.lasts_until(NOW + 100, NOW + 100) == NOW + 190


def test_tombstones_without_a_life_are_not_kept() -> None:
    tombstones = Tombstones(ttl_us=0, number_max=3)
    tombstones.put(b"a", 1, NOW)
    assert len(tombstones) == 0


def waiting(daemon: Daemon, number: int, key: bytes = b"d", **fields: object) -> None:
    for asked in range(number):
        request = Request(Function.NEXT, asked, int(Flag.LISTEN), NOW, key, **fields)
        assert daemon.engine.handle(f"waits {asked}", request, NOW) is None


def served(daemon: Daemon, now: int) -> list[list[int]]:
    """Serve as the timers do; return the identifiers that each go answers."""
    goes = []
    while (wake := daemon.engine.next_wake()) is not None and wake <= now:
        daemon.engine.advance(now)
        answers = daemon.engine.serve_waiters(now)
        if answers:
            goes.append([decode_reply(data).identifier for _, data in answers])
        daemon.engine.check()
    return goes


def test_waiting_requests_are_served_in_parts_in_the_order_of_asking(
    monkeypatch: pytest.MonkeyPatch, daemon: Daemon
) -> None:
    monkeypatch.setattr("fastjournald.engine.dispatcher.SERVED_MAX", 4)
    for number in range(PART):
        daemon.set(b"d:1:%d:%d" % (LATER, number))
    waiting(daemon, PART + 2)
    goes = served(daemon, LATER)
    assert goes == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert len(daemon.engine.waiters) == 2


def test_newly_ready_domains_are_examined_in_parts(daemon: Daemon) -> None:
    last = b"d%d" % (2 * PART)
    for number in range(2 * PART + 1):
        daemon.set(b"d%d:1:0:x" % number)
    leased = daemon.ask(Function.NEXT, NOW, key=last)
    request = Request(Function.NEXT, 7, int(Flag.LISTEN), NOW, last)
    assert daemon.engine.handle("waits", request, NOW) is None
    daemon.engine.context.read_only = True
    release = {"flags": Flag.WORKED_ON, "timeout": leased.timeout}
    assert not daemon.ask(Function.RELEASE, NOW, key=last + b":1:0:x", **release).error
    assert not daemon.engine.serve_waiters(NOW)
    assert not daemon.engine.resume(NOW), "it is none of the first"
    assert served(daemon, NOW) == [[7]]


def test_large_replies_to_those_who_wait_are_gathered_up_to_a_bound(
    monkeypatch: pytest.MonkeyPatch, daemon: Daemon
) -> None:
    monkeypatch.setattr("fastjournald.engine.dispatcher.REPLIES_BYTES_MAX", 1500)
    for number in range(6):
        daemon.set(b"d:1:%d:%d" % (LATER, number), value=bytes(1000))
    for asked in range(6):
        request = Request(Function.NEXT, asked, int(Flag.LISTEN | Flag.DATA), NOW, b"d")
        assert daemon.engine.handle(f"waits {asked}", request, NOW) is None
    assert served(daemon, LATER) == [[0, 1], [2, 3], [4, 5]]


def test_waiting_next_whose_time_is_over_is_answered_in_parts(
    monkeypatch: pytest.MonkeyPatch, daemon: Daemon
) -> None:
    monkeypatch.setattr("fastjournald.engine.dispatcher.SERVED_MAX", 4)
    waiting(daemon, 10, ttl=LATER - NOW)
    assert [len(go) for go in served(daemon, LATER)] == [4, 4, 2]


@pytest.mark.parametrize("timeout", [None, 1_000_000])
def test_scan_that_waited_until_memory_was_scarce_gathers_little(timeout: int | None) -> None:
    daemon = Daemon()
    for number in range(50):
        daemon.set(b"k%02d" % number, value=bytes(1000))
    flags = int(Flag.DATA) | Query.RANGE << QUERY_SHIFT
    request = Request(Function.GET, 0, flags, NOW, b"k", b"l", timeout=timeout, count=0)
    scan = daemon.engine.handle("s", request, NOW)
    assert isinstance(scan, Scan)
    daemon.engine.context.ration(4096)
    while (data := daemon.engine.step(scan, NOW)) is None:
        pass
    reply = decode_reply(data)
    assert reply.pairs
    assert len(data) < 4096
    assert reply.cursor
    assert daemon.engine.store.leases.count == (0 if timeout is None else len(reply.pairs))
