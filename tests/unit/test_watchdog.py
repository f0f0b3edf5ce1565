"""Watchdog of tests: a test that hangs ends its process and is named with its stack."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.system.staging import ROOT

HANGING = """
import threading, time

def test_watchdog_is_one():
    assert [one.name for one in threading.enumerate()].count("watchdog") == 1

def test_watchdog_is_the_same():
    test_watchdog_is_one()

def test_watchdog_bites():
    time.sleep(60)
"""


def test_watchdog_ends_a_process_whose_test_hangs_and_shows_where(tmp_path: Path) -> None:
    hanging = tmp_path / "hanging.py"
    hanging.write_text(HANGING)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntimeout = 1\ntimeout_method = thread\n")
    options = ["-v", "-p", "tests.watchdog", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-c", str(tmp_path / "pytest.ini"), hanging],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout.count("PASSED") == 2
    assert "+ Timeout +" in done.stdout
    assert "in test_watchdog_bites" in done.stdout
