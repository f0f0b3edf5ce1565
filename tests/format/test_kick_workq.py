"""KICK of jobs that workq has failed: after a burial anew and a kick, workq still takes the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastjournal.cmdlog.recovery.recover import recover
from fastjournal.cmdlog.writer import LogWriter, SyncPolicy
from fastjournal.protocol import Function, Request, decode_reply
from fastjournal.testing.disk import SimulatedDisk
from fastjournal.testing.workq_rules import assert_workq_accepts
from fastjournald.engine.engine import Engine, Settings
from fastjournald.recovery.recover import load_engine

LOG = "/log"
CORPUS = Path(__file__).parent / "data" / "workq"


class Daemon:
    """An engine on a copy of a recorded log; time is not applied, so that nothing has expired."""

    def __init__(self, log: Path) -> None:
        self.disk = SimulatedDisk()
        self.disk.mkdir(LOG)
        for path in log.glob("*.log"):
            self.disk.create(f"{LOG}/{path.name}").write(path.read_bytes())
        self.now = 0
        self.starts = 0
        self.start()

    def start(self) -> None:
        found = recover(self.disk, LOG, now_us=self.now)
        self.starts += 1
        seed = self.starts.to_bytes(8)
        self.engine: Engine = load_engine(
            found.state, Settings(), self._append, seed=seed, now=self.now
        )
        self.engine.check()
        self.writer = LogWriter(
            self.disk,
            LOG,
            segment_bytes_max=10_000,
            sync=SyncPolicy.ALWAYS,
            active=None,
            sealed=[*found.sealed, *([found.active] if found.active else [])],
            segment_start=self.engine.journal.log.segment_start,
        )

    def _append(self, data: bytes, records: int, now: int) -> int:
        return self.writer.append(data, records, now)

    def restart(self) -> None:
        self.writer.flush()
        self.disk = self.disk.kill()
        self.start()

    def buried(self) -> dict[bytes, bytes | None]:
        store = self.engine.store
        return {e.key: e.reason for e in store if e.reason is not None}

    def ask(self, function: Function, **fields: object) -> int | None:
        request = Request(function, timestamp=self.now, **fields)
        data = self.engine.handle("s", request, self.now)
        self.engine.check()
        assert data is not None
        reply = decode_reply(data)
        assert reply.error == ""
        return reply.ttl


@pytest.mark.parametrize("name", ["basic", "restarts"])
def test_failed_jobs_of_a_recorded_log_are_kicked_and_buried_again(name: str) -> None:
    daemon = Daemon(CORPUS / name)
    keys = sorted(daemon.buried())
    assert keys
    before = list(daemon.engine.store.expiry)
    for key in keys:
        assert daemon.ask(Function.BURY, key=key, value_type=1, value=b"looked at") is None
    daemon.restart()
    assert daemon.buried() == dict.fromkeys(keys, b"looked at")
    for domain in {key.partition(b":")[0] for key in keys}:
        daemon.ask(Function.KICK, second_key=domain, count=65_535)
    daemon.restart()
    assert daemon.buried() == {}
    assert list(daemon.engine.store.expiry) == before
    daemon.writer.close()
    names = [name for name in daemon.disk.listdir(LOG) if name.endswith(".log")]
    assert_workq_accepts([daemon.disk.read(f"{LOG}/{name}") for name in names])
