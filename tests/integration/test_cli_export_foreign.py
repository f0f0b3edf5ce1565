"""fj-cli export --to a journal of another queue, as it is installed.

The journals are given to a real beanstalkd and a real workq-server, where they are installed.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from fastjournal.client import SyncClient
from fastjournal.disk import OsDisk
from fastjournal.foreign import open_beanstalkd
from fastjournal.keys import build_journal_key, journal_key_of
from fastjournal.testing.workq_rules import assert_workq_accepts
from tests.integration.cli_process import Cli
from tests.integration.daemon_process import DaemonProcess
from tests.integration.workq_server import needs_workq, workq_server

BEANSTALKD = shutil.which("beanstalkd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
needs_beanstalkd = pytest.mark.skipif(
    BEANSTALKD is None, reason="beanstalkd is not installed here (Debian: apt install beanstalkd)"
)
CORPUS = Path(__file__).parent.parent / "format" / "data"
VERSIONS = {
    7: ["--to", "beanstalkd"],
    5: ["--to", "beanstalkd", "--binlog-version", "5"],
}
"""Options of an export, by the version of its binlogs."""
DONE, REFUSED, USAGE = 0, 1, 2
SECOND = 1_000_000
HOUR = 3600 * SECOND
DAY = 24 * HOUR
START_S = 20.0


class Beanstalk:
    """A connection to a beanstalkd."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.settimeout(START_S)
        self._reader = self._socket.makefile("rb")

    def close(self) -> None:
        self._reader.close()
        self._socket.close()

    def line(self, command: str) -> list[str]:
        self._socket.sendall(command.encode() + b"\r\n")
        return self._reader.readline().decode().split()

    def data(self, command: str) -> tuple[str, bytes] | None:
        """Return the first argument and the data of a reply; None: there is nothing."""
        words = self.line(command)
        if words[0] in ("NOT_FOUND", "TIMED_OUT"):
            return None
        assert words[0] in ("RESERVED", "FOUND", "OK"), words
        return words[1], self._reader.read(int(words[-1]) + 2)[:-2]

    def put(self, tube: str, pri: int, delay_s: int, body: bytes) -> None:
        assert self.line(f"use {tube}")[0] == "USING"
        self._socket.sendall(f"put {pri} {delay_s} 60 {len(body)}\r\n".encode() + body + b"\r\n")
        assert self._reader.readline().startswith(b"INSERTED")


@contextmanager
def beanstalkd(
    binlog: Path, *, warns: bool = False, options: Sequence[str] = ()
) -> Iterator[Beanstalk]:
    """Run a beanstalkd on a binlog; it ends by SIGKILL.

    Args:
        binlog: Directory of the binlog.
        warns: Whether it says that data may be missing.
        options: More options of its command line.
    """
    assert BEANSTALKD is not None
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [BEANSTALKD, "-l", "127.0.0.1", "-p", str(port), "-b", str(binlog), "-f", "0", *options],
        stderr=subprocess.PIPE,
    )
    client = None
    try:
        deadline = time.monotonic() + START_S
        while client is None:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            try:
                client = Beanstalk(port)
            except ConnectionRefusedError:
                continue
        # it listens before it has read its binlog, and answers afterwards
        client.line("list-tube-used")
        yield client
    finally:
        if client is not None:
            client.close()
        process.send_signal(signal.SIGKILL)
        _, errors = process.communicate()
    assert (b"missing data" in errors) == warns, errors


def take_snapshot(directory: Path) -> str:
    now = time.time_ns() // 1000
    with DaemonProcess(directory) as daemon, SyncClient(daemon.address) as client:
        for number, priority in enumerate((5, 1, 5)):
            key = build_journal_key("mail", f"{number}", priority=priority)
            client.set(key, b"mail %d\r\n" % number)
        client.set(build_journal_key("mail", "late", not_before_us=now + HOUR), b"late")
        bad = build_journal_key("mail", "bad")
        client.set(bad, b"bad")
        client.bury(bad, reason="poison")
        client.set(build_journal_key("other:x".replace(":", "%3A"), "y"), b"", uri="u")
        client.set("plain", "x")
        client.limit("mail", lease=90)
        return client.snapshot()


@needs_beanstalkd
@pytest.mark.parametrize("version", VERSIONS)
def test_export_to_beanstalkd_starts_there_and_its_own_binlog_comes_back(
    version: int, tmp_path: Path
) -> None:
    snapshot, binlog = take_snapshot(tmp_path), tmp_path / "binlog"
    cli = Cli(tmp_path, None)
    (done,) = cli.json("export", snapshot, str(binlog), *VERSIONS[version])
    assert (done["read"], done["written"], done["left_out"]) == (7, 6, {"plain_entries": 1})
    assert (binlog / "binlog.1").read_bytes()[0] == version
    with beanstalkd(binlog) as client:
        assert client.line("watch mail")[0] == "WATCHING"
        bodies = [client.data("reserve-with-timeout 0") for _ in range(4)]
        assert [found and found[1] for found in bodies] == [
            b"mail 1\r\n",
            b"mail 0\r\n",
            b"mail 2\r\n",
            None,
        ]
        first = bodies[0]
        assert first is not None
        stats = client.data(f"stats-job {first[0]}")
        assert stats is not None
        assert b"ttr: 90\n" in stats[1]
        assert client.line(f"delete {first[0]}") == ["DELETED"]
        assert client.line("use mail")[0] == "USING"
        delayed, buried = client.data("peek-delayed"), client.data("peek-buried")
        assert (delayed and delayed[1], buried and buried[1]) == (b"late", b"bad")
        client.put("fresh", 4_000_000_000, 0, b"put there")
    with open_beanstalkd(OsDisk(), str(binlog)) as journal:
        assert journal.faults == []
        items = list(journal.items())
    assert sorted(item.value for item in items) == sorted(
        [b"mail 0\r\n", b"mail 2\r\n", b"late", b"bad", b"", b"put there"]
    )
    assert [item.value for item in items if item.reason is not None] == [b"bad"]
    assert len([item for item in items if item.key.startswith(b"fresh:255:")]) == 1


@needs_beanstalkd
@pytest.mark.parametrize("name", ["killed", "stopped-v5"])
def test_import_of_recorded_binlogs_gives_what_a_beanstalkd_serves(
    name: str, tmp_path: Path
) -> None:
    binlog = tmp_path / "binlog"
    shutil.copytree(CORPUS / "beanstalkd" / name, binlog)
    with open_beanstalkd(OsDisk(), str(binlog)) as journal:
        items = {item.key.rpartition(b"-")[2].decode(): item.value for item in journal.items()}
    with beanstalkd(binlog) as client:
        found = {number: client.data(f"peek {number}") for number in range(1, 161)}
    served = {str(number): data[1] for number, data in found.items() if data is not None}
    assert served == items


@needs_beanstalkd
def test_import_takes_zeros_at_the_end_for_no_damage_and_has_what_a_beanstalkd_serves(
    tmp_path: Path, daemon: DaemonProcess, cli: Cli
) -> None:
    source, binlog = tmp_path / "source", tmp_path / "binlog"
    source.mkdir()
    snapshot = take_snapshot(source)
    assert cli("export", snapshot, str(binlog), "--to", "beanstalkd").returncode == DONE
    data = (binlog / "binlog.1").read_bytes()
    end = bytes(84)
    assert data.endswith(end)
    (binlog / "binlog.1").write_bytes(data.removesuffix(end) + bytes(50))
    (binlog / "binlog.2").write_bytes(bytes(4096))
    (done,) = cli.json("import", "beanstalkd", str(binlog))
    assert (done["imported"], done["damaged"]) == (6, 0)
    verified = cli("log", "verify", str(binlog))
    assert (verified.returncode, verified.stdout) == (DONE, b"")
    with beanstalkd(binlog, warns=True) as client:
        found = [client.data(f"peek {number}") for number in range(1, 8)]
    assert [job is None for job in found] == [False] * 6 + [True]


def snapshot_of_extremes(directory: Path) -> str:
    """Take a snapshot of entries at the bounds of what an entry can have."""
    now = time.time_ns() // 1000
    instants = [0, 1, now - 400 * DAY, now - 30 * DAY, now - DAY, now, now + HOUR, now + 40 * DAY]
    instants += [2**63 // 1000, 2**63, 2**64 - 1]
    # the last two are in the years 2286 and 9999
    expiries = [None, now + HOUR, now + 30 * DAY, now + 31 * DAY, 10**16, 253_402_300_799 * SECOND]
    domains = ["a", "-", "fj.kv", "fj.op", "a b", "%3A", "t" * 200, "t" * 201, "n" * 255, "n" * 256]
    values = [b"", b"\r\n", bytes(65_533), bytes(65_534), bytes(999_999)]
    leases_s = [0.001, 1, 86_400, 86_401, 366 * 86_400]
    with DaemonProcess(directory) as daemon, SyncClient(daemon.address) as client:
        for number, (instant, expires) in enumerate(itertools.product(instants, expiries)):
            for domain in ("waits", "buried"):
                key = journal_key_of(domain, f"{number}", instant)
                client.set(key, b"v", expires=expires and expires / SECOND, plain=True)
                if domain == "buried":
                    client.bury(key, reason="")
        for domain, priority in itertools.product(domains, (0, 128, 255)):
            client.set(build_journal_key(domain, "", priority=priority), b"v")
        for number, value in enumerate(values):
            client.set(build_journal_key("values", f"{number}"), value)
        for number, lease in enumerate(leases_s):
            client.limit(f"limited-{number}", lease=lease)
            client.set(build_journal_key(f"limited-{number}", ""), b"v")
        return client.snapshot()


@needs_beanstalkd
@pytest.mark.parametrize("version", VERSIONS)
def test_export_to_beanstalkd_has_each_entry_written_there_as_a_job(
    version: int, tmp_path: Path
) -> None:
    snapshot, binlog = snapshot_of_extremes(tmp_path), tmp_path / "binlog"
    (done,) = Cli(tmp_path, None).json("export", snapshot, str(binlog), *VERSIONS[version])
    assert done["read"] == done["written"] > 150
    _, _, advice = done["advice"].partition(" with ")
    options = advice.partition(",")[0].split()
    assert options == ["-z", "1000001"]
    with beanstalkd(binlog, options=options) as client:
        found = [client.data(f"peek {number + 1}") for number in range(done["written"] + 1)]
    assert [number for number, job in enumerate(found) if job is None] == [done["written"]]


def job_ids(log: Path) -> list[str]:
    """Return the ids of the jobs that workq has of a log, by its rules."""
    return [str(job) for job in assert_workq_accepts(log, now_us=time.time_ns() // 1000).jobs]


@needs_workq
def test_export_to_workq_has_each_entry_written_there_as_a_job(tmp_path: Path) -> None:
    snapshot, log = snapshot_of_extremes(tmp_path), tmp_path / "workq"
    (done,) = Cli(tmp_path, None).json("export", snapshot, str(log), "--to", "workq")
    assert done["read"] == done["written"] > 150
    ids = job_ids(log)
    assert len(ids) == done["written"]
    with workq_server(log) as server:
        jobs = [server.job(job_id) for job_id in ids]
        states = Counter(job["state"] for job in jobs if job is not None)
        # 66 of them are buried, which workq calls failed
        assert states == {b"0": done["written"] - 66, b"2": 66}
        ready, scheduled = server.waiting()
        waiting = [*ready.values(), *scheduled.values()]
        assert sum(map(len, waiting)) == done["written"] - 66


def old_work(directory: Path) -> str:
    """Take a snapshot of work without an instant, with one long ago, and with one just now."""
    now = time.time_ns() // 1000
    with DaemonProcess(directory) as daemon, SyncClient(daemon.address) as client:
        for name, instant in (("new", now), ("none", 0), ("old", now - 40 * DAY), ("none 2", 0)):
            key = build_journal_key("pages", name if instant else "", not_before_us=instant)
            client.set(key if name != "none 2" else key + b"2", name)
        return client.snapshot()


def test_export_to_workq_keeps_work_that_was_due_long_ago(
    tmp_path: Path, daemon: DaemonProcess, cli: Cli
) -> None:
    source, log = tmp_path / "source", tmp_path / "workq"
    source.mkdir()
    snapshot = old_work(source)
    (done,) = cli.json("export", snapshot, str(log), "--to", "workq")
    assert (done["written"], done["left_out"]) == (4, {})
    state = assert_workq_accepts(log, now_us=time.time_ns() // 1000)
    values = [state.jobs[job].record.payload for job in state.ready("pages")]
    assert values == [b"none", b"none 2", b"old", b"new"]
    (back,) = cli.json("import", "workq", str(log))
    assert (back["imported"], back["expired"]) == (4, 0)
    with SyncClient(daemon.address) as client:
        assert [job.value for job in client.next("pages", count=4)] == values


@needs_workq
def test_export_to_workq_is_leased_there_in_the_order_of_the_work(tmp_path: Path) -> None:
    snapshot, log = old_work(tmp_path), tmp_path / "workq"
    (done,) = Cli(tmp_path, None).json("export", snapshot, str(log), "--to", "workq")
    assert (done["written"], done["left_out"]) == (4, {})
    with workq_server(log) as server:
        leased = [server.lease("pages")[1] for _ in range(4)]
    assert leased == [b"none", b"none 2", b"old", b"new"]


def test_export_to_each_format_has_counts_modes_and_can_be_imported(tmp_path: Path) -> None:
    snapshot = take_snapshot(tmp_path)
    cli = Cli(tmp_path, None)
    os.chmod(snapshot, 0o700)
    written = {"beanstalkd": 6, "kestrel": 5, "workq": 6}
    for to, number in written.items():
        out = tmp_path / to
        if to != "beanstalkd":
            wrong = cli("export", snapshot, str(out), "--to", to, "--binlog-version", "5")
            assert wrong.returncode == USAGE
            assert b"Error: --binlog-version needs --to beanstalkd\n" in wrong.stderr
            assert not out.exists()
        done = cli("export", snapshot, str(out), "--to", to, "--table")
        assert done.returncode == DONE, done.stderr.decode()
        lines = done.stdout.decode().splitlines()
        assert lines[0].startswith(f"{out}: {number} of 7 entries in ")
        assert "left out: plain entries: 1" in lines
        assert "not carried over: uris: 1" in lines
        assert stat.S_IMODE(out.stat().st_mode) == 0o700
        again = cli("export", snapshot, str(out), "--to", to)
        assert again.returncode == USAGE
        assert f"the destination {out} exists (".encode() in again.stderr
        for place, told in (
            ("s3://bucket/key", b"is no path of a directory on this machine (a journal of "),
            ("", b"is no path of a directory on this machine"),
            (f"{snapshot}/inside", b"is in the snapshot "),
        ):
            wrong = cli("export", snapshot, place, "--to", to)
            assert (wrong.returncode, wrong.stderr.count(b"\n")) == (USAGE, 1)
            assert told in wrong.stderr
        assert not list(tmp_path.rglob("s3:*"))
        assert not list(tmp_path.rglob("inside*"))
    assert cli("export", str(tmp_path / "log"), str(tmp_path / "x"), "--to", "workq").returncode
    assert not (tmp_path / "x").exists()
    (tmp_path / "second").mkdir()
    with DaemonProcess(tmp_path / "second") as daemon:
        cli = Cli(tmp_path, daemon.address)
        for to, number in written.items():
            done = cli("import", to, str(tmp_path / to))
            assert done.returncode == DONE, done.stderr.decode()
            assert json.loads(done.stdout)["imported"] == number
        with SyncClient(daemon.address) as client:
            stats = client.domain_stats("mail")
            # Kestrel has neither delays nor buried items
            assert (stats.entries, stats.delayed, stats.buried) == (14, 2, 2)
