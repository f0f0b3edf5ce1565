"""Scan runner: the key index is merged in idle slices that leave clients their turn."""

from __future__ import annotations

from itertools import chain
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
    SCAN_SHARED_PAGE_WORK,
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
from fastjournald.runtime import Counters
from fastjournald.tasks.scan_runner import Place, ScanQueue, ScanRunner

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


@pytest.mark.parametrize("others", [0, 50])
@pytest.mark.parametrize("key", [b"", b"[08]$"], ids=["range", "expression"])
async def test_page_of_a_scan_ends_by_work_beside_others(key: bytes, others: int) -> None:
    """Without a count it is whole where nobody else works; each key comes once in any case."""
    engine, _ = indexed()
    keys = [b"%08x" % number for number in range(NUMBER)]
    for at in keys:
        engine.handle("writer", Request(Function.SET, key=at, value_type=ValueType.BUFFER), 1)
    turns: Any = TurnBudget(engine.store)
    clock = SimpleNamespace(now_us=lambda: 1)
    runtime: Any = SimpleNamespace(
        engine=engine,
        counters=Counters(),
        turns=turns,
        clock=clock,
        after_requests=lambda _: None,
        release_undelivered=lambda _: None,
    )
    waits: Any = None
    runner = ScanRunner(runtime, waits, waits)

    async def work_meanwhile() -> None:
        while True:
            await trio.lowlevel.checkpoint()
            engine.store.work += others

    query = Query.REGEX if key else Query.RANGE
    request = Request(
        Function.GET, key=key, second_key=None if key else b"", flags=query << QUERY_SHIFT
    )
    pages, works = [], []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(work_meanwhile)
        while True:
            scan = engine.handle("reader", request, 1)
            assert isinstance(scan, Scan)
            share = Share()
            assert turns.admits(share)
            began = share.virtual
            reply = decode_reply(await runner.run(scan, bool, bool, share))
            works.append(share.virtual - began)
            pages.append([pair.key for pair in reply.pairs or ()])
            if reply.cursor is None:
                break
            flags = Query.CURSOR << QUERY_SHIFT
            request = Request(Function.GET, key=reply.cursor, flags=flags)
        nursery.cancel_scope.cancel()
    assert list(chain.from_iterable(pages)) == keys[:: 8 if key else 1]
    if others:
        assert max(works) < 2 * SCAN_SHARED_PAGE_WORK
    else:
        assert len(pages) == 1


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
