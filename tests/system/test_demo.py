"""The demonstration, as a new user runs it; and that its own arithmetic is right."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fj_cli.demo.players import (
    ChangeSlice,
    PageChange,
    expected_executions,
    load_changes,
    slices,
)
from fj_cli.demo.services import installed
from tests.spark.java_machine import JavaMachine
from tests.system.staging import ROOT

DAY_S = 24 * 3600

ALL_EVENTS = ROOT / "examples/demo/page-changes.tsv.gz"
"""Events that `make demo` plays; the package has the newest of them."""

EVENTS = 20_000
"""Events of the file that the test plays, the first ones."""

FEW_EVENTS = 1_500
"""Newest events of the file, which make the history in the test of the report: a week of it."""

PLAY_NOTHING = f"""
import msgspec
from fj_cli.demo import history, play
from fj_cli.main import main
played = play.DemoResult(**dict.fromkeys(play.DemoResult.__struct_fields__, 1))
played = msgspec.structs.replace(played, lost=0, doubled=0)
play.Play.run = lambda _: played
history.CHANGES, history.DAYS = {FEW_EVENTS}, 7
main()
"""


def change(at_s: int, path: bytes) -> PageChange:
    return PageChange(at_s, b"example.org", b"M", path)


def test_demo_executes_changes_closer_than_the_delay_once_after_the_last() -> None:
    changes = [change(0, b"a"), change(9, b"a"), change(18, b"a")]
    assert expected_executions(changes, 10) == {(b"https://example.org/a", 28)}


def test_demo_executes_a_change_at_the_due_instant_once_more() -> None:
    changes = [change(0, b"a"), change(10, b"a")]
    uri = b"https://example.org/a"
    assert expected_executions(changes, 10) == {(uri, 10), (uri, 20)}


def test_demo_pages_do_not_put_each_other_off() -> None:
    changes = [change(0, b"a"), change(5, b"b"), change(12, b"b")]
    assert {due for _, due in expected_executions(changes, 10)} == {10, 22}


def test_demo_slice_ends_before_a_change_of_a_page_that_is_due() -> None:
    changes = [change(0, b"a"), change(5, b"b"), change(11, b"a"), change(12, b"b")]
    assert list(slices(changes, 10)) == [ChangeSlice(0, 2, 11), ChangeSlice(2, 4, None)]


def test_demo_slices_cover_the_file_without_gap() -> None:
    changes = load_changes(ALL_EVENTS)
    pieces = list(slices(changes, 365 * DAY_S))
    assert pieces[0].first == 0
    assert pieces[-1].end == len(changes) == 122_237
    assert all(before.end == after.first for before, after in itertools.pairwise(pieces))


def test_demo_events_of_the_package_are_the_newest_of_the_checkout() -> None:
    assert load_changes() == load_changes(ALL_EVENTS)[-10_000:]


def test_demo_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    # ten years of delay: as many events, but few slices to wait for
    events = tmp_path / "events.gz"
    with gzip.open(ALL_EVENTS) as every, gzip.open(events, "wb") as first:
        first.writelines(itertools.islice(every, EVENTS))
    command = [installed("fj-cli"), "demo", "--no-spark", "--delay=3650d", "--seed=2"]
    options = [f"--events={events}", f"--directory={tmp_path / 'demo'}"]
    run = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    rows = {
        cells[0].strip(): cells[1].strip()
        for line in run.stdout.splitlines()
        if len(cells := line.strip("│").split("│")) > 1
    }
    assert rows["events"] == f"{EVENTS:,}"
    assert rows["executions"] == rows["expected"] == rows["entries"]
    assert rows["lost"] == rows["doubled"] == "0"
    assert rows["daemon killed"] == "2"


def test_demo_without_the_packages_of_the_report_leaves_it_out(short_path: Path) -> None:
    without = f"import sys\nsys.modules['pyarrow'] = None\n{PLAY_NOTHING}"
    run = subprocess.run(
        [sys.executable, "-c", without, "demo", f"--directory={short_path}/demo"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "no report: it needs pyarrow (pip install 'fastjournal[spark]')" in run.stderr
    assert not Path(short_path, "demo/weeks").exists()


@pytest.mark.spark
def test_demo_ends_with_the_report_of_what_was_slow(
    java_machine: JavaMachine, short_path: Path
) -> None:
    # what comes before it is tested above, and that its figures are right in tests/spark
    run = subprocess.run(
        [sys.executable, "-c", PLAY_NOTHING, "demo", f"--directory={short_path}/demo"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | java_machine.lend(),
    )
    assert run.returncode == 0, run.stderr
    *_, told = run.stdout.splitlines()
    words, _, path = told.rpartition(": ")
    assert words == "report of four simulated weeks, on what was slow yesterday"
    assert Path(path).parent == short_path / "demo" / "weeks" / "report" / "reports"
    page = Path(path).read_text(encoding="utf-8")
    assert "gohugo.io: work took long" in page
    # its workers stopped six hours ago, on the day of the report or behind it
    complaint = r"peps\.python\.org: (nobody took its work after|due work waits for long)"
    assert re.search(complaint, page)
    # fj-nightly, which the demonstration runs, says the same in short
    assert "gohugo.io" in run.stdout


def test_demo_that_fails_keeps_what_tells_why(tmp_path: Path) -> None:
    # too long for the path of a socket: the daemon does not start
    place = tmp_path / ("long" * 30)
    place.mkdir()
    run = subprocess.run(
        [installed("fj-cli"), "demo", "--no-spark"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TMPDIR": str(place)},
    )
    assert run.returncode == 1, run.stderr
    (kept,) = place.glob("fastjournal-demo-*")
    assert f"are in {kept}" in run.stderr
    assert (kept / "fastjournald.log").stat().st_size > 0
    assert str(kept / "fastjournald.log") in run.stderr


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Return an empty directory with a path that leaves room for that of a socket."""
    with tempfile.TemporaryDirectory(prefix="fj") as path:
        yield Path(path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_demo_that_a_signal_ends_leaves_no_process_and_no_directory(
    short_path: Path, number: signal.Signals
) -> None:
    run = subprocess.Popen(
        [installed("fj-cli"), "demo", "--no-spark", "--delay=3650d"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(short_path)},
    )
    deadline = time.monotonic() + 60
    while not list(short_path.glob("fastjournal-demo-*/fj-forwarder.log")):
        assert run.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    (directory,) = short_path.glob("fastjournal-demo-*")
    run.send_signal(number)
    _, said = run.communicate(timeout=60)
    assert run.returncode == 128 + number, said
    assert list(short_path.glob("fastjournal-demo-*")) == []
    left = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if bytes(directory) in path.read_bytes():
                left.append(path)
    assert left == []


def test_demo_does_not_touch_a_directory_that_is_there(tmp_path: Path) -> None:
    command = [installed("fj-cli"), "demo", f"--directory={tmp_path}"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, "is there already" in run.stderr) == (2, True), run.stderr
    assert list(tmp_path.iterdir()) == []
