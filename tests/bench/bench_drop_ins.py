"""Drop-ins: time and processor time to deliver many files of one record each to a durable daemon.

    python -m tests.bench.bench_drop_ins [--files 100000]

The files are there when the forwarder starts. Each is opened, sent, and deleted. The daemon syncs
before it replies (policy ``always``).
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from pathlib import Path

from fastjournal.protocol import Flag, Function, Request, encode_request
from fastjournal.spool.format import FILE_HEADER, encode_record
from tests.integration.daemon_process import DaemonProcess
from tests.integration.programs import Program, installed


def make(spool: Path, count: int) -> None:
    """Link ``count`` drop-ins of one record into a spool."""
    now_us = time.time_ns() // 1000
    for number in range(count):
        key, uri = b"d:128:%016d:%d" % (now_us, number), b"https://example.org/%d" % number
        request = Request(
            Function.SET, 0, Flag.PERSIST, now_us + number - count, key, uri, 1, b"x" * 100
        )
        name = f"20261120T080000Z-{number}.fjs"
        with open(spool / f".{name}.tmp", "wb") as file:
            file.write(FILE_HEADER + encode_record(encode_request(request)))
        os.rename(spool / f".{name}.tmp", spool / name)


def main() -> None:
    """Make the files, deliver them, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=100_000)
    count = parser.parse_args().files
    with tempfile.TemporaryDirectory() as directory:
        spool = Path(directory, "spool")
        spool.mkdir()
        make(spool, count)
        with DaemonProcess(Path(directory), own_interpreter=True) as daemon:
            line = [installed("fj-forwarder"), "--spool", str(spool), "--server", daemon.address]
            before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
            forwarder = Program([*line, "--once", "--log-level", "warning"], own_interpreter=True)
            assert forwarder.wait() == 0
            took = time.monotonic() - began
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert not list(spool.glob("*.fjs"))
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    load = os.getloadavg()[0]
    print(f"{count:,} drop-ins: {took:.1f} s ({count / took:,.0f} a second), load {load:.1f}")
    print(f"forwarder: {spent:.1f} s of processor, {spent / count * 1e6:.0f} us a file")


if __name__ == "__main__":
    main()
