"""The command fj-forwarder against a scripted daemon: replies, servers, signals, exit codes."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from fastjournal import SyncClient
from fastjournal.protocol import Flag, Function, Request, encode_request
from fastjournal.spool import DeadDirectory, Spool, spool_status
from fastjournal.spool import format as form
from fastjournal.testing.ledger import Ledger
from fastjournal.testing.scripted_daemon import ScriptedDaemon
from tests.integration.cli_process import Cli
from tests.integration.daemon_process import START_S, DaemonProcess
from tests.integration.programs import Program, forwarding, installed, run_program

SIGNALS_APART_S = 0.0005


def command(spool: Path, *servers: str, options: tuple[str, ...] = ()) -> list[str]:
    line = [installed("fj-forwarder"), "--spool", str(spool), "--seed", "1"]
    for server in servers:
        line += ["--server", server]
    return [*line, *options]


def once(spool: Path, *servers: str, status: int = 0) -> str:
    """Run ``--once`` and return what it told."""
    line = command(spool, *servers, options=("--once",))
    done = run_program(line, capture_output=True, text=True, timeout=120)
    assert done.returncode == status, done.stderr
    return done.stderr


def test_forwarder_sends_the_oldest_slot_first_and_erases(tmp_path: Path) -> None:
    ledger = Ledger()
    with Spool(tmp_path) as spool:
        keys = [spool.append(domain="d", uri=f"u{n}", value=b"v" * n) for n in range(3000)]
    with ScriptedDaemon(ledger.answer) as daemon:
        once(tmp_path, daemon.address)
        assert [r.key for r in daemon.requests if r.function != Function.NOP] == keys
        assert [r.value for r in daemon.requests[:3]] == [b"", b"v", b"vv"]
        assert once(tmp_path, daemon.address)
    assert ledger.seen == 3001, "with the NOP before the first large value"
    status = spool_status(tmp_path)
    assert (status.pending, status.dead) == (0, 0)


def test_forwarder_of_an_empty_spool_is_done_at_once_without_a_daemon(tmp_path: Path) -> None:
    once(tmp_path / "new", "127.0.0.1:1")
    assert (tmp_path / "new").is_dir()


def test_reply_that_is_lost_has_the_same_timestamp_sent_again(tmp_path: Path) -> None:
    lost: set[int] = set()

    def lose(request: Request) -> bool:
        number = len(ledger.times_seen)
        if number % 40 != 0 or number in lost:
            return False
        lost.add(number)
        return True

    ledger = Ledger(lose_reply=lose)
    with Spool(tmp_path) as spool:
        keys = {spool.append(domain="d", uri=str(n)) for n in range(200)}
    with ScriptedDaemon(ledger.answer) as daemon:
        once(tmp_path, daemon.address)
        stamps = {(r.key, r.timestamp) for r in daemon.requests if r.function != Function.NOP}
        assert daemon.connections == 6
    assert len(lost) == 5
    assert set(ledger.applied) == keys
    assert set(ledger.times_applied.values()) == {1}
    assert max(ledger.times_seen.values()) > 1
    assert len(stamps) == 200


def append_raw(spool: Path, frame: bytes) -> None:
    (path,) = spool.glob("*.fjs")
    with path.open("ab") as file:
        file.write(form.encode_record(frame))


def work(key: bytes) -> bytes:
    return encode_request(Request(Function.SET, 7, Flag.PERSIST, 5, key, b"u:1", value_type=1))


def test_records_that_are_no_request_or_no_write_are_dead_letters_and_the_rest_is_sent(
    tmp_path: Path,
) -> None:
    good = encode_request(Request(Function.SET, 7, Flag.PERSIST, 5, b"k", value_type=1))
    bad = {
        b"": "bad-request",
        b"GET / HTTP/1.1": "bad-request",
        good + b"?": "bad-request",
        good[:-1]: "bad-request",
        good + good: "bad-request",
        good[:2] + b"\0\x02" + good[4:]: "unsupported-version",
        encode_request(Request(Function.NEXT, timestamp=5)): "bad-request",
        encode_request(Request(Function.QUIT, timestamp=5)): "bad-request",
        work(b"d:300:5:x"): "bad-key",
        work(b"example.org:8080:128:5:x"): "bad-key",
    }
    plain = Request(Function.SET, 8, Flag.PERSIST, 5, b"d:300:5:x", value_type=1)
    ledger = Ledger()
    with Spool(tmp_path) as spool:
        first = spool.append(domain="d")
        for frame in bad:
            append_raw(tmp_path, frame)
        append_raw(tmp_path, encode_request(plain))
        last = spool.append(domain="d")
    with ScriptedDaemon(ledger.answer) as daemon:
        once(tmp_path, daemon.address)
        # without a URI it may be meant as data
        assert [r.key for r in daemon.requests] == [first, plain.key, last]
    pieces = DeadDirectory(tmp_path).list()
    assert {Path(p.raw_path).read_bytes(): p.reason.code for p in pieces if p.reason} == bad
    assert spool_status(tmp_path).pending == 0


def test_records_that_come_later_wake_it_and_sigterm_stops_it_well(tmp_path: Path) -> None:
    ledger = Ledger()
    with (
        ScriptedDaemon(ledger.answer, unix_path=str(tmp_path / "sock")) as daemon,
        Spool(tmp_path / "s") as spool,
        forwarding(tmp_path / "s", daemon.address),
    ):
        for _ in range(5):
            ledger.wait_applied([spool.append(domain="d")])
        assert daemon.connections == 1


def test_stop_signals_up_to_the_last_moment_change_no_exit_code(tmp_path: Path) -> None:
    ledger = Ledger()
    with (
        ScriptedDaemon(ledger.answer, unix_path=str(tmp_path / "sock")) as daemon,
        Spool(tmp_path / "s") as spool,
    ):
        process = Program(command(tmp_path / "s", daemon.address))
        descriptor = os.pidfd_open(process.pid)
        try:
            ledger.wait_applied([spool.append(domain="d")])
            with suppress(ProcessLookupError):
                while process.poll() is None:
                    signal.pidfd_send_signal(descriptor, signal.SIGTERM)
                    # a handler is over by then: without a pause they nest until the stack is full
                    time.sleep(SIGNALS_APART_S)
            assert process.wait(60) == 0
        finally:
            os.close(descriptor)
            process.kill()
            process.wait()


def test_spool_refuses_a_second_forwarder(tmp_path: Path) -> None:
    with (tmp_path / "forwarder.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "forwarder.lock" in once(tmp_path, "127.0.0.1:1", status=75)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "--spool"),
        (["--spool", "s", "--server", "nowhere"], "nowhere"),
        (["--spool", "s", "--server", "h:1", "--batch", "0"], "--batch"),
        (["--spool", "s", "--server", "h:1", "--log-level", "loud"], "--log-level"),
        (["--unheard-of"], "--unheard-of"),
    ],
)
def test_usage_error_names_the_option_and_exits_64(
    tmp_path: Path, arguments: list[str], named: str
) -> None:
    line = [sys.executable, "-m", "fj_forwarder", *arguments]
    done = subprocess.run(
        line,
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (done.returncode, named in done.stderr) == (64, True), done.stderr
    assert list(tmp_path.iterdir()) == []


def test_forwarder_once_exits_74_and_names_a_slot_that_it_could_not_open(tmp_path: Path) -> None:
    ledger = Ledger()
    with Spool(tmp_path) as spool:
        key = spool.append(domain="d")
    names = ["20261120T080000Z.fjs", "20261120T090000Z.fjs"]
    for name in names:
        (tmp_path / name).write_bytes(b"fjsp\0\0\0\x02?")
    with ScriptedDaemon(ledger.answer) as daemon:
        told = once(tmp_path, daemon.address, status=74)
    assert list(ledger.applied) == [key]
    last = told.splitlines()[-1]
    assert "another version" in last
    assert all(name in last for name in names)


def test_spool_that_cannot_be_written_exits_74(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    told = once(tmp_path / "file" / "spool", "127.0.0.1:1", status=74)
    assert str(tmp_path / "file") in told
    blocked = tmp_path / "s"
    (blocked / "forwarder.lock").mkdir(parents=True)
    told = once(blocked, "127.0.0.1:1", status=74)
    assert re.fullmatch(r"fj-forwarder: .*forwarder\.lock.*Is a directory.*\n", told)


def put_there(path: Path, kind: str) -> None:
    if kind == "directory":
        path.mkdir()
    elif kind == "link":
        path.symlink_to("nowhere")
    else:
        os.mkfifo(path)
    os.utime(path, (0, 0), follow_symlinks=False)


@pytest.mark.parametrize("kind", ["directory", "link", "fifo"])
def test_spool_with_strange_files_of_its_own_names_leaves_them_alone(
    tmp_path: Path, kind: str
) -> None:
    names = [".20261120T080000Z.fjs.tmp", ".20261120T080000Z-x.fjs.0a.tmp", "wake"]
    for name in names:
        put_there(tmp_path / name, kind)
    ledger = Ledger()
    with Spool(tmp_path) as spool:
        key = spool.append(domain="d")
    with ScriptedDaemon(ledger.answer) as daemon:
        told = once(tmp_path, daemon.address)
    assert set(ledger.applied) == {key}
    assert all(os.path.lexists(tmp_path / name) for name in names)
    assert [told.count(f"/{name}:") for name in names] == [1, 1, 1], told


def daemon_in(directory: Path, *options: str) -> DaemonProcess:
    """Return a daemon that has the same address after each start."""
    directory.mkdir()
    return DaemonProcess(directory, "--listen", f"unix:{directory / 'socket'}", *options)


def tokens_in(directory: Path) -> Path:
    """Write a file with a token that the forwarder does not have."""
    made = Cli(directory, None)("token", "new", str(directory / "theirs"))
    tokens = directory / "tokens.toml"
    tokens.touch(0o600)
    rest = "rights = ['write']\nprefixes = ['']\n"
    tokens.write_text(f"[[token]]\nname = 'a'\n{made.stdout.decode()}{rest}")
    return tokens


def wait_for(daemon: DaemonProcess, key: bytes) -> None:
    deadline = time.monotonic() + START_S
    with SyncClient(daemon.address) as client:
        while client.request(Request(Function.GET, key=key)).code:
            assert time.monotonic() < deadline, f"{key!r} was not delivered there"
            time.sleep(0.01)


def test_forwarder_passes_over_a_daemon_that_does_not_let_it_in_and_stays_until_one_is_gone(
    tmp_path: Path,
) -> None:
    closed = daemon_in(tmp_path / "closed", "--auth-tokens", str(tokens_in(tmp_path)))
    first, second = daemon_in(tmp_path / "first"), daemon_in(tmp_path / "second")
    spool_path = tmp_path / "spool"
    with closed, first, second, Spool(spool_path) as spool:
        token = tmp_path / "token"
        assert Cli(tmp_path, None)("token", "new", str(token)).returncode == 0
        command = [installed("fj-forwarder"), "--spool", str(spool_path), "--auth-file", str(token)]
        for daemon in (closed, first, second):
            command += ["--server", daemon.address]
        forwarder = Program(command)
        try:
            wait_for(first, spool.append(domain="d"))
            first.kill()
            wait_for(second, spool.append(domain="d"))
            first.start()
            wait_for(second, spool.append(domain="d"))
            second.kill()
            wait_for(first, spool.append(domain="d"))
        finally:
            forwarder.terminate()
            assert forwarder.wait(START_S) == os.EX_OK
