"""Writer of the spool soak, a process that is killed: ``python -m tests.soak.spool_writer ...``.

It appends numbered jobs. It reports each append in a file, which outlives it, in one line:

    + 17    job 17 is appended: the call has returned
    - 17    job 17 was refused: the disk or the spool is full
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from random import Random
from typing import Final

from fastjournal.errors import SpoolError
from fastjournal.spool import Spool

SLOT_SECONDS: Final = 2
VALUE_BYTES_MAX: Final = 4096
"""Largest value of the daemon in the soak: a larger one ends the connection."""
DOMAIN: Final = "work"
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

    def _say(self, line: str) -> None:
        os.write(self._report, f"{line}\n".encode())


def main() -> None:
    """Run a writer: directory, report, seed."""
    directory, report, seed = sys.argv[1:]
    Writer(Path(directory), Path(report), Random(int(seed))).run()


if __name__ == "__main__":
    main()
