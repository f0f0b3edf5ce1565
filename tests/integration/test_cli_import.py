"""fj-cli import workq, as it is installed, against a real daemon."""

from __future__ import annotations

import json
import shutil
import signal
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
from fastjournal.limits import KEY_BYTES_MAX
from fastjournal.testing.logs import SegmentBuilder
from fastjournal.testing.workq_rules import assert_workq_accepts
from tests.integration.cli_process import TIMEOUT_S, Cli
from tests.integration.daemon_process import DaemonProcess
from tests.spark.plan_logs import write_log

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
