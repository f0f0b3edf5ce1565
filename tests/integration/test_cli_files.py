"""fj-cli, as it is installed, on files: spools, command logs and snapshots, without a daemon."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from fastjournal.client import SyncClient
from fastjournal.cmdlog.format.envelope import MAGIC, OPERATION_NAME
from fastjournal.cmdlog.format.layout import NO_TIME, SEGMENT_HEADER, Command
from fastjournal.cmdlog.format.records import encode_head, encode_job, encode_simple, encode_time
from fastjournal.cmdlog.locks import READ_LOCK, lock_read, lock_to_read
from fastjournal.disk import OsDisk
from fastjournal.errors import RefusedError
from fastjournal.keys import build_journal_key
from fastjournal.spool import Spool
from fastjournal.spool.drop_in import write_drop_in
from fastjournal.spool.format import encode_record
from tests.integration.cli_process import Cli
from tests.integration.daemon_process import START_S, DaemonProcess

DONE, REFUSED, USAGE, IO_FAILED = 0, 1, 2, 74


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path, None)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The log of a daemon that was stopped: three entries, one of them done, in one segment."""
    with DaemonProcess(tmp_path) as daemon:
        with SyncClient(daemon.address) as client:
            for name in "abc":
                client.set(build_journal_key("d", name), name * 40, uri=f"uri:{name}")
            job = client.next().pairs[0]
            client.delete(job.key, token=job.token)
            client.set("plain", b"\xff")
            with pytest.raises(RefusedError):
                client.delete("never there")
        assert daemon.stop() == 0
        return daemon.log_path


def test_status_of_a_spool_tells_what_is_pending_and_since_when(cli: Cli, tmp_path: Path) -> None:
    with Spool(tmp_path / "spool") as spool:
        for timestamp in (5_000_000, 6_000_000, 7_000_000):
            spool.append(domain="d", value=b"x", timestamp_us=timestamp)
    *slots, sums = cli.json("spool", "status", str(tmp_path / "spool"))
    assert [slot["pending"] for slot in slots] == [3]
    assert (sums["slot"], sums["slots"], sums["pending"], sums["dead"]) == (None, 1, 3, 0)
    assert sums["oldest_pending_us"] == 5_000_000
    assert sums["oldest_pending_age_us"] > 0
    assert sums["forwarder_running"] is False
    shown = cli("spool", "status", str(tmp_path / "spool"), "--table")
    assert "pending: 3, the oldest for " in shown.stdout.decode()
    assert b"start one: fj-forwarder" in shown.stderr


def test_status_of_a_spool_sums_many_drop_ins_in_one_row(cli: Cli, tmp_path: Path) -> None:
    for number in range(30):
        write_drop_in(tmp_path, str(number), [encode_record(b"x" * 30)])
    shown = cli("spool", "status", str(tmp_path), "--table").stdout.decode()
    assert "30 drop-ins" in shown
    assert "pending: 30" in shown
    assert len(shown.splitlines()) < 20
    assert len(cli.json("spool", "status", str(tmp_path))) == 31


def test_status_of_a_spool_names_slots_that_cannot_be_read_and_shows_the_others(
    cli: Cli, tmp_path: Path
) -> None:
    spool = tmp_path / "spool"
    with Spool(spool) as writer:
        writer.append(domain="d")
    (whole,) = spool.glob("*.fjs")
    foreign = spool / "19700101T000000Z.fjs"
    foreign.write_bytes(b"fjsp\0\0\0\x02?")
    done = cli("spool", "status", str(spool), "--json")
    assert done.returncode == IO_FAILED
    *slots, sums = [json.loads(line) for line in done.stdout.splitlines()]
    assert [slot["slot"] for slot in slots] == [foreign.name, whole.name]
    assert "another version" in slots[0]["error"]
    assert slots[1]["pending"] == 1
    assert (sums["slots"], sums["unreadable"], sums["pending"]) == (1, 1, 1)
    assert foreign.name.encode() in done.stderr
    table = cli("spool", "status", str(spool), "--table")
    assert table.returncode == IO_FAILED
    assert "pending: 1" in table.stdout.decode()
    assert f"{foreign}" in table.stderr.decode()
    assert b"another version" in table.stderr


def test_dump_has_every_record_decoded_in_the_order_of_writing(cli: Cli, log: Path) -> None:
    records = cli.json("log", "dump", str(log))
    assert [record["offset"] for record in records] == [
        8,
        *(record["offset"] + record["bytes"] for record in records[:-1]),
    ]
    assert [(r["command"], r.get("name")) for r in records] == [
        ("add", "fj.op"),
        ("schedule", "d"),
        ("schedule", "d"),
        ("schedule", "d"),
        ("add", "fj.op"),
        ("start_attempt", None),
        ("complete", None),
        ("add", "fj.kv"),
        ("add", "fj.op"),
    ]
    assert records[0]["operation"] == {
        **{"op": "segment", "previous": 0, "last_token": 0},
        **{"bytes": 0, "crc32c": 0, "last_serial": 1},
    }
    assert records[1]["entry"]["key"] == "d:128:0000000000000000:a"
    assert records[1]["entry"]["value"] == "a" * 40
    assert records[4]["operation"]["op"] == "lease"
    assert records[5]["job_id"] == records[6]["job_id"] == records[1]["job_id"]
    assert records[6]["completion"]["key"] == records[1]["entry"]["key"]
    assert records[7]["entry"]["value_b64"] == "/w=="
    assert records[8]["operation"]["op"] == "tombstone"
    assert records[8]["operation"]["key"] == "never there"


def test_dump_of_one_segment_alone(cli: Cli, log: Path) -> None:
    assert len(cli.json("log", "dump", str(log), "--segment", "1")) == 9
    missing = cli("log", "dump", str(log), "--segment", "7")
    assert missing.returncode == USAGE
    assert b"000000007.log" in missing.stderr


def test_records_that_cannot_be_understood_do_not_end_a_dump(cli: Cli, tmp_path: Path) -> None:
    time, job_id = encode_time(1_763_000_000_000_000), bytes(16)
    head = encode_head(OPERATION_NAME.encode(), 1, 1, 0, 0, 0)
    simple = encode_simple(Command.DELETE, time, job_id)
    # a tag that is no UTF-8, and a complete without its result: both with the right checksum
    operation = encode_job(Command.ADD, time, job_id, head, MAGIC + b"\x91\xa1\xff", NO_TIME, time)
    cut = encode_simple(Command.COMPLETE, time, job_id)
    segment = tmp_path / "log" / "000000001.log"
    segment.parent.mkdir()
    segment.write_bytes(SEGMENT_HEADER + simple + cut + operation + simple)
    dumped = cli("log", "dump", str(segment.parent), "--json")
    assert dumped.returncode == REFUSED
    records = [json.loads(line) for line in dumped.stdout.splitlines()]
    assert [record["command"] for record in records] == ["delete", "add", "delete"]
    assert "payload_error" in records[1]
    where = f"{segment} at offset {len(SEGMENT_HEADER) + len(simple)}: {len(cut)} bytes"
    assert dumped.stderr.decode().startswith(where)


def test_snapshot_that_differs_from_its_manifest_is_found(cli: Cli, tmp_path: Path) -> None:
    with DaemonProcess(tmp_path) as daemon, SyncClient(daemon.address) as client:
        client.set("k", b"v")
        path = Path(client.snapshot())
    manifest = json.loads((path / "MANIFEST.json").read_text())
    manifest["segments"][0]["crc32c"] = "00000000"
    (path / "MANIFEST.json").write_text(json.dumps(manifest))
    done = cli("log", "verify", str(path), "--json")
    assert done.returncode == REFUSED
    (finding,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert finding["kind"] == "snapshot"
    assert finding["file"] == str(path / "000000001.log")


def test_log_without_segments_is_not_said_to_be_whole(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for command in ("verify", "dump"):
        done = cli("log", command, str(tmp_path / "empty"))
        assert done.returncode == USAGE
        assert b"holds no segment" in done.stderr


def test_reader_that_has_seen_enough_ends_the_dump_without_a_word(cli: Cli, log: Path) -> None:
    big = log / "000000001.log"
    data = big.read_bytes()
    big.write_bytes(data + data[8:] * 2000)
    dump = cli.start("log", "dump", str(log))
    assert dump.stdout is not None
    assert dump.stderr is not None
    assert dump.stdout.readline()
    dump.stdout.close()
    assert dump.stderr.read() == b""
    dump.stderr.close()
    assert dump.wait(60) == DONE


def test_dump_of_the_log_of_a_running_daemon_waits_while_a_segment_is_replaced(
    cli: Cli, tmp_path: Path
) -> None:
    with DaemonProcess(tmp_path) as daemon:
        with SyncClient(daemon.address) as client:
            client.set("plain", b"x")
        directory = str(daemon.log_path)
        assert (daemon.log_path / READ_LOCK).exists()
        for arguments in (["dump", directory], ["verify", directory]):
            replaced = lock_read(OsDisk(), directory, exclusive=True)
            reading = cli.start("log", *arguments)
            with pytest.raises(subprocess.TimeoutExpired):
                reading.wait(2)
            replaced.close()
            output, errors = reading.communicate(timeout=START_S)
            assert reading.returncode == DONE, errors
            assert (b"plain" in output) == (arguments[0] == "dump")
        with lock_to_read(OsDisk(), directory):
            assert cli("log", "repair", "--dry-run", directory).returncode == DONE
