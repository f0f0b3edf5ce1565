"""The five-minute tour of README.md, block for block, on a directory and a socket of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from tests.system.staging import ROOT

DEADLINE_S = 240
DAEMON = "fastjournald --cmdlog-path /tmp/tour/log &"


def tour_blocks() -> list[tuple[str, str]]:
    """Language and text of the blocks of the tour."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    tour = readme.partition("\n## Five minutes\n")[2].partition("\n## ")[0]
    return re.findall(r"^```(\w+)\n(.*?)^```$", tour, re.MULTILINE | re.DOTALL)


def script(directory: str) -> str:
    """The tour as one shell script on a directory."""
    parts = ["set -eu"]
    for language, block in tour_blocks():
        if language == "python":
            parts.append(f"python - <<'END_OF_BLOCK'\n{block}END_OF_BLOCK")
        else:
            parts.append(block)
    text = "\n".join(parts)
    # What a person has: an environment, a free port, and some patience.
    text = text.replace("make venv\n. .venv/bin/activate\n", "")
    listening = DAEMON.replace(" &", f" --listen unix:{directory}/socket --ready-file ready &")
    assert DAEMON in text
    text = text.replace(
        DAEMON, f"{listening}\nuntil test -e ready; do sleep 0.05; kill -0 %1; done"
    )
    text = text.replace("127.0.0.1:9923", f"unix:{directory}/socket")
    return text.replace("/tmp/tour", f"{directory}/tour")


@pytest.mark.spark
def test_every_block_of_the_tour_does_what_the_readme_says() -> None:
    with tempfile.TemporaryDirectory(prefix="fj-") as directory:
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "FASTJOURNAL_SERVER": f"unix:{directory}/socket",
        }
        output = Path(directory, "output")
        with output.open("wb") as stdout:
            tour = subprocess.Popen(
                ["bash", "-c", script(directory)],
                cwd=directory,
                env=environment,
                stdout=stdout,
                start_new_session=True,
            )
        try:
            status = tour.wait(DEADLINE_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(tour.pid, signal.SIGKILL)
            tour.wait()

        shown = output.read_text(encoding="utf-8")
        assert status == 0, shown
        assert "urgent\nversion 3\n" in shown
        assert "nothing to do: exit 75" in shown
        assert "b'https://example.org/c' one more" in shown
        assert not Path(directory, "tour").exists()
