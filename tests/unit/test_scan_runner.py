"""Scan runner: the key index is merged in idle slices that leave clients their turn."""

from __future__ import annotations

from itertools import chain, count
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from fastjournal import limits
from fastjournal.limits import (
    ALONE_WORK,
    FRESH_KEYS_MAX,
    GONE_BYTES_LEFT,
    GONE_KEYS_KEPT,
    GONE_KEYS_LEFT,
    GONE_KEYS_MAX,
    KEY_BYTES_MAX,
    RELIEVED_KEYS,
    TURN_WORK,
)
from fastjournal.protocol import Function, Query, Request, ValueType, decode_reply
from fastjournal.protocol.constants import QUERY_SHIFT
from fastjournald.admission.turn_budget import Share, TurnBudget
from fastjournald.engine.engine import Engine, Scan, Settings
from fastjournald.engine.handlers.scan.page import (
    DOMAINS,
    EXPRESSION,
    RANGE,
    Cursor,
    decode_cursor,
    encode_cursor,
)
from fastjournald.engine.key_filter import LongMatches
from fastjournald.runtime import Counters
from fastjournald.tables.value_cache import Unreadable
from fastjournald.tasks.scan_runner import (
    OTHERS_SECONDS,
    SHARED_SLICES,
    Others,
    Place,
    ScanQueue,
    ScanRunner,
)

NUMBER = 20_000


def indexed() -> tuple[Engine, Any]:
    """Return an engine, and its sorted keys."""
    engine = Engine(Settings())
    return engine, engine.store.keys.sorted_keys()


def a_runner(engine: Engine, turns: TurnBudget | None = None) -> ScanRunner:
    """Return a runner that only keeps the index."""
    turns = turns or TurnBudget(engine.store)
    runtime: Any = SimpleNamespace(engine=engine, counters=Counters(), turns=turns)
    waits: Any = None
    return ScanRunner(runtime, waits, waits)


async def test_idle_slices_merge_all_keys_and_none_does_more_than_the_work_of_a_turn() -> None:
    engine, index = indexed()
    # keys that have gone are merged the fastest
    index.pending += [b"%d" % number for number in range(NUMBER)]
    index.sort_pending(NUMBER // 2)
    index.fresh = {b"fresh %d" % number: False for number in range(1000)}
    index.gone += [b"gone %d" % number for number in range(1000)]
    works = []
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(a_runner(engine).keep_index)
            while not index.idle():
                before = engine.store.work
                await trio.lowlevel.checkpoint()
                works.append(engine.store.work - before)
            nursery.cancel_scope.cancel()
    assert list(index) == []
    assert sum(works) >= NUMBER
    assert max(works) <= 2 * TURN_WORK, "two turns, where this task comes first and then last"


async def test_keys_that_have_gone_are_taken_out_in_a_turn_of_their_own() -> None:
    """The client whose requests removed them does not wait for that, and is as alone as before."""
    engine, index = indexed()
    turns = TurnBudget(engine.store)
    runner = a_runner(engine, turns)
    client = Share()
    engine.store.work += ALONE_WORK
    turns.charge(client)
    engine.store.work += ALONE_WORK
    turns.charge(client)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runner.keep_index)
        await trio.testing.wait_all_tasks_blocked()
        left = GONE_KEYS_KEPT + TURN_WORK // limits.MERGE_WORK
        index.gone += [b"%d" % number for number in range(left)]
        # else the keys are taken out because nothing else is to be done
        engine.counters.requests[Function.DELETE] += 1
        work = engine.store.work
        runner.relieve_index()
        assert engine.store.work == work
        for _ in range(3):
            await trio.lowlevel.checkpoint()
        assert len(index.gone) == GONE_KEYS_KEPT
        assert turns.slice_work == TURN_WORK
        nursery.cancel_scope.cancel()


def test_keys_that_have_gone_are_taken_out_at_once_where_they_are_far_too_many() -> None:
    engine, index = indexed()
    number = GONE_KEYS_KEPT + GONE_KEYS_LEFT + 1
    index.gone += [b"%d" % at for at in range(number)]
    a_runner(engine).relieve_index()
    assert len(index.gone) == number - RELIEVED_KEYS


@pytest.mark.parametrize(("key_bytes", "taken"), [(4, 0), (KEY_BYTES_MAX, RELIEVED_KEYS)])
def test_keys_that_have_gone_are_taken_out_at_once_where_they_are_few_and_long(
    key_bytes: int, taken: int
) -> None:
    engine, index = indexed()
    number = GONE_BYTES_LEFT // KEY_BYTES_MAX
    assert GONE_KEYS_MAX < number < GONE_KEYS_LEFT
    index.gone += [b"%d" % at * (key_bytes // 4) for at in range(1000, 1000 + number)]
    a_runner(engine).relieve_index()
    assert len(index.gone) == number - taken


@pytest.mark.parametrize("keys_a_ms", [1, 20])
async def test_sorted_runs_become_few_keys_beside_a_stream_without_an_idle_moment(
    keys_a_ms: int, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RUN_KEYS_KEPT", 1000)
    engine, index = indexed()
    for run in range(5):
        index.pending += [b"%d" % number for number in range(run, NUMBER, 5)]
        index.sort_pending(NUMBER)
    runner = a_runner(engine)
    noted = 0
    # of the event loop's clock, which does not pass while keys are merged
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runner.keep_index)
            while index.run_keys > limits.RUN_KEYS_KEPT:
                await trio.sleep(0.001)
                engine.counters.requests[Function.SET] += 1
                engine.counters.requests[Function.DELETE] += 1
                for number in range(noted, noted + keys_a_ms):
                    index.fresh[b"new %d" % number] = True
                    index.gone.append(b"old %d" % number)
                noted += keys_a_ms
                if len(index.fresh) > FRESH_KEYS_MAX or len(index.gone) > GONE_KEYS_MAX:
                    runner.relieve_index()
                assert len(index.fresh) <= FRESH_KEYS_MAX
                assert len(index.gone) < GONE_KEYS_KEPT + GONE_KEYS_LEFT
            nursery.cancel_scope.cancel()
    assert noted > 100


# --- scan queue -----------------------------------------------------------------------------------
# Scan queue: scans take turns for its places; those of clients that may have gone come last.


def stays() -> bool:
    return False


KEYS = [b"%08x" % number for number in range(NUMBER)]
MATCHES = KEYS[::8]
"""Those of ``QUERIES["expression"]``."""
QUERIES: dict[str, dict[str, Any]] = {
    "range": {"key": b"", "second_key": b"", "flags": Query.RANGE << QUERY_SHIFT},
    "expression": {"key": b"[08]$", "flags": Query.REGEX << QUERY_SHIFT},
}
REPLY_SLICES = 2
"""Slices in which the reply of so short a page is encoded."""


class CountedScans(ScanRunner):
    """Carries out scans of ``KEYS``, and counts their slices; others work in each round between."""

    def __init__(self) -> None:
        self.engine, index = indexed()
        for key in KEYS:
            asked = Request(Function.SET, key=key, value_type=ValueType.BUFFER)
            self.engine.handle("writer", asked, 1)
        while index.merge(NUMBER):
            pass
        self.turns: Any = TurnBudget(self.engine.store)
        runtime: Any = SimpleNamespace(
            engine=self.engine,
            counters=Counters(),
            turns=self.turns,
            clock=SimpleNamespace(now_us=lambda: 1),
            after_requests=lambda _: None,
            release_undelivered=lambda _: None,
        )
        waits: Any = None
        super().__init__(runtime, waits, waits)
        self.works: list[int] = []
        """Work of each slice."""
        self.others = 0
        """Work of others in a round."""
        self.idle_rounds = 0
        """Rounds in which they do nothing after each with work."""

    def _slice(self, scan: Scan, unreadable: Unreadable) -> Any:
        before = self.engine.store.work
        outcome = super()._slice(scan, unreadable)
        self.works.append(self.engine.store.work - before)
        return outcome

    async def work_meanwhile(self) -> None:
        for number in count():
            await trio.lowlevel.checkpoint()
            if not number % (self.idle_rounds + 1):
                self.engine.store.work += self.others

    async def page(self, **fields: Any) -> tuple[list[bytes], bytes | None, list[int]]:
        """Return keys and cursor of a page, and the work of each of its slices."""
        scan = self.engine.handle("reader", Request(Function.GET, **fields), 1)
        assert isinstance(scan, Scan)
        share = Share()
        assert self.turns.admits(share)
        self.works = []
        reply = decode_reply(await self.run(scan, bool, bool, share))
        return [pair.key for pair in reply.pairs or ()], reply.cursor, self.works

    async def pages(self, **fields: Any) -> list[tuple[list[bytes], list[int]]]:
        """Return keys and slices of all pages, beside others."""
        pages = []
        cursor: bytes | None = b""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.work_meanwhile)
            while cursor is not None:
                keys, cursor, works = await self.page(**fields)
                pages.append((keys, works))
                fields = {"key": cursor, "flags": Query.CURSOR << QUERY_SHIFT}
            nursery.cancel_scope.cancel()
        return pages


@pytest.fixture
def scans(autojump_clock: MockClock) -> CountedScans:
    """Without a moment in which all tasks wait, no time passes."""
    return CountedScans()


@pytest.mark.parametrize("query", QUERIES)
async def test_page_is_whole_where_nobody_else_works(query: str, scans: CountedScans) -> None:
    pages = await scans.pages(**QUERIES[query])
    assert [keys for keys, _ in pages] == [KEYS if query == "range" else MATCHES]


@pytest.mark.parametrize("idle_rounds", [0, 7])
@pytest.mark.parametrize("query", QUERIES)
async def test_page_has_few_slices_beside_others(
    query: str, idle_rounds: int, scans: CountedScans
) -> None:
    """Also where others do nothing during a whole slice. Each key comes once."""
    scans.others, scans.idle_rounds = limits.SCAN_OTHERS_WORK, idle_rounds
    pages = await scans.pages(**QUERIES[query])
    found = list(chain.from_iterable(keys for keys, _ in pages))
    assert found == (KEYS if query == "range" else MATCHES)
    # the first page is done before others have worked at all, at the worst
    assert max(len(works) for _, works in pages[1:]) <= SHARED_SLICES + REPLY_SLICES
    assert max(sum(works) for _, works in pages[1:]) < 2 * limits.SCAN_SHARED_PAGE_WORK
    assert len(pages[0][1]) <= SHARED_SLICES + REPLY_SLICES + idle_rounds


async def test_page_ends_as_soon_as_little_work_of_others_has_come_together(
    scans: CountedScans,
) -> None:
    scans.others = limits.SCAN_OTHERS_WORK // 20
    (_, first), *others = await scans.pages(**QUERIES["range"])
    assert SHARED_SLICES + REPLY_SLICES < len(first) <= 20 + REPLY_SLICES
    assert max(len(works) for _, works in others) <= SHARED_SLICES + REPLY_SLICES


async def test_page_is_whole_again_a_while_after_others_have_worked(
    scans: CountedScans, autojump_clock: MockClock
) -> None:
    scans.others = limits.SCAN_OTHERS_WORK
    assert len(await scans.pages(**QUERIES["range"])) > 1
    scans.others = 0
    assert len(await scans.pages(**QUERIES["range"])) > 1
    autojump_clock.jump(OTHERS_SECONDS)
    assert len(await scans.pages(**QUERIES["range"])) > 1, "half of much is enough"
    autojump_clock.jump(OTHERS_SECONDS)
    assert len(await scans.pages(**QUERIES["range"])) == 1


async def test_trickle_of_others_never_adds_up_to_work_beside_scans(
    autojump_clock: MockClock,
) -> None:
    others = Others()
    for _ in range(100):
        assert not others.note(limits.SCAN_OTHERS_WORK // 10)
        autojump_clock.jump(OTHERS_SECONDS / 4)


async def test_thread_matches_no_keys_for_a_page_that_has_ended(
    scans: CountedScans, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[int] = []
    run = LongMatches.run

    def counted(matches: LongMatches) -> None:
        passes.append(1)
        run(matches)

    monkeypatch.setattr(LongMatches, "run", counted)
    monkeypatch.setattr("fastjournald.engine.key_filter.LONG_MATCH_WORK", 0)
    monkeypatch.setattr(limits, "SCAN_OTHERS_WORK", 0)
    keys, cursor, works = await scans.page(**QUERIES["expression"])
    assert len(passes) == SHARED_SLICES - 1, "the first slice has asked for the first ones"
    assert len(works) == SHARED_SLICES + 1
    assert keys == MATCHES[: len(keys)]
    assert cursor


async def test_merging_the_index_in_turns_is_no_work_of_others(scans: CountedScans) -> None:
    index = scans.engine.store.keys.sorted_keys()
    merged = 0

    async def merge_meanwhile() -> None:
        nonlocal merged
        while True:
            await trio.lowlevel.checkpoint()
            index.gone += [b"gone %d" % number for number in range(GONE_KEYS_KEPT)]
            await scans._merge_in_turn(index, Share())
            merged += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(merge_meanwhile)
        keys, cursor, _ = await scans.page(**QUERIES["range"])
        nursery.cancel_scope.cancel()
    assert merged > SHARED_SLICES
    assert (keys, cursor) == (KEYS, None)


def test_no_keys_are_sorted_after_the_search() -> None:
    engine, index = indexed()
    scan = engine.handle("reader", Request(Function.GET, **QUERIES["range"]), 1)
    assert isinstance(scan, Scan)
    assert engine.step(scan, 1) is None
    index.fresh = {b"fresh %d" % number: False for number in range(FRESH_KEYS_MAX)}
    while engine.step(scan, 1) is None:
        pass
    assert len(index.fresh) == FRESH_KEYS_MAX


async def test_scan_queue_keeps_no_place_for_a_scan_that_was_cancelled() -> None:
    queue = ScanQueue(1)
    held, other = Place(queue, stays), Place(queue, stays)
    await held.enter()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Place(queue, stays).enter)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    held.leave()
    with trio.CancelScope() as scope:
        scope.cancel()
        await Place(queue, stays).enter()
    assert scope.cancelled_caught
    with trio.fail_after(5):
        await other.enter()
    other.leave()
    other.leave()
    await held.enter()
    with trio.move_on_after(0.01) as waited:
        await other.enter()
    assert waited.cancelled_caught, "a place was left twice"


# --- scan cursor ----------------------------------------------------------------------------------
# Cursors: their bytes, and that nothing else is taken for one.


GOLDEN = [
    (Cursor(RANGE, 4, b"k7", b""), "01010004 0002 6b37 0000 0484044b"),
    (Cursor(EXPRESSION, 0xFFFF, b"\xff\0", b"a|b"), "0102ffff 0002 ff00 0003 617c62 d1e5ca34"),
    (Cursor(DOMAINS, 1, b"pages", b"p"), "01030001 0005 7061676573 0001 70 1ee8c68e"),
]
KINDS = (RANGE, EXPRESSION, DOMAINS)


def decode(data: bytes) -> Cursor | None:
    return decode_cursor(data, *KINDS)


@pytest.mark.parametrize(
    "cursor", [cursor for cursor, _ in GOLDEN], ids=["range", "expression", "domains"]
)
def test_cursor_cut_short_longer_or_changed_anywhere_is_none(cursor: Cursor) -> None:
    data = encode_cursor(cursor)
    for end in range(len(data)):
        assert decode(data[:end]) is None
    assert decode(data + b"\0") is None
    for at in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[at] ^= 1 << bit
            assert decode(bytes(changed)) is None
