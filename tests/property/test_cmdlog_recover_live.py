"""Replay equals live: after any requests the log leaves what the engine that wrote it knows."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from msgspec.structs import astuple

from fastjournal.cmdlog.recovery.recover import Recovered, recover
from fastjournal.cmdlog.recovery.replay_state import ReplayState
from fastjournal.testing.disk import SimulatedDisk
from fastjournal.testing.workq_rules import assert_workq_accepts
from fastjournald.engine.engine import Engine, Settings
from fastjournald.tables.entry import Entry, EntryState
from tests.property.logged_engine import LOG, LoggedEngine
from tests.property.packer import packing
from tests.property.subject import SECOND, START

KEYS = [b"a:1:0:x", b"a:1:0:y", b"b:0:%d:z" % (START + 20 * SECOND), b"c:9:1:" + b"k" * 200, b"p"]
BY_ALL = [
    *("key", "value_type", "value", "timestamp", "created", "modified", "arrival"),
    *("not_before", "job_id", "position", "record_bytes", "priority"),
]
BY_FEW = ["expires", "ttl", "attempts", "token", "superseded", "first_due", "starts"]


def live(engine: Engine) -> dict[bytes, dict[str, object]]:
    return {entry.key: told(entry) for entry in engine.store}


def lasting(pauses: dict[bytes, int], now: int) -> dict[bytes, int]:
    return {name: until for name, until in pauses.items() if until > now}


def told(entry: Entry) -> dict[str, object]:
    fields = {name: getattr(entry, name) for name in BY_ALL}
    fields |= {name: getattr(entry.extra, name) for name in BY_FEW}
    fields["uri"] = entry.uri
    fields["links"] = entry.links or []
    fields["leased"] = entry.state == EntryState.LEASED
    fields["reason"] = entry.reason if entry.state == EntryState.BURIED else None
    return fields


def replayed(state: ReplayState) -> dict[bytes, dict[str, object]]:
    entries = {}
    for job in state.jobs.values():
        fields: dict[str, object] = {name: getattr(job, name) for name in BY_ALL + BY_FEW}
        fields |= {
            "uri": job.uri,
            "links": job.links,
            "leased": job.token > 0,
            "reason": job.reason,
        }
        entries[job.key] = fields
    return entries


def assert_same(found: Recovered, daemon: LoggedEngine) -> None:
    """Assert that a recovery found what the engine knows."""
    engine = daemon.engine
    assert replayed(found.state) == live(engine)
    for key, job in found.state.keys.items():
        entry = engine.store.find(key)
        assert entry is not None
        assert entry.key == job.key
    live_tombs = {
        key: timestamp
        for key, _ in engine.store.tombstones.items()
        if (timestamp := engine.store.tombstones.get(key, daemon.now)) is not None
    }
    tombs = {key: found.state.tombstones[key].timestamp for key in live_tombs}
    assert tombs == live_tombs
    assert lasting(found.state.pauses, daemon.now) == lasting(
        dict(engine.store.rules.pauses), daemon.now
    )
    limits = {
        name: (limit.interval_us, limit.jobs, limit.lease_us, limit.attempts)
        for name, limit in found.state.limits.items()
    }
    assert limits == {name: astuple(limit) for name, limit in engine.store.rules.limits}
    assert not found.state.odd
    assert found.active == daemon.writer.active


@pytest.mark.parametrize("attempts_max", [0, 2])
@pytest.mark.parametrize("seed", range(25))
def test_replay_leaves_what_the_engine_knows(seed: int, attempts_max: int) -> None:
    settings = Settings(
        attempts_max=attempts_max, lease_us_default=30 * SECOND, postpone_us_max=10 * SECOND
    )
    daemon = LoggedEngine(seed, settings)
    for count in range(300):
        daemon.step(KEYS)
        if count % 10:
            continue
        daemon.writer.flush()
        assert_same(recover(daemon.disk, LOG, now_us=daemon.now), daemon)
        if count % 50 == 0:
            # a worker packs the same sealed segments each time, so less often
            with packing():
                assert_same(recover(daemon.disk, LOG, now_us=daemon.now), daemon)
            daemon.disk = daemon.disk.kill()
            with packing() if count % 100 else nullcontext():
                daemon.start()


@pytest.mark.usefixtures("both_forms")
@pytest.mark.parametrize("seed", range(15))
def test_repair_of_a_damaged_log_leaves_one_that_engine_and_workq_take(
    seed: int,
) -> None:
    daemon = LoggedEngine(seed, Settings(attempts_max=3, lease_us_default=30 * SECOND))
    for _ in range(150):
        daemon.step(KEYS)
    daemon.writer.close()
    draw = daemon.draw
    names = [name for name in daemon.disk.listdir(LOG) if name.endswith(".log")]
    for _ in range(20):
        disk = SimulatedDisk()
        disk.mkdir(LOG)
        for name in names:
            data = bytearray(daemon.disk.read(f"{LOG}/{name}"))
            if draw.random() < 0.5:
                at = draw.randrange(len(data))
                size = draw.choice((1, 1, 37, 74, 400))
                data[at : at + size] = draw.choice((bytes(size), draw.randbytes(size)))
            if name in names[1:-1] and draw.random() < 0.1:
                continue
            disk.create(f"{LOG}/{name}").write(data)
        recover(disk, LOG, now_us=daemon.now, repair=True)
        found = recover(disk, LOG, now_us=daemon.now)
        assert not found.diagnostics
        left = [disk.read(f"{LOG}/{name}") for name in disk.listdir(LOG) if name.endswith(".log")]
        assert_workq_accepts(left)
        taken = LoggedEngine(seed, daemon.settings, disk=disk, now=daemon.now)
        taken.engine.check()
        for _ in range(5):
            taken.step(KEYS)
            taken.engine.check()
