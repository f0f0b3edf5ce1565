"""How fj-nightly fails: one sentence and an exit code, before any Java machine is started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fastjournal.testing.logs import SegmentBuilder

UNAVAILABLE, IO, USAGE = 69, 74, 2

RUN = "from fastjournal.spark.nightly import main; main()"
HIDE = "import sys; sys.modules[{name!r}] = None; "
WITHOUT_JAVA = "import fastjournal.spark.java as java; java.find_spec = lambda name: None; "


def run(code: str, *options: str) -> tuple[int, str]:
    environment = {**os.environ, "PATH": "", "JAVA_HOME": ""}
    done = subprocess.run(
        [sys.executable, "-c", code, *options],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_connect_error_without_a_daemon_at_the_address(tmp_path: Path) -> None:
    server = f"unix:{tmp_path}/nobody"
    code, said = run(RUN, "--server", server, "--output", str(tmp_path))
    assert code == UNAVAILABLE
    assert said.startswith("fj-nightly: ")
    assert len(said.splitlines()) == 1


def test_snapshot_that_is_missing_is_an_error(tmp_path: Path) -> None:
    snapshot = str(tmp_path / "gone")
    code, said = run(RUN, "--snapshot", snapshot, "--output", str(tmp_path / "out"))
    assert code == IO
    assert said.startswith(f"fj-nightly: {snapshot}: cannot list: ")
    assert len(said.splitlines()) == 1


def test_java_that_is_missing_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "000000001.log").write_bytes(bytes(SegmentBuilder()))
    options = ("--snapshot", str(tmp_path), "--output", str(tmp_path / "out"))
    code, said = run(WITHOUT_JAVA + RUN, *options)
    assert code == UNAVAILABLE
    assert said.startswith("fj-nightly: Spark needs Java 17 or newer: ")
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("name", ["pyspark", "pyarrow"])
def test_missing_extra_is_named(name: str, tmp_path: Path) -> None:
    options = ("--snapshot", str(tmp_path), "--output", str(tmp_path))
    code, said = run(HIDE.format(name=name) + RUN, *options)
    assert code == UNAVAILABLE
    assert said == (f"fj-nightly: {name} is not installed (pip install 'fastjournal[spark]')\n")


def test_output_has_to_be_given() -> None:
    code, said = run(RUN)
    assert code == USAGE
    assert "--output" in said
