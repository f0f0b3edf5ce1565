"""README.md: its first program, and the tour, block for block, on a socket of its own."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.docs.pages import END, blocks, check_output, run_script, script_of, with_own_socket
from tests.spark.java_machine import JavaMachine
from tests.system.staging import ROOT

PLACE = "/tmp/tour"
DAEMON = "fastjournald --cmdlog-path /tmp/tour/log &"
FIRST_BLOCKS = 5
"""Those of the first screen: a daemon, a task and its worker, a program, the end of all."""
FIRST_OUTPUT = (
    "mail to ann@example.org\nreplaced b'pages'\nnew\n"
    "b'pages' changed\nb'search' changed\nb'search' changed\nended\n"
)


def tour() -> list[tuple[str, str]]:
    """Return the blocks of the tour as shell commands, and the output that the page shows."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    ours = readme.partition("\n## Tour\n")[2].partition("\n## ")[0]
    run = [(kind, block) for kind, block in blocks(readme) if kind in ("python", "sh")]
    first = run[:FIRST_BLOCKS]
    assert [block for block in run if block not in [*first, *blocks(ours)]] == [], "not run"
    return steps_of(blocks(ours))


def steps_of(found: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return blocks as shell commands, and the output that the page shows."""
    several: list[tuple[str, str]] = []
    for language, block in found:
        if language == "text":
            several[-1] = (several[-1][0], block)
        elif block.startswith("# "):
            # a file, which its first line names
            name = block.partition("\n")[0].removeprefix("# ")
            several.append((f"cat > {name} <<'END_OF_BLOCK'\n{block}END_OF_BLOCK\n", ""))
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


def test_program_on_the_first_screen_of_the_readme_gets_its_job_and_ends() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    drawing, *first = blocks(readme.partition("\n## ")[0])
    assert (drawing[0], len(first)) == ("text", FIRST_BLOCKS)
    with tempfile.TemporaryDirectory(prefix="fj-") as directory:
        text = script_of(steps_of(first)).replace("pip install 'fastjournal[daemon,cli]'\n", "")
        text = text.replace("/tmp/jobs", f"{directory}/jobs")
        text = with_own_socket(text, f"fastjournald --cmdlog-path {directory}/jobs &", directory)
        text = f"cd {directory}\n{text}"
        status, shown = run_script(
            # the tour takes the address of this daemon next
            f"{text}fj-cli ping --count 1 >/dev/null 2>&1 || echo ended\n",
            Path(directory),
            errors=False,
            FASTJOURNAL_SERVER=f"unix:{directory}/socket",
        )
        assert status == 0, shown
        assert shown.replace(END + "\n", "") == FIRST_OUTPUT
        assert not Path(directory, "jobs").exists()


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
