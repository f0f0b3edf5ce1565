"""Daemon whose clock is ahead or behind: the program as installed, with an offset from a file.

    python shifted_daemon.py FILE OPTIONS...

The file has two numbers: the microseconds to add to the machine's clock and to CLOCK_MONOTONIC,
and those to add to the clock alone. It may be replaced at any time. With another first number time
has passed; with another second one the clock was set, or the machine was suspended.
"""

from __future__ import annotations

import os
import sys
import time
from importlib.metadata import entry_points
from pathlib import Path
from unittest.mock import patch

from fastjournal.clock import SystemClock


def set_offset(file: Path, passed_us: int, set_us: int = 0) -> None:
    """Let time pass for the daemon, or set its clock."""
    new = file.with_suffix(".new")
    new.write_text(f"{passed_us} {set_us}")
    os.replace(new, file)


def _numbers(file: Path) -> tuple[int, int]:
    passed_us, set_us = file.read_text().split()
    return int(passed_us), int(set_us)


def shifted(file: Path) -> int:
    """Return the instant that the daemon takes for the present one."""
    return time.time_ns() // 1000 + sum(_numbers(file))


def shifted_monotonic(file: Path) -> int:
    """Return the steady time of the daemon, in microseconds."""
    return time.monotonic_ns() // 1000 + _numbers(file)[0]


if __name__ == "__main__":
    given = Path(sys.argv.pop(1))
    (script,) = entry_points(group="console_scripts", name="fastjournald")
    with (
        patch.object(SystemClock, "now_us", lambda _: shifted(given)),
        patch.object(SystemClock, "monotonic_us", lambda _: shifted_monotonic(given)),
    ):
        script.load()()
