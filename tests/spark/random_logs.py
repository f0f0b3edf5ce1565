"""Logs of all kinds of records in any order, on few keys, so that everything collides."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from fastjournal.cmdlog.format.endings import REPLACED
from fastjournal.cmdlog.format.layout import Command, segment_name, unpack_position
from fastjournal.cmdlog.format.operation_records import (
    Batch,
    Delay,
    Delivered,
    Erasure,
    Extend,
    Failed,
    Lease,
    Limit,
    Link,
    Pause,
    Rename,
    Resize,
    SegmentRemoved,
    SegmentRewritten,
    SegmentStart,
    Tombstone,
    Touch,
    Value,
)
from fastjournal.cmdlog.recovery.inspect_log import inspect_log
from fastjournal.cmdlog.recovery.replay_state import ReplayState
from fastjournal.cmdlog.recovery.replayed_entry import ReplayedEntry
from fastjournal.disk import OsDisk
from fastjournal.keys import parse_journal_key
from fastjournal.spark.decoding.view_columns import cut, text
from fastjournal.spark.live_entries.fetch import ENTRY_COLUMNS
from fastjournal.testing.logs import START_US, SegmentBuilder

SECOND = 1_000_000
DOMAINS = ("a", "b", "ü")
URIS = (None, b"u", b"v", b"http://x/\xff", b"plain", b"a:1:0:x")
LINKS = (b"l", b"plain", b"u")


def write_random_log(directory: Path, seed: int, *, segments: int = 4, records: int = 40) -> None:
    """Write segments of ours and of workq's own, in turns."""
    draw = random.Random(seed)
    directory.mkdir(parents=True, exist_ok=True)
    jobs: list[bytes] = []
    now = START_US
    for number in range(1, segments + 1):
        previous = None if draw.random() < 0.3 else number - 1
        builder = SegmentBuilder(previous, now_us=now, ids_from=number * 1_000_000)
        for _ in range(records):
            builder.now_us += draw.choice((0, 1, 1000, SECOND, 40 * SECOND))
            _add_record(draw, builder, jobs)
        now = builder.now_us
        (directory / segment_name(number)).write_bytes(bytes(builder))


def _add_record(draw: random.Random, builder: SegmentBuilder, jobs: list[bytes]) -> None:
    def job() -> bytes:
        return draw.choice(jobs[-12:]) if jobs else builder.job_id()

    kind = draw.choices(
        ("entry", "foreign", "lease", "simple", "complete", "fail", "operation", "batch"),
        (10, 3, 4, 6, 3, 2, 8, 2),
    )[0]
    now = builder.now_us
    if kind in ("entry", "batch"):
        if kind == "batch":
            builder.batch(2)
        fields: dict[str, Any] = {}
        if draw.random() < 0.2:
            fields["superseded"] = now
        if draw.random() < 0.1:
            fields["reason"] = b"set \xff aside"
        if draw.random() < 0.2:
            fields["token"] = now + 5 * SECOND
        if draw.random() < 0.2:
            fields["links"] = [draw.choice(LINKS)]
        jobs.append(
            builder.entry(
                _key(draw),
                uri=draw.choice(URIS),
                timestamp=now - draw.choice((0, 0, 0, 5, SECOND)),
                value=draw.randbytes(draw.choice((0, 9, 300))),
                arrival=draw.randrange(2000),
                job_id=job() if draw.random() < 0.05 else None,
                expires=draw.choice((0, now + 30 * SECOND, 2**64 - 1)),
                not_before=draw.choice((0, now)),
                **fields,
            )
        )
        if kind == "batch":
            builder.simple(Command.DELETE, job())
    elif kind == "foreign":
        again = job() if draw.random() < 0.3 else None
        due = draw.choice((None, now + SECOND))
        name = draw.choice((b"a", b"q"))
        attempts = draw.choice((0, 2))
        jobs.append(builder.foreign(name, b"w", job_id=again, due_us=due, attempts_max=attempts))
        if draw.random() < 0.2:
            # workq may write a start before the add of its job
            early = builder.job_id()
            builder.simple(Command.START_ATTEMPT, early)
            jobs.append(builder.foreign(b"q", job_id=early))
    elif kind == "lease":
        builder.lease([job() for _ in range(draw.randrange(1, 4))], now + 9 * SECOND)
    elif kind == "simple":
        builder.simple(Command(draw.randrange(5, 9)), job())
    elif kind == "complete":
        builder.complete(job(), _key(draw)) if draw.random() < 0.7 else builder.result(
            Command.COMPLETE, job(), b"done"
        )
    elif kind == "fail":
        builder.fail(job(), b"no") if draw.random() < 0.7 else builder.result(Command.FAIL, job())
    else:
        builder.operation(
            draw.choice(
                (
                    Extend(job(), now + 60 * SECOND, 0, b"", 0, b""),
                    Touch(job(), now + 60 * SECOND, is_instant=False),
                    Delay(job(), now + 60 * SECOND),
                    Failed(job(), draw.randrange(1, 9), b"why", b"", 0, b""),
                    Value(job(), draw.randbytes(2), now),
                    Resize(job(), draw.choice((0, 4, 500)), now),
                    Link(job(), draw.choice((*LINKS, _key(draw)))),
                    Link(job(), draw.choice((*LINKS, _key(draw)))),
                    Rename(job(), _key(draw), now, _key(draw), b""),
                    Rename(job(), _key(draw), now, _key(draw), b""),
                    Tombstone(_key(draw), now),
                    Erasure(_key(draw)),
                    SegmentRemoved(77),
                    Pause(b"a", now + 60 * SECOND, again=False),
                    Limit(b"a", SECOND, 1, 0, 0, again=False),
                    Delivered(b"a", now),
                )
            )
        )


def every_record() -> SegmentBuilder:
    """Return a segment with a record of each command, operation and form."""
    builder = SegmentBuilder(previous=None)
    one = builder.entry(b"w:1:5:x", uri=b"u", value=b"v", not_before=5)
    two = builder.entry(b"p", links=[b"l", b"m"], expires=9, ttl=8, attempts=3, token=300)
    builder.entry(b"b", reason=b"\xff", superseded=1, uri=b"t", taken=(0,), erases=True, error=b"e")
    builder.lease([one, two], 77)
    for operation in (
        SegmentStart(1, 5, 600, 7, 0),
        SegmentRewritten(1, 2, 3, done=True),
        SegmentRemoved(4),
        Lease.bare(1, 300, again=True, attempts=4),
        Batch(1),
        Tombstone(b"k", 7),
        Erasure(b"k"),
        Pause(b"d", 300, again=False),
        Limit(b"d", 1, 2, 300, 4, again=False),
        Delivered(b"d", 300),
        Extend(one, 99, 0, b"", 0, b""),
        Touch(two, 300, is_instant=False),
        Delay(one, 5),
        Failed(one, 2, b"no", b"", 0, b""),
        Value(one, b"n", 6),
        Resize(one, 9, 300),
        Link(one, b"a:1:2:l"),
        Rename(one, b"r", 8, b"w:1:5:x", b""),
    ):
        builder.operation(operation)
    builder.simple(Command.TIMEOUT_ATTEMPT, one)
    builder.remove(two, REPLACED + 1)
    builder.remove_buried(two)
    builder.simple(Command.DELETE, two)
    builder.simple(Command.EXPIRE, two)
    builder.complete(one, b"a:1:2:x", 7)
    builder.result(Command.COMPLETE, one, b"done")
    builder.fail(two, b"\xff no")
    foreign = builder.foreign(b"q", b"w", ttl_ms=5, priority=-3, attempts_max=2)
    builder.foreign(b"q", b"w", due_us=builder.now_us)
    builder.simple(Command.START_ATTEMPT, foreign)
    builder.result(Command.FAIL, foreign)
    return builder


def _key(draw: random.Random) -> bytes:
    if draw.random() < 0.2:
        return draw.choice((b"plain", b"u", b"\xfe:key"))
    domain = draw.choice(DOMAINS)
    return f"{domain}:{draw.randrange(3)}:0:{draw.choice('xyz')}".encode()


def replayed_state(directory: Path) -> ReplayState:
    """Return what the daemon's recovery finds live."""
    inspection = inspect_log(OsDisk(), str(directory), ReplayState())
    assert not inspection.corrupt, inspection.diagnostics
    return inspection.state


def replayed(directory: Path) -> list[tuple[Any, ...]]:
    """Return the rows that the view entries must have, sorted by position."""
    return by_position([_row_of(job) for job in replayed_state(directory).jobs.values()])


def _row_of(job: ReplayedEntry) -> tuple[Any, ...]:
    """Return the columns of an entry, in their order."""
    parts = parse_journal_key(job.key)
    state = "worked_on" if job.token else "waiting" if job.reason is None else "buried"
    segment, offset = unpack_position(job.position)
    told = {
        "domain": None if parts is None else text(parts.domain),
        "priority": None if parts is None else parts.priority,
        "id": None if parts is None else text(parts.id),
        "state": state,
        "worked_on_until": cut(job.token),
        "reason": None if job.reason is None else text(job.reason),
        "job_id": job.job_id.hex(),
        "segment": segment,
        "offset": offset,
    }
    for column in ENTRY_COLUMNS:
        if column.name not in told:
            value = getattr(job, column.name)
            told[column.name] = cut(value) if column.kind == "long" else value
    return tuple(told[column.name] for column in ENTRY_COLUMNS)


def by_position(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Sort rows of entries by segment and offset, their last two columns."""
    return sorted(rows, key=lambda row: row[-2:])


def write_linked_log(directory: Path, seed: int) -> None:
    """Write a log of entries and links, most of which meet nothing else."""
    draw = random.Random(seed)
    directory.mkdir(parents=True)
    jobs: list[tuple[bytes, bytes]] = []
    keys = draw.choice((12, 60, 400))
    others = draw.choice((0, 0, 0.03, 0.2))

    def key() -> bytes:
        form = draw.choice((b"plain %d", b"a:1:0:x%d", b"link %d", b"link %d"))
        return form % draw.randrange(keys)

    for number in range(1, 3):
        builder = SegmentBuilder(number - 1, ids_from=number * 1_000_000)
        for _ in range(60):
            builder.now_us += draw.choice((0, SECOND))
            if jobs and draw.random() < others:
                job, name = draw.choice(jobs)
                builder.complete(job, name) if draw.random() < 0.7 else builder.lease([job], 77)
            elif jobs and draw.random() < 0.6:
                builder.operation(Link(draw.choice(jobs[-20:])[0], key()))
            else:
                name = key()
                links = [key() for _ in range(draw.choice((0, 0, 0, 1, 3)))]
                uri = draw.choice((None, key()))
                jobs.append((builder.entry(name, uri=uri, links=links), name))
        (directory / segment_name(number)).write_bytes(bytes(builder))


def write_log(directory: Path, *segments: SegmentBuilder) -> Path:
    """Write a log directory of these segments, numbered from 1, and return it."""
    directory.mkdir(parents=True)
    for number, segment in enumerate(segments, 1):
        (directory / segment_name(number)).write_bytes(bytes(segment))
    return directory
