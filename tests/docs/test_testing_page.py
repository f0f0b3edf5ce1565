"""docs/testing.md: its blocks are tests that pass, in the order of the page."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import blocks
from tests.system.staging import ROOT


def test_page_about_testing_has_tests_that_pass(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    programs = [block for language, block in blocks(text) if language == "python"]
    for number, program in enumerate(programs):
        (tmp_path / f"test_{number}.py").write_text(program, encoding="utf-8")
    command = [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [*command, "-p", "fastjournald.pytest_plugin", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{len(programs)} passed" in ran.stdout
