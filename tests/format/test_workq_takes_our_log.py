"""Whatever clients do, workq replays the log: random requests, few keys, leases that run out."""

from __future__ import annotations

import random
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
from fastjournal.cmdlog.recovery.recover import recover
from fastjournal.cmdlog.recovery.scan import scan_segment
from fastjournal.cmdlog.writer import LogWriter, SyncPolicy
from fastjournal.protocol import Flag, Function, Request, ValueType, decode_reply
from fastjournal.testing.disk import SimulatedDisk
from fastjournal.testing.workq_rules import WorkqJobState, assert_workq_accepts
from fastjournald.engine.engine import Scan, Settings
from fastjournald.recovery.recover import load_engine
from tests.property.crash_requests import draw_request
from tests.property.subject import request

START = 1_795_165_389_000_000
SECOND = 1_000_000
DAY = 86_400 * SECOND
LOG = "/log"
KEYS = [
    b"a:1:0:x",
    b"a:200:0:y",
    b"a b:0:%d:x" % (START + 20 * SECOND),
    b"fj.op:255:0:",
    b"n" * 300 + b":7:0:x",
    b"plain",
    b"other",
]


class RecordRun:
    """A daemon without sockets, restarted now and then."""

    def __init__(self, seed: int, attempts_max: int) -> None:
        self.random = random.Random(seed)
        self.now = START
        self.disk = SimulatedDisk(seed)
        self.disk.mkdir(LOG)
        self.settings = Settings(attempts_max=attempts_max, lease_us_default=30 * SECOND)
        self.tokens: list[tuple[bytes, int]] = []
        self.start()

    def start(self) -> None:
        found = recover(self.disk, LOG, now_us=self.now)
        seed = self.random.randbytes(8)
        writers: list[LogWriter] = []

        def append(data: bytes, records: int, now: int) -> int:
            return writers[0].append(data, records, now)

        engine = load_engine(found.state, self.settings, append, seed=seed, now=self.now)
        writer = LogWriter(
            self.disk,
            LOG,
            segment_bytes_max=4000,
            sync=SyncPolicy.ALWAYS,
            active=found.active,
            sealed=found.sealed,
            segment_start=engine.journal.log.segment_start,
        )
        writers.append(writer)
        self.engine, self.writer = engine, writer

    def step(self) -> None:
        chance = self.random
        self.now += chance.choice((0, 1, 1000, SECOND, 9 * SECOND))
        self.engine.advance(self.now)
        if chance.random() < 0.4:
            self.writer.flush()
        if chance.random() < 0.02:
            self.writer.flush()
            self.disk = self.disk.kill()
            self.start()
        asked = self.request()
        session = chance.choice(("session", "other"))
        data = self.engine.handle(session, asked, self.now)
        if isinstance(data, Scan):
            data = self.scanned(data)
        if data is None:
            return
        reply = decode_reply(data)
        if (
            reply.timeout is not None
            and reply.pairs
            and Function(asked.function)
            in {
                Function.NEXT,
                Function.GET,
            }
        ):
            self.tokens += [(pair.key, reply.timeout) for pair in reply.pairs]
            del self.tokens[:-20]

    def scanned(self, scan: Scan) -> bytes:
        """Carry a scan out, with leases that run out between its steps."""
        while (data := self.engine.step(scan, self.now)) is None:
            self.now += self.random.choice((0, 1, 9 * SECOND))
        return data

    def request(self) -> Request:
        chance = self.random
        if chance.random() < 0.1:
            fields = {"uri": b"", "timeout": chance.choice((None, SECOND))}
            return request(Function.GET, flags=Flag.WORKED_ON, at=self.now, **fields)
        exact = chance.random() < 0.9
        return draw_request(chance, self.now, self.tokens[-4:], exact=exact, keys=KEYS)


def segments_of(seed: int, attempts_max: int) -> list[bytes]:
    run = RecordRun(seed, attempts_max)
    for _ in range(400):
        run.step()
    run.writer.close()
    names = [name for name in run.disk.listdir(LOG) if name.endswith(".log")]
    return [run.disk.read(f"{LOG}/{name}") for name in names]


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
    run = RecordRun(0, 0)

    def ask(function: Function, **fields: Any) -> None:
        flags = Flag.PERSIST | (Flag.OVERWRITE if function == Function.SET else 0)
        request = Request(function, 1, flags, timestamp=run.now, key=b"plain", **fields)
        reply = run.engine.handle("session", request, run.now)
        assert reply is not None
        assert decode_reply(reply).error == ""

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
    data = [run.disk.read(f"{LOG}/{name}") for name in run.disk.listdir(LOG) if "log" in name]
    over = run.now + (30 if way == "kicked" else 7) * DAY
    for now, there in ((run.now, 1), (over - SECOND, 1), (over, 0)):
        jobs = assert_workq_accepts(data, now_us=now).jobs.values()
        names = [job.record.name for job in jobs if job.state is not WorkqJobState.COMPLETED]
        assert names.count("fj.kv") == there
