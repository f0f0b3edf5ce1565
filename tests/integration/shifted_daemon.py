"""Daemon whose clock is ahead or behind: the program as installed, with an offset from a file.

    python shifted_daemon.py FILE OPTIONS...

The file has the microseconds to add to the machine's clock. It may be replaced at any time: the
clock jumps then, as where somebody sets it.
"""

from __future__ import annotations

import os
import sys
import time
from importlib.metadata import entry_points
from pathlib import Path
from unittest.mock import patch

from fastjournal.clock import SystemClock


def set_offset(file: Path, offset_us: int) -> None:
    """Let the clock of the daemon jump."""
    new = file.with_suffix(".new")
    new.write_text(str(offset_us))
    os.replace(new, file)


def shifted(file: Path) -> int:
    """Return the instant that the daemon takes for the present one."""
    return time.time_ns() // 1000 + int(file.read_text())


if __name__ == "__main__":
    given = Path(sys.argv.pop(1))
    (script,) = entry_points(group="console_scripts", name="fastjournald")
    with patch.object(SystemClock, "now_us", lambda _: shifted(given)):
        script.load()()
