"""``fj-cli log repair``, as it is installed: what it says, what it changes, and what it leaves."""

from __future__ import annotations

import base64
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from fastjournal.client import SyncClient
from fastjournal.cmdlog.archive import ArchivedSegment
from fastjournal.cmdlog.format.operation_records import SegmentStart
from fastjournal.errors import RefusedError
from fastjournal.foreign.kestrel_records import encode_addx
from fastjournal.spark.storage.files import LogDirectory
from fastjournal.testing.logs import START_US, SegmentBuilder
from tests.integration.cli_process import Cli
from tests.integration.daemon_process import DaemonProcess

DONE, REFUSED, USAGE = 0, 1, 2
KEYS = ("a", "b", "c", "d")


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path, None)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The log of a daemon that was stopped, with four keys in one segment."""
    with DaemonProcess(tmp_path) as daemon:
        with SyncClient(daemon.address) as client:
            for key in KEYS:
                client.set(key, key * 40)
        assert daemon.stop() == 0
        return daemon.log_path


def damage(cli: Cli, log: Path, record: int) -> tuple[int, bytes]:
    """Flip a bit of a record; return its offset and what stands there then."""
    segment = log / "000000001.log"
    found = cli.json("log", "dump", str(log))[record]
    data = bytearray(segment.read_bytes())
    data[found["offset"] + 60] ^= 1
    segment.write_bytes(data)
    return found["offset"], bytes(data[found["offset"] : found["offset"] + found["bytes"]])


def files(log: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in log.iterdir() if path.is_file()}


@pytest.mark.parametrize("way", ["fj-cli log repair", "fastjournald --repair"])
def test_repair_restores_the_old_value_where_a_power_loss_took_the_new_one(
    way: str, cli: Cli, log: Path, tmp_path: Path
) -> None:
    with DaemonProcess(tmp_path) as daemon, SyncClient(daemon.address) as client:
        client.set("a", "one", overwrite=True)
        before = (log / "000000001.log").stat().st_size
        client.set("a", "two" * 700, overwrite=True)
        client.delete("b")
        daemon.kill()
    segment = log / "000000001.log"
    data = bytearray(segment.read_bytes())
    # sectors of the new value that never reached the disk; the removal of the old one did
    first = (before + 511) // 512 * 512
    data[first : first + 1024] = bytes(1024)
    segment.write_bytes(data)
    assert cli("log", "repair", str(log), "--dry-run", "--json").stdout.count(b"damaged") == 2
    options = ("--repair",)
    if way == "fj-cli log repair":
        assert cli("log", "repair", str(log)).returncode == DONE
        options = ()
    with DaemonProcess(tmp_path, *options) as daemon, SyncClient(daemon.address) as client:
        assert client.get("a").value == b"one"
        with pytest.raises(RefusedError, match="nothing stands"):
            client.get("b")


def test_repair_leaves_a_whole_log_as_it_is(cli: Cli, log: Path) -> None:
    before = files(log)
    for options in ([], ["--dry-run"], ["--table"]):
        done = cli("log", "repair", str(log), *options)
        assert (done.returncode, done.stdout) == (DONE, b"")
        assert done.stderr.decode() == f"{log} is whole: nothing to repair\n"
    assert files(log) == before


def test_log_of_a_running_daemon_is_not_repaired(cli: Cli, tmp_path: Path) -> None:
    with DaemonProcess(tmp_path) as daemon, SyncClient(daemon.address) as client:
        client.set("k", b"v")
        before = files(daemon.log_path)
        done = cli("log", "repair", str(daemon.log_path))
        assert done.returncode == REFUSED
        assert b"another daemon appends to this log" in done.stderr
        assert files(daemon.log_path) == before


def test_snapshot_is_not_repaired_but_a_copy_of_it_is(cli: Cli, tmp_path: Path) -> None:
    with DaemonProcess(tmp_path) as daemon, SyncClient(daemon.address) as client:
        for key in KEYS:
            client.set(key, key * 40)
        snapshot = Path(client.snapshot())
    refused = cli("log", "repair", str(snapshot))
    assert refused.returncode == USAGE
    assert b"is a snapshot, which never changes" in refused.stderr
    copy = shutil.copytree(snapshot, tmp_path / "copy")
    (copy / "MANIFEST.json").unlink()
    offset, _ = damage(cli, copy, 1)
    assert cli.json("log", "repair", str(copy))[0]["offset"] == offset


def test_log_restored_from_a_snapshot_is_a_log_although_the_manifest_is_there(
    cli: Cli, tmp_path: Path
) -> None:
    with DaemonProcess(tmp_path) as daemon, SyncClient(daemon.address) as client:
        for key in KEYS:
            client.set(key, key * 40)
        snapshot = Path(client.snapshot())
    restored = tmp_path / "restored"
    log = shutil.copytree(snapshot, restored / "log")
    assert (log / "MANIFEST.json").exists()
    with DaemonProcess(restored) as daemon, SyncClient(daemon.address) as client:
        client.set("more", b"v")
        assert cli("log", "verify", str(log)).returncode == DONE
    assert len(LogDirectory(log).segments) == len(list(log.glob("*.log")))
    offset, _ = damage(cli, log, 1)
    (found,) = cli.json("log", "repair", str(log))
    assert (found["kind"], found["offset"]) == ("damaged", offset)
    assert cli("log", "verify", str(log)).returncode == DONE


def test_repair_takes_no_directory_without_segments_for_a_log(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = cli("log", "repair", str(tmp_path / "empty"))
    assert done.returncode == USAGE
    assert b"holds no segment" in done.stderr
    assert list((tmp_path / "empty").iterdir()) == []


def test_log_repair_that_a_signal_ends_leaves_the_segment_and_nothing_beside(
    cli: Cli, log: Path
) -> None:
    damage(cli, log, 2)
    before = (log / "000000001.log").read_bytes()
    code = """
import sys, time
from fastjournal.disk import OsDisk
from fj_cli.main import run

def held(disk, old, new):
    print("in the middle", flush=True)
    time.sleep(60)

OsDisk.rename = held
sys.exit(run(sys.argv[1:]))
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code, "log", "repair", str(log)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=cli.environment,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"in the middle\n"
    assert (log / "000000001.log.rw").exists()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert not (log / "000000001.log.rw").exists()
    assert (log / "000000001.log").read_bytes() == before
    assert [found["kind"] for found in cli.json("log", "repair", str(log))] == ["damaged"]


SEGMENTS = 5
RECORDS = 4
"""In each segment, with its first one."""


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


CORPUS = Path(__file__).parent.parent / "format" / "data"


def content(record: dict[str, Any]) -> bytes:
    if "value" in record:
        return str(record["value"]).encode()
    return base64.b64decode(record["value_b64"])


def test_dump_writes_every_record_of_a_journal_with_its_value(cli: Cli) -> None:
    records = cli.json("log", "dump", str(CORPUS / "beanstalkd" / "stopped-v5"))
    full = [record for record in records if record["record"] == "full"]
    assert full[0] | {"created_us": 0} == {
        "file": "binlog.1",
        "offset": 4,
        "bytes": 109,
        "record": "full",
        "tube": "default",
        "id": 1,
        "pri": 0,
        "delay_us": 0,
        "ttr_us": 86_400_000_000,
        "body_bytes": 17,
        "created_us": 0,
        "deadline_us": 0,
        "reserves": 0,
        "timeouts": 0,
        "releases": 0,
        "buries": 0,
        "kicks": 0,
        "state": "ready",
        "value": "\r\nput 1 1 1 1\r\n",
    }
    assert {record["state"] for record in records} >= {"ready", "delayed", "buried", "deleted"}
    done = cli("log", "dump", str(CORPUS / "kestrel" / "bad-opcode"))
    assert done.returncode == REFUSED
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[0]["opcode"] == "addx"
    expected = json.loads((CORPUS / "kestrel" / "bad-opcode.json").read_text())["queues"]["bad"]
    values = [content(line) for line in lines if line["opcode"] == "addx"]
    assert {base64.b64decode(item["data_b64"]) for item in expected} <= set(values)
    assert b"bad at offset 4325: 42 is no opcode of Kestrel" in done.stderr
    table = cli("log", "dump", str(CORPUS / "kestrel" / "state-dump"), "--table").stdout.decode()
    assert " opcode=state_dump xid=" in table


@pytest.mark.parametrize("size", [1_000_000, 1_000_001])
def test_dump_leaves_out_values_beyond_the_default_of_max_value(
    cli: Cli, tmp_path: Path, size: int
) -> None:
    (tmp_path / "queues").mkdir()
    (tmp_path / "queues" / "q").write_bytes(encode_addx(b"v" * size, 5, 0))
    (record,) = cli.json("log", "dump", str(tmp_path / "queues"), "--format", "kestrel")
    assert record["value_bytes"] == size
    assert ("value" in record) == (size == 1_000_000)


def test_stat_counts_live_entries_by_domain_and_state_in_every_format(
    cli: Cli, tmp_path: Path
) -> None:
    jobs = json.loads((CORPUS / "beanstalkd" / "killed.json").read_text())["after_restart"]
    rows = {row["domain"]: row for row in cli.json("log", "stat", f"{CORPUS}/beanstalkd/killed")}
    emails = [job for job in jobs.values() if job["tube"] == "emails"]
    assert rows["emails"]["entries"] == len(emails)
    assert rows["emails"]["buried"] == sum(job["state"] == "buried" for job in emails)
    sizes = sum(len(base64.b64decode(job["body_b64"])) for job in emails)
    assert rows["emails"]["value_bytes"] == sizes
    done = cli("log", "stat", f"{CORPUS}/kestrel/torn", "--table")
    assert b"kestrel, 6 files, " in done.stderr
    assert b"29 live in 6 domains; 6 findings, see: fj-cli log verify " in done.stderr
    assert b"workq, 1 file, " in cli("log", "stat", f"{CORPUS}/workq/basic").stderr
    log = SegmentBuilder(0)
    log.entry(b"plain", value=b"12")
    log.entry(b"q:128:0:a", value=b"123")
    log.lease([log.entry(b"q:128:0:b")], START_US + 10**15)
    log.entry(b"q:128:0:c", expires=1)
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "000000001.log").write_bytes(bytes(log))
    plain, queue = cli.json("log", "stat", str(tmp_path / "log"))
    assert (plain["domain"], plain["entries"], plain["value_bytes"]) == (None, 1, 2)
    states = {"due": 1, "delayed": 0, "leased": 1, "buried": 0, "expired": 1}
    assert queue == {"domain": "q", "entries": 3, **states, "value_bytes": 13}


def test_log_verify_names_each_place_with_file_offset_and_advice(cli: Cli, tmp_path: Path) -> None:
    whole = cli("log", "verify", f"{CORPUS}/beanstalkd/killed")
    assert (whole.returncode, whole.stdout) == (DONE, b"")
    assert b"is whole: beanstalkd, 12 files, 111 live jobs" in whole.stderr
    binlog = tmp_path / "binlog"
    shutil.copytree(CORPUS / "beanstalkd" / "stopped", binlog)
    data = (binlog / "binlog.1").read_bytes()
    (binlog / "binlog.1").write_bytes(data[:112] + b"\xff\xff" + data[114:])
    done = cli("log", "verify", str(binlog))
    assert done.returncode == REFUSED
    (found,) = map(json.loads, done.stdout.splitlines())
    assert (found["kind"], found["file"]) == ("damaged", f"{binlog}/binlog.1")
    assert (found["offset"], found["bytes"]) == (112, len(data) - 112)
    assert found["advice"].startswith("restore the file; beanstalkd and fj-cli import leave out")
    torn = cli("log", "verify", f"{CORPUS}/kestrel/torn")
    kinds = [json.loads(line)["kind"] for line in torn.stdout.splitlines()]
    assert (torn.returncode, kinds) == (REFUSED, ["torn"] * 6)


def test_log_and_import_name_a_link_that_leads_nowhere_and_read_the_rest(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    cli = Cli(tmp_path, daemon.address)
    for format, name in (("kestrel", "names"), ("beanstalkd", "stopped")):
        journal = tmp_path / format
        shutil.copytree(CORPUS / format / name, journal)
        lost = journal / ("lost" if format == "kestrel" else "binlog.3")
        lost.symlink_to(journal / "missing")
        verified = cli("log", "verify", str(journal))
        for done in (
            verified,
            cli("log", "dump", str(journal)),
            cli("import", format, str(journal)),
        ):
            assert done.returncode == REFUSED, done.stderr
            shown = done.stdout + done.stderr
            assert f"{lost}".encode() in shown
            assert b"a link that leads to no file" in shown
        assert json.loads(done.stdout)["imported"] > 0
        done = cli("log", "stat", str(journal))
        findings = b"%d finding" % len(verified.stdout.splitlines())
        assert (done.returncode, findings in done.stderr) == (DONE, True)


def test_log_format_that_is_wrong_is_refused_with_the_right_one(cli: Cli, tmp_path: Path) -> None:
    for name, wrong, text in (
        ("beanstalkd/killed", "kestrel", "holds the binlog of a beanstalkd, and none of kestrel"),
        ("kestrel/names", "beanstalkd", "holds the journal of a Kestrel, and none of beanstalkd"),
        ("workq/basic", "fastjournal", "holds the command log of a workq-server"),
        ("0.1.0/log", "kestrel", "a log that fastjournald wrote, and none of kestrel"),
        ("0.1.0/log", "workq", "and none of workq (name fastjournal instead)"),
    ):
        for command in ("dump", "stat", "verify"):
            done = cli("log", command, str(CORPUS / name), "--format", wrong)
            assert done.returncode == USAGE, done.stderr
            assert text in done.stderr.decode()
    done = cli("log", "stat", str(tmp_path))
    assert done.returncode == USAGE
    assert b"holds no segment" in done.stderr
    done = cli("log", "dump", f"{CORPUS}/beanstalkd/killed", "--segment", "1")
    assert b"a journal of beanstalkd has no segments" in done.stderr
