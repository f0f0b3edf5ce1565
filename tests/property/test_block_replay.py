"""Replay in blocks leaves what replay of one record at a time does, also of damaged logs."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

import msgspec
import pytest

from fastjournal.cmdlog.format.endings import (
    COMPLETED,
    REPLACED,
    REPLACED_BY_URI,
    UNKNOWN,
    WAITS,
)
from fastjournal.cmdlog.format.layout import Command
from fastjournal.cmdlog.format.operation_records import Delay, End, Erasure, Rename, Tombstone
from fastjournal.cmdlog.recovery import entry_blocks, inspect_log, repair
from fastjournal.cmdlog.recovery import replay as replay_module
from fastjournal.cmdlog.recovery.recover import recover
from fastjournal.cmdlog.recovery.replay_state import ReplayState
from fastjournal.cmdlog.recovery.replayed_entry import ReplayedEntry
from fastjournal.errors import LogCorruptError
from fastjournal.testing.disk import SimulatedDisk
from fastjournal.testing.logs import START_US, SegmentBuilder
from tests.property.packer import Packer

LOG = "/log"
NOW = START_US + 3_600_000_000
SECOND = 1_000_000


class Form(NamedTuple):
    """Way of replay: fewest and most records of a block, and whether a worker packs segments."""

    records_min: int
    records_max: int
    packed: bool = False


FORMS = {
    "records": Form(1 << 30, 1),
    "small blocks": Form(1, 3),
    "blocks": Form(2, 1024),
    "packed blocks": Form(2, 5, packed=True),
}


class RandomLog:
    """Segments with stretches of entries, few of whose keys and URIs meet, and everything else."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.jobs: list[tuple[bytes, bytes]] = []
        self.serial = 0
        self.keys_max = self.draw.choice((20, 1_000_000))
        segments = self.draw.randrange(1, 4)
        self.segments = [self.segment(number) for number in range(segments)]

    def segment(self, previous: int) -> bytes:
        draw = self.draw
        foreign = draw.random() < 0.2
        log = SegmentBuilder(
            None if foreign else previous,
            now_us=START_US + previous * SECOND,
            ids_from=(previous + 1) << 64,
        )
        for _ in range(draw.randrange(1, 12)):
            log.now_us += draw.randrange(SECOND)
            step = draw.choice((self.entries, self.entries, self.removals, self.others, self.lease))
            step(log)
        return bytes(log)

    def key(self) -> bytes:
        number = self.draw.randrange(self.keys_max)
        form = self.draw.choice((b"a:128:%d:x", b"b:%d:0:y", b"plain %d"))
        return form % number

    def uri(self) -> bytes | None:
        number = self.draw.randrange(self.keys_max)
        return self.draw.choice((None, b"u%d" % number, b"u%d" % number, b"plain %d" % number))

    def entries(self, log: SegmentBuilder) -> None:
        draw = self.draw
        usual = draw.random() < 0.5
        for _ in range(draw.randrange(1, 20)):
            self.serial += 1
            fields = {} if usual or draw.random() < 0.8 else self.rare()
            key = self.key()
            job_id = log.entry(
                key,
                uri=self.uri(),
                value=draw.randbytes(draw.choice((0, 1, 20, 200))),
                arrival=draw.choice((self.serial, 0, 7)),
                timestamp=log.now_us + draw.choice((0, 0, 0, -SECOND, SECOND)),
                not_before=0 if key.startswith(b"plain") else draw.choice((0, NOW + SECOND)),
                job_id=self.jobs[-1][0] if self.jobs and draw.random() < 0.02 else None,
                **fields,
            )
            self.jobs.append((job_id, key))

    def rare(self) -> dict[str, object]:
        number = self.draw.randrange(self.keys_max)
        return self.draw.choice(
            (
                {"links": [b"l%d" % number]},
                {"expires": NOW + SECOND, "ttl": SECOND},
                {"attempts": 3, "error": b"why"},
                {"reason": b"bad"},
                {"token": NOW + SECOND},
                {"token": NOW + SECOND, "superseded": START_US, "taken": (0,)},
                {"superseded": START_US},
                {"taken": (0, 1)},
                {"erases": True},
                {"first_due": START_US},
                {"created": START_US - SECOND},
            )
        )

    def some(self) -> list[tuple[bytes, bytes]]:
        count = min(len(self.jobs), self.draw.randrange(1, 6))
        return self.draw.sample(self.jobs, count)

    def removals(self, log: SegmentBuilder) -> None:
        for job_id, key in self.some():
            how = self.draw.choice(
                (UNKNOWN, COMPLETED, REPLACED + 1, REPLACED + 2, REPLACED_BY_URI)
            )
            chance = self.draw.random()
            if chance < 0.5:
                log.complete(job_id, key, how=how)
            elif chance < 0.6:
                log.remove(job_id, how)
            elif chance < 0.7:
                log.remove_buried(job_id, how)
            elif chance < 0.8:
                log.operation(End(1, job_id, None, b"a", bytes((WAITS,)), 0))
                log.simple(Command.TIMEOUT_ATTEMPT, job_id)
            else:
                log.simple(self.draw.choice((Command.DELETE, Command.EXPIRE)), job_id)

    def lease(self, log: SegmentBuilder) -> None:
        log.lease([job_id for job_id, _ in self.some()], log.now_us + 60 * SECOND)
        if self.draw.random() < 0.3:
            del log.data[log.offsets.pop() :]

    def others(self, log: SegmentBuilder) -> None:
        for job_id, _ in self.some():
            change = self.draw.choice(
                (
                    Tombstone(self.key(), log.now_us),
                    Erasure(self.key()),
                    Delay(job_id, NOW),
                    Rename(job_id, self.key(), log.now_us, self.key(), b""),
                )
            )
            log.operation(change)
        if self.draw.random() < 0.3:
            log.foreign(b"a", b"payload")
            log.batch(3)

    def damage(self) -> list[bytes]:
        """Return the segments with some bytes changed."""
        damaged = []
        for segment in self.segments:
            data = bytearray(segment)
            for _ in range(self.draw.choice((0, 0, 1, 3))):
                at = self.draw.randrange(len(data))
                size = self.draw.choice((1, 1, 60, 400))
                data[at : at + size] = self.draw.choice((bytes(size), self.draw.randbytes(size)))
            damaged.append(bytes(data[: self.draw.choice((None, None, -5))]))
        return damaged


def segment_names(disk: SimulatedDisk) -> list[str]:
    return [name for name in disk.listdir(LOG) if name.endswith(".log")]


def everything(state: ReplayState) -> object:
    """State as values that compare; jobs in their order."""
    values = {
        name: value for name, value in vars(state).items() if name not in ("jobs", "keys", "chain")
    }
    keys = {key: job.job_id for key, job in state.keys.items()}
    jobs = [msgspec.structs.asdict(job) for job in state.jobs.values()]
    return jobs, keys, list(state.tombstones), values, vars(state.chain)


def recovered(
    segments: list[bytes], form: Form, monkeypatch: pytest.MonkeyPatch, *, mends: bool
) -> object:
    """Recover a log; return state, diagnostics, segments and files, or the refusal."""
    disk = SimulatedDisk()
    disk.mkdir(LOG)
    for number, data in enumerate(segments, 1):
        disk.create(f"{LOG}/{number:09d}.log").write(data)
    packers: list[Packer] = []

    def start_packer(sizes: Sequence[int]) -> Packer:
        assert sizes == [disk.size(f"{LOG}/{name}") for name in segment_names(disk)]
        packers.append(Packer(disk, LOG))
        return packers[-1]

    with monkeypatch.context() as patch:
        patch.setattr(entry_blocks, "BLOCK_RECORDS_MIN", form.records_min)
        patch.setattr(entry_blocks, "BLOCK_RECORDS_MAX", form.records_max)
        patch.setattr(inspect_log, "_PROGRESS_RECORDS", 5)
        ids = count()
        patch.setattr(repair.uuid, "uuid4", lambda: uuid.UUID(int=next(ids), version=4))
        try:
            found = recover(
                disk,
                LOG,
                now_us=NOW,
                repair=mends,
                tombstones_max=5,
                start_packer=start_packer if form.packed else None,
            )
        except LogCorruptError as error:
            return str(error), error.path, error.offset
        finally:
            assert all(packer.closed for packer in packers)
    files = {name: disk.read(f"{LOG}/{name}") for name in disk.listdir(LOG)}
    return everything(found.state), found.diagnostics, found.sealed, found.active, files


@pytest.mark.parametrize("harmed", [False, True])
@pytest.mark.parametrize("seed", range(120))
def test_blocks_leave_what_their_records_do(
    seed: int, harmed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = RandomLog(seed)
    for mends in (False, True):
        segments = log.damage() if harmed else log.segments
        found = [recovered(segments, form, monkeypatch, mends=mends) for form in FORMS.values()]
        for other in found[1:]:
            assert other == found[0]


def test_random_logs_have_blocks_that_meet_others_and_blocks_that_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(entry_blocks, "BLOCK_RECORDS_MIN", 2)
    together: list[bool] = []
    place_together = replay_module._place_together

    def noted(state: ReplayState, jobs: list[ReplayedEntry]) -> bool:
        together.append(place_together(state, jobs))
        return together[-1]

    monkeypatch.setattr(replay_module, "_place_together", noted)
    for seed in range(120):
        recovered(RandomLog(seed).segments, FORMS["blocks"], monkeypatch, mends=True)
    assert min(together.count(True), together.count(False)) > 50
