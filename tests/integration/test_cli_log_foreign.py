"""fj-cli log dump, stat and verify on journals of every format, as they are installed."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fastjournal.foreign.kestrel_records import encode_addx
from fastjournal.testing.logs import START_US, SegmentBuilder
from tests.integration.cli_process import Cli
from tests.integration.daemon_process import DaemonProcess

CORPUS = Path(__file__).parent.parent / "format" / "data"
DONE, REFUSED, USAGE = 0, 1, 2


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path, None)


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
        ("fastjournald", "kestrel", "a log that fastjournald wrote, and none of kestrel"),
        ("fastjournald", "workq", "and none of workq (name fastjournal instead)"),
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
