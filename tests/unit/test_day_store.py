"""Store of the nightly tables: a day is the old one or the new one, wherever a run is killed."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pyarrow.fs
import pytest

from fastjournal.errors import LogCorruptError, LogFailedError, LogLockedError
from fastjournal.spark.nightly import day_store
from fastjournal.spark.nightly.day_store import DayState, DayStore, checked_output
from fastjournal.spark.nightly.report.figures import TableReader
from fastjournal.spark.storage.files import hadoop_glob, hadoop_uri, is_s3, pyarrow_uri
from tests.users import as_user, changes_users

DAY = date(2026, 11, 20)
TABLES = [("hours", DAY), ("churn", DAY)]


class KilledError(Exception):
    """The process ended here."""


def build(store: DayStore, text: str) -> None:
    """Build the day in the staging tree; one file of each table has another name each time."""
    store.begin()
    for table, _ in TABLES:
        for name in (f"part-{text}.parquet", "part.parquet"):
            store.write(f"{table}/dt={DAY}/{name}", text.encode())
    store.describe(DAY, DayState(text))


def content(directory: Path) -> set[str]:
    """Return what readers of the tables see."""
    return {
        path.read_text()
        for table, day in TABLES
        for path in (directory / table / f"dt={day}").glob("*.parquet")
    }


def check_whole(directory: Path, store: DayStore) -> str:
    """Check that the day is one of its versions in all tables; return which."""
    (text,) = content(directory)
    for table, day in TABLES:
        names = {path.name for path in (directory / table / f"dt={day}").iterdir()}
        assert names == {f"part-{text}.parquet", "part.parquet"}
    assert store.states() == {str(DAY): DayState(text)}
    return text


def object_store(directory: Path) -> DayStore:
    """Return a store that takes a directory for one of an object store."""
    files: Any = pyarrow.fs.SubTreeFileSystem(str(directory.parent), pyarrow.fs.LocalFileSystem())
    store = DayStore.__new__(DayStore)
    store.uri, store.files, store._local = f"s3://bucket/{directory.name}", files, False
    store.path, store.guard = directory.name, lambda: None
    return store


class KillingFiles:
    """File system before whose nth change the process is killed."""

    def __init__(self, files: Any, step: int) -> None:
        self._files = files
        self._left = step

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._files, name)
        if name not in ("move", "delete_file", "delete_dir", "create_dir", "open_output_stream"):
            return call

        def wrapped(*arguments: Any, **options: Any) -> Any:
            self._left -= 1
            if self._left == 0:
                raise KilledError
            return call(*arguments, **options)

        return wrapped


def test_publication_replaces_all_files_of_a_day(tmp_path: Path) -> None:
    store = DayStore(str(tmp_path))
    for text in ("old", "new"):
        build(store, text)
        store.publish(TABLES)
        assert content(tmp_path) == {text}
        assert store.states() == {str(DAY): DayState(text)}
    store.end()
    assert {path.name for path in tmp_path.iterdir()} == {"hours", "churn", "_days"}


def test_publication_that_is_killed_anywhere_is_all_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = []
    for step in range(1, 80):
        directory = tmp_path / str(step)
        store = DayStore(str(directory))
        build(store, "old")
        store.publish(TABLES)
        build(store, "new")
        with monkeypatch.context() as patch:
            kill_at(patch, step)
            try:
                store.publish(TABLES)
                killed = False
            except KilledError:
                killed = True
        again = DayStore(str(directory))
        again.begin()
        outcomes.append(check_whole(directory, again))
        if not killed:
            break
    assert outcomes == sorted(outcomes, reverse=True)
    assert {"old", "new"} == set(outcomes)
    assert not killed


def test_publication_in_an_object_store_that_is_killed_anywhere_is_all_or_nothing(
    tmp_path: Path,
) -> None:
    outcomes = []
    for step in range(1, 80):
        directory = tmp_path / str(step)
        store = object_store(directory)
        build(store, "old")
        store.publish(TABLES)
        build(store, "new")
        store.files = KillingFiles(store.files, step)
        killed = False
        try:
            store.publish(TABLES)
        except KilledError:
            killed = True
        # the run that finishes it is killed, too
        for left in (3, 5):
            again = object_store(directory)
            again.files = KillingFiles(again.files, left)
            with suppress(KilledError):
                again.begin()
        again = object_store(directory)
        again.begin()
        outcomes.append(check_whole(directory, again))
        if not killed:
            break
    assert outcomes == sorted(outcomes, reverse=True)
    assert {"old", "new"} == set(outcomes)
    assert not killed


def test_publication_is_recorded_when_all_of_it_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DayStore(str(tmp_path))
    build(store, "new")
    staged = {tmp_path / "_staging", *(tmp_path / "_staging").rglob("*")}
    synced = set()

    def fsync(descriptor: int) -> None:
        if not (tmp_path / "_publish.json").exists():
            synced.add(Path(os.readlink(f"/proc/self/fd/{descriptor}")))

    monkeypatch.setattr(day_store.os, "fsync", fsync)
    store.publish(TABLES)
    assert len(staged) == 11
    assert staged <= synced


def test_publication_that_is_damaged_says_what_to_do(tmp_path: Path) -> None:
    store = DayStore(str(tmp_path))
    (tmp_path / "_publish.json").write_text("{")
    with pytest.raises(LogCorruptError, match=r"_publish.json: not a publication: .*remove it"):
        store.begin()


def kill_at(patch: pytest.MonkeyPatch, step: int) -> None:
    """Kill the process before its nth rename, removal of a tree or move."""
    left = [step]

    def counted(call: Any) -> Any:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                raise KilledError
            return call(*arguments, **options)

        return wrapped

    patch.setattr(day_store.os, "rename", counted(os.rename))
    patch.setattr(day_store.shutil, "rmtree", counted(shutil.rmtree))
    patch.setattr(DayStore, "_replace", counted(DayStore._replace))
    patch.setattr(DayStore, "_sync", counted(DayStore._sync))


def test_publication_of_a_table_without_rows_empties_the_day(tmp_path: Path) -> None:
    store = DayStore(str(tmp_path))
    build(store, "old")
    store.publish(TABLES)
    store.begin()
    store.publish(TABLES)
    assert content(tmp_path) == set()


def test_object_store_has_the_new_files_only(tmp_path: Path) -> None:
    store = object_store(tmp_path / "out")
    for text in ("old", "new"):
        build(store, text)
        store.publish(TABLES)
        assert content(tmp_path / "out") == {text}
    store.begin()
    name = "reports/2026-11-20.html"
    store.write(name, b"page")
    store.publish([])
    assert store.place(name) == f"s3://bucket/out/{name}"
    assert (tmp_path / "out" / name).read_bytes() == b"page"
    store.prune(["hours", "churn"], [str(DAY)])
    assert store.states() == {}
    assert content(tmp_path / "out") == set()
    assert not (tmp_path / "out/reports/2026-11-20.html").exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda store: store.prune(["hours", "churn"], [str(DAY)]),
        lambda store: store.write(f"reports/{DAY}.html", b"stale"),
        lambda store: store.describe(DAY, DayState("stale")),
        lambda store: store.end(),
        lambda store: store.begin(),
        lambda store: store.publish(TABLES),
    ],
    ids=["prune", "write", "describe", "end", "begin", "publish"],
)
def test_output_of_a_lost_lock_stays_as_the_next_run_has_it(
    tmp_path: Path, change: Callable[[DayStore], object]
) -> None:
    def lost() -> None:
        raise LogLockedError("the lock was lost")

    suspended, store = DayStore(str(tmp_path)), DayStore(str(tmp_path))
    build(store, "old")
    store.publish(TABLES)
    store.write(f"reports/{DAY}.html", b"page")
    store.publish([])
    build(store, "new")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    suspended.guard = lost
    with pytest.raises(LogLockedError):
        change(suspended)
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert {path: after.get(path) for path in before} == before


def test_pruning_removes_tables_report_and_description(tmp_path: Path) -> None:
    store = DayStore(str(tmp_path))
    build(store, "old")
    store.publish(TABLES)
    store.begin()
    store.write(f"reports/{DAY}.html", b"page")
    store.publish([])
    store.prune(["hours", "churn"], ["2026-11-19"])
    assert content(tmp_path) == {"old"}
    store.prune(["hours", "churn"], [str(DAY)])
    assert content(tmp_path) == set()
    assert store.states() == {}
    assert list((tmp_path / "reports").iterdir()) == []


def test_description_that_is_damaged_is_named(tmp_path: Path) -> None:
    store = DayStore(str(tmp_path))
    build(store, "old")
    store.publish(TABLES)
    (tmp_path / "_days" / f"{DAY}.json").write_text("{")
    with pytest.raises(LogCorruptError, match=f"{DAY}.json: not a description of a day: .*remove"):
        store.states()


def test_uri_of_s3_has_the_scheme_of_its_reader(tmp_path: Path) -> None:
    assert pyarrow_uri("s3a://bucket/a") == "s3://bucket/a" == pyarrow_uri("s3://bucket/a")
    assert hadoop_uri("s3://bucket/a") == "s3a://bucket/a" == hadoop_uri("s3a://bucket/a")
    assert is_s3("s3://bucket/a")
    assert is_s3("s3a://bucket/a")
    assert not is_s3("hdfs://name/a")
    assert not is_s3("s3:/bucket")
    assert hadoop_uri("hdfs://name/a") == "hdfs://name/a"
    assert hadoop_glob("hdfs://name/a[1]{b}*?\\") == r"hdfs://name/a\[1\]\{b\}\*\?\\"
    assert hadoop_uri(f"{tmp_path}/a") == f"file://{tmp_path}/a"


def test_problem_of_an_output_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(uri: str) -> None:
        raise LogFailedError("cannot open: no libjvm\ndlopen(one)\ndlopen(two)", path=uri)

    monkeypatch.setattr(day_store, "resolve", resolve)
    with pytest.raises(LogFailedError, match=r"written: cannot open: no libjvm \(name another"):
        checked_output("hdfs://name/out")


def test_output_that_cannot_be_written_is_an_error_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LogFailedError, match=r"the output cannot be written: .*--output"):
        checked_output(str(tmp_path / "file" / "out"))
    with pytest.raises(LogFailedError, match=r"the output cannot be written: .*--output"):
        checked_output("nonsense://bucket/out")


class UnreachableFiles:
    """File system that loses its connection at the nth call."""

    def __init__(self, files: Any, step: int) -> None:
        self._files = files
        self._left = step

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._files, name)

        def wrapped(*arguments: Any, **options: Any) -> Any:
            self._left -= 1
            if self._left == 0:
                raise OSError(f"AWS Error NETWORK_CONNECTION during {name}")
            return call(*arguments, **options)

        return wrapped


@pytest.mark.parametrize(
    "work",
    [
        lambda store: store.prune(["hours", "churn"], [str(DAY)]),
        lambda store: store.states(),
        lambda store: store.end(),
        lambda store: store.begin(),
        lambda store: store.publish(TABLES),
    ],
    ids=["prune", "states", "end", "begin", "publish"],
)
def test_store_that_is_out_of_reach_in_the_middle_is_a_failure_with_a_path(
    tmp_path: Path, work: Callable[[DayStore], object]
) -> None:
    for step in range(1, 100):
        store = object_store(tmp_path / str(step))
        store.begin()
        build(store, "old")
        store.publish(TABLES)
        build(store, "new")
        store.files = UnreachableFiles(store.files, step)
        failed = failure_of(partial(work, store))
        if failed is None:
            break
        assert "AWS Error NETWORK_CONNECTION" in failed.message
        assert failed.path is not None
        assert failed.path.split("/")[0] == str(step)
    assert failed is None
    assert step > 1


def failure_of(work: Callable[[], object]) -> LogFailedError | None:
    try:
        work()
    except LogFailedError as error:
        return error
    return None


def test_tables_of_a_store_out_of_reach_are_a_failure_with_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = object_store(tmp_path / "out")
    files, store.files = store.files, UnreachableFiles(store.files, 1)
    with pytest.raises(LogFailedError, match="out/hours: cannot list: AWS Error"):
        TableReader(store).rows("hours", [DAY])

    def lose(*_: Any, **__: Any) -> None:
        raise OSError("AWS Error NETWORK_CONNECTION")

    store.files = files
    (tmp_path / "out" / "hours" / f"dt={DAY}").mkdir(parents=True)
    monkeypatch.setattr(pyarrow.dataset, "dataset", lose)
    with pytest.raises(LogFailedError, match=f"out/hours/dt={DAY}: cannot read: AWS Error"):
        TableReader(store).rows("hours", [DAY])


def test_tables_of_days_that_are_not_there_cost_one_request_of_a_store(tmp_path: Path) -> None:
    store = object_store(tmp_path / "out")
    store.files = UnreachableFiles(store.files, 2)
    reader = TableReader(store)
    assert reader.rows("hours", [DAY, *(DAY - timedelta(days=ago) for ago in range(28))]) == []
    assert reader.rows("hours", [DAY]) == []


def test_staging_tree_that_is_a_link_is_replaced_and_its_target_stays(tmp_path: Path) -> None:
    store = DayStore(str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").touch()
    (tmp_path / "_staging").symlink_to("elsewhere")
    build(store, "new")
    store.publish(TABLES)
    assert content(tmp_path) == {"new"}
    assert (tmp_path / "elsewhere" / "file").exists()


@changes_users
def test_staging_tree_of_another_user_is_named() -> None:
    with tempfile.TemporaryDirectory(prefix="fj-", dir="/tmp") as name:
        os.chmod(name, 0o777)
        Path(name, "_staging", "hours").mkdir(parents=True)
        Path(name, "_staging", "hours").chmod(0o755)
        Path(name, "_staging", "hours", "file").touch()

        def work() -> None:
            told = rf"{name}/_staging: cannot remove: .*Permission denied"
            with pytest.raises(LogFailedError, match=told):
                DayStore(name).begin()

        assert as_user(65_534, 65_534, work) == 0


def test_descriptions_are_the_files_with_their_ending(tmp_path: Path) -> None:
    store = DayStore(str(tmp_path))
    build(store, "new")
    store.publish(TABLES)
    (tmp_path / "_days" / f"{DAY}.json~").write_text("{}")
    (tmp_path / "_days" / "old").mkdir()
    assert set(store.states()) == {str(DAY)}
