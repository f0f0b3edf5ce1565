"""Store of the nightly tables: a description names what is there, wherever a run is killed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest

from fastjournal.errors import LogCorruptError, LogFailedError, LogLockedError
from fastjournal.spark.nightly import day_store
from fastjournal.spark.nightly.day_store import (
    DayState,
    DayStore,
    HistoryTables,
    StateTables,
    checked_output,
)
from fastjournal.spark.nightly.report.figures import TableReader
from fastjournal.spark.storage.files import hadoop_glob, hadoop_uri, is_s3, pyarrow_uri
from fastjournal.spark.storage.table_files import StoreFiles
from tests.users import as_user, changes_users

DAY = date(2026, 11, 20)
TABLES = ("hours", "churn")
LOCAL = pyarrow.fs.LocalFileSystem()


class KilledError(Exception):
    """The process ended here."""


def build(store: DayStore, text: str, files: int = 2) -> dict[str, HistoryTables]:
    """Write tables of the day into the staging tree; return what they were computed from."""
    store.begin()
    for table in TABLES:
        place = f"{store.path}/{store._staging}/{table}/dt={DAY}"
        store.raw.create_dir(place, recursive=True)
        for number in range(files):
            rows = pa.table({"text": [text], "table": [table]})
            pq.write_table(rows, f"{place}/part-{number}-{text}.parquet", filesystem=store.raw)
        # Spark leaves these
        for name in ("_SUCCESS", f".part-0-{text}.parquet.crc"):
            with store.raw.open_output_stream(f"{place}/{name}") as file:
                file.write(b"x")
    return {str(DAY): HistoryTables([text], 1)}


def publish(store: DayStore, text: str, files: int = 2) -> None:
    """Replace the tables of the day."""
    store.publish(store.states(), build(store, text, files), TABLES)


def content(directory: Path) -> set[str]:
    """Return what readers of Parquet see."""
    found = set[str]()
    for table in TABLES:
        place = directory / table
        if list(place.glob("*/*")):
            found |= set(pq.read_table(place)["text"].to_pylist())
    return found


def told(store: DayStore) -> set[str]:
    """Return what is read by the descriptions."""
    states = store.states()
    rows = [row for table in TABLES for row in TableReader(store, states).rows(table, [DAY])]
    return {row["text"] for row in rows}


def object_store(directory: Path) -> DayStore:
    """Return a store that takes a directory for one of an object store."""
    for name in ("days", "reports"):
        # an object has no directory that has to be there
        (directory / name).mkdir(parents=True, exist_ok=True)
    store = DayStore(str(directory))
    files: Any = pyarrow.fs.SubTreeFileSystem(str(directory.parent), LOCAL)
    store.uri, store.path, store.is_local = f"s3://bucket/{directory.name}", directory.name, False
    set_files(store, files)
    store._staging = "nightly-staging/run"
    return store


def set_files(store: DayStore, files: Any) -> None:
    store.raw, store.files = files, StoreFiles(files)


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
    for text, files in (("old", 3), ("new", 2)):
        publish(store, text, files)
        assert content(tmp_path) == told(store) == {text}
        names = {path.name for path in (tmp_path / "hours" / f"dt={DAY}").iterdir()}
        assert names == {f"hours-{number + 1}.parquet" for number in range(files)}
    store.end()
    assert {path.name for path in tmp_path.iterdir()} == {"hours", "churn", "days"}
    assert store.states()[str(DAY)].history.segments == ["new"]


def test_publication_of_the_state_keeps_the_history_and_the_other_way_round(
    tmp_path: Path,
) -> None:
    store = DayStore(str(tmp_path))
    publish(store, "old")
    states = store.states()
    states[str(DAY)] = msgspec.structs.replace(states[str(DAY)], covered=[])
    store.publish(states, {str(DAY): StateTables("snapshot", 7, 3)}, ["log"])
    (state,) = store.states().values()
    assert (state.snapshot, state.taken_us, state.covered) == ("snapshot", 7, None)
    assert state.files("log") == []
    assert told(store) == {"old"}
    publish(store, "new")
    (state,) = store.states().values()
    assert (state.snapshot, state.taken_us) == ("snapshot", 7)
    assert told(store) == {"new"}


def test_publication_that_is_killed_anywhere_is_told_by_no_description(tmp_path: Path) -> None:
    told_by = []
    for step in range(1, 80):
        directory = tmp_path / str(step)
        store = object_store(directory)
        publish(store, "old")
        days = build(store, "new")
        states = store.states()
        set_files(store, KillingFiles(store.raw, step))
        try:
            store.publish(states, days, TABLES)
            killed = False
        except KilledError:
            killed = True
        again = object_store(directory)
        states = again.states()
        assert told(again) in ({"old"}, set(), {"new"}), "never a part of both"
        told_by.append("".join(told(again)))
        # the day is computed again where its tables are not told
        assert (states[str(DAY)].history is None) == (told_by[-1] == "")
        publish(again, "new")
        assert content(directory) == told(again) == {"new"}
        again.end()
        assert not (directory / "nightly-staging" / "run").exists()
        if not killed:
            break
    assert not killed
    assert told_by == sorted(told_by, key=["old", "", "new"].index)
    assert set(told_by) == {"old", "", "new"}


def test_description_names_tables_that_are_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DayStore(str(tmp_path))
    days = build(store, "new")
    synced = list[str]()
    fsync = os.fsync

    def record(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}").removeprefix(f"{tmp_path}/"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    store.publish({}, days, TABLES)
    last = synced.index("days")
    for table in TABLES:
        place = f"{table}/dt={DAY}"
        for number in range(2):
            assert f"nightly-staging/{place}/part-{number}-new.parquet" in synced[:last]
        assert place in synced[:last]
        assert table in synced[:last]


def test_publication_of_a_table_without_rows_empties_the_day(tmp_path: Path) -> None:
    store = DayStore(str(tmp_path))
    publish(store, "old")
    store.begin()
    store.publish(store.states(), {str(DAY): HistoryTables(["none"], 1)}, TABLES)
    assert content(tmp_path) == told(store) == set()


def test_object_store_has_the_new_files_only(tmp_path: Path) -> None:
    store = object_store(tmp_path / "out")
    for text in ("old", "new"):
        publish(store, text)
        assert content(tmp_path / "out") == told(store) == {text}
    assert store.put_report(str(DAY), b"page") == f"s3://bucket/out/reports/{DAY}.html"
    assert (tmp_path / "out" / "reports" / f"{DAY}.html").read_bytes() == b"page"
    store.prune(TABLES, [str(DAY)])
    assert store.states() == {}
    assert content(tmp_path / "out") == set()
    assert not (tmp_path / f"out/reports/{DAY}.html").exists()


def test_second_run_on_a_day_that_another_one_has_written_meanwhile_is_refused(
    tmp_path: Path,
) -> None:
    slower, faster = object_store(tmp_path / "out"), object_store(tmp_path / "out")
    faster._staging = "nightly-staging/other"
    publish(faster, "old")
    states, days = slower.states(), build(slower, "slower")
    publish(faster, "faster")
    with pytest.raises(
        LogLockedError, match=r"another fj-nightly has written this day .*run it ag"
    ):
        slower.publish(states, days, TABLES)
    assert told(faster) == {"faster"}
    publish(slower, "slower")
    assert told(faster) == {"slower"}


def test_table_that_another_program_has_changed_is_one_sentence(tmp_path: Path) -> None:
    store = DayStore(str(tmp_path))
    publish(store, "old")
    path = tmp_path / "hours" / f"dt={DAY}" / "hours-1.parquet"
    pq.write_table(pa.table({"text": ["theirs"]}), path)
    with pytest.raises(
        LogCorruptError, match=rf"hours-1.parquet: .*another one than days/{DAY}.json names"
    ):
        told(store)
    (tmp_path / "days" / f"{DAY}.json").unlink()
    publish(store, "new")
    assert told(store) == {"new"}


def test_pruning_removes_tables_report_and_description(tmp_path: Path) -> None:
    store = DayStore(str(tmp_path))
    publish(store, "old")
    store.put_report(str(DAY), b"page")
    store.prune(TABLES, ["2026-11-19"])
    assert content(tmp_path) == {"old"}
    store.prune(TABLES, [str(DAY)])
    assert content(tmp_path) == set()
    assert store.states() == {}
    assert list((tmp_path / "reports").iterdir()) == []


def test_description_that_is_damaged_is_named(tmp_path: Path) -> None:
    store = DayStore(str(tmp_path))
    publish(store, "old")
    (tmp_path / "days" / f"{DAY}.json").write_text("{")
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
        lambda store, days: store.prune(TABLES, [str(DAY)]),
        lambda store, days: store.states(),
        lambda store, days: store.end(),
        lambda store, days: store.begin(),
        lambda store, days: store.publish({}, days, TABLES),
        lambda store, days: told(store),
    ],
    ids=["prune", "states", "end", "begin", "publish", "read"],
)
def test_store_that_is_out_of_reach_in_the_middle_is_a_failure_with_a_path(
    tmp_path: Path, work: Callable[[DayStore, Any], object]
) -> None:
    for step in range(1, 100):
        store = object_store(tmp_path / str(step))
        publish(store, "old")
        days = build(store, "new")
        set_files(store, UnreachableFiles(store.raw, step))
        failed = failure_of(partial(work, store, days))
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


def test_tables_of_days_that_are_not_there_cost_no_request_of_a_store(tmp_path: Path) -> None:
    store = object_store(tmp_path / "out")
    set_files(store, UnreachableFiles(store.raw, 1))
    reader = TableReader(store, {})
    assert reader.rows("hours", [DAY, *(DAY - timedelta(days=ago) for ago in range(28))]) == []


def test_staging_tree_that_is_a_link_is_replaced_and_its_target_stays(tmp_path: Path) -> None:
    store = DayStore(str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").touch()
    (tmp_path / "nightly-staging").symlink_to("elsewhere")
    publish(store, "new")
    assert content(tmp_path) == {"new"}
    assert (tmp_path / "elsewhere" / "file").exists()


def test_staging_tree_and_probe_take_the_place_of_no_file_of_another_program(
    tmp_path: Path,
) -> None:
    kept = [tmp_path / name for name in ("staging/data", "probe")]
    kept[0].parent.mkdir()
    for path in kept:
        path.write_text("mine")
    store = DayStore(str(tmp_path))
    publish(store, "new")
    store.end()
    assert [path.read_text() for path in kept] == ["mine", "mine"]


@changes_users
def test_staging_tree_of_another_user_is_named() -> None:
    with tempfile.TemporaryDirectory(prefix="fj-", dir="/tmp") as name:
        os.chmod(name, 0o777)
        Path(name, "nightly-staging", "hours").mkdir(parents=True)
        Path(name, "nightly-staging", "hours").chmod(0o755)
        Path(name, "nightly-staging", "hours", "file").touch()

        def work() -> None:
            told = rf"{name}/nightly-staging: cannot remove: .*Permission denied"
            with pytest.raises(LogFailedError, match=told):
                DayStore(name).begin()

        assert as_user(65_534, 65_534, work) == 0


def test_staging_tree_of_a_store_is_removed_when_nobody_has_written_to_it_for_a_day(
    tmp_path: Path,
) -> None:
    store = object_store(tmp_path / "out")
    for name, hours in (("killed", 25), ("works", 1)):
        place = tmp_path / "out" / "nightly-staging" / name / "hours"
        place.mkdir(parents=True)
        (place / "file").touch()
        at = store._now.timestamp() - hours * 3600
        os.utime(place / "file", (at, at))
    store.begin()
    trees = (tmp_path / "out" / "nightly-staging").iterdir()
    assert {path.name for path in trees} == {"works", "run"}


def test_descriptions_are_the_files_with_their_ending(tmp_path: Path) -> None:
    store = DayStore(str(tmp_path))
    publish(store, "new")
    (tmp_path / "days" / f"{DAY}.json~").write_text("{}")
    (tmp_path / "days" / "old").mkdir()
    assert set(store.states()) == {str(DAY)}
    assert isinstance(store.states()[str(DAY)], DayState)
