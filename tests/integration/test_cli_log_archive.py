"""fj-cli log dump, stat and verify on the archive of a log, as they are installed."""

from __future__ import annotations

import json
from pathlib import Path

import google_crc32c
import pytest

from fastjournal.cmdlog.archive import ArchivedSegment
from fastjournal.cmdlog.format.operation_records import SegmentStart
from fastjournal.protocol.constants import Flag, Function
from fastjournal.testing.logs import SegmentBuilder
from tests.integration.cli_process import Cli
from tests.integration.daemon_process import DaemonProcess
from tests.integration.raw_client import RawClient, build

DONE, REFUSED, USAGE = 0, 1, 2
SEGMENTS = 5
RECORDS = 4
"""In each segment, with its first one."""


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path, None)


def segment(number: int, before: bytes, name: bytes = b"a") -> SegmentBuilder:
    """Return a segment of a log, with the seal of the one before it."""
    log = SegmentBuilder(None, ids_from=1000 * number)
    seal = (number - 1, 0, len(before), google_crc32c.value(before) if before else 0, 0)
    log.operation(SegmentStart(*seal))
    for one in range(RECORDS - 1):
        log.entry(b"%s:128:0:%d-%d" % (name, number, one), value=b"value")
    return log


def put(archive: Path, number: int, data: bytes) -> Path:
    path = archive / ArchivedSegment(number, google_crc32c.value(data)).name
    path.write_bytes(data)
    return path


@pytest.fixture
def archive(tmp_path: Path) -> list[Path]:
    """Return the files of an archive of five segments."""
    directory = tmp_path / "archive"
    directory.mkdir()
    files, before = [], b""
    for number in range(1, SEGMENTS + 1):
        before = bytes(segment(number, before))
        files.append(put(directory, number, before))
    return files


def findings(cli: Cli, archive: list[Path], code: int = REFUSED) -> list[dict[str, object]]:
    done = cli("log", "verify", str(archive[0].parent))
    assert done.returncode == code, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_archive_that_is_whole_is_verified_counted_and_dumped(
    cli: Cli, archive: list[Path]
) -> None:
    place = str(archive[0].parent)
    done = cli("log", "verify", place)
    assert (done.returncode, done.stdout) == (DONE, b"")
    assert b"archive is whole: archive, 5 segments, 20 records" in done.stderr
    stat = cli("log", "stat", place)
    assert json.loads(stat.stdout)["entries"] == SEGMENTS * (RECORDS - 1)
    assert b"archive: fastjournal archive, 5 files, " in stat.stderr
    records = cli.json("log", "dump", place)
    assert [one["segment"] for one in records] == [
        path.name for path in archive for _ in range(RECORDS)
    ]
    assert records[0]["operation"]["op"] == "segment"
    only = cli.json("log", "dump", place, "--segment", "3")
    assert {one["segment"] for one in only} == {archive[2].name}
    assert cli("log", "dump", place, "--segment", "9").returncode == USAGE


def test_archive_is_refused_where_a_log_is_needed_and_named_as_an_archive(
    cli: Cli, archive: list[Path]
) -> None:
    done = cli("log", "repair", str(archive[0].parent))
    assert done.returncode == USAGE
    assert b"is the archive of a log" in done.stderr
    assert b"fj-cli log stat, verify and dump read an archive" in done.stderr


@pytest.mark.parametrize("how", ["one byte", "cut", "cut at a record", "another name"])
def test_archive_is_verified_by_the_checksums_in_the_names_of_its_files(
    cli: Cli, archive: list[Path], how: str
) -> None:
    path = archive[2]
    data = path.read_bytes()
    if how == "one byte":
        path.write_bytes(data[:-30] + bytes((data[-30] ^ 1,)) + data[-29:])
    elif how == "cut":
        path.write_bytes(data[:-30])
    elif how == "cut at a record":
        path.write_bytes(data[: segment(3, archive[1].read_bytes()).offsets[-1]])
    else:
        path = path.rename(path.parent / ArchivedSegment(3, 7).name)
    found = findings(cli, archive)
    # the segment behind it names the checksum that the name does not have
    assert {one["file"] for one in found} == {str(path)}
    kinds = {"damaged"} if how in ("one byte", "cut") else {"differs"}
    assert {one["kind"] for one in found} == kinds
    if kinds == {"differs"}:
        assert "the file has the checksum" in str(found[0]["message"])
    assert "restore the file from a copy of the archive" in str(found[0]["advice"])


def test_archive_is_verified_by_the_chain_which_names_a_segment_of_another_log(
    cli: Cli, archive: list[Path]
) -> None:
    archive[2].unlink()
    other = put(archive[0].parent, 3, bytes(segment(3, archive[1].read_bytes(), b"other")))
    (found,) = findings(cli, archive)
    assert (found["kind"], found["file"]) == ("differs", str(other))
    assert "segment 4 says that it had" in str(found["message"])


def test_archive_takes_both_files_of_a_segment_that_grew_if_one_begins_the_other(
    cli: Cli, archive: list[Path]
) -> None:
    data = archive[2].read_bytes()
    short = put(archive[0].parent, 3, data[: segment(3, archive[1].read_bytes()).offsets[-1]])
    assert findings(cli, archive, DONE) == []
    records = cli.json("log", "dump", str(archive[0].parent), "--segment", "3")
    assert len(records) == RECORDS
    short.unlink()
    other = bytes(segment(3, archive[1].read_bytes(), b"z"))[: -len(data) // 3]
    path = put(archive[0].parent, 3, other)
    found = [one for one in findings(cli, archive) if one["kind"] == "differs"]
    assert [one["file"] for one in found] == [str(path)]
    assert f"{archive[2].name}, which is longer, begins otherwise" in str(found[0]["message"])


@pytest.mark.parametrize(
    ("gone", "text"),
    [
        ([3], "segment 3 is not there, and the archive says nothing of it"),
        ([2, 3, 4], "segments 2 to 4 are not there, and"),
        ([1, 2], "segment 2 is not there: a reader has taken"),
    ],
    ids=["one", "some", "the first ones"],
)
def test_archive_has_gaps_that_verify_names_and_takes_if_a_reason_is_told(
    cli: Cli, archive: list[Path], gone: list[int], text: str
) -> None:
    """Readers take the first segments, the last of which is named by one that is there."""
    for number in gone:
        archive[number - 1].unlink()
    kind, code = ("gap", DONE) if 1 in gone else ("missing", REFUSED)
    (found,) = findings(cli, archive, code)
    assert (found["kind"], found["file"]) == (kind, str(archive[0].parent))
    assert text in str(found["message"])
    gap = {"first": gone[0], "last": gone[-1], "segments": len(gone), "bytes": 1}
    gap |= {"first_us": None, "last_us": None, "reason": "dropped"}
    state = {"format": "fastjournal-archive", "version": 1, "next": 6, "last": None}
    (archive[0].parent / "ARCHIVE.json").write_text(json.dumps(state | {"gaps": [gap]}))
    (told,) = findings(cli, archive, DONE)
    assert told["kind"] == "gap"
    assert "not there: dropped" in str(told["message"])


def test_archive_whose_files_were_all_taken_is_whole(cli: Cli, archive: list[Path]) -> None:
    for path in archive:
        path.unlink()
    state = {"format": "fastjournal-archive", "version": 1, "next": 6, "last": None, "gaps": []}
    (archive[0].parent / "ARCHIVE.json").write_text(json.dumps(state))
    assert findings(cli, archive, DONE) == []
    assert cli("log", "dump", str(archive[0].parent)).returncode == DONE
    assert b"0 live in 0 domains" in cli("log", "stat", str(archive[0].parent)).stderr


def test_archive_without_the_last_segments_that_its_state_tells_of_has_a_gap(
    cli: Cli, archive: list[Path]
) -> None:
    state = {"format": "fastjournal-archive", "version": 1, "next": 8, "last": None, "gaps": []}
    (archive[0].parent / "ARCHIVE.json").write_text(json.dumps(state))
    (found,) = findings(cli, archive)
    assert "segments 6 to 7 are not there" in str(found["message"])


def test_archive_of_a_daemon_is_whole_though_compaction_removes_its_segments(
    cli: Cli, tmp_path: Path
) -> None:
    archive = tmp_path / "history"
    options = ("--archive-dir", str(archive), "--cmdlog-seg-size", "4096")
    with DaemonProcess(tmp_path, *options) as daemon:
        for number in range(60):
            with RawClient(daemon.address) as client:
                asked = build(
                    *(Function.SET, b"k%d" % (number % 3), b"%d " % number * 300),
                    flags=Flag.PERSIST | Flag.OVERWRITE,
                )
                assert client.ask(asked).code == ""
        with RawClient(daemon.address) as client:
            client.ask(build(Function.SNAPSHOT))
        assert daemon.stop() == 0
    done = cli("log", "verify", str(archive))
    assert (done.returncode, done.stdout) == (DONE, b""), done.stderr
    assert b"is whole: archive, " in done.stderr
    values = [one["entry"]["value"] for one in cli.json("log", "dump", str(archive))
              if "entry" in one]  # fmt: skip
    assert {f"{number} " * 300 for number in range(60)} <= set(values)
    (row,) = cli.json("log", "stat", str(archive))
    assert row["entries"] == 3
