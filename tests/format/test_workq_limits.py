"""docs/workq.md, To workq: a log of a real daemon as workq sees it, and what it does not see."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from fastjournal.client import SyncClient
from fastjournal.clock import SystemClock
from fastjournal.keys import build_journal_key, journal_key_of
from fastjournal.testing.workq_rules import (
    WorkqJob,
    WorkqJobState,
    WorkqRefusalError,
    assert_workq_accepts,
)
from tests.integration import shifted_daemon
from tests.integration.daemon_process import DaemonProcess
from tests.integration.shifted_daemon import set_offset
from tests.integration.workq_server import needs_workq, workq_server

HOUR_S = 3600
DAY_MS = 86_400_000


def value_of(job: WorkqJob) -> bytes:
    """Return the value for a worker of workq: the fifth item of the array behind three bytes."""
    value = msgspec.msgpack.decode(job.record.payload[3:])[4]
    assert isinstance(value, bytes)
    return value


def jobs_of(log: Path, now_us: int) -> dict[str, dict[bytes, WorkqJob]]:
    """Return the jobs that workq has, by name and value."""
    found: dict[str, dict[bytes, WorkqJob]] = {}
    for job in assert_workq_accepts(log, now_us=now_us).jobs.values():
        if job.state is not WorkqJobState.COMPLETED:
            found.setdefault(job.record.name, {})[value_of(job)] = job
    return found


def test_workq_has_every_entry_as_a_job_and_nothing_of_what_changed_since(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path) as daemon:
        with SyncClient(daemon.address) as client:
            for name in ("waits", "worked on", "given back", "buried", "renamed", "done"):
                client.set(f"mail:100:0:{name}", name, uri=f"uri of {name}")
            client.set("a domain, escaped:200:0:x", "escaped")
            client.set("plain", "a plain key")
            client.set("plain 2", 5)
            client.set("memory:1:0:x", "in memory only", persist=False)
            client.set("mail:100:0:short", "short", expires=client.nop() + timedelta(hours=1))

            def lease(name: str) -> int:
                token = client.get(f"mail:100:0:{name}", lease=timedelta(days=10)).token
                assert token is not None
                return token

            client.delete("mail:100:0:done", token=lease("done"))
            lease("worked on")
            client.set("mail:100:0:newer", "took the URI", uri="uri of worked on")
            client.release("mail:100:0:given back", lease("given back"), delay=HOUR_S)
            client.bury("mail:100:0:buried", reason="why")
            client.rename("mail:100:0:renamed", "other:1:0:renamed")
            client.add("plain 2", 6)
            client.pause("mail", HOUR_S)
            # operations are jobs that are over a millisecond later
            now = round(client.nop().timestamp() * 1e6) + 2000
        assert daemon.stop() == 0
    jobs = jobs_of(daemon.log_path, now)
    assert "fj.op" not in jobs
    assert sorted(jobs) == sorted(["mail", "fj.kv", *(n for n in jobs if n.startswith("fj.d."))])
    assert len(jobs) == 3
    mail = {value.decode(): job for value, job in jobs["mail"].items()}
    assert {name: job.state.name for name, job in mail.items()} == {
        "waits": "NEW",
        "worked on": "LEASED",
        "given back": "PENDING",
        "buried": "FAILED",
        "renamed": "NEW",
        "short": "NEW",
        "took the URI": "NEW",
    }
    assert mail["worked on"].record.ttr_ms == DAY_MS, "whatever the lease was"
    begins = mail["given back"].record.not_before_us
    assert begins is not None
    assert begins < now, "the delay is in an operation"
    assert mail["waits"].record.priority == 28
    assert mail["waits"].record.ttl_ms == 30 * DAY_MS
    assert 0 < mail["short"].record.ttl_ms <= DAY_MS // 24
    assert set(jobs["fj.kv"]) == {b"a plain key", (5).to_bytes(8)}, (
        "what ADD made of it is in an operation"
    )
    in_a_month = now + 30 * DAY_MS * 1000
    assert not jobs_of(daemon.log_path, in_a_month), "there it is over, here it is not"


def test_value_beyond_the_limit_of_workq_is_reported_by_the_daemon(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, "--max-value", "2000000") as daemon:
        with SyncClient(daemon.address) as client:
            client.set("mail:100:0:fits", b"v" * 1_000_000)
        assert_workq_accepts(daemon.log_path)
        with SyncClient(daemon.address) as client:
            client.set("mail:100:0:large", b"v" * 1_100_000)
        with pytest.raises(WorkqRefusalError, match="over 1 MiB"):
            assert_workq_accepts(daemon.log_path)
        assert daemon.stop() == 0
    assert "workq" in daemon.said()


@pytest.mark.parametrize("ahead_days", [-400, -2, 0, 40])
def test_workq_time_to_live_counts_from_the_scheduled_time(ahead_days: int, tmp_path: Path) -> None:
    day = DAY_MS * 1000
    with DaemonProcess(tmp_path) as daemon:
        now = SystemClock().now_us()
        due = now + ahead_days * day
        with SyncClient(daemon.address) as client:
            # they end three days after the later of now and the scheduled time
            ends = max(now, due) + 3 * day
            client.set(f"q:100:{due}:ends", "v", expires=ends / 1e6)
            client.set(f"q:100:{due}:stays", "v")
        assert daemon.stop() == 0
    for days, alive in ((2, 2), (4, 1)):
        later = max(now, due) + days * day
        jobs = assert_workq_accepts(daemon.log_path, now_us=later).jobs.values()
        assert len([job for job in jobs if job.record.name == "q"]) == alive


@needs_workq
def test_workq_server_has_the_jobs_of_a_log_as_the_model_has_them(tmp_path: Path) -> None:
    day, clock = DAY_MS * 1000, tmp_path / "clock"
    set_offset(clock, -40 * day)
    command = (sys.executable, shifted_daemon.__file__, str(clock))
    with DaemonProcess(tmp_path, command=command) as daemon:
        with SyncClient(daemon.address) as client:
            for key in ("plain", "without a new record for 40 days"):
                client.set(key, "old", timestamp_us=SystemClock().now_us() - 40 * day)
            set_offset(clock, 0)
            client.set("plain", "new", overwrite=True)
            now = SystemClock().now_us()
            for number, begins in enumerate((0, now - 400 * day, now - day, now, now + day, 2**63)):
                for priority in (0, 255):
                    client.set(journal_key_of("q", f"{number}", begins, priority), "v", plain=True)
            key = build_journal_key("q", "renamed", not_before_us=now + day)
            client.set(key, "v")
            client.rename(key, "fj.op:7:0:renamed")
        assert daemon.stop() == 0
    state = assert_workq_accepts(daemon.log_path, now_us=SystemClock().now_us())
    names = sorted({job.record.name for job in state.jobs.values()} - {"fj.op"})
    assert names == ["fj.kv", "q"]
    lists = [
        {name: [str(job) for job in jobs] for name in names if (jobs := waiting(name))}
        for waiting in (state.ready, state.scheduled)
    ]
    assert [sum(map(len, found.values())) for found in lists] == [1 + 8, 4 + 1]
    with workq_server(daemon.log_path) as server:
        server.assert_waiting((lists[0], lists[1]))
