"""docs/producing.md, block for block: web applications, cron, a shared volume; a real daemon."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.docs.pages import check_output, run_script, script_of, steps
from tests.integration.daemon_process import DaemonProcess
from tests.system.staging import ROOT

needs_frameworks = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("fastapi", "django"))) or shutil.which("curl") is None,
    reason="left out: needs fastapi and django (make venv), and curl",
)


@needs_frameworks
def test_spool_producers_of_docs_producing_md_deliver_what_the_page_says() -> None:
    several = steps((ROOT / "docs/producing.md").read_text(encoding="utf-8"))
    with (
        tempfile.TemporaryDirectory(prefix="fj-") as name,
        DaemonProcess(Path(name), "--listen", f"unix:{name}/socket") as daemon,
    ):
        work = Path(name, "work")
        shutil.copytree(ROOT / "examples/web", work)
        status, shown = run_script(
            script_of(several),
            Path(name),
            cwd=work,
            errors=False,
            FASTJOURNAL_SERVER=daemon.address,
        )
        assert status == 0, shown
        check_output(several, shown)
        assert not (work / "bad.jsonl").read_bytes()
