"""README.md: its first program, and the tour, block for block, on a socket of its own."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.docs.pages import blocks, check_output, run_script, script_of, with_own_socket
from tests.integration.daemon_process import DaemonProcess
from tests.spark.java_machine import JavaMachine
from tests.system.staging import ROOT

PLACE = "/tmp/tour"
DAEMON = "fastjournald --cmdlog-path /tmp/tour/log &"


def tour() -> list[tuple[str, str]]:
    """Return the blocks of the tour as shell commands, and the output that the page shows."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    ours = readme.partition("\n## Tour\n")[2].partition("\n## ")[0]
    run = [(kind, block) for kind, block in blocks(readme) if kind in ("python", "sh")]
    assert [block for block in run[1:] if block not in blocks(ours)] == [], "only these are run"
    several: list[tuple[str, str]] = []
    for language, block in blocks(ours):
        if language == "text":
            several[-1] = (several[-1][0], block)
        elif language == "python":
            several.append((f"python - <<'END_OF_BLOCK'\n{block}END_OF_BLOCK\n", ""))
        else:
            several.append((block, ""))
    return several


def script(several: list[tuple[str, str]], directory: str) -> str:
    """Return the tour as one shell script on a directory."""
    # what a person has: an environment, and a free port
    text = script_of(several).replace("make venv\n. .venv/bin/activate\n", "")
    return with_own_socket(text, DAEMON, directory).replace(PLACE, f"{directory}/tour")


def test_program_on_the_first_screen_of_the_readme_gets_its_job(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    language, program = next(block for block in blocks(readme) if block[0] in ("python", "sh"))
    assert (language, len(program.split("\n\n")[-1].splitlines())) == ("python", 4)
    with DaemonProcess(tmp_path) as daemon:
        program = program.replace("127.0.0.1:9923", daemon.address)
        script = f"python - <<'END_OF_BLOCK'\n{program}END_OF_BLOCK\n"
        assert run_script(script, tmp_path) == (0, "https://example.org/a changed\n")


@pytest.mark.spark
def test_block_of_the_tour_prints_what_the_readme_says(java_machine: JavaMachine) -> None:
    several = tour()
    with tempfile.TemporaryDirectory(prefix="fj-") as directory:
        socket = f"unix:{directory}/socket"
        status, shown = run_script(
            script(several, directory),
            Path(directory),
            errors=False,
            FASTJOURNAL_SERVER=socket,
            **java_machine.lend(),
        )
        assert status == 0, shown
        check_output(several, shown.replace(f"{directory}/tour", PLACE))
        assert not Path(directory, "tour").exists()
