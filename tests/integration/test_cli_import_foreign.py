"""fj-cli import kestrel and beanstalkd, as they are installed, against a real daemon."""

from __future__ import annotations

import fcntl
import json
import struct
import time
from pathlib import Path
from typing import Any

from fastjournal.client import SyncClient
from fastjournal.disk import OsDisk
from fastjournal.foreign import (
    ForeignJournal,
    beanstalkd,
    kestrel_records,
    open_beanstalkd,
    open_kestrel,
)
from fastjournal.foreign.journal_files import WindowedFile
from fastjournal.foreign.kestrel_records import RecordReader
from fastjournal.testing.workq_rules import assert_workq_accepts
from tests.integration.cli_process import Cli
from tests.integration.daemon_process import DaemonProcess

CORPUS = Path(__file__).parent.parent / "format" / "data"
DONE, REFUSED, USAGE = 0, 1, 2
SECOND = 1_000_000
NOW = time.time_ns() // 1000
DAY = 86_400 * SECOND


def recorded(name: str, tmp_path: Path) -> str:
    """Return a copy of a recorded journal as if it had been recorded a day ago."""
    directory = tmp_path / name.replace("/", "-")
    directory.mkdir()
    for path in (CORPUS / name).iterdir():
        data = bytearray(path.read_bytes())
        (directory / path.name).write_bytes(data)
        file = WindowedFile(OsDisk(), str(directory / path.name))
        if name.startswith("beanstalkd"):
            shift_binlog(file, data)
        else:
            shift_queue(file, data)
        (directory / path.name).write_bytes(data)
    return str(directory)


def shift_binlog(file: WindowedFile, data: bytearray) -> None:
    offset = 4
    while offset < file.size and (record := beanstalkd.read_record(file, offset, 7)):
        for at in (record.body_at - 40, record.body_at - 32):
            shift(data, "<q", at, 1000, 1_795_165_417 * SECOND)
        offset = record.end


def shift_queue(file: WindowedFile, data: bytearray) -> None:
    reader, offset = RecordReader(file), 0
    while offset < file.size:
        try:
            record = reader.read(offset)
        except kestrel_records.BrokenRecordError:
            return
        if record.opcode is kestrel_records.Opcode.ADD:
            shift(data, "<i", record.value_at - 4, 1 / SECOND, 1_795_000_000 * SECOND)
        elif record.opcode in kestrel_records.WITH_VALUE:
            shift(data, "<q", record.value_at - 16, 1 / 1000, 1_795_000_000 * SECOND)
            shift(data, "<q", record.value_at - 8, 1 / 1000, 1_795_000_000 * SECOND)
        offset = record.end


def shift(data: bytearray, form: str, at: int, unit: float, recorded_us: int) -> None:
    """Move a time that is not 0; ``unit``: how many of its units are a microsecond."""
    (time_,) = struct.unpack_from(form, data, at)
    if time_:
        struct.pack_into(form, data, at, time_ + int((NOW - DAY - recorded_us) * unit))


def assert_imported(client: SyncClient, journal: ForeignJournal) -> None:
    """Compare the entries of a daemon with the items that have not expired."""
    for item in journal.items():
        if 0 < item.expires <= NOW:
            continue
        entry, stats = client.get(item.key), client.entry_stats(item.key)
        assert (entry.value_type, entry.value, entry.second_key) == (1, item.value, b"")
        assert (stats.timestamp_us, stats.expires_us) == (item.timestamp, item.expires)
        assert stats.buried_reason == item.reason
        assert (stats.persistent, stats.attempts) == (True, 0)


def written(daemon: DaemonProcess) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in daemon.log_path.glob("*.log")}


def test_import_of_beanstalkd_gives_its_jobs_and_changes_nothing_the_second_time(
    tmp_path: Path, daemon: DaemonProcess, cli: Cli
) -> None:
    directory = recorded("beanstalkd/killed", tmp_path)
    first = cli("import", "beanstalkd", directory, "--set-limits")
    assert first.returncode == DONE, first.stderr.decode()
    result: dict[str, Any] = json.loads(first.stdout)
    assert (result["read"], result["imported"]) == (111, 111)
    assert result["not_carried"]["priorities_cut"] == 53
    lines = first.stderr.decode().splitlines()
    assert "queue $t_(1).q: 20 jobs, time to run 1m to 1d, median 1m;" in first.stderr.decode()
    assert "not carried over: priorities cut: 53" in lines
    with SyncClient(daemon.address) as client, open_beanstalkd(OsDisk(), directory) as journal:
        assert client.daemon_stats().entries == 111
        assert_imported(client, journal)
        for queue in journal.queues:
            assert queue.ttr_us is not None
            assert client.domain_stats(queue.domain).lease_us == queue.ttr_us[-1]
    after = written(daemon)
    (second,) = cli.json("import", "beanstalkd", directory)
    assert second == {**result, "imported": 0, "already_there": 111}
    assert written(daemon) == after
    assert_workq_accepts(daemon.log_path)


def test_import_of_kestrel_gives_its_items_and_changes_nothing_the_second_time(
    tmp_path: Path, daemon: DaemonProcess, cli: Cli
) -> None:
    for name in ("one-file", "names"):
        directory = recorded(f"kestrel/{name}", tmp_path)
        (first,) = cli.json("import", "kestrel", directory)
        assert first["read"] == first["imported"] + first["expired"]
        assert first["not_carried"] == {}
        with SyncClient(daemon.address) as client, open_kestrel(OsDisk(), directory) as journal:
            assert_imported(client, journal)
        (second,) = cli.json("import", "kestrel", directory)
        assert second == {**first, "imported": 0, "already_there": first["imported"]}
    done = cli("import", "kestrel", recorded("kestrel/bad-opcode", tmp_path))
    assert done.returncode == REFUSED
    assert b"kestrel-bad-opcode/bad at offset 4325: 42 is no opcode of Kestrel; " in done.stderr
    assert json.loads(done.stdout)["damaged"] == 1
    with SyncClient(daemon.address) as client:
        assert client.domain_stats("with%3Acolon").entries == 3


def test_import_of_kestrel_forces_opcode_8_by_an_option(
    tmp_path: Path, daemon: DaemonProcess, cli: Cli
) -> None:
    directory = recorded("kestrel/state-dump", tmp_path)
    forced = cli("import", "kestrel", directory, "--opcode-8", "continue")
    assert forced.returncode == REFUSED
    (done,) = cli.json("import", "kestrel", directory)
    assert done["damaged"] == 0
    assert cli("import", "kestrel", directory, "--opcode-8", "9").returncode == USAGE


def test_import_names_wrong_formats_and_a_running_beanstalkd_is_no_source(
    tmp_path: Path, cli: Cli
) -> None:
    binlog = Path(recorded("beanstalkd/stopped", tmp_path))
    done = cli("import", "kestrel", str(binlog))
    assert done.returncode == USAGE
    assert b"holds the binlog of a beanstalkd, and none of kestrel (name beanstalkd" in done.stderr
    done = cli("import", "beanstalkd", str(CORPUS / "workq" / "basic"))
    assert done.returncode == USAGE
    assert b"holds the command log of a workq-server" in done.stderr
    with open(binlog / "lock", "w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        done = cli("import", "beanstalkd", str(binlog))
        assert done.returncode == REFUSED
        assert b"lock: a beanstalkd runs on this binlog (stop it first)" in done.stderr
    assert cli.json("import", "beanstalkd", str(binlog))[0]["imported"] == 42


def test_import_of_version_5_sets_limits_also_where_a_put_asked_for_no_or_for_endless_time(
    tmp_path: Path, daemon: DaemonProcess, cli: Cli
) -> None:
    # release 1.4.6 writes 1 us for a put with a time to run of 0
    times = {b"none": 1, b"usual": 60 * SECOND, b"endless": (2**32 - 1) * SECOND}
    empty = beanstalkd.BinlogRecord._make(0 for _ in beanstalkd.BinlogRecord._fields)
    data = beanstalkd.encode_version(5)
    for number, (tube, ttr) in enumerate(times.items(), 1):
        job = empty._replace(id=number, tube=tube, ttr_us=ttr, created_us=NOW - DAY, state=1)
        data += beanstalkd.encode_job(job, b"body", 5)
    (tmp_path / "binlog").mkdir()
    (tmp_path / "binlog" / "binlog.1").write_bytes(data)
    done = cli("import", "beanstalkd", str(tmp_path / "binlog"), "--set-limits")
    assert done.returncode == DONE, done.stderr.decode()
    assert json.loads(done.stdout)["imported"] == 3
    assert b"endless: 1 job, time to run 7101w 3d; the lease is cut to 52w 2d\n" in (done.stderr)
    with SyncClient(daemon.address) as client:
        leases = [client.domain_stats(tube).lease_us for tube in times]
    assert leases == [SECOND, 60 * SECOND, 366 * DAY]
