"""How long the daemon takes until it is ready.

``python -m tests.bench.bench_start [ENTRIES [LOG [ONE]]]``: the log holds so many waiting entries
of 1,000 domains, with a key of 50 bytes, a URI of 45 bytes and a value of 100 bytes; ten million
take 3.5 GB below the directory for temporary files, and 8 GB of memory. With LOG the log is kept in
that directory, and used again if it is there. Measured is the installed ``fastjournald``, from its
start to its ready file, on a file cache as warm as writing the log leaves it. The processor time
includes that of the scan worker, which is shown by itself, too. With ONE the daemon has one
processor, and so no worker.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from fastjournal.cmdlog.format.layout import segment_name
from fastjournal.keys import build_journal_key
from fastjournal.limits import SEGMENT_BYTES_MAX
from fastjournal.testing.logs import START_US, SegmentBuilder
from tests.integration.programs import installed

DOMAINS = 1000
ENTRIES_DEFAULT = 1_000_000
POLL_S = 0.005


def write_log(directory: Path, entries: int) -> None:
    """Write the segments of a log with so many waiting entries."""
    number, log = 1, SegmentBuilder(0)
    for serial in range(entries):
        now = log.now_us = START_US + serial
        domain = f"h{serial * 7919 % DOMAINS:04d}.example.org"
        key = build_journal_key(domain, f"{serial:012d}", not_before_us=now)
        uri = b"https://www.example.org/pages/%010d.html" % serial
        log.entry(key, uri=uri, value=b"%0100d" % serial, arrival=serial + 1, not_before=now)
        if len(log.data) >= SEGMENT_BYTES_MAX:
            (directory / segment_name(number)).write_bytes(log.data)
            log = SegmentBuilder(number, now_us=now, ids_from=number << 64)
            number += 1
    (directory / segment_name(number)).write_bytes(log.data)


def peak_of_children(pid: int) -> int:
    """Return the peak of resident memory of the children of a process, in bytes."""
    peak = 0
    with suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{child}/status").read_text())
            peak += int(found[1]) * 1024 if found else 0
    return peak


def start(log: Path, ready: Path) -> dict[str, float]:
    """Start a daemon, wait until it is ready, stop it, and return what it took."""
    command = [installed("fastjournald"), "--cmdlog-path", str(log), "--ready-file", str(ready)]
    started = time.perf_counter()
    with subprocess.Popen([*command, "--listen", "127.0.0.1:0", "--log-level", "warning"]) as child:
        worker_peak = 0
        while not ready.exists():
            if child.poll() is not None:
                raise RuntimeError(f"fastjournald ended with {child.returncode}")
            worker_peak = max(worker_peak, peak_of_children(child.pid))
            time.sleep(POLL_S)
        seconds = time.perf_counter() - started
        process = Path(f"/proc/{child.pid}")
        ticks = list(map(int, (process / "stat").read_text().rpartition(")")[2].split()[11:15]))
        status = (process / "status").read_text()
        memory = {name: int(kib) * 1024 for name, kib in re.findall(r"(Vm\w+):\s+(\d+) kB", status)}
        child.send_signal(signal.SIGTERM)
    ticks_a_second = os.sysconf("SC_CLK_TCK")
    return {
        "seconds": seconds,
        "processor_seconds": sum(ticks) / ticks_a_second,
        "worker_processor_seconds": sum(ticks[2:]) / ticks_a_second,
        "worker_peak_bytes": worker_peak,
        "peak_bytes": memory["VmHWM"],
        "resident_bytes": memory["VmRSS"],
    }


def main() -> None:
    """Measure and print."""
    if sys.argv[3:] == ["ONE"]:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    entries = int(sys.argv[1]) if len(sys.argv) > 1 else ENTRIES_DEFAULT
    with tempfile.TemporaryDirectory() as directory:
        log = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(directory) / "log"
        if not log.exists():
            log.mkdir()
            write_log(log, entries)
        for name, value in start(log, Path(directory) / "ready").items():
            print(f"{name}: {value:,.1f}, {value * 1e6 / entries:,.1f} for each million entries")


if __name__ == "__main__":
    main()
