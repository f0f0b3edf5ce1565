"""How fast jobs come from workq: ``python -m tests.bench.bench_import [JOBS]``.

The log holds so many waiting jobs in ten queues, each with a body of 100 bytes, as workq writes it.
Measured is the installed ``fj-cli import workq`` from its start to its end, twice: the first time
everything is new, the second time everything is there. The daemon syncs every write.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fastjournal.cmdlog.format.segments import segment_name
from fastjournal.cmdlog.format.workq import make_job_id
from fastjournal.limits import SEGMENT_BYTES_MAX
from fastjournal.testing.logs import SegmentBuilder
from tests.integration.daemon_process import DaemonProcess
from tests.integration.programs import installed

JOBS_DEFAULT = 100_000
QUEUES = 10


def write_log(directory: Path, jobs: int) -> None:
    """Write the segments of a workq log with so many waiting jobs."""
    number, log = 1, SegmentBuilder(None, now_us=time.time_ns() // 1000 - jobs)
    for serial in range(jobs):
        log.now_us += 1
        log.foreign(
            b"queue-%d" % (serial % QUEUES),
            b"%0100d" % serial,
            job_id=make_job_id((serial + 1).to_bytes(16)),
        )
        if len(log.data) >= SEGMENT_BYTES_MAX:
            (directory / segment_name(number)).write_bytes(log.data)
            number, log = number + 1, SegmentBuilder(None, now_us=log.now_us)
    (directory / segment_name(number)).write_bytes(log.data)


def processor_seconds() -> float:
    """Return what all ended children took."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Measure and print."""
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else JOBS_DEFAULT
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "workq"
        log.mkdir()
        write_log(log, jobs)
        with DaemonProcess(Path(directory), "--log-level", "warning") as daemon:
            for what in ("new", "there"):
                before, started = processor_seconds(), time.perf_counter()
                done = subprocess.run(
                    [installed("fj-cli"), "--server", daemon.address, "import", "workq", str(log)],
                    check=True,
                    capture_output=True,
                    text=True,
                )
                seconds = time.perf_counter() - started
                processor = processor_seconds() - before
                print(
                    f"{what}: {seconds:.1f} s, {jobs / seconds:,.0f} a second, processor of the"
                    f" command {processor:.1f} s, load {os.getloadavg()[0]:.1f}; {done.stdout}",
                    end="",
                )


if __name__ == "__main__":
    main()
