"""How many records a second a start replays: ``python tests/bench/bench_recovery.py [RECORDS]``.

The log is one of our own: scheduled entries with a URI and a 100-byte value, leased in groups of
about 64 and completed. Every eighth entry stays: half of those waiting, half of them leased. Timed
is ``recover`` on a warm file cache: list, read, scan, replay, with the garbage collector off, as
the daemon does it.
"""

from __future__ import annotations

import gc
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator

from fastjournal.cmdlog.envelope import (
    OPERATION_NAME,
    Completion,
    Envelope,
    Lease,
    Operation,
    SegmentStart,
    pack,
)
from fastjournal.cmdlog.records import (
    NO_TIME,
    SEGMENT_HEADER,
    Command,
    encode_head,
    encode_job,
    encode_result,
    encode_simple,
    encode_time,
)
from fastjournal.cmdlog.recover import recover
from fastjournal.cmdlog.segments import segment_name
from fastjournal.disk import OsDisk
from fastjournal.keys import build_journal_key

GROUP = 64
START_US = 1_795_165_389_000_000
SEGMENT_BYTES = 64 * 1024 * 1024
JOB_HEAD = encode_head(b"pages.example.com", 86_400_000, 2_592_000_000, 0, 255, 0)
OPERATION_HEAD = encode_head(OPERATION_NAME.encode(), 60_000, 2_592_000_000, 0, 0, 0)


def _job_id(draw: random.Random) -> bytes:
    number = draw.getrandbits(128) & ~(0xF << 76 | 0x3 << 62) | 0x4 << 76 | 0x2 << 62
    return number.to_bytes(16)


def _operation(draw: random.Random, time_bytes: bytes, operation: Operation) -> bytes:
    payload = pack(operation)
    return encode_job(
        Command.ADD, time_bytes, _job_id(draw), OPERATION_HEAD, payload, NO_TIME, time_bytes
    )


def _records(records: int) -> Iterator[bytes]:
    """Yield about so many records, a request's at a time."""
    draw = random.Random(2026)
    value = draw.randbytes(100)
    now = START_US
    number = done = 0
    while done < records:
        now += 1000
        time_bytes = encode_time(now)
        jobs = []
        for _ in range(GROUP):
            number += 1
            key = build_journal_key(
                "pages.example.com", f"{number:08d}", not_before_us=now, priority=number % 8
            )
            uri = b"https://pages.example.com/articles/%08d" % number
            envelope = Envelope(
                key, uri, [], 1, value, now, now, now, number, not_before=now, expires=0
            )
            job_id = _job_id(draw)
            jobs.append((job_id, key))
            yield encode_job(
                Command.SCHEDULE, time_bytes, job_id, JOB_HEAD, pack(envelope), time_bytes,
                time_bytes,
            )  # fmt: skip
        worked = jobs[: GROUP - GROUP // 16]
        lease = _operation(draw, time_bytes, Lease(len(worked), now + 60_000_000))
        yield lease + b"".join(
            encode_simple(Command.START_ATTEMPT, time_bytes, job_id) for job_id, _ in worked
        )
        finished = jobs[: GROUP - GROUP // 8]
        for job_id, key in finished:
            result = pack(Completion(now, key))
            yield encode_result(Command.COMPLETE, time_bytes, job_id, result)
        done += len(jobs) + 1 + len(worked) + len(finished)


def _write_log(directory: str, records: int) -> int:
    """Write a log of about so many records; return its bytes."""
    draw = random.Random(1)
    total = number = 0
    parts: list[bytes] = []
    size = 0

    def seal() -> None:
        with open(f"{directory}/{segment_name(number)}", "wb") as file:
            file.write(b"".join(parts))

    for part in _records(records):
        if not number or size >= SEGMENT_BYTES:
            if number:
                seal()
            start = _operation(draw, encode_time(START_US), SegmentStart(number))
            parts = [SEGMENT_HEADER, start]
            size = sum(map(len, parts))
            total += size
            number += 1
        parts.append(part)
        size += len(part)
        total += len(part)
    seal()
    return total


def run(records: int) -> dict[str, float]:
    """Write a log of about so many records, recover it, and return what was measured."""
    with tempfile.TemporaryDirectory() as directory:
        size = _write_log(directory, records)
        gc.collect()
        gc.disable()
        try:
            started = time.perf_counter()
            recovered = recover(OsDisk(), directory, now_us=START_US)
            seconds = time.perf_counter() - started
        finally:
            gc.enable()
    replayed = recovered.state.records
    return {
        "records": replayed,
        "bytes": size,
        "live": len(recovered.state.jobs),
        "tombstones": len(recovered.state.tombstones),
        "seconds": round(seconds, 3),
        "records_per_second": round(replayed / seconds),
        "bytes_per_second": round(size / seconds),
    }


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)))
