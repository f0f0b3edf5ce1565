"""Writer of the spool soak, a process that is killed: ``python -m tests.soak.spool_writer ...``.

It appends numbered jobs, and among them poison of every kind. It reports each append in a file,
which outlives it, in one line:

    + 17    job 17 is appended: the call has returned
    - 17    job 17 was refused: the disk or the spool is full
    poison a4c3...    these bytes are in the spool, and have to go to dead/
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from pathlib import Path
from random import Random
from typing import Final

from fastjournal.clock import unique_timestamp
from fastjournal.errors import SpoolError
from fastjournal.protocol import Flag, Function, Request, encode_request
from fastjournal.spool import Spool
from fastjournal.spool.format import FILE_HEADER, encode_record

SLOT_SECONDS: Final = 2
VALUE_BYTES_MAX: Final = 4096
"""Largest value of the daemon in the soak: a larger one ends the connection."""
DOMAIN: Final = "work"
POISON_SHARE: Final = 0.02
RATE: Final = 60
"""Jobs a second of one writer."""


class Writer:
    """Appends and reports.

    Args:
        directory: The spool.
        report: The file.
        random: Random numbers for all choices.
    """

    def __init__(self, directory: Path, report: Path, random: Random) -> None:
        self._directory = directory
        self._random = random
        self._name = report.name
        self._report = os.open(report, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._spool = Spool(directory, slot_seconds=SLOT_SECONDS, durable=random.random() < 0.5)
        self._number = 0

    def run(self) -> None:
        """Append until the end of the process."""
        while True:
            for _ in range(self._random.choice((1, 1, 10, 50))):
                self._append()
                if self._random.random() < POISON_SHARE:
                    self._poison()
                time.sleep(self._random.expovariate(RATE))

    def _append(self) -> None:
        self._number += 1
        name = f"{self._name}.{self._number}"
        value = name.encode() * self._random.choice((1, 1, 10, 100))
        try:
            self._spool.append(domain=DOMAIN, id=name, value=value[:VALUE_BYTES_MAX])
        except SpoolError:
            self._say(f"- {self._number}")
        else:
            self._say(f"+ {self._number}")

    def _poison(self) -> None:
        """Append a record that no daemon takes, or bytes that are no record."""
        draw = self._random
        stamp, name = unique_timestamp(), b"poison:%d" % draw.getrandbits(60)
        kinds = (
            Request(
                Function.SET, 0, Flag.PERSIST, stamp, name, None, 1, bytes(VALUE_BYTES_MAX + 1)
            ),
            Request(Function.SET, 0, Flag.PERSIST, stamp, b"", None, 1, name),
            Request(Function.GET, 0, Flag.DATA, stamp, name),
            Request(999, 0, 0, stamp, name),
            None,
        )
        request = draw.choice(kinds)
        frame = b"no request %s" % name if request is None else encode_request(request)
        try:
            if draw.random() < 0.3:
                self._damage(draw.randbytes(draw.randrange(1, 100)))
                return
            if self._raw(encode_record(frame)):
                self._say(f"poison {frame.hex()}")
        except OSError:
            return  # full: nothing is promised

    def _damage(self, data: bytes) -> None:
        """Write bytes that are no record; perhaps the first part of one, as a killed writer."""
        if self._random.random() < 0.5:
            data = encode_record(data)[: self._random.randrange(1, len(data) + 9)]
        self._raw(data)

    def _raw(self, data: bytes) -> bool:
        """Write bytes to the newest slot, as a writer of another language; whether all are."""
        slots = sorted(self._directory.glob("*.fjs"))
        if not slots or slots[-1].stat().st_size < len(FILE_HEADER):
            return False
        descriptor = os.open(slots[-1], os.O_WRONLY | os.O_APPEND)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            there = os.fstat(descriptor).st_nlink > 0
            return os.write(descriptor, data) == len(data) and there
        finally:
            os.close(descriptor)

    def _say(self, line: str) -> None:
        os.write(self._report, f"{line}\n".encode())


def main() -> None:
    """Run a writer: directory, report, seed."""
    directory, report, seed = sys.argv[1:]
    Writer(Path(directory), Path(report), Random(int(seed))).run()


if __name__ == "__main__":
    main()
