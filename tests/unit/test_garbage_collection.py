"""Garbage collection: young objects all the time, all objects only where the daemon is idle."""

from __future__ import annotations

import gc
import random
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from fastjournal.clock import WatchedClock
from fastjournal.cmdlog.writer import LogWriter
from fastjournal.protocol import Flag, Function, ValueType, decode_request, encode_request
from fastjournal.protocol.messages import Request
from fastjournal.testing.clock import ManualClock
from fastjournal.testing.disk import SimulatedDisk
from fastjournald.config.options import Config
from fastjournald.engine.engine import Engine, Settings
from fastjournald.recovery.recover import recover_engine
from fastjournald.tasks.timers import Timers
from tests.property.crashing_daemon import LOG
from tests.property.subject import SECOND, START, request

FULL_SECONDS = 2.0
FULL_SECONDS_MAX = 10.0


async def test_full_collection_waits_for_an_idle_moment_but_not_for_ever(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastjournald.tasks.timers.FULL_COLLECTION_SECONDS", FULL_SECONDS)
    monkeypatch.setattr("fastjournald.tasks.timers.FULL_COLLECTION_SECONDS_MAX", FULL_SECONDS_MAX)
    requests: Counter[str] = Counter()
    runtime: Any = SimpleNamespace(
        engine=SimpleNamespace(counters=SimpleNamespace(requests=requests))
    )
    begun = trio.current_time()
    young, full = [], []

    def collect(generation: int = 2) -> None:
        (young if generation == 1 else full).append(trio.current_time() - begun)

    monkeypatch.setattr(gc, "collect", collect)
    with trio.move_on_after(20):
        async with trio.open_nursery() as nursery:
            timers = Timers(runtime, WatchedClock(ManualClock(1)), trio.lowlevel.checkpoint)
            nursery.start_soon(timers.collect_garbage)
            while trio.current_time() - begun < 15:
                requests["SET"] += 1
                await trio.sleep(0.1)
    at_last, *idle = full
    assert at_last == pytest.approx(FULL_SECONDS_MAX, abs=0.5)
    assert idle[0] == pytest.approx(15, abs=0.5)
    assert len(idle) == 3
    assert all(
        FULL_SECONDS <= after - before < FULL_SECONDS + 0.5 for before, after in pairwise(idle)
    )
    assert len(young) > 80


# --- reference cycles -----------------------------------------------------------------------------
# The daemon runs without the garbage collector: whatever it drops must be free at once.


REQUESTS = 6000
WITH_VALUE = (Function.SET, Function.ADD, Function.TRUNCATE)
WITH_URI = (Function.SET, Function.LINK, Function.RENAME)


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Collect by hand only, and keep what is found."""
    # of the tests before: what refers to an object with a finalizer takes one more turn
    while gc.collect():
        pass
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def any_request(draw: random.Random, now: int, tokens: list[tuple[bytes, int]]) -> Request:
    function = draw.choice([*Function, *[Function.SET] * 12, *[Function.NEXT, Function.DELETE] * 2])
    key = b"%c:%d:%d:%d" % (
        draw.choice(b"abc"),
        draw.randrange(3),
        draw.choice((0, START + 10 * SECOND)),
        draw.randrange(20),
    )
    flags = draw.choice((0, Flag.PERSIST, Flag.OVERWRITE | Flag.PERSIST, Flag.META | Flag.DATA))
    token = None
    if tokens and function not in (Function.SET, Function.NEXT) and draw.random() < 0.7:
        key, token = draw.choice(tokens)
        flags |= Flag.WORKED_ON
    elif function in (Function.NEXT, Function.GET):
        token = draw.choice((None, 2 * SECOND))
        flags |= draw.choice((0, 0, Flag.LISTEN))
    if function in (Function.NEXT, Function.STATS):
        key = draw.choice((b"", b"a", b"z"))
    return request(
        function,
        key,
        b"v" * draw.randrange(50) if function in WITH_VALUE else None,
        kind=draw.choice((ValueType.BUFFER, ValueType.INTEGER)),
        uri=draw.choice((None, b"u%d" % draw.randrange(5))) if function in WITH_URI else None,
        flags=flags,
        at=now - draw.choice((0, 0, SECOND)),
        timeout=token if function != Function.SET else draw.choice((None, now + SECOND)),
        ttl=draw.choice((None, SECOND)),
        count=draw.choice((None, 3)) if function == Function.NEXT else None,
    )


def exercise(engine: Engine, writer: LogWriter, clock: ManualClock, seed: int) -> set[str]:
    """Let an engine do everything; return the error codes that came."""
    draw = random.Random(seed)
    came = set()
    sessions = ["s0", "s1", "s2"]
    for number in range(REQUESTS):
        clock.instant_us += draw.choice((0, 5, 7000, SECOND))
        tokens = [(entry.key, entry.token) for entry in engine.store if entry.token]
        asked = decode_request(encode_request(any_request(draw, clock.instant_us, tokens)))
        reply = engine.handle(draw.choice(sessions), asked, clock.instant_us)
        came.add("waits" if reply is None else type(reply).__name__)
        engine.serve_waiters(clock.instant_us)
        if engine.notifications.unmatched:
            engine.notifications.match()
            engine.notifications.pop(draw.choice(sessions), clock.instant_us)
        if number % 50 == 0:
            writer.flush()
            engine.end_session(draw.choice(sessions))
    return came


@pytest.mark.usefixtures("no_collector")
def test_engine_leaves_no_reference_cycle_behind() -> None:
    disk, clock = SimulatedDisk(), ManualClock(START)
    disk.mkdir(LOG)
    config = Config(cmdlog_path=LOG, cmdlog_seg_size=20_000, max_attempts=3)
    settings = Settings(attempts_max=3, tombstones_max=50, lease_us_default=20 * SECOND)
    engine, writer = recover_engine(disk, config, settings, clock, seed=bytes(8))
    # what starting leaves, whole modules among it, is no matter: it is not repeated
    gc.collect()
    gc.garbage.clear()
    assert exercise(engine, writer, clock, 1) == {"waits", "bytes", "DeliveringReply"}
    gc.collect()
    assert gc.garbage == []


@pytest.mark.usefixtures("no_collector")
def test_recovered_engine_is_as_free_of_cycles() -> None:
    disk, clock = SimulatedDisk(), ManualClock(START)
    disk.mkdir(LOG)
    config = Config(cmdlog_path=LOG, cmdlog_seg_size=20_000)
    engine, writer = recover_engine(disk, config, Settings(), clock, seed=bytes(8))
    exercise(engine, writer, clock, 2)
    writer.close()
    again, writer = recover_engine(disk, config, Settings(), clock, seed=bytes(8))
    assert again.store.entries
    gc.collect()
    gc.garbage.clear()
    exercise(again, writer, clock, 3)
    gc.collect()
    assert gc.garbage == []
