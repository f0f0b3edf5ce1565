"""Whatever clients do, workq replays the log: random requests, few keys, leases that run out."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from fastjournal.cmdlog.format.envelope import OPERATION_NAME
from fastjournal.cmdlog.format.layout import Command
from fastjournal.cmdlog.format.operation_records import (
    Operation,
    SegmentRemoved,
    SegmentRewritten,
    unpack_operation,
)
from fastjournal.cmdlog.format.records import decode_record
from fastjournal.cmdlog.recovery.scan import scan_segment
from fastjournal.protocol import Flag, Function, Request, ValueType
from fastjournal.testing.workq_rules import WorkqJobState, assert_workq_accepts
from fastjournald.engine.engine import Settings
from tests.property.logged_engine import LoggedEngine
from tests.property.subject import SECOND, START

DAY = 86_400 * SECOND
KEYS = [
    b"a:1:0:x",
    b"a:200:0:y",
    b"a b:0:%d:x" % (START + 20 * SECOND),
    b"fj.op:255:0:",
    b"n" * 300 + b":7:0:x",
    b"plain",
    b"other",
]


def segments_of(seed: int, attempts_max: int) -> list[bytes]:
    run = LoggedEngine(seed, Settings(attempts_max=attempts_max, lease_us_default=30 * SECOND))
    for _ in range(400):
        run.engine.advance(run.now)
        run.step(KEYS, exact=False)
        if run.draw.random() < 0.4:
            run.writer.flush()
        if run.draw.random() < 0.02:
            run.restart()
    run.writer.close()
    return run.segments()


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("attempts_max", [0, 1, 2])
def test_workq_replays_the_log_whatever_clients_do(seed: int, attempts_max: int) -> None:
    segments = segments_of(seed, attempts_max)
    assert len(segments) > 2
    state = assert_workq_accepts(segments)
    assert state.jobs


def test_records_of_every_kind_are_among_those_that_workq_replays() -> None:
    kinds: set[Command | type] = set()
    for seed in range(12):
        for data in segments_of(seed, seed % 3):
            for offset, _, _ in scan_segment(data).spans():
                record = decode_record(data, offset)[0]
                ours = record.name == OPERATION_NAME
                kinds.add(type(unpack_operation(record.payload)) if ours else record.command)
    # cleaning alone writes these: see property/test_crash_simulation.py
    # compaction writes the others: ``CompactedLog.check`` has workq's rules look at them
    others = {SegmentRemoved, SegmentRewritten, Command.EXPIRE}
    assert kinds | others == {*Command, *get_args(Operation)}


@pytest.mark.parametrize("days", [1, 29, 31, 400])
@pytest.mark.parametrize("way", ["set", "kicked"])
def test_workq_keeps_a_plain_entry_until_it_expires_whenever_it_was_created(
    way: str, days: int
) -> None:
    run = LoggedEngine(0, Settings())

    def ask(function: Function, **fields: Any) -> None:
        flags = Flag.PERSIST | (Flag.OVERWRITE if function == Function.SET else 0)
        request = Request(function, 1, flags, timestamp=run.now, key=b"plain", **fields)
        reply = run.ask(request)
        assert reply is not None
        assert reply.error == ""

    ask(Function.SET, value_type=ValueType.STRING, value=b"v", timeout=START + 500 * DAY)
    created, run.now = run.now, run.now + days * DAY
    if way == "kicked":
        ask(Function.BURY, value_type=ValueType.STRING, value=b"why")
        ask(Function.KICK)
    else:
        expires = run.now + 7 * DAY
        ask(Function.SET, value_type=ValueType.STRING, value=b"v", timeout=expires)
    run.writer.flush()
    entry = run.engine.store.find(b"plain")
    assert entry is not None
    assert entry.created == created
    over = run.now + (30 if way == "kicked" else 7) * DAY
    for now, there in ((run.now, 1), (over - SECOND, 1), (over, 0)):
        jobs = assert_workq_accepts(run.segments(), now_us=now).jobs.values()
        names = [job.record.name for job in jobs if job.state is not WorkqJobState.COMPLETED]
        assert names.count("fj.kv") == there
