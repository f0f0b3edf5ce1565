"""docs/drills.md, block for block: what an operator is told to type prints what the page says."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from tests.system.staging import ROOT

DEADLINE_S = 240
PLACE = "/tmp/drill"
END = "=== end of block"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks() -> list[tuple[str, str]]:
    """Return the commands of each block, and what they print."""
    text = (ROOT / "docs" / "drills.md").read_text(encoding="utf-8")
    found: list[tuple[str, str]] = []
    for language, block in BLOCK.findall(text):
        assert language in ("sh", "text"), "every block is run, or is what one prints"
        if language == "sh":
            found.append((block, ""))
        else:
            assert not found[-1][1], "one output a block"
            found[-1] = (found[-1][0], block)
    return found


def script(directory: str) -> str:
    """Return all blocks as one script in a directory of its own."""
    parts = ["set -u", *(f"{commands}echo '{END}'\n" for commands, _ in blocks())]
    return "\n".join(parts).replace(PLACE, f"{directory}/drill")


def matches(expected: str, printed: str) -> bool:
    """Whether that was printed, with anything of one line in the place of ``...``."""
    pattern = ".*".join(re.escape(part) for part in expected.split("..."))
    return re.fullmatch(pattern, printed) is not None


def test_every_drill_prints_what_the_page_says() -> None:
    with tempfile.TemporaryDirectory(prefix="fj-") as directory:
        output = Path(directory, "output")
        own = {name: value for name, value in os.environ.items() if "FASTJOURNAL" not in name}
        with output.open("wb") as stdout:
            run = subprocess.Popen(
                ["bash", "-c", script(directory)],
                cwd=ROOT,
                env={
                    **own,
                    "HOME": directory,
                    "XDG_CONFIG_HOME": directory,
                    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                },
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stdout,
                start_new_session=True,
            )
        try:
            status = run.wait(DEADLINE_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
            run.wait()
        shown = output.read_text(encoding="utf-8").replace(f"{directory}/drill", PLACE)
        printed = shown.split(f"{END}\n")
        assert status == 0, shown
        assert len(printed) == len(blocks()) + 1, shown
        for (commands, expected), found in zip(blocks(), printed, strict=False):
            assert matches(expected, found), f"{commands}printed\n{found}\nand not\n{expected}"
        assert not Path(directory, "drill").exists()
