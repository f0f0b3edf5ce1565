"""Manners of the data source that need no Spark session: options, paths, what a directory holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from fastjournal.cmdlog.format.segments import segment_name
from fastjournal.cmdlog.locks import APPEND_LOCK
from fastjournal.errors import BadRequestError
from fastjournal.spark.options import OPTIONS, Options
from fastjournal.spark.paths import find_directories, open_log
from fastjournal.spark.source import FastjournalSource
from fastjournal.spool.slots import slot_name
from fastjournal.testing.logs import SegmentBuilder

CORPUS = Path(__file__).parent.parent / "format" / "data"


def write_log(directory: Path) -> None:
    directory.mkdir(parents=True)
    (directory / segment_name(1)).write_bytes(bytes(SegmentBuilder()))


def test_option_names_are_checked_in_any_case_and_the_near_one_is_named() -> None:
    assert Options({"VIEW": "Entries"}).view == "entries"
    assert Options({"Mode": "PERMISSIVE"}).permissive
    for given, told in (
        ({"veiw": "records"}, ["no option veiw", "did you mean view?"]),
        ({"jornal": "kestrel"}, ["did you mean journal?"]),
        ({"view": "entrys"}, ["view=entrys is not one of records, entries", "mean entries?"]),
        ({"mode": "dropmalformed"}, ["mode=dropmalformed is not one of failfast, permissive"]),
        ({"header": "true"}, ["no option header"]),
    ):
        with pytest.raises(BadRequestError) as caught:
            Options(given)
        assert all(part in str(caught.value) for part in told), str(caught.value)
    with pytest.raises(BadRequestError) as caught:
        FastjournalSource({"zzz": ""})
    known = {option.name for option in OPTIONS} - {"paths"}
    assert all(name in str(caught.value) for name in known)
    assert "mean" not in str(caught.value)


def test_options_of_a_table_are_told_from_its_other_properties() -> None:
    table = {"provider": "fastjournal", "owner": "me", "x": "y", "path": "file:/log"}
    assert Options({**table, "option.view": "entries", "view": "entries"}).view == "entries"
    with pytest.raises(BadRequestError, match="no option veiw"):
        Options({**table, "option.veiw": "entries", "veiw": "entries"})


@pytest.mark.parametrize(
    ("glob", "found"),
    [
        ("*", ["a1", "a2", "b"]),
        ("a?", ["a1", "a2"]),
        ("a[!1]", ["a2"]),
        ("a[^1]", ["a2"]),
        ("{a1,b,none}", ["a1", "b"]),
        ("{a,b}*", ["a1", "a2", "b"]),
        ("../*/a[12]", ["a1", "a2"]),
        ("_*", ["_temporary"]),
        ("[x]", ["[x]"]),
    ],
)
def test_glob_names_the_directories_that_spark_would_take(
    tmp_path: Path, glob: str, found: list[str]
) -> None:
    names = ["a1", "a2", "_temporary", ".hidden", "b", "20261123T000000.000000Z.partial"]
    for name in [*names, *(["[x]"] if glob == "[x]" else [])]:
        write_log(tmp_path / "logs" / name)
    (tmp_path / "logs" / "file").touch()
    for scheme in ("", "file:", "file://"):
        directories = find_directories(Options({"path": f"{scheme}{tmp_path}/logs/{glob}"}))
        assert [Path(one).name for one in directories] == found
        assert all(open_log(one).segments for one in directories)


def test_paths_come_as_one_text_or_as_a_list_in_json(tmp_path: Path) -> None:
    paths = [f"{tmp_path}/b", "s3://bucket/log", f"file://localhost{tmp_path}/a"]
    found = find_directories(Options({"paths": json.dumps(paths)}))
    assert found == [f"{tmp_path}/b", "s3://bucket/log", f"{tmp_path}/a"]
    with pytest.raises(BadRequestError, match="no directory is given"):
        find_directories(Options({}))
    (tmp_path / "there").mkdir()
    with pytest.raises(BadRequestError, match=r"no directory matches .*x\* .*has there"):
        find_directories(Options({"path": f"{tmp_path}/x*"}))


def test_directory_without_a_log_is_an_error_that_names_what_is_there(tmp_path: Path) -> None:
    log, empty, other = tmp_path / "log", tmp_path / "empty", tmp_path / "other"
    write_log(log)
    empty.mkdir()
    other.mkdir()
    for name in "abcde":
        (other / name).write_text("text")
    (tmp_path / "snapshots" / "20261123T000000.000000Z").mkdir(parents=True)
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "part-0.parquet").touch()
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / slot_name(0)).touch()
    for path, journal, told in (
        (empty, None, "is empty (name the directory of a log"),
        (empty, "kestrel", "is empty (name the directory of a log"),
        (other, None, "holds no log, but a, b, c and 2 more"),
        (tmp_path / "log" / "no" / "where", None, f"does not exist ({log} has 000000001.log)"),
        (tmp_path / "nowhere", "workq", "does not exist"),
        (log / segment_name(1), None, f"is a file (name its directory: {log})"),
        (tmp_path / "snapshots", None, "such as {path}/20261123T000000.000000Z"),
        (tmp_path / "table", None, "spark.read.parquet"),
        (tmp_path / "spool", None, "holds a spool"),
        (CORPUS / "kestrel" / "names", None, "add option('journal', 'kestrel')"),
        (CORPUS / "beanstalkd" / "killed", None, "add option('journal', 'beanstalkd')"),
        (CORPUS / "beanstalkd" / "killed", "kestrel", "name beanstalkd instead"),
    ):
        options = {"path": str(path)} | ({} if journal is None else {"journal": journal})
        with pytest.raises(BadRequestError) as caught:
            FastjournalSource(options).schema()
        assert told.format(path=path) in str(caught.value), str(caught.value)
    # a daemon has just begun here
    (empty / APPEND_LOCK).touch()
    assert FastjournalSource({"path": str(empty)}).check_directories() == [str(empty)]
