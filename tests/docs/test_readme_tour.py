"""Quick start of README.md, block for block, on a directory and a socket of its own."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.docs.pages import blocks, run_script, with_patience
from tests.spark.java_machine import JavaMachine
from tests.system.staging import ROOT

DAEMON = "fastjournald --cmdlog-path /tmp/tour/log &"


def script(directory: str) -> str:
    """The tour as one shell script on a directory."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    tour = readme.partition("\n## Quick start\n")[2].partition("\n## ")[0]
    parts = ["set -eu"]
    elsewhere = [
        language for language, block in blocks(readme) if (language, block) not in blocks(tour)
    ]
    assert not {"python", "sh"}.intersection(elsewhere), "only the blocks of the tour are run"
    for language, block in blocks(tour):
        if language == "python":
            parts.append(f"python - <<'END_OF_BLOCK'\n{block}END_OF_BLOCK")
        else:
            parts.append(block)
    # what a person has: an environment, a free port, and some patience
    text = "\n".join(parts).replace("make venv\n. .venv/bin/activate\n", "")
    return with_patience(text, DAEMON, directory).replace("/tmp/tour", f"{directory}/tour")


@pytest.mark.spark
def test_block_of_the_tour_does_what_the_readme_says(java_machine: JavaMachine) -> None:
    with tempfile.TemporaryDirectory(prefix="fj-") as directory:
        socket = f"unix:{directory}/socket"
        status, shown = run_script(
            script(directory),
            Path(directory),
            errors=False,
            FASTJOURNAL_SERVER=socket,
            **java_machine.lend(),
        )
        assert status == 0, shown
        assert "urgent\nversion 3\n" in shown
        assert "nothing to do: exit 75" in shown
        assert "b'https://example.org/c' one more" in shown
        assert not Path(directory, "tour").exists()
