"""Runbooks of docs/runbooks.md, block for block: the commands print what the page says."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from tests.docs.pages import blocks, run_script
from tests.system.staging import ROOT

PLACE = "/tmp/runbook"
END = "=== end of block"


def runbook() -> list[tuple[str, str]]:
    """Return the commands of each block, and what they print."""
    found: list[tuple[str, str]] = []
    for language, block in blocks((ROOT / "docs" / "runbooks.md").read_text(encoding="utf-8")):
        assert language in ("sh", "text"), "every block is run, or is what one prints"
        if language == "sh":
            found.append((block, ""))
        else:
            assert not found[-1][1], "one output a block"
            found[-1] = (found[-1][0], block)
    return found


def script(directory: str) -> str:
    """Return all blocks as one script in a directory of its own."""
    parts = ["set -u", *(f"{commands}echo '{END}'\n" for commands, _ in runbook())]
    return "\n".join(parts).replace(PLACE, f"{directory}/runbook")


def matches(expected: str, printed: str) -> bool:
    """Whether that was printed, with anything of one line in the place of ``...``."""
    pattern = ".*".join(re.escape(part) for part in expected.split("..."))
    return re.fullmatch(pattern, printed) is not None


def test_runbook_prints_what_the_page_says() -> None:
    with tempfile.TemporaryDirectory(prefix="fj-") as directory:
        status, shown = run_script(script(directory), Path(directory), cwd=ROOT)
        printed = shown.replace(f"{directory}/runbook", PLACE).split(f"{END}\n")
        assert status == 0, shown
        assert len(printed) == len(runbook()) + 1, shown
        for (commands, expected), found in zip(runbook(), printed, strict=False):
            assert matches(expected, found), f"{commands}printed\n{found}\nand not\n{expected}"
        assert not Path(directory, "runbook").exists()
