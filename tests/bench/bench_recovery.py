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
from pathlib import Path

from fastjournal.cmdlog.format.layout import segment_name
from fastjournal.cmdlog.recovery.recover import recover
from fastjournal.disk import OsDisk
from fastjournal.keys import build_journal_key
from fastjournal.limits import SEGMENT_BYTES_MAX
from fastjournal.testing.logs import START_US, SegmentBuilder

GROUP = 64
RECORDS_DEFAULT = 1_000_000


def _add_group(log: SegmentBuilder, number: int, value: bytes) -> None:
    """Append the records of the life of 64 entries."""
    log.now_us += 1000
    jobs = []
    for serial in range(number, number + GROUP):
        key = build_journal_key(
            "pages.example.com", f"{serial:08d}", not_before_us=log.now_us, priority=serial % 8
        )
        uri = b"https://pages.example.com/articles/%08d" % serial
        job_id = log.entry(key, uri=uri, value=value, arrival=serial, not_before=log.now_us)
        jobs.append((job_id, key))
    leased = jobs[: GROUP - GROUP // 16]
    log.lease([job_id for job_id, _ in leased], log.now_us + 60_000_000)
    for job_id, key in jobs[: GROUP - GROUP // 8]:
        log.complete(job_id, key)


def _write_log(directory: Path, records: int) -> int:
    """Write a log of at least so many records; return its bytes."""
    value = random.Random(2026).randbytes(100)
    number = 1
    serial = written = total = 0
    log = SegmentBuilder(0)
    while True:
        _add_group(log, serial, value)
        serial += GROUP
        done = written + len(log.offsets) >= records
        if done or len(log.data) >= SEGMENT_BYTES_MAX:
            (directory / segment_name(number)).write_bytes(log.data)
            written += len(log.offsets)
            total += len(log.data)
            if done:
                return total
            log = SegmentBuilder(number, now_us=log.now_us, ids_from=number << 64)
            number += 1


def run(records: int) -> dict[str, float]:
    """Write a log of about so many records, recover it, and return what was measured."""
    with tempfile.TemporaryDirectory() as directory:
        size = _write_log(Path(directory), records)
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
    print(json.dumps(run(int(sys.argv[1]) if len(sys.argv) > 1 else RECORDS_DEFAULT)))
