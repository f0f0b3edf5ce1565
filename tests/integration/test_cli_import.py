"""fj-cli import workq, as it is installed, against a real daemon."""

from __future__ import annotations

import fcntl
import json
import shutil
import signal
import struct
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fastjournal.client import Jobs, SyncClient
from fastjournal.cmdlog.format.layout import Command
from fastjournal.cmdlog.format.records import Record, decode_record, encode_record, encode_time
from fastjournal.cmdlog.locks import lock_append
from fastjournal.cmdlog.recovery.recover import recover
from fastjournal.cmdlog.recovery.replayed_entry import ReplayedEntry
from fastjournal.cmdlog.recovery.scan import scan_segment
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
from fastjournal.limits import KEY_BYTES_MAX
from fastjournal.testing.logs import SegmentBuilder
from fastjournal.testing.workq_rules import assert_workq_accepts
from tests.integration.cli_process import TIMEOUT_S, Cli
from tests.integration.daemon_process import DaemonProcess
from tests.spark.random_logs import write_log

CORPUS = Path(__file__).parent.parent / "format" / "data" / "workq"
LOGS = sorted(path.stem for path in CORPUS.glob("*.json"))
DONE, REFUSED, USAGE, CANNOT_CONNECT, INTERRUPTED = 0, 1, 2, 69, 130
SECOND = 1_000_000
NOW = time.time_ns() // 1000


def recorded(name: str, tmp_path: Path) -> Path:
    """Return a copy of a recorded log as if it had been recorded now: its jobs expire."""
    at_us = json.loads((CORPUS / f"{name}.json").read_text())["live"]["at_unix_ns"] // 1000
    directory = tmp_path / name
    directory.mkdir()

    def moved(record: Record) -> Record:
        names = ("time", "not_before", "created")
        times = {name: decode for name in names if (decode := getattr(record, f"{name}_us"))}
        shifted = {name: encode_time(us - at_us + NOW) for name, us in times.items()}
        return msgspec.structs.replace(record, **shifted)

    for path in (CORPUS / name).iterdir():
        data = path.read_bytes()
        records = (decode_record(data, span[0])[0] for span in scan_segment(data).spans())
        content = data[:8] + b"".join(encode_record(moved(record)) for record in records)
        (directory / path.name).write_bytes(content)
    return directory


def as_the_daemon_loads_it(log: Path, tmp_path: Path) -> dict[bytes, ReplayedEntry]:
    copy = tmp_path / "copy"
    shutil.copytree(log, copy)
    state = recover(OsDisk(), str(copy), now_us=NOW).state
    return {job.key: job for job in state.jobs.values() if not 0 < job.expires <= NOW}


def written(daemon: DaemonProcess) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in daemon.log_path.glob("*.log")}


def counts(**given: int) -> dict[str, Any]:
    names = ("read", "imported", "already_there", "expired", "refused", "damaged")
    return dict.fromkeys(names, 0) | given | {"not_carried": {}}


def places(errors: bytes) -> list[str]:
    """Return the lines of standard error without those about whole queues."""
    return [line for line in errors.decode().splitlines() if not line.startswith("queue ")]


@pytest.mark.parametrize("name", LOGS)
def test_import_gives_the_entries_of_a_daemon_that_starts_on_the_log(
    name: str, tmp_path: Path, daemon: DaemonProcess, cli: Cli
) -> None:
    log = recorded(name, tmp_path)
    expected = as_the_daemon_loads_it(log, tmp_path)
    before = {path.name: path.stat() for path in log.iterdir()}
    (first,) = cli.json("import", "workq", str(log))
    assert first["imported"] == len(expected) > 0
    assert first["read"] == first["imported"] + first["expired"]
    with SyncClient(daemon.address) as client:
        assert client.daemon_stats().entries == len(expected)
        for key, job in expected.items():
            entry, stats = client.get(key), client.entry_stats(key)
            assert (entry.value_type, entry.value, entry.second_key) == (1, job.value, b"")
            assert (stats.timestamp_us, stats.not_before_us) == (job.timestamp, job.not_before)
            assert (stats.priority, stats.expires_us) == (job.priority, job.expires)
            assert stats.buried_reason == (None if job.reason is None else job.reason.decode())
            assert (stats.persistent, stats.attempts) == (True, 0)
    after = written(daemon)
    (second,) = cli.json("import", "workq", str(log))
    assert second == {**first, "imported": 0, "already_there": first["imported"]}
    assert written(daemon) == after
    assert {path.name: path.stat().st_mtime_ns for path in log.iterdir()} == {
        name: status.st_mtime_ns for name, status in before.items()
    }
    assert_workq_accepts(daemon.log_path)


def test_import_of_failed_jobs_never_delivers_them_on_the_way(
    tmp_path: Path, daemon: DaemonProcess, cli: Cli
) -> None:
    log = SegmentBuilder(None, now_us=NOW)
    for _ in range(20):
        log.result(Command.FAIL, log.foreign(b"q", b"failed"), b"why")
    directory = write_log(tmp_path / "workq", log)
    got: list[Jobs] = []

    def worker() -> None:
        with SyncClient(daemon.address) as client:
            got.append(client.next("q", wait=60))

    thread = threading.Thread(target=worker)
    thread.start()
    (done,) = cli.json("import", "workq", str(directory))
    assert done == counts(read=20, imported=20)
    with SyncClient(daemon.address) as client:
        stats = client.domain_stats("q")
        assert (stats.entries, stats.buried) == (20, 20)
        assert list(client.prefix(b"q:import:")) == []
        client.set("q:0:0:fresh", "fresh")
        thread.join(TIMEOUT_S)
        assert [pair.value for pair in got[0]] == [b"fresh"]
        assert client.kick_domain("q", count=30) == 20


def test_body_becomes_the_uri_where_it_can_be_one_and_the_newest_of_equal_ones_stays(
    tmp_path: Path, daemon: DaemonProcess, cli: Cli
) -> None:
    log = SegmentBuilder(None, now_us=NOW - 60 * SECOND)
    bodies = [b"http://a/", b"http://b/", b"http://a/", b"", b"x" * 4097, b"y" * 4096]
    ids = []
    for body in bodies:
        log.now_us += SECOND
        ids.append(log.foreign(b"q", body))
    log.result(Command.FAIL, ids[1])
    directory = str(write_log(tmp_path / "workq", log))
    (first,) = cli.json("import", "workq", directory, "--uri-from-body")
    assert first == counts(read=6, imported=6)
    with SyncClient(daemon.address) as client:
        assert client.daemon_stats().entries == 5
        assert client.get(b"http://a/").second_key.endswith(ids[2].hex().encode())
        assert client.entry_stats(b"http://b/").state == "buried"
        assert client.get(b"y" * 4096).value == b"y" * 4096
        due = client.next("q", count=9).pairs
        assert [pair.second_key for pair in due] == [b"http://a/", b"", b"", b"y" * 4096]
    after = written(daemon)
    (second,) = cli.json("import", "workq", directory, "--uri-from-body")
    assert second == counts(read=6, already_there=6)
    assert written(daemon) == after


def test_import_leaves_out_expired_jobs_and_jobs_that_were_done_meanwhile(
    tmp_path: Path, daemon: DaemonProcess, cli: Cli
) -> None:
    now = time.time_ns() // 1000
    log = SegmentBuilder(None, now_us=now - 60 * SECOND)
    for ttl_s in (59, 4000, 5000):
        log.foreign(b"q", b"%d" % ttl_s, ttl_ms=ttl_s * 1000)
    directory = str(write_log(tmp_path / "workq", log))
    assert cli.json("import", "workq", directory) == [counts(read=3, imported=2, expired=1)]
    with SyncClient(daemon.address) as client:
        (job,) = client.next("q")
        assert job.value == b"4000"
        assert client.entry_stats(job.key).expires_us == now + 3940 * SECOND
        client.delete(job.key, token=job.token)
    assert cli.json("import", "workq", directory) == [counts(read=3, already_there=2, expired=1)]
    with SyncClient(daemon.address) as client:
        assert client.daemon_stats().entries == 1


def test_import_that_was_interrupted_is_finished_by_the_next(
    tmp_path: Path, daemon: DaemonProcess, cli: Cli
) -> None:
    jobs = 12_000
    log = SegmentBuilder(None, now_us=NOW)
    failed = []
    for number in range(jobs):
        job_id = log.foreign(b"q", b"%d" % number)
        if number % 10 == 0:
            failed.append(job_id)
            log.result(Command.FAIL, job_id)
    directory = str(write_log(tmp_path / "workq", log))
    with SyncClient(daemon.address) as client:
        import_ = cli.start("import", "workq", directory)
        wait_for_entries(client, import_, 1000)
        import_.send_signal(signal.SIGINT)
        assert import_.communicate(timeout=TIMEOUT_S)[0] == b""
        assert import_.returncode == INTERRUPTED
        before = client.daemon_stats().entries
        assert 1000 <= before < jobs
        import_ = cli.start("import", "workq", directory)
        wait_for_entries(client, import_, before + 1000)
    daemon.kill()
    _, errors = import_.communicate(timeout=TIMEOUT_S)
    assert import_.returncode == CANNOT_CONNECT
    assert b"import again to finish" in errors
    daemon.start()
    (done,) = cli.json("import", "workq", directory, "--server", daemon.address)
    assert done["read"] == jobs == done["imported"] + done["already_there"]
    assert done["imported"] > 0
    with SyncClient(daemon.address) as client:
        stats = client.domain_stats("q")
        assert (stats.entries, stats.buried) == (jobs, len(failed))
        assert client.daemon_stats().entries == jobs
        numbers = [int(entry.value) for entry in client.prefix(b"q:", data=True)]
        assert sorted(numbers) == list(range(jobs))


def wait_for_entries(client: SyncClient, import_: subprocess.Popen[bytes], entries: int) -> None:
    while client.daemon_stats().entries < entries:
        assert import_.poll() is None, import_.communicate()


def test_right_to_write_is_enough_to_import_failed_jobs(tmp_path: Path) -> None:
    tokens, secret = tmp_path / "tokens.toml", "sixteen bytes and more"
    tokens.touch(0o600)
    tokens.write_text(
        f"[[token]]\nname = 'all'\ntoken = '{secret} for all'\n"
        "rights = ['read', 'write']\nprefixes = ['']\n"
        f"[[token]]\nname = 'one'\ntoken = '{secret}'\nrights = ['read', 'write']\n"
        "prefixes = ['q:']\n"
    )
    log = SegmentBuilder(None, now_us=NOW)
    log.foreign(b"q", b"waiting")
    log.foreign(b"other", b"not theirs")
    log.result(Command.FAIL, log.foreign(b"q", b"failed"))
    directory = str(write_log(tmp_path / "workq", log))
    (tmp_path / "daemon").mkdir()
    with DaemonProcess(tmp_path / "daemon", "--auth-tokens", str(tokens)) as daemon:
        cli = Cli(tmp_path, daemon.address)
        for name in ("one", "all"):
            (tmp_path / name).touch(0o600)
        (tmp_path / "one").write_text(secret)
        (tmp_path / "all").write_text(f"{secret} for all")
        done = cli("import", "workq", directory, "--auth-file", str(tmp_path / "one"))
        assert json.loads(done.stdout) == counts(read=3, imported=2, refused=1)
        assert done.stderr.count(b"refused: forbidden: ") == 1
        with SyncClient(daemon.address, auth=f"{secret} for all") as client:
            assert client.daemon_stats().entries == 2
            assert client.daemon_stats().buried == 1
        all_ = cli.json("import", "workq", directory, "--auth-file", str(tmp_path / "all"))
        assert all_ == [counts(read=3, imported=1, already_there=2)]


def test_import_names_refused_items_with_their_places_and_goes_on(tmp_path: Path, cli: Cli) -> None:
    log = SegmentBuilder(None, now_us=NOW)
    log.foreign(b"q", b"first")
    log.foreign(b"q", b"x" * 1_000_001)
    log.foreign(b"q", b"second")
    log.foreign(b"q", b"y" * 1_000_000)
    log.result(Command.FAIL, log.foreign(b"q", b"z" * 1_000_001))
    log.now_us = NOW + 3600 * SECOND
    log.foreign(b"q", b"from a clock that is wrong")
    directory = write_log(tmp_path / "workq", log)
    done = cli("import", "workq", str(directory))
    assert done.returncode == REFUSED
    assert json.loads(done.stdout) == counts(read=6, imported=3, refused=3)
    lines = places(done.stderr)
    codes = zip(lines, (1, 4, 6), ("too-large", "too-large", "clock-skew"), strict=True)
    for line, record, code in codes:
        place = f"{directory}/000000001.log at offset {log.offsets[record]}"
        assert line.startswith(f"{place}: refused: {code}: ")
        assert line.count(f"{code}: ") == 1


def test_daemon_that_takes_nothing_any_more_ends_the_import(tmp_path: Path, cli: Cli) -> None:
    log = SegmentBuilder(None, now_us=NOW)
    for _ in range(1200):
        log.foreign(b"q")
    directory = str(write_log(tmp_path / "workq", log))
    (tmp_path / "full").mkdir()
    with DaemonProcess(tmp_path / "full", "--min-free-bytes", str(2**50)) as daemon:
        done = cli("import", "workq", directory, "--server", daemon.address)
    assert (done.returncode, done.stdout) == (REFUSED, b"")
    stopped, why = done.stderr.decode().splitlines()
    assert stopped.startswith("fj-cli: stopped after 0 of 1,200, which stay;")
    assert why.startswith("fj-cli: read-only: ")
    assert cli.json("import", "workq", directory) == [counts(read=1200, imported=1200)]


def test_damage_in_an_imported_log_is_named_and_the_rest_is_read(tmp_path: Path, cli: Cli) -> None:
    log, last = SegmentBuilder(None, now_us=NOW), SegmentBuilder(None, now_us=NOW, ids_from=50)
    for number in range(5):
        log.foreign(b"q", b"%d" % number)
        last.foreign(b"q", b"%d" % number)
    log.data[log.offsets[2] + 40] ^= 1
    log.data[log.offsets[4] + 40] ^= 1
    del last.data[-3:]
    directory = write_log(tmp_path / "workq", log, last)
    done = cli("import", "workq", str(directory), "--table")
    assert done.returncode == REFUSED
    assert "damaged" in done.stdout.decode()
    lines = places(done.stderr)
    bad = [f"1.log at offset {log.offsets[2]}: ", f"1.log at offset {log.offsets[4]}: "]
    bad.append(f"2.log at offset {last.offsets[4]}: ")
    for line, place in zip(lines, bad, strict=True):
        assert line.startswith(f"{directory}/00000000{place}")
    (again,) = map(json.loads, cli("import", "workq", str(directory)).stdout.splitlines())
    assert again == counts(read=7, already_there=7, damaged=2)


def test_log_of_fastjournald_is_refused_also_one_that_workq_began(
    tmp_path: Path, daemon: DaemonProcess, cli: Cli
) -> None:
    with SyncClient(daemon.address) as client:
        client.set("plain")
    mixed = SegmentBuilder(None, now_us=NOW)
    mixed.foreign(b"q")
    continued = SegmentBuilder(1, now_us=NOW, ids_from=50)
    damaged = SegmentBuilder(0, now_us=NOW)
    damaged.entry(b"q:1:0:x")
    damaged.data[9] ^= 0xFF
    logs = [
        daemon.log_path,
        write_log(tmp_path / "mixed", mixed, continued),
        write_log(tmp_path / "damaged", damaged),
    ]
    for log in logs:
        done = cli("import", "workq", str(log))
        assert done.returncode == USAGE
        assert b"start a daemon on a copy of it" in done.stderr
        assert done.stdout == b""
    for format in ("beanstalkd", "kestrel"):
        done = cli("import", format, str(daemon.log_path))
        assert done.returncode == USAGE
        assert b"start a daemon on a copy of it" in done.stderr


def test_server_that_runs_on_the_log_or_no_log_at_all_is_told(tmp_path: Path, cli: Cli) -> None:
    log = SegmentBuilder(None, now_us=NOW)
    log.foreign(b"q")
    directory = str(write_log(tmp_path / "workq", log))
    lock = lock_append(OsDisk(), directory)
    done = cli("import", "workq", directory)
    assert done.returncode == REFUSED
    assert b"append.lock: another daemon appends to this log" in done.stderr
    lock.close()
    assert cli.json("import", "workq", directory) == [counts(read=1, imported=1)]
    (tmp_path / "empty").mkdir()
    assert cli("import", "workq", str(tmp_path / "empty")).returncode == USAGE
    assert cli("import", "workq", str(tmp_path / "none")).returncode == USAGE


def test_import_takes_names_as_long_as_a_key_allows(tmp_path: Path, cli: Cli) -> None:
    """A failed job is first set under a key of its own, which must be no longer."""
    log = SegmentBuilder(None, now_us=NOW)
    longest = KEY_BYTES_MAX - len(b":128:0000000000000000:") - 2 * 16
    lengths = range(longest - 15, longest + 1)
    for length in lengths:
        log.foreign(b"w" * length, b"waits")
        log.result(Command.FAIL, log.foreign(b"f" * length, b"failed"))
    directory = str(write_log(tmp_path / "workq", log))
    number = 2 * len(lengths)
    assert cli.json("import", "workq", directory) == [counts(read=number, imported=number)]
    assert cli.json("import", "workq", directory) == [counts(read=number, already_there=number)]


FOREIGN_CORPUS = Path(__file__).parent.parent / "format" / "data"
DAY = 86_400 * SECOND


def recorded_foreign(name: str, tmp_path: Path) -> str:
    """Return a copy of a recorded journal as if it had been recorded a day ago."""
    directory = tmp_path / name.replace("/", "-")
    directory.mkdir()
    for path in (FOREIGN_CORPUS / name).iterdir():
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


def test_import_of_beanstalkd_gives_its_jobs_and_changes_nothing_the_second_time(
    tmp_path: Path, daemon: DaemonProcess, cli: Cli
) -> None:
    directory = recorded_foreign("beanstalkd/killed", tmp_path)
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
        directory = recorded_foreign(f"kestrel/{name}", tmp_path)
        (first,) = cli.json("import", "kestrel", directory)
        assert first["read"] == first["imported"] + first["expired"]
        assert first["not_carried"] == {}
        with SyncClient(daemon.address) as client, open_kestrel(OsDisk(), directory) as journal:
            assert_imported(client, journal)
        (second,) = cli.json("import", "kestrel", directory)
        assert second == {**first, "imported": 0, "already_there": first["imported"]}
    done = cli("import", "kestrel", recorded_foreign("kestrel/bad-opcode", tmp_path))
    assert done.returncode == REFUSED
    assert b"kestrel-bad-opcode/bad at offset 4325: 42 is no opcode of Kestrel; " in done.stderr
    assert json.loads(done.stdout)["damaged"] == 1
    with SyncClient(daemon.address) as client:
        assert client.domain_stats("with%3Acolon").entries == 3


def test_import_of_kestrel_forces_opcode_8_by_an_option(
    tmp_path: Path, daemon: DaemonProcess, cli: Cli
) -> None:
    directory = recorded_foreign("kestrel/state-dump", tmp_path)
    forced = cli("import", "kestrel", directory, "--opcode-8", "continue")
    assert forced.returncode == REFUSED
    (done,) = cli.json("import", "kestrel", directory)
    assert done["damaged"] == 0
    assert cli("import", "kestrel", directory, "--opcode-8", "9").returncode == USAGE


def test_import_names_wrong_formats_and_a_running_beanstalkd_is_no_source(
    tmp_path: Path, cli: Cli
) -> None:
    binlog = Path(recorded_foreign("beanstalkd/stopped", tmp_path))
    done = cli("import", "kestrel", str(binlog))
    assert done.returncode == USAGE
    assert b"holds the binlog of a beanstalkd, and none of kestrel (name beanstalkd" in done.stderr
    done = cli("import", "beanstalkd", str(FOREIGN_CORPUS / "workq" / "basic"))
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
