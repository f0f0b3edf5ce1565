from __future__ import annotations

import base64
import hashlib
import json
import random
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import google_crc32c
import pytest

from fastjournal.cmdlog.format.layout import NO_TIME, SEGMENT_HEADER, Command, encode_uvarint
from fastjournal.cmdlog.format.records import (
    encode_head,
    encode_job,
    encode_result,
    encode_simple,
    encode_time,
)
from fastjournal.cmdlog.format.workq import make_job_id
from fastjournal.testing.logs import in_zone
from fastjournal.testing.workq_rules import (
    WorkqJob,
    WorkqJobState,
    WorkqRefusalError,
    WorkqState,
    assert_workq_accepts,
)
from tests.integration.workq_server import (
    WorkqRefusedError,
    needs_workq,
    workq_server,
)

CORPUS = Path(__file__).parent / "data" / "workq"
RECORDED = {path.stem: json.loads(path.read_text()) for path in sorted(CORPUS.glob("*.json"))}
ACCEPTED = [name for name, recorded in RECORDED.items() if recorded["replay"]["accepted"]]
REFUSED = [name for name in RECORDED if name not in ACCEPTED]

CREATED_US = 1_795_165_389_000_000
NOW = encode_time(CREATED_US)
JOB_ID = make_job_id(bytes(range(16)))
MIB = 1024 * 1024


@pytest.mark.parametrize("name", REFUSED)
def test_log_that_the_server_refused_is_refused_for_the_same_reason(name: str) -> None:
    reason = RECORDED[name]["replay"]["message"].removeprefix("Replay error, ")
    with pytest.raises(WorkqRefusalError, match=reason):
        assert_workq_accepts(CORPUS / name)


@pytest.mark.parametrize("name", ACCEPTED)
def test_log_that_the_server_took_gives_the_state_that_the_server_had(name: str) -> None:
    recorded = RECORDED[name]["replay"]["state"]
    state = assert_workq_accepts(CORPUS / name, now_us=recorded["at_unix_ns"] // 1000)
    assert {str(number): shown(job) for number, job in state.jobs.items()} == {
        number: without_payload(job) for number, job in recorded["jobs"].items()
    }
    for number, job in recorded["jobs"].items():
        payload = state.jobs[UUID(number)].record.payload
        assert hashlib.sha256(payload).hexdigest() == job["payload_sha256"]
        if "payload_b64" in job:
            assert base64.b64encode(payload).decode() == job["payload_b64"]
    assert not {UUID(number) for number in recorded["gone"]} & set(state.jobs)
    for queue in recorded["queues"]:
        assert as_text(state.ready(queue)) == recorded["ready_order"][queue]
        assert as_text(state.scheduled(queue)) == recorded["scheduled_order"][queue]
    assert results_of(state) == recorded["results"]


def shown(job: WorkqJob) -> dict[str, Any]:
    record = job.record
    not_before = record.not_before_us
    scheduled = {} if not_before is None else {"time": to_the_second(not_before)}
    return {
        "name": record.name,
        "state": job.state,
        "attempts": job.attempts,
        "max-attempts": record.max_attempts,
        "fails": 0,
        "max-fails": record.max_fails,
        "priority": record.priority,
        "ttr": record.ttr_ms,
        "ttl": record.ttl_ms,
        "payload-size": len(record.payload),
        "created": to_the_second(record.created_us or 0),
        **scheduled,
    }


def to_the_second(us: int) -> str:
    return datetime.fromtimestamp(us // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def without_payload(job: dict[str, Any]) -> dict[str, Any]:
    left_out = ("payload_sha256", "payload_b64")
    return {name: value for name, value in job.items() if name not in left_out}


def as_text(numbers: list[UUID]) -> list[str]:
    return [str(number) for number in numbers]


def results_of(state: WorkqState) -> dict[str, dict[str, Any]]:
    return {
        str(number): {
            "len": len(job.result),
            "sha256": hashlib.sha256(job.result).hexdigest(),
            "success": int(job.state is WorkqJobState.COMPLETED),
        }
        for number, job in state.jobs.items()
        if job.result is not None
    }


def job(
    *,
    job_id: bytes = JOB_ID,
    name: bytes = b"q",
    ttr: int = 1,
    ttl: int = 1,
    attempts: int = 0,
    payload: bytes = b"",
) -> bytes:
    head = encode_head(name, ttr, ttl, 0, attempts, 0)
    return encode_job(Command.ADD, NOW, job_id, head, payload, NO_TIME, NOW)


def simple(command: Command, job_id: bytes = JOB_ID) -> bytes:
    return encode_simple(command, NOW, job_id)


def log(*records: bytes) -> list[bytes]:
    return [SEGMENT_HEADER + b"".join(records)]


START, TIMEOUT = simple(Command.START_ATTEMPT), simple(Command.TIMEOUT_ATTEMPT)
DELETE, EXPIRE = simple(Command.DELETE), simple(Command.EXPIRE)
COMPLETE = encode_result(Command.COMPLETE, NOW, JOB_ID, b"r")
FAIL = encode_result(Command.FAIL, NOW, JOB_ID, b"r")
NOT_V4 = make_job_id(bytes(16)).replace(b"\x40", b"\x10")


def test_workq_takes_everything_at_its_limit() -> None:
    assert_workq_accepts(
        log(
            job(ttr=1, ttl=1),
            job(job_id=make_job_id(bytes(16)), ttr=86_400_000, ttl=2_592_000_000),
            job(job_id=make_job_id(b"n" * 16), name=b"aZ0_.-" + b"n" * 249),
            job(job_id=make_job_id(b"p" * 16), payload=bytes(MIB), attempts=255),
            encode_result(Command.COMPLETE, NOW, JOB_ID, bytes(MIB)),
        )
    )
    assert_workq_accepts(log(job(), *[START, TIMEOUT] * 255))
    assert_workq_accepts([SEGMENT_HEADER, SEGMENT_HEADER + job(), SEGMENT_HEADER])
    assert_workq_accepts(log(job(), DELETE, job(), EXPIRE, job()))
    assert_workq_accepts(log(START, COMPLETE, FAIL, DELETE, EXPIRE, TIMEOUT))


@pytest.mark.parametrize(
    "records",
    [
        [job(name=b"")],
        [job(name=b"a b")],
        [job(name=b"a:b")],
        [job(name="\u00e4".encode())],
        [job(name=b"a\n")],
        [job(name=b"n" * 256)],
        [job(ttr=0)],
        [job(ttr=86_400_001)],
        [job(ttl=0)],
        [job(ttl=2_592_000_001)],
        [job(attempts=256)],
        [job(job_id=bytes(16))],
        [job(job_id=NOT_V4)],
        [simple(Command.DELETE, NOT_V4)],
        [job(payload=bytes(MIB + 1))],
        [job(), encode_result(Command.FAIL, NOW, JOB_ID, bytes(MIB + 1))],
        [job(), job()],
        [job(), COMPLETE, job()],
        [job(), COMPLETE, COMPLETE],
        [job(), START, COMPLETE, FAIL],
        [job(), FAIL, COMPLETE],
        [job(attempts=1), START, TIMEOUT, COMPLETE],
        [job(), START, START],
        [job(), COMPLETE, START],
        [job(), *[START, TIMEOUT] * 255, START],
        [b"\0" * 37],
        [job(), b"\0"],
        [job()[:-1]],
        [job()[:-1] + b"\xff"],
    ],
)
def test_model_refuses_what_workq_refuses(records: list[bytes]) -> None:
    with pytest.raises(WorkqRefusalError, match="segment 1, offset "):
        assert_workq_accepts(log(*records))


@pytest.mark.parametrize("payload", [b"\x09" + JOB_ID, DELETE[16:-4] + b"\0"])
def test_command_that_is_unknown_and_bytes_after_the_last_field_are_refused(payload: bytes) -> None:
    data = NOW + encode_uvarint(len(payload)) + payload
    with pytest.raises(WorkqRefusalError, match=r"is unknown|follow the last field"):
        assert_workq_accepts(log(data + google_crc32c.value(data).to_bytes(4, "big")))


@pytest.mark.parametrize("content", [b"", SEGMENT_HEADER[:7], b"wqwq\0\0\0\2"])
def test_segment_that_is_empty_or_short_is_refused(content: bytes) -> None:
    with pytest.raises(WorkqRefusalError, match="segment 2: no header"):
        assert_workq_accepts([SEGMENT_HEADER, content])


def test_job_that_is_expired_is_skipped_before_it_is_validated() -> None:
    later = CREATED_US + 1000
    state = assert_workq_accepts(log(job(name=b"a b"), START, START), now_us=later)
    assert state.jobs == {}
    with pytest.raises(WorkqRefusalError):
        assert_workq_accepts(log(job(name=b"a b")), now_us=later - 1)


DAY = 86_400_000_000
YEARS = 365 * DAY
NONE = "no time"
READY, SCHEDULED, SKIPPED = "ready", "scheduled", "skipped"
ADD, SCHEDULE = Command.ADD, Command.SCHEDULE
LIVES = [
    # command, TIME, scheduled, created, each from the present; what a real server made of it
    (ADD, 0, NONE, 0, READY),
    (ADD, 0, NONE, -29 * DAY, READY),
    (ADD, 0, NONE, -31 * DAY, SKIPPED),
    (ADD, -40 * DAY, NONE, 0, READY),
    (ADD, NONE, NONE, 0, READY),
    (ADD, 0, NONE, 1000 * YEARS, READY),
    (ADD, 0, NONE, NONE, SKIPPED),
    (ADD, 0, DAY, 0, READY),
    (ADD, 0, DAY, -31 * DAY, SKIPPED),
    (ADD, 0, -31 * DAY, 0, "Invalid Time"),
    (SCHEDULE, 0, DAY, 0, SCHEDULED),
    (SCHEDULE, -40 * DAY, DAY, -40 * DAY, SCHEDULED),
    (SCHEDULE, 0, DAY, NONE, SCHEDULED),
    (SCHEDULE, 0, 300 * YEARS, 0, SCHEDULED),
    (SCHEDULE, 0, 500_000 * YEARS, 0, SCHEDULED),
    (SCHEDULE, 0, -29 * DAY, -40 * DAY, READY),
    (SCHEDULE, 0, -31 * DAY, 0, SKIPPED),
    (SCHEDULE, 0, NONE, 0, SKIPPED),
]
"""Recorded of workq-server (commit fc15ddb)."""
each_life = pytest.mark.parametrize(("command", "at", "scheduled", "created", "outcome"), LIVES)


def time_of(offset: int | str, now: int) -> bytes:
    return NO_TIME if isinstance(offset, str) else encode_time(now + offset)


def log_of_a_life(
    now: int, command: Command, at: int | str, scheduled: int | str, created: int | str
) -> bytes:
    head = encode_head(b"q", 1000, 2_592_000_000, 0, 0, 0)
    times = [time_of(offset, now) for offset in (at, scheduled, created)]
    return SEGMENT_HEADER + encode_job(command, times[0], JOB_ID, head, b"", *times[1:])


@pytest.mark.parametrize("minutes", [-1, 0, 60])
@each_life
def test_job_lives_from_its_scheduled_time_or_its_creation_as_recorded(
    minutes: int,
    command: Command,
    at: int | str,
    scheduled: int | str,
    created: int | str,
    outcome: str,
) -> None:
    data = in_zone(log_of_a_life(CREATED_US, command, at, scheduled, created), minutes)
    if outcome == "Invalid Time":
        with pytest.raises(WorkqRefusalError, match=outcome):
            assert_workq_accepts([data], now_us=CREATED_US)
        return
    state = assert_workq_accepts([data], now_us=CREATED_US)
    assert (len(state.ready("q")), len(state.scheduled("q"))) == (
        outcome == READY,
        outcome == SCHEDULED,
    )


@needs_workq
@pytest.mark.parametrize("minutes", [-1, 0, 60])
@each_life
def test_job_lives_in_a_real_server_as_recorded(
    minutes: int,
    command: Command,
    at: int | str,
    scheduled: int | str,
    created: int | str,
    outcome: str,
    tmp_path: Path,
) -> None:
    now = time.time_ns() // 1000
    data = in_zone(log_of_a_life(now, command, at, scheduled, created), minutes)
    (tmp_path / "000000001.log").write_bytes(data)
    if outcome == "Invalid Time":
        with pytest.raises(WorkqRefusedError, match=outcome), workq_server(tmp_path):
            pass
        return
    ids = {"q": [str(UUID(bytes=JOB_ID))]}
    shown = {READY: (ids, {}), SCHEDULED: ({}, ids), SKIPPED: ({}, {})}
    with workq_server(tmp_path) as server:
        server.assert_waiting(shown[outcome])


def any_records(seed: int, now: int) -> list[bytes]:
    """Return records of some jobs, whose lives begin and end at any time."""
    chance = random.Random(seed)
    time = encode_time(now)
    ids, records, started = [JOB_ID], [], [JOB_ID]
    for number in range(chance.randrange(1, 25)):
        command = chance.choice((ADD, ADD, SCHEDULE, SCHEDULE, *Command))
        if command <= SCHEDULE and chance.random() < 0.97:
            ids.append(make_job_id(bytes((chance.randrange(256), number)) * 8))
            job_id = ids[-1]
        else:
            # none that was never started times out: workq would have the job in two lists
            job_id = chance.choice(started if command is Command.TIMEOUT_ATTEMPT else ids)
        if command is Command.START_ATTEMPT:
            started.append(job_id)
        if command > SCHEDULE:
            bare = command > Command.FAIL
            records.append(
                encode_simple(command, time, job_id)
                if bare
                else encode_result(command, time, job_id, b"r")
            )
            continue
        name, priority = chance.choice((b"a", b"b")), chance.choice((-1, 0, 1))
        head = encode_head(name, 60_000, 2_592_000_000, priority, chance.choice((0, 0, 1, 2)), 0)
        # one that is due already becomes ready a moment after the start
        due = chance.choice((-40 * DAY, DAY, DAY, 300 * YEARS, 300 * YEARS + 1))
        created = chance.choice((-40 * DAY, -DAY, 0, 0, 1, 1000 * YEARS))
        times = (
            (encode_time(now + due) if command is SCHEDULE else NO_TIME),
            encode_time(now + created),
        )
        records.append(encode_job(command, time, job_id, head, b"", *times))
    return records


def refusal_of(segment: bytes, now_us: int) -> str:
    """Return why the model refuses a log; empty: it takes it."""
    try:
        assert_workq_accepts([segment], now_us=now_us)
    except WorkqRefusalError as error:
        return str(error).rpartition(": ")[2]
    return ""


@needs_workq
@pytest.mark.parametrize("seed", range(60))
def test_model_and_a_real_server_make_the_same_of_any_log(seed: int, tmp_path: Path) -> None:
    now = time.time_ns() // 1000
    data = SEGMENT_HEADER + b"".join(any_records(seed, now))
    (tmp_path / "000000001.log").write_bytes(data)
    if refusal := refusal_of(data, now):
        with pytest.raises(WorkqRefusedError, match=refusal), workq_server(tmp_path):
            pass
        return
    state = assert_workq_accepts(tmp_path, now_us=now)
    ready = {name: as_text(state.ready(name)) for name in ("a", "b") if state.ready(name)}
    scheduled = {
        name: as_text(state.scheduled(name)) for name in ("a", "b") if state.scheduled(name)
    }
    with workq_server(tmp_path) as server:
        server.assert_waiting((ready, scheduled))
        for number, job in state.jobs.items():
            facts = server.job(str(number))
            assert facts is not None
            assert (int(facts["state"]), int(facts["attempts"])) == (job.state, job.attempts)
