"""Store of the nightly tables: a description names what is there, wherever a run is killed."""

from __future__ import annotations

import os
import random
import socket
import tempfile
from collections.abc import Callable
from contextlib import closing
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest

from fastjournal.disk import OsDisk
from fastjournal.errors import LogCorruptError, LogFailedError, LogLockedError
from fastjournal.spark.export import entry_sort
from fastjournal.spark.export.entry_sort import RunGroup, find_ranges, read_range, write_runs
from fastjournal.spark.live_entries.fetch import ENTRY_ARROW_SCHEMA
from fastjournal.spark.nightly.day_store import DayStore, HistoryTables, StateTables, checked_output
from fastjournal.spark.nightly.report.figures import TableReader
from fastjournal.spark.storage.files import (
    CONNECT_TIMEOUT_S,
    REQUEST_TIMEOUT_S,
    RETRY_LIMIT_S,
    LogDirectory,
    hadoop_glob,
    hadoop_uri,
    is_s3,
    pyarrow_uri,
    resolve,
)
from fastjournal.spark.storage.table_files import DiskFiles, StoreFiles
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


def test_publication_of_the_state_keeps_the_history_and_the_other_way_round(tmp_path: Path) -> None:
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


def test_staging_tree_that_is_a_link_is_replaced_and_its_target_stays(tmp_path: Path) -> None:
    store = DayStore(str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").touch()
    (tmp_path / "nightly-staging").symlink_to("elsewhere")
    publish(store, "new")
    assert content(tmp_path) == {"new"}
    assert (tmp_path / "elsewhere" / "file").exists()


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


# --- table files ----------------------------------------------------------------------------------
# Files of events and tables: an interrupted put shows all bytes of a file, or none.


def test_remove_unfinished_takes_what_a_put_has_left_and_nothing_else(tmp_path: Path) -> None:
    beside = tmp_path / "events-new"
    (beside / "notes").mkdir(parents=True)
    (beside / "mine.parquet").write_bytes(b"of another program")
    (beside / "mine.new").write_bytes(b"of another program")
    (beside / f"segment-000000009-00000000.parquet.{'0' * 32}.new").write_bytes(b"PAR1")
    files = DiskFiles(OsDisk(), str(beside))
    files.remove_unfinished()
    assert sorted(path.name for path in beside.iterdir()) == ["mine.new", "mine.parquet", "notes"]
    for name in ("mine.new", "mine.parquet"):
        (beside / name).unlink()
    (beside / "notes").rmdir()
    files.remove_unfinished()
    assert not beside.exists()


# --- object stores --------------------------------------------------------------------------------
# Object stores that cannot be reached: an error in bounded time, in one sentence.


def settings(uri: str) -> dict[str, Any]:
    """Return what a file system has, as a pickle of it."""
    files, _ = resolve(uri)
    found: dict[str, Any] = files.__reduce__()[1][0]
    return found


def closed_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port: int = server.getsockname()[1]
    return port


@pytest.mark.parametrize("scheme", ["gs", "gcs"])
def test_requests_to_googles_store_are_tried_again_for_a_bounded_time(scheme: str) -> None:
    for uri in (f"{scheme}://anonymous@bucket/key", f"{scheme}://anonymous@bucket/key?scheme=http"):
        assert settings(uri)["retry_time_limit"].total_seconds() == RETRY_LIMIT_S
    asked = settings(f"{scheme}://anonymous@bucket?scheme=http&retry_limit_seconds=7")
    assert asked["retry_time_limit"].total_seconds() == 7


def test_requests_to_s3_have_timeouts_and_the_options_of_their_uri() -> None:
    place = "key:secret@bucket/a?region=eu-north-1&scheme=http&endpoint_override=127.0.0.1:9"
    for scheme in ("s3", "s3a"):
        found = settings(f"{scheme}://{place}")
        assert (found["connect_timeout"], found["request_timeout"]) == (
            CONNECT_TIMEOUT_S,
            REQUEST_TIMEOUT_S,
        )
        plain = pyarrow.fs.FileSystem.from_uri(f"s3://{place}")[0].__reduce__()[1][0]
        changed = {name for name in plain if plain[name] != found[name]}
        assert changed == {"connect_timeout", "request_timeout"}
    assert resolve(f"s3://{place}")[1] == "bucket/a"


def test_store_that_cannot_be_reached_is_one_sentence() -> None:
    endpoint = f"scheme=http&endpoint_override=127.0.0.1:{closed_port()}"
    for uri in (
        f"gs://anonymous@bucket/key?{endpoint}&retry_limit_seconds=0.1",
        f"s3://key:secret@bucket/key?{endpoint}",
    ):
        with pytest.raises(LogFailedError, match=r"^bucket/key: cannot list: ") as failed:
            LogDirectory(uri)
        text = str(failed.value)
        assert "Could not connect to server" in text
        assert "\n" not in text
        assert "error_info" not in text
        assert "google::" not in text


# --- entry sort -----------------------------------------------------------------------------------
# External sort of entries by domain: each entry once, in order, in ranges with a bound.


def batch_of(domains: list[str | None], values: list[bytes] | None = None) -> pa.RecordBatch:
    count = len(domains)
    columns = {"domain": domains, "value": values or [b"v" * 10] * count}
    arrays = [pa.array(columns.get(f.name, [None] * count), f.type) for f in ENTRY_ARROW_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=ENTRY_ARROW_SCHEMA)


def write(directory: Path, files: list[list[str | None]]) -> list[RunGroup]:
    found = []
    for number, domains in enumerate(files):
        pieces = [batch_of(domains[at : at + 50]) for at in range(0, len(domains), 50)]
        found += write_runs(str(directory / f"runs-{number}"), pieces)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_entry_sort_yields_each_entry_once_in_the_order_of_domains(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)
    row_bytes = batch_of(["d"] * 100).nbytes // 100
    monkeypatch.setattr(entry_sort, "GROUP_ROWS", draw.choice((1, 7, 2048)))
    monkeypatch.setattr(entry_sort, "RUN_BYTES", draw.choice((1, 300 * row_bytes)))
    monkeypatch.setattr(entry_sort, "RANGE_BYTES", draw.choice((1, 40, 100)) * row_bytes)
    names = [None, "", "a", "b", "é", "z\U0001f600", *(f"d{number}" for number in range(30))]
    names.remove("")
    weights = [draw.choice((0, 1, 1, 40)) for _ in names]
    weights[0] += 1
    files = [draw.choices(names, weights, k=draw.randrange(1, 400)) for _ in range(4)]
    groups = write(tmp_path, files)
    ranges = find_ranges(groups)
    found = [
        domain
        for one in ranges
        for batch in read_range(one)
        for domain in batch.column("domain").to_pylist()
    ]
    expected = sorted((d for file in files for d in file), key=lambda d: (d or "").encode())
    assert found == expected
    assert sum(one.rows for one in ranges) <= len(expected)


def test_entry_sort_divides_a_large_domain_into_ranges_without_a_sort(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_sort, "GROUP_ROWS", 10)
    monkeypatch.setattr(entry_sort, "RANGE_BYTES", batch_of(["hot"] * 100).nbytes)
    groups = write(tmp_path, [["cold", *["hot"] * 900, "warm"], ["hot"] * 900])
    ranges = find_ranges(groups)
    assert [one.upto for one in ranges] == ["hot", *["hot"] * (len(ranges) - 2), "warm"]
    assert len(ranges) > 12
    assert sum(one.is_one_domain for one in ranges) == len(ranges) - 2
    rows = [sum(map(len, read_range(one))) for one in ranges]
    assert (rows[0], rows[-1], sum(rows)) == (1, 1, 1802)
    assert max(rows) < 200


def test_entry_sort_orders_values_row_by_row_where_arrow_cannot_join_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_sort, "_COPIED_BYTES_MAX", 1000)
    large = batch_of(["b", "a", "b", None], [b"1" * 900, b"2" * 900, b"3" * 900, b"4"])
    (one,) = find_ranges(write_runs(str(tmp_path / "runs"), [large]))
    found = pa.Table.from_batches(read_range(one))
    assert found.column("domain").to_pylist() == [None, "a", "b", "b"]
    assert [value[:1] for value in found.column("value").to_pylist()] == [b"4", b"2", b"1", b"3"]


def test_entry_sort_of_files_that_are_gone_says_what_to_change(tmp_path: Path) -> None:
    (one,) = find_ranges(write(tmp_path, [["a", "b"]]))
    path = tmp_path / "runs-0"
    path.unlink()
    with pytest.raises(LogFailedError, match=rf"{path}: cannot sort the entries: .*set TMPDIR to"):
        list(read_range(one))
