"""Drop-ins: time and processor time to deliver many files of one record each to a durable daemon.

    python -m tests.bench.bench_drop_ins [--files 100000] [--slots]

With ``--slots`` they are slots of ten seconds and not drop-ins: the backlog of some days.

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
from fastjournal.spool.slots import slot_name
from tests.integration.daemon_process import DaemonProcess
from tests.integration.programs import Program, installed

SLOT_SECONDS = 10


def make(spool: Path, count: int, *, slots: bool) -> None:
    """Put ``count`` drop-ins or slots of one record into a spool."""
    now_us = time.time_ns() // 1000
    for number in range(count):
        key, uri = b"d:128:%016d:%d" % (now_us, number), b"https://example.org/%d" % number
        request = Request(
            Function.SET, 0, Flag.PERSIST, now_us + number - count, key, uri, 1, b"x" * 100
        )
        name = f"20261120T080000Z-{number}.fjs"
        if slots:
            name = slot_name(now_us // 1_000_000 - SLOT_SECONDS * (number + 2))
        with open(spool / f".{name}.tmp", "wb") as file:
            file.write(FILE_HEADER + encode_record(encode_request(request)))
        os.rename(spool / f".{name}.tmp", spool / name)


def main() -> None:
    """Make the files, deliver them, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--slots", action="store_true")
    given = parser.parse_args()
    count = given.files
    with tempfile.TemporaryDirectory() as directory:
        spool = Path(directory, "spool")
        spool.mkdir()
        make(spool, count, slots=given.slots)
        with DaemonProcess(Path(directory), own_interpreter=True) as daemon:
            line = [installed("fj-forwarder"), "--spool", str(spool), "--server", daemon.address]
            line += ["--slot-seconds", str(SLOT_SECONDS)]
            before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
            forwarder = Program([*line, "--once", "--log-level", "warning"], own_interpreter=True)
            assert forwarder.wait() == 0
            took = time.monotonic() - began
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert not list(spool.glob("*.fjs"))
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    load = os.getloadavg()[0]
    kind = "slots" if given.slots else "drop-ins"
    print(f"{count:,} {kind}: {took:.1f} s ({count / took:,.0f} a second), load {load:.1f}")
    print(f"forwarder: {spent:.1f} s of processor, {spent / count * 1e6:.0f} us a file")


if __name__ == "__main__":
    main()
