"""KICK of jobs that workq has failed: after a burial anew and a kick, workq still takes the log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fastjournal.protocol import Function, Request
from fastjournal.testing.disk import SimulatedDisk
from fastjournal.testing.workq_rules import assert_workq_accepts
from fastjournald.engine.engine import Settings
from tests.property.logged_engine import LOG, LoggedEngine

CORPUS = Path(__file__).parent / "data" / "workq"


def engine_on(log: Path) -> LoggedEngine:
    """Return an engine on a copy of a recorded log; no time passes, so that nothing has expired."""
    disk = SimulatedDisk()
    disk.mkdir(LOG)
    for path in log.glob("*.log"):
        disk.create(f"{LOG}/{path.name}").write(path.read_bytes())
    return LoggedEngine(0, Settings(), disk=disk, now=0)


def buried(daemon: LoggedEngine) -> dict[bytes, bytes | None]:
    return {e.key: e.reason for e in daemon.engine.store if e.reason is not None}


def ask(daemon: LoggedEngine, function: Function, **fields: Any) -> int | None:
    reply = daemon.ask(Request(function, timestamp=daemon.now, **fields))
    daemon.engine.check()
    assert reply is not None
    assert reply.error == ""
    return reply.ttl


@pytest.mark.parametrize("name", ["basic", "restarts"])
def test_failed_jobs_of_a_recorded_log_are_kicked_and_buried_again(name: str) -> None:
    daemon = engine_on(CORPUS / name)
    keys = sorted(buried(daemon))
    assert keys
    before = list(daemon.engine.store.expiry)
    for key in keys:
        assert ask(daemon, Function.BURY, key=key, value_type=1, value=b"looked at") is None
    daemon.restart()
    assert buried(daemon) == dict.fromkeys(keys, b"looked at")
    for domain in {key.partition(b":")[0] for key in keys}:
        ask(daemon, Function.KICK, second_key=domain, count=65_535)
    daemon.restart()
    assert buried(daemon) == {}
    assert list(daemon.engine.store.expiry) == before
    daemon.writer.close()
    assert_workq_accepts(daemon.segments())
