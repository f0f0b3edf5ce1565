"""Runbooks of docs/runbooks.md, block for block: the commands print what the page says."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.docs.pages import check_output, run_script, script_of, steps
from tests.system.staging import ROOT

PLACE = "/tmp/runbook"


def test_runbook_prints_what_the_page_says() -> None:
    runbook = steps((ROOT / "docs" / "runbooks.md").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="fj-") as directory:
        script = script_of(runbook).replace(PLACE, f"{directory}/runbook")
        status, shown = run_script(script, Path(directory), cwd=ROOT)
        assert status == 0, shown
        check_output(runbook, shown.replace(f"{directory}/runbook", PLACE))
        assert not Path(directory, "runbook").exists()
