"""docs/tutorial.md, block for block, on a directory and a socket of its own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.docs.pages import blocks, run_script, with_own_socket
from tests.system.staging import ROOT

AT_PROMPT = ROOT / "tests/docs/at_prompt.py"
"""Somebody may paste a block at a prompt of Python, so each is run as one line after the other."""

DAEMON = "fastjournald --cmdlog-path /tmp/tutorial/log &"


def script(directory: str) -> str:
    """The tutorial as one shell script on a directory."""
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    parts = ["set -eu"]
    for language, block in blocks(text):
        assert language in ("sh", "python"), "every block is run"
        parts.append(
            f"python -W error {AT_PROMPT} <<'END_OF_BLOCK'\n{block}END_OF_BLOCK"
            if language == "python"
            else block
        )
    whole = with_own_socket("\n".join(parts), DAEMON, directory)
    return whole.replace("/tmp/tutorial", f"{directory}/tutorial")


def test_tutorial_blocks_do_what_the_page_says() -> None:
    with tempfile.TemporaryDirectory(prefix="fj-") as directory:
        server = f"unix:{directory}/socket"
        status, shown = run_script(script(directory), Path(directory), FASTJOURNAL_SERVER=server)
        assert status == 0, shown
        for line in (
            "not-found",
            "2 due, 1 delayed",
            "https://example.org/b urgent\nhttps://example.org/a version 3",
            "colour=blue",
            "user:00099\nuser:00199",
            "{b'color:grass': 'green'}",
        ):
            assert line in shown, shown
        assert not Path(directory, "tutorial").exists()


@pytest.mark.parametrize(
    ("block", "works"),
    [
        ("def f():\n    return 1\n\nassert f() == 1\n", True),
        ("for x in [1]:\n    pass\n", True),
        ("def f():\n    x = 1\n\n    return x\n", False),
        ("def f():\n    return 1\nassert f() == 1\n", False),
        ("x = (1,\n", False),
        ("1 / 0\n", False),
    ],
)
def test_tutorial_block_that_a_prompt_does_not_take_fails(block: str, works: bool) -> None:
    done = subprocess.run([sys.executable, AT_PROMPT], input=block, text=True, check=False)
    assert (done.returncode == 0) == works
