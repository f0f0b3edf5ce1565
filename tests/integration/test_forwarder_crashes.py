"""Several writers at once, a forwarder that is killed again and again: nothing lost, none doubled.

The daemon keeps a ledger; the writers tell each key after its append returned. The kills come after
so many requests, not after so much time.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from fastjournal import SyncClient
from fastjournal.keys import build_journal_key
from fastjournal.protocol import Flag, Function, Request
from fastjournal.spool import DeadDirectory, Spool, spool_status
from fastjournal.spool.forwarder_status import read_forwarder_status
from fastjournal.testing.ledger import Ledger
from fastjournal.testing.scripted_daemon import ScriptedDaemon
from tests.integration.daemon_process import DaemonProcess
from tests.integration.programs import Program, command_with, ended, forwarding, installed
from tests.integration.worker_process import wait_until

WRITER = """
import sys
from fastjournal.spool import Spool

class JumpingClock:
    "Begins in the year 2001; each look is a microsecond later, each jump a slot."
    now = 1_000_000_000_000_000
    def now_us(self):
        self.now += 1
        return self.now

directory, name, count, jump = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
clock = JumpingClock() if jump else None
with Spool(directory, slot_seconds=10 if jump else 3600, clock=clock) as spool:
    for number in range(count):
        if jump and number % jump == 0:
            clock.now += 10_000_000
        value = b"x" * (number * 37 % 5000)
        print(spool.append(domain=name, uri=f"{name}/{number}", value=value).decode())
"""


def start_writers(
    spool: Path, names: str, count: int, *, jump: int = 0
) -> list[subprocess.Popen[str]]:
    return [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(spool), name, str(count), str(jump)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in names
    ]


def keys_told(writers: list[subprocess.Popen[str]]) -> list[bytes]:
    keys = []
    for writer in writers:
        told, _ = writer.communicate(timeout=120)
        assert writer.returncode == 0
        keys += [line.encode() for line in told.splitlines()]
    return keys


def start_forwarder(spool: Path, server: str, *options: str) -> Program:
    line = [installed("fj-forwarder"), "--spool", str(spool), "--server", server]
    return Program([*line, "--log-level", "error", "--batch", "64", *options])


def finish(spool: Path, server: str, *options: str) -> None:
    """Send all that is left."""
    assert start_forwarder(spool, server, "--once", *options).wait(120) == 0


def check(ledger: Ledger, keys: list[bytes], spool: Path) -> None:
    assert len(set(keys)) == len(keys)
    assert set(ledger.applied) == set(keys), "lost, or never appended"
    assert set(ledger.times_applied.values()) == {1}, "doubled"
    assert spool_status(spool).pending == 0
    assert DeadDirectory(spool).list() == []


def test_kills_of_the_forwarder_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    random = Random(1)
    losses = Random(1)

    def sometimes(_: Request) -> bool:
        return losses.random() < 0.001

    ledger = Ledger(lose_reply=sometimes, lose_request=sometimes)
    with ScriptedDaemon(ledger.answer) as daemon:
        writers = start_writers(tmp_path, "abc", 1500)
        for _ in range(6):
            forwarder = start_forwarder(tmp_path, daemon.address)
            ledger.wait_seen(ledger.seen + random.randrange(1, 400))
            forwarder.send_signal(signal.SIGKILL)
            forwarder.wait()
        keys = keys_told(writers)
        finish(tmp_path, daemon.address)
        stamps = {(r.key, r.timestamp) for r in daemon.requests if r.function != Function.NOP}
    check(ledger, keys, tmp_path)
    assert len(stamps) == len(keys), "a repeat had another timestamp"
    assert ledger.seen > len(keys), "no kill hit anything in flight"
    again = ledger.seen - ledger.times_seen[b""] - len(keys)
    assert again <= 64 * daemon.connections, "more than was in flight was sent again"


def test_slots_end_and_are_deleted_under_several_writers_and_no_append_is_lost(
    tmp_path: Path,
) -> None:
    ledger = Ledger()
    with ScriptedDaemon(ledger.answer) as daemon:
        forwarder = start_forwarder(tmp_path, daemon.address, "--slot-seconds", "10")
        writers = start_writers(tmp_path, "abcd", 1500, jump=5)
        keys = keys_told(writers)
        ledger.wait_applied(keys)
        forwarder.send_signal(signal.SIGTERM)
        assert forwarder.wait(60) == 0
        finish(tmp_path, daemon.address, "--slot-seconds", "10")
    check(ledger, keys, tmp_path)
    assert list(tmp_path.glob("*.fjs")) == []


def test_forwarder_keeps_the_newest_request_of_a_key_whatever_is_killed(tmp_path: Path) -> None:
    """One daemon that is killed and started again; the forwarder too. SETs, DELETEs, few keys."""
    random = Random(1)
    spool_path, newest = tmp_path / "spool", {}
    daemon = DaemonProcess(tmp_path / "daemon", "--listen", f"unix:{tmp_path / 'socket'}")
    daemon.directory.mkdir()
    with daemon, Spool(spool_path) as spool:
        for _ in range(4):
            forwarder = start_forwarder(spool_path, daemon.address)
            for number in range(random.randrange(100, 400)):
                key = build_journal_key("d", f"key-{random.randrange(5)}")
                if random.random() < 0.3:
                    spool.append_request(Request(Function.DELETE, 0, Flag.PERSIST, 0, key))
                    newest[key] = None
                    continue
                name, newest[key] = key.rpartition(b":")[2], b"%d" % number
                spool.append(
                    domain="d", id=name, not_before_us=0, overwrite=True, value=newest[key]
                )
            for process in random.sample([forwarder, daemon], 2):
                process.kill()
            forwarder.wait()
            daemon.start()
        finish(spool_path, daemon.address)
        with SyncClient(daemon.address) as client:
            for key, value in newest.items():
                reply = client.request(Request(Function.GET, 0, Flag.DATA, key=key))
                found = reply.pairs[0].value if reply.pairs else None
                assert found == value, key
    assert DeadDirectory(spool_path).list() == []


def test_record_of_a_leased_key_is_kept_over_kills_and_becomes_a_new_job(tmp_path: Path) -> None:
    spool_path, key = tmp_path / "spool", build_journal_key("mails", "daily")
    daemon = DaemonProcess(tmp_path / "daemon", "--listen", f"unix:{tmp_path / 'socket'}")
    daemon.directory.mkdir()
    told = spool_path / "status.json"

    def refused() -> bool:
        """Whether a forwarder that runs since ``told`` was deleted keeps the record."""
        status = read_forwarder_status(spool_path)
        return status is not None and [r.code for r in status.delayed_records] == ["worked-on"]

    with daemon, Spool(spool_path) as spool:
        with SyncClient(daemon.address) as client:
            assert client.enqueue(None, "first", key=key).outcome == "new"
            (first,) = client.next("mails")
            spool.append(key=key, value="second")
            behind = spool.append(queue="search", value="another")
            for _ in range(2):
                forwarder = start_forwarder(spool_path, daemon.address)
                wait_until(refused)
                wait_until(lambda: spool_status(spool_path).pending == 1)  # none waits behind it
                for process in (forwarder, daemon):
                    process.kill()
                forwarder.wait()
                told.unlink()
                daemon.start()
        with SyncClient(daemon.address) as client:
            assert [job.key for job in client.peek(count=9)] == [behind]
            with forwarding(spool_path, daemon.address, "--log-level", "error"):
                wait_until(refused)
                client.delete(first.key, token=first.token)
                wait_until(lambda: client.peek("mails"))
                spool.append(key=key, value="third")
                spool.append(key=key, value="fourth")
                wait_until(lambda: spool_status(spool_path).pending == 0)
                (job,) = client.next("mails", count=9)
                assert (job.key, job.decoded()) == (key, "fourth"), (
                    "the newest replaces waiting ones"
                )
                client.delete(job.key, token=job.token)
            assert not client.peek("mails")
    assert DeadDirectory(spool_path).list() == []


@pytest.mark.parametrize("keeps_a_locked_record", [False, True])
@pytest.mark.parametrize("slot_seconds", [1, 3600])
@pytest.mark.parametrize("what", ["slots", "directory"])
def test_slot_deleted_under_the_forwarder_is_not_taken_for_the_one_made_anew(
    tmp_path: Path, what: str, slot_seconds: int, keeps_a_locked_record: bool
) -> None:
    def refuse(request: Request) -> str | None:
        return "locked" if request.value == b"locked" else None

    ledger = Ledger(refuse=refuse)
    directory = tmp_path / "spool"
    with ScriptedDaemon(ledger.answer) as daemon, Spool(directory, slot_seconds) as spool:
        options = ("--slot-seconds", str(slot_seconds), "--log-level", "error")
        with forwarding(directory, daemon.address, *options):
            if keeps_a_locked_record:
                spool.append(domain="d", value=b"locked")
            ledger.wait_applied([spool.append(domain="d") for _ in range(10)])
            for _ in range(3):
                if what == "slots":
                    for path in directory.glob("*.fjs"):
                        path.unlink(missing_ok=True)
                else:
                    shutil.rmtree(directory, ignore_errors=True)
                spool.append(domain="d")  # may go to the deleted slot, where nobody has noticed
                ledger.wait_applied([spool.append(domain="d") for _ in range(10)])
    assert set(ledger.times_applied.values()) == {1}


def test_spool_moved_away_under_the_forwarder_is_locked_and_watched_anew(tmp_path: Path) -> None:
    ledger = Ledger()
    directory = tmp_path / "spool"
    with ScriptedDaemon(ledger.answer) as daemon:
        # each look at the directory is 5 s after the last one
        line = [*command_with("fj-forwarder", RESCAN_US=200_000), "--spool", str(directory)]
        line += ["--server", daemon.address]
        with ended(Program(line, stderr=subprocess.PIPE)) as process:
            for aside in ("first", "second"):
                with Spool(directory) as spool:  # one that has a slot open may go on there
                    ledger.wait_applied([spool.append(domain="d")])
                directory.rename(tmp_path / aside)
                directory.mkdir()
                wait_until(
                    lambda: all((directory / name).exists() for name in ("forwarder.lock", "wake"))
                )
            process.send_signal(signal.SIGTERM)
            _, told = process.communicate(timeout=60)
            assert process.returncode == 0
            assert told.count(b"it was deleted or moved away; it is made anew") == 2
