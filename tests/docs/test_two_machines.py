"""Drills of docs/two-machines.md, block for block, and its units."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.docs.pages import blocks, check_output, run_script, script_of, steps
from tests.system.staging import ROOT

PAGE = ROOT / "docs" / "two-machines.md"
PLACE = "/tmp/two-machines"
RSYNC = re.compile(r"^rsync .*$", re.MULTILINE)
COPY = 'cp -a "$snapshot" "$name.partial"'


def test_failover_and_restore_lose_no_more_than_the_page_says() -> None:
    drills = steps(PAGE.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="fj-") as directory:
        script = script_of(drills).replace(PLACE, f"{directory}/two")
        if shutil.which("rsync") is None:
            script, number = RSYNC.subn(COPY, script)
            assert number == 1
        status, shown = run_script(script, Path(directory))
        assert status == 0, shown
        check_output(drills, shown.replace(f"{directory}/two", PLACE))
        assert not Path(directory, "two").exists()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_units_of_the_page_are_valid(tmp_path: Path) -> None:
    units = [block for kind, block in blocks(PAGE.read_text(encoding="utf-8")) if kind == "ini"]
    names = []
    for unit in units:
        title = re.match(r"# (fastjournal-pull\.\w+)\n", unit)
        assert title is not None
        names.append(title[1])
        # the program is not installed here
        (tmp_path / title[1]).write_text(re.sub(r"ExecStart=\S+", "ExecStart=/bin/true", unit))
    assert names == ["fastjournal-pull.service", "fastjournal-pull.timer"]
    done = subprocess.run(
        ["systemd-analyze", "verify", *(str(tmp_path / name) for name in names)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
