"""Errors of fj-nightly: one sentence and an exit code, before any Java machine is started.

Most are of a run in this process: to import PySpark and the rest takes a second of a new one. Tests
of what is imported, and one of each end of the command, have a process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, redirect_stderr
from datetime import UTC, datetime, timedelta
from pathlib import Path

import google_crc32c
import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkRuntimeError

from fastjournal.cmdlog.archive import ArchivedSegment
from fastjournal.cmdlog.format.layout import SegmentInfo
from fastjournal.cmdlog.snapshot import take_snapshot
from fastjournal.disk import OsDisk
from fastjournal.spark.cluster import java
from fastjournal.spark.nightly import fj_nightly, preparation
from fastjournal.spark.nightly import run as nightly_run
from fastjournal.testing.logs import START_US, SegmentBuilder
from tests.users import as_user, changes_users

UNAVAILABLE, IO, LOCKED, USAGE = 69, 74, 75, 2
NOBODY = 65_534

RUN = "from fastjournal.spark.nightly import main; main()"
HIDE = "import sys; sys.modules[{name!r}] = None; "
ENVIRONMENT = {"PATH": "", "JAVA_HOME": "", "PYSPARK_PYTHON": sys.executable}
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def snapshot(tmp_path: Path) -> str:
    """A snapshot of an empty log, taken on 2026-11-20."""
    data = bytes(SegmentBuilder())
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "000000001.log").write_bytes(data)
    info = SegmentInfo(1, len(data), 0, START_US, START_US, 1)
    log, place = str(tmp_path / "log"), str(tmp_path / "snapshots")
    return take_snapshot(OsDisk(), log, place, [info], START_US)


@pytest.fixture(autouse=True)
def plain_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave standard error of this process as it is: a queue stays until the end of a process."""
    monkeypatch.setattr(fj_nightly, "queue_stderr", lambda **_: None)


@pytest.fixture
def umask() -> Iterator[None]:
    """Give this process its mask again: the command narrows it."""
    mask = os.umask(0)
    os.umask(mask)
    yield
    os.umask(mask)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], umask: None) -> Run:
    """Return a function that runs the command, with these options, in this process."""

    def run_here(*options: str) -> tuple[int, str]:
        for name, value in ENVIRONMENT.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["fj-nightly", *options])
        with pytest.raises(SystemExit) as ended:
            fj_nightly.main()
        out, said = capfd.readouterr()
        assert isinstance(ended.value.code, int)
        assert out == "" or ended.value.code == 0, "an error comes before any report"
        return ended.value.code, said

    return run_here


@pytest.fixture
def without_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command look for no Java."""
    monkeypatch.setattr(preparation, "prepare_environment", lambda: None)


def run_process(code: str, *options: str) -> tuple[int, str]:
    environment = os.environ | ENVIRONMENT
    done = subprocess.run(
        [sys.executable, "-c", code, *options],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


def one_line(ended: tuple[int, str], code: int) -> str:
    """Return the line that a run said, which ended with this code."""
    assert ended[0] == code, ended
    assert len(ended[1].splitlines()) == 1
    return ended[1]


def test_connect_error_without_a_daemon_at_the_address(tmp_path: Path) -> None:
    server = f"unix:{tmp_path}/nobody"
    said = one_line(run_process(RUN, "--server", server, "--output", str(tmp_path)), UNAVAILABLE)
    assert said.startswith("fj-nightly: ")


def test_snapshot_that_is_missing_is_an_error(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name, told in (("gone", "nothing"), ("file", "no directory")):
        snapshot = str(tmp_path / name)
        code, said = run("--snapshot", snapshot, "--output", str(tmp_path / "out"))
        assert code == IO
        assert said == (
            f"fj-nightly: {snapshot}: there is {told} here (name the directory that "
            "'fj-cli snapshot' printed)\n"
        )


def test_log_that_is_no_snapshot_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "000000001.log").write_bytes(bytes(SegmentBuilder()))
    said = one_line(run("--snapshot", str(tmp_path), "--output", str(tmp_path / "out")), IO)
    assert "or a daemon has started here (name the directory" in said
    assert not (tmp_path / "out").exists()


def test_date_in_the_future_is_refused_before_a_snapshot_is_taken(run: Run, tmp_path: Path) -> None:
    tomorrow = datetime.now(UTC).date() + timedelta(days=1)
    options = ("--server", "unix:/nobody", "--output", str(tmp_path / "out"))
    said = one_line(run(*options, "--date", str(tomorrow)), USAGE)
    assert said.startswith(f"fj-nightly: --date {tomorrow} has not ended in UTC (the last day")
    assert not (tmp_path / "out").exists()


def test_archive_that_is_none_is_refused(run: Run, tmp_path: Path) -> None:
    options = ("--server", "unix:/nobody", "--output", str(tmp_path / "out"))
    for name, problem in (("gone", "is no directory"), (".", "holds no archive")):
        said = one_line(run(*options, "--archive", str(tmp_path / name)), USAGE)
        assert f"{problem} (name the daemon's --archive-dir)" in said


class WorkBeganError(Exception):
    """The work of a run began, after its checks."""


@pytest.mark.parametrize("archives", [True, False])
def test_archive_with_a_lock_alone_is_looked_at_behind_the_snapshot(
    archives: bool,
    run: Run,
    tmp_path: Path,
    snapshot: str,
    without_java: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    archive = tmp_path / "archive"
    archive.mkdir()
    (archive / "append.lock").touch()

    def take() -> str:
        if archives:
            (archive / "000000001-0a1b2c3d.log").touch()
        return snapshot

    def work(*_: object, **__: object) -> None:
        raise WorkBeganError

    monkeypatch.setattr(fj_nightly, "_snapshot_taker", lambda _: ("unix:/nobody", take))
    monkeypatch.setattr(nightly_run, "run_night", work)
    options = ("--archive", str(archive), "--output", str(tmp_path / "out"))
    if archives:
        with pytest.raises(WorkBeganError):
            run(*options)
        return
    code, said = run(*options)
    assert code == USAGE
    assert said == (
        f"fj-nightly: --archive {archive} has nothing of the log of {snapshot} (name the "
        "daemon's --archive-dir)\n"
    )


def test_archive_of_a_daemon_without_records_has_no_events(
    run: Run, tmp_path: Path, without_java: None
) -> None:
    archive = tmp_path / "archive"
    archive.mkdir()
    (archive / "append.lock").touch()
    options = ("--archive", str(archive), "--output", str(tmp_path / "out"))
    code, said = run(*options, "--date", "2020-01-01")
    assert code == 0, said
    assert "There is no history" in (tmp_path / "out/reports/2020-01-01.html").read_text()


def test_output_that_cannot_be_written_is_an_error(
    run: Run, tmp_path: Path, snapshot: str, without_java: None
) -> None:
    (tmp_path / "file").write_text("")
    said = one_line(run("--snapshot", snapshot, "--output", f"{tmp_path}/file/out"), IO)
    assert "the output cannot be written: " in said


@pytest.mark.parametrize("option", ["--output", "--history"])
def test_place_in_a_snapshot_or_nowhere_is_refused_before_any_work(
    option: str, run: Run, tmp_path: Path, snapshot: str, without_java: None
) -> None:
    before = sorted(Path(snapshot).iterdir())
    other = {"--output": str(tmp_path / "out"), "--history": str(tmp_path / "history")}
    for place, told in ((f"{snapshot}/x", "is in the snapshot "), ("", "an empty path names no ")):
        given = other | {option: place}
        said = one_line(
            run("--snapshot", snapshot, *(word for pair in given.items() for word in pair)), USAGE
        )
        assert told in said
    assert sorted(Path(snapshot).iterdir()) == before
    assert not list(tmp_path.glob("out/*"))
    assert not (tmp_path / "history").exists()


def test_second_run_at_once_is_refused(
    run: Run, tmp_path: Path, snapshot: str, without_java: None
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with closing(OsDisk().lock(f"{out}/nightly.lock")):
        code, said = run("--snapshot", snapshot, "--output", str(out))
    assert code == LOCKED
    assert said == f"fj-nightly: {out}: another fj-nightly works here (wait until it has ended)\n"


@pytest.mark.parametrize(
    ("output", "history"),
    [
        ("{0}/out", "{0}/out/"),
        ("{0}/out", "{0}/link"),
        ("out", "{0}/out"),
        ("./out", "out"),
        ("{0}/out", "file://{0}/out/"),
    ],
)
def test_output_and_history_of_one_directory_are_locked_once(
    run: Run, output: str, history: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to("out")
    monkeypatch.chdir(tmp_path)
    options = ["--output", output.format(tmp_path), "--history", history.format(tmp_path)]
    code, said = run(*options, "--date", "2020-01-01")
    assert code == 0, said
    assert (tmp_path / "out" / "reports" / "2020-01-01.html").exists()


@pytest.mark.parametrize(
    ("master", "ended", "told"),
    [
        ("nonsense", USAGE, "--master 'nonsense' is no master of Spark (local[N], "),
        (
            "spark://127.0.0.1:99999",
            UNAVAILABLE,
            "no Spark master listens at spark://127.0.0.1:99999: ",
        ),
    ],
)
def test_master_is_tried_before_a_snapshot_is_taken(
    master: str, ended: int, told: str, run: Run, tmp_path: Path, without_java: None
) -> None:
    options = ("--server", "unix:/nobody", "--output", str(tmp_path / "out"))
    said = one_line(run(*options, "--master", master), ended)
    assert said.startswith(f"fj-nightly: {told}")
    assert not (tmp_path / "out").exists()


def test_java_that_is_missing_is_an_error(
    run: Run, tmp_path: Path, snapshot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "find_spec", lambda name: None)
    options = ("--snapshot", snapshot, "--output", str(tmp_path / "out"))
    said = one_line(run(*options), UNAVAILABLE)
    assert said.startswith("fj-nightly: Spark needs Java 17 or newer: ")


@pytest.mark.parametrize("name", ["pyspark", "pyarrow", "jinja2"])
def test_missing_extra_is_named(name: str, tmp_path: Path) -> None:
    options = ("--snapshot", str(tmp_path), "--output", str(tmp_path))
    code, said = run_process(HIDE.format(name=name) + RUN, *options)
    assert code == UNAVAILABLE
    assert said == (f"fj-nightly: {name} is not installed (pip install 'fastjournal[spark]')\n")


@pytest.mark.parametrize(
    ("file", "directory", "created"),
    [
        (0o600, 0o755, (0o600, 0o711)),
        (0o640, 0o755, (0o640, 0o751)),
        (0o640, 0o750, (0o640, 0o750)),
        (0o644, 0o755, (0o644, 0o755)),
    ],
)
def test_tables_are_no_wider_than_the_files_of_the_snapshot(
    file: int,
    directory: int,
    created: tuple[int, int],
    tmp_path: Path,
    snapshot: str,
    without_java: None,
    umask: None,
) -> None:
    for path in Path(snapshot).iterdir():
        path.chmod(file)
    Path(snapshot).chmod(directory)
    table = tmp_path / "out" / "table"
    names = ("date", "archive", "history", "remote_log", "keep_days", "keep_events", "master")
    options = dict.fromkeys(names)
    os.umask(0)
    with ExitStack() as stack:
        preparation.prepare(options | {"snapshot": snapshot, "output": str(table.parent)}, stack)
        table.mkdir()
        os.close(os.open(table / "file", os.O_CREAT, 0o666))
    modes = [path.stat().st_mode & 0o777 for path in (table / "file", table)]
    assert tuple(modes) == created


def test_failure_of_spark_is_one_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise PySparkRuntimeError("no space left\n  at org.apache.spark.Some.java")

    monkeypatch.setattr(preparation, "prepare", fail)
    assert run("--output", str(tmp_path)) == (1, "fj-nightly: Spark failed: no space left\n")


def test_output_has_to_be_given() -> None:
    code, said = run_process(RUN)
    assert code == USAGE
    assert "--output" in said


def test_help_has_a_short_option_and_names_the_variables() -> None:
    shown = CliRunner().invoke(fj_nightly.command, ["-h"])
    assert shown.exit_code == 0
    text = " ".join(shown.output.split())
    assert "[default: FASTJOURNAL_SERVER, then" in text
    assert "[env var: FASTJOURNAL_ARCHIVE" in text


def archive_of_one_segment(directory: Path, mode: int) -> Path:
    archive = directory / "archive"
    archive.mkdir(parents=True)
    data = bytes(SegmentBuilder())
    segment = archive / ArchivedSegment(1, google_crc32c.value(data)).name
    segment.write_bytes(data)
    segment.chmod(0o644)
    archive.chmod(mode)
    return archive


@changes_users
@pytest.mark.parametrize(
    ("mode", "told"),
    [
        (0o711, "list it, remove files from it"),
        (0o744, "open files in it, remove files from it"),
        (0o755, "remove files from it"),
        (0o777, ""),
    ],
)
def test_archive_that_this_user_may_not_take_is_refused_before_any_work(
    mode: int, told: str, run: Run, without_java: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(prefix="fj-", dir="/tmp") as name:
        os.chmod(name, 0o777)
        # imports all that the other user could not read
        of_root = archive_of_one_segment(Path(name, "of root"), 0o700)
        options = ("--archive", str(of_root), "--output", f"{name}/of root/out")
        assert run(*options, "--date", "2020-01-01")[0] == 0
        archive, said = archive_of_one_segment(Path(name), mode), Path(name, "said")
        options = ("--archive", str(archive), "--output", f"{name}/out", "--date", "2020-01-01")
        monkeypatch.setattr(sys, "argv", ["fj-nightly", *options])

        def work() -> None:
            with said.open("w") as file, redirect_stderr(file), pytest.raises(SystemExit) as ended:
                fj_nightly.main()
            assert ended.value.code == (IO if told else 0)

        assert as_user(NOBODY, NOBODY, work) == 0
        if not told:
            assert list(archive.glob("*.log")) == []
            return
        assert said.read_text() == (
            f"fj-nightly: {archive}: this user may not take the archive: it needs the right to "
            f"{told} (run fj-nightly as the user of the daemon, or give this one rwx)\n"
        )
        assert not Path(name, "out").exists()


def test_history_that_cannot_be_created_is_an_error_of_one_line(
    run: Run, tmp_path: Path, snapshot: str, without_java: None
) -> None:
    (tmp_path / "file").touch()
    options = ("--snapshot", snapshot, "--output", str(tmp_path / "out"))
    said = one_line(run(*options, "--history", f"{tmp_path}/file/history"), IO)
    assert said.startswith(f"fj-nightly: {tmp_path}/file/history: cannot create: ")
