"""docs/tutorial.md, block for block, on a directory and a socket of its own."""

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
DAEMON = "fastjournald --cmdlog-path /tmp/tutorial/log &"


def script(directory: str) -> str:
    """The tutorial as one shell script on a directory."""
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    parts = ["set -eu"]
    for language, block in re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        assert language in ("sh", "python"), "every block is run"
        parts.append(
            f"python -W error - <<'END_OF_BLOCK'\n{block}END_OF_BLOCK"
            if language == "python"
            else block
        )
    whole = "\n".join(parts)
    listening = DAEMON.replace(" &", f" --listen unix:{directory}/socket --ready-file ready &")
    assert DAEMON in whole
    whole = whole.replace(
        DAEMON, f"{listening}\nuntil test -e ready; do sleep 0.05; kill -0 %1; done"
    )
    whole = whole.replace("127.0.0.1:9923", f"unix:{directory}/socket")
    return whole.replace("/tmp/tutorial", f"{directory}/tutorial")


def test_every_block_of_the_tutorial_does_what_it_says() -> None:
    with tempfile.TemporaryDirectory(prefix="fj-") as directory:
        output = Path(directory, "output")
        with output.open("wb") as stdout:
            run = subprocess.Popen(
                ["bash", "-c", script(directory)],
                cwd=directory,
                env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
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
        shown = output.read_text(encoding="utf-8")
        assert status == 0, shown
        for line in (
            "not-found",
            "2 due, 1 delayed",
            "https://example.org/b urgent\nhttps://example.org/a version 3",
            "released, and due again in an hour: mail 13",
            "colour=blue",
            "user:00099\nuser:00199",
            "{b'color:grass': 'green'}",
        ):
            assert line in shown, shown
        assert not Path(directory, "tutorial").exists()
