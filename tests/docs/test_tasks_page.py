"""docs/tasks.md, block for block: the files that it names, its commands, its test."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.docs.pages import blocks, check_output, run_script, script_of
from tests.integration.daemon_process import DaemonProcess
from tests.system.staging import ROOT, Unit

EXAMPLES = ROOT / "examples" / "tasks"


def page() -> list[tuple[str, str]]:
    return blocks((ROOT / "docs" / "tasks.md").read_text(encoding="utf-8"))


def write_files(directory: Path) -> list[str]:
    """Write the programs of the page as its comments say, and the examples; return their names."""
    shutil.copytree(EXAMPLES, directory)
    named = []
    for language, block in page():
        if language == "python":
            first, _, text = block.partition("\n")
            named.append(first.removeprefix("# "))
            (directory / named[-1]).write_text(text, encoding="utf-8")
    return named


def test_tasks_page_has_the_example_as_it_is() -> None:
    _, shown = next(block for block in page() if block[0] == "python")
    text = (EXAMPLES / "mails.py").read_text(encoding="utf-8")
    assert shown.partition("\n")[2] == text.partition("\n\n")[2]
    assert len([line for line in shown.splitlines()[1:] if line]) <= 10


def test_tasks_page_shows_what_its_commands_print() -> None:
    several: list[tuple[str, str]] = []
    for language, block in page():
        if language == "sh":
            several.append((block, ""))
        elif language == "text":
            several[-1] = (several[-1][0], block)
    assert len(several) == 3
    with (
        tempfile.TemporaryDirectory(prefix="fj-") as name,
        DaemonProcess(Path(name), "--listen", f"unix:{name}/socket") as daemon,
    ):
        write_files(Path(name, "work"))
        status, shown = run_script(
            script_of(several),
            Path(name),
            cwd=Path(name, "work"),
            errors=False,
            FASTJOURNAL_SERVER=daemon.address,
        )
        assert status == 0, shown
        check_output(several, shown)


def test_tasks_page_has_a_test_that_passes(tmp_path: Path) -> None:
    assert "test_mails.py" in write_files(tmp_path / "work")
    ran = subprocess.run(
        [
            *(sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *("-p", "fastjournald.pytest_plugin", "test_mails.py"),
        ],
        cwd=tmp_path / "work",
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_unit_of_a_worker_waits_longer_than_its_grace_and_knows_its_exit_codes() -> None:
    service = Unit(EXAMPLES / "fj-worker@.service")["Service"]
    assert service["Type"] == "notify"
    command = service["ExecStart"].split()
    assert command[0].endswith("/fj-worker")
    grace = int(command[command.index("--grace") + 1])
    assert int(service["TimeoutStopSec"]) > grace
    assert service["RestartPreventExitStatus"] == "2"
    if (analyze := shutil.which("systemd-analyze")) is not None:
        done = subprocess.run(
            [analyze, "verify", "--man=no", str(EXAMPLES / "fj-worker@.service")],
            capture_output=True,
            text=True,
            check=False,
        )
        problems = [each for each in done.stderr.splitlines() if "fj-worker@" in each]
        assert not [each for each in problems if not re.search("not executable|No such", each)]
