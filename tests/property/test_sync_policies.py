"""Cost of a power cut under each sync policy, on a disk that loses bytes that were not synced.

A process that is killed loses nothing under any of them: ``test_crash_simulation.py``, and for real
``integration/test_daemon_stop.py``.
"""

from __future__ import annotations

import random

import pytest

from fastjournal.errors import LogCorruptError
from fastjournal.testing.workq_rules import assert_workq_accepts
from fastjournald.config.options import Config
from tests.property.crashing_daemon import LOG, CrashingDaemon, Step, dump

SEEDS = 60
LIVES = 5
POLICIES = ["interval", "os"]


class ForgetfulDaemon(CrashingDaemon):
    """One whose clients get OK before it is on the disk, so that a power cut costs that.

    ``steps`` are all states since the last sync: what a recovery may find.
    """

    def acknowledge(self) -> None:
        """Forget the states before the last one that survives a power cut."""
        durable = self.writer.durable
        safe = [at for at, step in enumerate(self.steps) if step.mark <= durable]
        if safe:
            del self.steps[: safe[-1]]

    def recover(self, *, repair: bool = False) -> None:
        """Start, and sync what that has written, leases that it returned: ``steps`` begin there."""
        super().recover(repair=repair)
        self.writer.write()
        self.writer.sync()

    def assert_heard(self) -> None:
        """Assert nothing: a change that was heard may be lost too."""

    def commit(self) -> None:
        """Write, and sync as the policy says: ``interval`` now and then, ``os`` never."""
        self.writer.write()
        if self.config.cmdlog_sync == "interval" and self.draw.random() < 0.2:
            self.writer.sync()
        self.acknowledge()

    def last_told(self) -> Step:
        """The newest state for which a client got OK."""
        told = [step for step in self.steps if step.mark <= self.writer.settled]
        # none since the start: what that found is on the disk
        return told[-1] if told else self.steps[0]


def options(seed: int, policy: str) -> Config:
    draw = random.Random(~seed)
    return Config(
        cmdlog_path=LOG,
        cmdlog_sync=policy,
        cmdlog_seg_size=draw.choice((600, 2500, 100_000)),
        default_lease=20,
        max_attempts=draw.choice((0, 2)),
        tombstone_ttl=draw.choice((5, 3600)),
    )


def segments(daemon: CrashingDaemon) -> dict[str, bytes]:
    disk = daemon.disk
    names = [name for name in disk.listdir(LOG) if name.endswith(".log")]
    return {name: disk.read(f"{LOG}/{name}") for name in names}


@pytest.mark.parametrize("policy", POLICIES)
def test_power_cut_leaves_all_that_was_synced_and_a_state_that_once_was(policy: str) -> None:
    """``recover`` asserts it: what it finds is one of the states since the last sync."""
    cost = []
    for seed in range(SEEDS):
        daemon = ForgetfulDaemon(seed, options(seed, policy), exact=True)
        for _ in range(LIVES):
            daemon.live(daemon.draw.randint(1, 40))
            told = daemon.last_told()
            daemon.lose_power()
            daemon.recover()
            cost.append(dump(daemon.engine, told.now, exact=True) != told.state)
    assert any(cost), "nothing that was told OK was ever lost: this disk forgets nothing"
    assert not all(cost)


@pytest.mark.parametrize("policy", POLICIES)
def test_power_cut_costs_nothing_that_was_synced_just_before(policy: str) -> None:
    for seed in range(SEEDS):
        daemon = ForgetfulDaemon(seed, options(seed, policy), exact=True)
        daemon.live(30)
        daemon.writer.write()
        daemon.writer.sync()
        daemon.acknowledge()
        assert len(daemon.steps) == 1
        daemon.lose_power()
        daemon.recover()


@pytest.mark.parametrize("policy", POLICIES)
def test_repair_keeps_all_that_was_synced_where_only_later_pages_were_kept(
    policy: str,
) -> None:
    refused = 0
    for seed in range(SEEDS):
        daemon = ForgetfulDaemon(seed, options(seed, policy), exact=True)
        daemon.live(20)
        daemon.writer.write()
        daemon.writer.sync()
        synced = segments(daemon)
        # all in one write, so in one segment: what seals one syncs it
        for _ in range(40):
            daemon.ask()
        daemon.writer.write()
        daemon.acknowledge()
        synced = {name: synced.get(name, b"") for name in segments(daemon)}
        daemon.lose_power(holes=True)
        refusal = None
        try:
            daemon.recover()
        except LogCorruptError as error:
            refusal = error
        if refusal is not None:
            refused += 1
            assert refusal.path is not None
            assert refusal.offset is not None
            assert refusal.offset >= len(synced[refusal.path.rpartition("/")[2]])
            daemon.recover(repair=True)
        found = segments(daemon)
        for name, data in synced.items():
            assert found.get(name, b"").startswith(data), f"{seed}: {name} lost what was synced"
        assert_workq_accepts(found[name] for name in sorted(found))
    assert 0 < refused < SEEDS, "neither a hole nor a whole tail was ever met"
