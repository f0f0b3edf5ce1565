"""Crash simulation of the daemon with a remote log, and faults planted in the daemon's own parts.

FASTJOURNAL_REMOTE_DAEMON_SEEDS=500 simulates so many seeds in each setup instead of the usual ones.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio

from fastjournal.errors import FastjournalError
from fastjournal.remote import node
from fastjournal.remote.directory import SurplusUse
from fastjournal.remote.objects import Epoch
from fastjournal.remote.reader import create_epoch
from fastjournal.remote.store import Steps
from fastjournal.remote.writer import ChunkWriter, PrimaryLease, RemoteAck
from fastjournald.group_commit.remote_commit import Backlog, RemoteCommit
from fastjournald.recovery import recover as recover_module
from fastjournald.tasks.compactor import Compactor
from tests.property.remote_daemon_world import LOG, Network, World, simulate

SEEDS = int(os.environ.get("FASTJOURNAL_REMOTE_DAEMON_SEEDS", "4"))
SECONDS = 40.0
FAULT_SEEDS = 40
"""Seeds after which a planted fault counts as not found."""

ASYNC = {"ack": RemoteAck.ASYNC}
SETUPS: dict[str, dict[str, Any]] = {
    "two machines": {},
    "three machines": {"machines": 3},
    "async": ASYNC,
}


@pytest.mark.parametrize("name", SETUPS)
@pytest.mark.timeout(0 if "FASTJOURNAL_REMOTE_DAEMON_SEEDS" in os.environ else 600)
def test_daemons_keep_what_they_acknowledged(name: str) -> None:
    counts: Counter[str] = Counter()
    for seed in range(SEEDS):
        with pytest.MonkeyPatch.context() as patch:
            counts += simulate(World(seed, patch, **SETUPS[name]), SECONDS)
    print(name, dict(counts))
    assert min(counts[what] for what in ("acknowledged", "epochs", "reads", "freeze")) > 0


@pytest.mark.parametrize("tested", [True, False])
def test_frozen_primary_answers_no_read_behind_its_successor(
    tested: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W5. No walk meets it: a read waits for what was appended before, and somebody writes."""
    world = World(1, monkeypatch)
    if not tested:
        monkeypatch.setattr(PrimaryLease, "may_answer", lambda _self, _now_us: True)
    reply = trio.run(world.read_from_frozen, clock=world.time)
    if tested:
        assert reply is None
    else:
        assert reply is not None
        assert reply.pairs
        assert reply.pairs[0].value == b"1"


# --- planted faults -----------------------------------------------------------------------------

Patch = pytest.MonkeyPatch


def reply_before_stored(patch: Patch) -> None:
    """W4: replies wait for the local log alone."""
    patch.setattr(RemoteCommit, "_set_limit", lambda self: self._writer.set_limit(None))


def chunk_mixes_segments(patch: Patch) -> None:
    def take(self: Backlog, _bytes_max: int) -> list[Any]:
        taken = list(self._writes)
        self._writes.clear()
        self.bytes = self._held = 0
        return taken

    patch.setattr(Backlog, "take", take)


def compact_unstored(patch: Patch) -> None:
    """C2: waiting bytes, which are read from their segment again, are compacted away."""
    patch.setattr("fastjournald.group_commit.remote_commit.HELD_BYTES_MAX", 0)
    patch.setattr(Compactor, "_is_stored", lambda _self, _info: True)


def surplus_stays(patch: Patch) -> None:
    """S1: local bytes that the store has not are served."""
    patch.setattr(node.Node, "_set_aside", lambda *_: None)
    patch.setattr(node, "judge_surplus", lambda *_: SurplusUse.CUT)


def seal_forgotten(patch: Patch) -> None:
    """T1: the next epoch is created, and the former one is not sealed."""

    def take_over(log: Any, candidate: Any, _now_us: int) -> Steps[Any]:
        yield from log.advance()
        epoch = Epoch(
            log.epoch.epoch + 1, log.epoch.log, candidate.node, candidate.nonce, log.number
        )
        return epoch if (yield from create_epoch(epoch)) else None

    patch.setattr(node, "take_over", take_over)


def fenced_goes_on(patch: Patch) -> None:
    """W2: the seal in the place of a chunk counts as the chunk."""
    patch.setattr(ChunkWriter, "_is_own", lambda *_: True)


def cut_at_last(patch: Patch) -> None:
    """C1: the checkpoint is named by the chunk that is the last one when it is uploaded."""
    usual = RemoteCommit.cut_at

    async def cut_at(self: RemoteCommit) -> Any:
        found = await usual(self)
        await trio.sleep(0.3)
        return self.primary.chunks.last, found[1]

    patch.setattr(RemoteCommit, "cut_at", cut_at)


def own_records_count(patch: Patch) -> None:
    """S2: the taker believes what records say of the segments."""
    usual = recover_module.recover

    def recover(*given: Any, listed: bool = False, **options: Any) -> Any:
        return usual(*given, **options)

    patch.setattr(recover_module, "recover", recover)


def linked_late(patch: Patch) -> None:
    """C1: the segments of a checkpoint are those at the time of its upload."""

    def overwrite(self: Network, name: str, data: bytes | None, path: str = "") -> None:
        live = f"{LOG}/{path.rpartition('/')[2]}"
        if data is None and live.endswith(".log") and self._life.disk.exists(live):
            path = live
        self._call("overwrite", name, self._life.disk.read(path) if data is None else data)

    patch.setattr(Network, "overwrite", overwrite)


def async_surplus_diverges(patch: Patch) -> None:
    """S1: what only the directory of the last writer has is set aside."""
    patch.setattr(node, "judge_surplus", lambda *_: SurplusUse.DIVERGED)


@dataclass
class Fault:
    """A fault, and with which seed it is found soon."""

    plant: Callable[[Patch], None]
    seed: int = 0
    setup: dict[str, Any] = field(default_factory=dict)


AWAY = {"ack": RemoteAck.ASYNC, "cmdlog_seg_size": 3000, "outage_seconds": 15.0}
"""Writers go on without the store, long enough for compaction."""

FAULTS = {
    fault.plant.__name__: fault
    for fault in (
        Fault(reply_before_stored, seed=1),
        Fault(chunk_mixes_segments, seed=1),
        Fault(compact_unstored, seed=35, setup=AWAY),
        Fault(surplus_stays, seed=25),
        Fault(seal_forgotten, seed=2),
        Fault(fenced_goes_on),
        Fault(cut_at_last),
        Fault(own_records_count),
        Fault(linked_late),
        Fault(async_surplus_diverges, setup=ASYNC),
    )
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.timeout(600)
def test_simulation_finds_a_planted_fault(name: str) -> None:
    fault = FAULTS[name]
    for seed in range(fault.seed, fault.seed + FAULT_SEEDS):
        with pytest.MonkeyPatch.context() as patch:
            world = World(seed, patch, **fault.setup)
            fault.plant(patch)
            try:
                simulate(world, SECONDS)
            except (AssertionError, ExceptionGroup, FastjournalError, RuntimeError) as error:
                print(name, seed, repr(error)[:300])
                return
    pytest.fail(f"not found with {FAULT_SEEDS} seeds")
