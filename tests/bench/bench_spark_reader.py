"""Records a processor second: the vectorised reader beside the row reader, records and events.

    python -m tests.bench.bench_spark_reader [RECORDS]

One segment as the daemon writes it: entries with a URI and 100 bytes, leased 64 at a time and
completed. Neither Java nor Spark; processor time of the process, the best of three.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from time import process_time

import google_crc32c
import pyarrow as pa

from fastjournal.cmdlog.format.envelope import pack
from fastjournal.cmdlog.format.layout import Command, segment_name
from fastjournal.cmdlog.format.records import encode_head, encode_job, encode_time
from fastjournal.spark.decoding.vectorised.vectorised_reader import read_batches
from fastjournal.spark.decoding.view_columns import READABLE, RECORD_COLUMNS, to_batch
from fastjournal.spark.history.event_rows import batches_of
from fastjournal.spark.history.extractor import extract_events
from fastjournal.spark.storage.files import SegmentFile
from fastjournal.testing.logs import SegmentBuilder
from tests.spark.plain_reader import read_segment

LEASED = 64
ROUNDS = 3
CHUNK_ROWS = 8192
SCHEMAS: dict[str, Sequence[str]] = {
    "all columns": [column.name for column in RECORD_COLUMNS],
    "segment, offset, command, time": ["segment", "offset", "command", "time"],
    "command, time, key, timestamp": ["command", "time", "key", "timestamp"],
}


def build(records: int) -> bytes:
    """Return a segment of about so many records."""
    builder = SegmentBuilder()
    draw = random.Random(1)
    head = encode_head(b"example.org", 60_000, 2_592_000_000, 0, 0, 0)
    while len(builder.offsets) < records:
        jobs = []
        for _ in range(LEASED):
            builder.now_us += 100
            now, serial = builder.now_us, len(builder.offsets)
            key = b"host%03d.example:128:%016d:%d" % (draw.randrange(200), now, serial)
            uri = b"https://host.example/some/page/%d" % serial
            times = now, now, now, serial, now
            fields = (key, uri, [], 1, bytes(100), *times, 0, 0, 0, 0, 0, None, 0)
            time, job = encode_time(now), builder.job_id()
            builder.record(encode_job(Command.SCHEDULE, time, job, head, pack(fields), time, time))
            jobs.append((job, key))
        builder.lease([job for job, _ in jobs], builder.now_us + 60_000_000)
        for job, key in jobs:
            builder.complete(job, key)
    return bytes(builder)


def measure(read: Callable[[], Iterable[pa.RecordBatch]]) -> float:
    """Return the records a processor second."""
    rates = []
    for _ in range(ROUNDS):
        started = process_time()
        records = sum(len(batch) for batch in read())
        rates.append(records / (process_time() - started))
    return max(rates)


def main(records: int) -> None:
    """Print a line for each schema."""
    data = build(records)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / segment_name(1)
        path.write_bytes(data)
        plain = SegmentFile(str(path), 1, len(data), last=True, open=False)
        sealed = SegmentFile(
            str(path), 1, len(data), last=True, open=False, crc32c=google_crc32c.value(data)
        )
        files = pa.fs.LocalFileSystem()

        def by_rows(names: Sequence[str]) -> Iterable[pa.RecordBatch]:
            rows = list(read_segment(files, plain, permissive=False))
            for first in range(0, len(rows), CHUNK_ROWS):
                chunk = rows[first : first + CHUNK_ROWS]
                yield to_batch(chunk, [READABLE[name] for name in names])

        print(f"{len(data)} bytes; records a processor second")
        print(f"{'columns':32} {'with manifest':>14} {'without':>10} {'row reader':>11}")
        for title, names in SCHEMAS.items():
            rates = [
                measure(partial(read_batches, files, sealed, names, permissive=False)),
                measure(partial(read_batches, files, plain, names, permissive=False)),
                measure(partial(by_rows, names)),
            ]
            print(f"{title:32} {rates[0]:14,.0f} {rates[1]:10,.0f} {rates[2]:11,.0f}")
        rates = [
            measure(lambda: batches_of(extract_events(data, plain))),
        ]
        print(f"{'events':32} {rates[0]:14,.0f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300_000)
