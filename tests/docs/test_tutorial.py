"""docs/tutorial.md, block for block, on a directory and a socket of its own."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.docs.pages import blocks, run_script, with_own_socket
from tests.system.staging import ROOT

DAEMON = "fastjournald --cmdlog-path /tmp/tutorial/log &"


def script(directory: str) -> str:
    """The tutorial as one shell script on a directory."""
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    parts = ["set -eu"]
    for language, block in blocks(text):
        assert language in ("sh", "python"), "every block is run"
        parts.append(
            f"python -W error - <<'END_OF_BLOCK'\n{block}END_OF_BLOCK"
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
            "released, and due again in an hour: mail 13",
            "attempt 3 failed; buried: True\n10 attempts",
            "colour=blue",
            "user:00099\nuser:00199",
            "{b'color:grass': 'green'}",
        ):
            assert line in shown, shown
        assert not Path(directory, "tutorial").exists()
