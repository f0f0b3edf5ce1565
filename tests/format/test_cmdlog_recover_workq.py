"""Logs of a real workq-server come back as workq showed them."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from fastjournal.cmdlog.format.layout import SEGMENT_HEADER
from fastjournal.cmdlog.recovery.recover import Recovered, recover, verify
from fastjournal.cmdlog.recovery.replay_state import ReplayState
from fastjournal.disk import OsDisk
from fastjournal.foreign.workq import open_workq
from fastjournal.testing.logs import in_zone
from fastjournal.testing.workq_rules import assert_workq_accepts
from fastjournald.engine.engine import Settings
from fastjournald.recovery.recover import load_engine

DATA = Path(__file__).parent / "data" / "workq"
LOGS = sorted(path.stem for path in DATA.glob("*.json"))
COMES_BACK = {
    "deleted-comes-back": {"ce1356e3-7687-4e5a-90e4-e847871ae86e"},
    "duplicate-after-clean": {"24926581-7c89-4f7c-ad72-efa3f6cf2f76"},
}
"""Deleted jobs whose delete is in no file any more, only their add; workq itself shows the first
again, and refuses to start on the second."""
LEASE_MAX_US = 24 * 3600 * 1_000_000
"""The longest time to run that workq takes."""
NEW, COMPLETED, FAILED, PENDING, LEASED = range(5)


def load(name: str, tmp_path: Path) -> tuple[Recovered, dict[str, Any]]:
    directory = tmp_path / name
    shutil.copytree(DATA / name, directory)
    directory.chmod(0o755)
    expected: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text())["live"]
    return recover(OsDisk(), str(directory), now_us=expected["at_unix_ns"] // 1000), expected


def load_in_zone(name: str, minutes: int, tmp_path: Path) -> Recovered:
    """Return what is recovered of a log as a workq writes it whose times have a zone offset."""
    directory = tmp_path / f"{name} {minutes}"
    directory.mkdir()
    for path in (DATA / name).iterdir():
        (directory / path.name).write_bytes(in_zone(path.read_bytes(), minutes))
    return recover(OsDisk(), str(directory), now_us=0)


def live_in(recovered: Recovered) -> list[tuple[Any, ...]]:
    return [
        (
            *(job.key, job.value, job.timestamp, job.created, job.not_before, job.expires),
            *(job.token, job.starts, job.attempts, job.reason, job.arrival),
        )
        for job in recovered.state.jobs.values()
    ]


def due(state: ReplayState, now: int) -> dict[str, Any]:
    """The jobs that have not expired, by id as the corpus writes it."""
    return {
        str(UUID(bytes=job_id)): job
        for job_id, job in state.jobs.items()
        if not 0 < job.expires <= now
    }


@pytest.mark.parametrize("name", LOGS)
def test_recovery_takes_times_of_any_zone_offset_alike(name: str, tmp_path: Path) -> None:
    utc, *others = (load_in_zone(name, minutes, tmp_path) for minutes in (-1, 0, 60, -720))
    assert utc.state.jobs
    for other in others:
        assert other.diagnostics == []
        assert live_in(other) == live_in(utc)


@pytest.mark.parametrize(("name", "jobs"), [("basic", 3), ("segments", 18)])
def test_job_time_to_live_counts_from_its_scheduled_time(
    name: str, jobs: int, tmp_path: Path
) -> None:
    recovered, expected = load(name, tmp_path)
    later = expected["at_unix_ns"] // 1000 + 31 * 86_400_000_000
    # scheduled further ahead than their time to live
    ahead = [job for job in recovered.state.jobs.values() if job.not_before > later]
    assert len(ahead) == jobs
    assert all(job.expires == job.not_before + 30 * 86_400_000_000 for job in ahead)
    model = assert_workq_accepts(tmp_path / name, now_us=later)
    assert {number.bytes for number in model.jobs} >= {job.job_id for job in ahead}
    with open_workq(OsDisk(), str(tmp_path / name)) as journal:
        found = {item.key: item.expires for item in journal.items()}
    assert all(found[job.key] == job.expires for job in ahead)


@pytest.mark.parametrize("name", LOGS)
def test_jobs_that_workq_showed_are_there_in_the_state_it_showed(name: str, tmp_path: Path) -> None:
    recovered, expected = load(name, tmp_path)
    jobs = due(recovered.state, expected["at_unix_ns"] // 1000)
    assert expected["jobs"]
    for job_id, shown in expected["jobs"].items():
        if shown["state"] == COMPLETED:
            assert job_id not in jobs
            continue
        job = jobs.pop(job_id)
        assert job.starts == shown["attempts"]
        assert (job.reason is not None) == (shown["state"] == FAILED)
        assert (job.token > 0) == (shown["state"] == LEASED)
        if shown["state"] != FAILED:
            assert job.attempts == shown["attempts"] - (shown["state"] == LEASED)
        assert job.domain == shown["name"].encode()
        assert job.priority == min(max(128 - shown["priority"], 0), 255)
        assert len(job.value) == shown["payload-size"]
        assert hashlib.sha256(job.value).hexdigest() == shown["payload_sha256"]
        if "payload_b64" in shown:
            assert job.value == base64.b64decode(shown["payload_b64"])
        assert job.key.endswith(b":" + job_id.replace("-", "").encode())
    assert set(jobs) == COMES_BACK.get(name, set())


@pytest.mark.parametrize("name", LOGS)
def test_jobs_run_in_the_order_in_which_workq_would_run_them(name: str, tmp_path: Path) -> None:
    recovered, expected = load(name, tmp_path)
    now = expected["at_unix_ns"] // 1000
    jobs = due(recovered.state, now)
    for queue, ids in expected["ready_order"].items():
        known = [job_id for job_id in ids if job_id in jobs]
        assert known == ids
        # workq queues a job again when its lease runs out: only those never leased keep their turn
        fresh = [job_id for job_id in ids if not jobs[job_id].starts]
        shown = expected["jobs"]
        turns = [(-shown[job_id]["priority"], jobs[job_id].arrival) for job_id in fresh]
        assert turns == sorted(turns), queue
        priorities = [jobs[job_id].priority for job_id in fresh]
        assert priorities == sorted(priorities), queue
    for queue, ids in expected["scheduled_order"].items():
        assert all(jobs[job_id].not_before > now for job_id in ids), queue


@pytest.mark.parametrize("name", LOGS)
def test_log_of_workq_is_sound_and_appending_goes_on_in_a_new_segment(
    name: str, tmp_path: Path
) -> None:
    recovered, _ = load(name, tmp_path)
    assert recovered.active is None
    assert recovered.diagnostics == []
    assert verify(OsDisk(), str(tmp_path / name)) == []
    assert [segment.name for segment in recovered.sealed] == sorted(
        path.name for path in (DATA / name).iterdir()
    )
    for segment in recovered.sealed:
        assert segment.bytes == (DATA / name / segment.name).stat().st_size


def test_replay_takes_the_later_of_two_adds_of_one_id(tmp_path: Path) -> None:
    recovered, _ = load("duplicate-after-clean", tmp_path)
    assert recovered.state.odd["an id added twice"] == 1


def test_attempts_are_counted_where_a_start_stands_before_the_timeout_of_the_one_before(
    tmp_path: Path,
) -> None:
    recovered, expected = load("race-timeout-lease", tmp_path)
    for job_id, shown in expected["jobs"].items():
        job = recovered.state.jobs[UUID(job_id).bytes]
        assert (job.starts, job.attempts, job.token) == (shown["attempts"], shown["attempts"], 0)


@pytest.mark.parametrize("name", LOGS)
def test_daemon_goes_on_with_a_log_of_workq_and_workq_with_what_the_daemon_made_of_it(
    name: str, tmp_path: Path
) -> None:
    recovered, expected = load(name, tmp_path)
    now = expected["at_unix_ns"] // 1000
    written: list[bytes] = []

    def append(data: bytes, records: int, now_us: int) -> int:
        written.append(data)
        return 0

    engine = load_engine(recovered.state, Settings(), append, seed=bytes(8), now=now)
    engine.check()
    engine.advance(now + LEASE_MAX_US)
    engine.check()
    written.insert(0, engine.journal.log.segment_start(recovered.sealed[-1], now))
    (tmp_path / name / "000000099.log").write_bytes(SEGMENT_HEADER + b"".join(written))
    again = recover(OsDisk(), str(tmp_path / name), now_us=now)
    assert not any(job.token for job in again.state.jobs.values())
    assert {job.key for job in again.state.jobs.values()} == {entry.key for entry in engine.store}
    for job in again.state.jobs.values():
        entry = engine.store.find(job.key)
        assert entry is not None
        assert (entry.extra.attempts, entry.reason) == (job.attempts, job.reason)
    if name not in ("duplicate-after-clean", "race-timeout-lease"):
        assert_workq_accepts(tmp_path / name)
