"""SIGTERM, ready files and unix sockets of a real daemon."""

from __future__ import annotations

import os
import signal
import socket
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from http.client import HTTPConnection
from pathlib import Path

import pytest

from fastjournal.protocol.constants import Flag, Function
from tests.integration.daemon_process import DaemonProcess
from tests.integration.page_contents import http_address
from tests.integration.raw_client import (
    RawClient,
    build,
    codes,
    listen_request,
    run_to_its_end,
    set_request,
)
from tests.integration.worker_process import wait_until

SIGNALS_APART_S = 0.0005


def test_sigterm_answers_what_is_in_flight_and_everything_is_there_again(tmp_path: Path) -> None:
    daemon = DaemonProcess(tmp_path)
    count = 3000
    with daemon, RawClient(daemon.address) as client, RawClient(daemon.address) as waiting:
        waiting.send(listen_request(b"other"), build(Function.NOP))
        assert waiting.reply().code == ""
        client.send(*(set_request(b"a:1:0:%d" % number) for number in range(count)))
        # the daemon has begun: the other requests are on their way or being handled
        first = client.reply()
        ended: list[int] = []
        stopping = threading.Thread(target=lambda: ended.append(daemon.stop()))
        stopping.start()
        answers = [first, *client.rest()]
        assert codes(answers) == [""] * count
        assert codes(waiting.rest()) == ["shutting-down"]
        client.socket.close()
        waiting.socket.close()
        stopping.join()
        assert ended == [0]
    with daemon:
        with RawClient(daemon.address) as client:
            client.send(*(build(Function.GET, b"a:1:0:%d" % number) for number in range(count)))
            assert codes(client.reply() for _ in range(count)) == [""] * count
        assert daemon.stop() == 0
    assert "Traceback" not in daemon.said()
    assert "kind=torn" not in daemon.said()


def test_stop_signals_up_to_the_last_moment_change_no_exit_code(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path) as daemon:
        process = os.pidfd_open(daemon.pid)
        try:
            with ThreadPoolExecutor(1) as pool, suppress(ProcessLookupError):
                code = pool.submit(daemon.stop)
                while not code.done():
                    signal.pidfd_send_signal(process, signal.SIGTERM)
                    # a handler is over by then: without a pause they nest until the stack is full
                    time.sleep(SIGNALS_APART_S)
        finally:
            os.close(process)
        assert code.result() == 0
    assert daemon.said().count("event=stopped") == 1


def readiness(connection: HTTPConnection) -> tuple[int, str]:
    connection.request("GET", "/readyz")
    response = connection.getresponse()
    return response.status, response.read().decode()


def test_client_that_does_not_read_does_not_hold_up_the_end(tmp_path: Path) -> None:
    with (
        DaemonProcess(tmp_path, "--http", "127.0.0.1:0") as daemon,
        RawClient(daemon.address, receive_bytes=4096) as lazy,
        RawClient(daemon.address) as client,
        closing(HTTPConnection(*http_address(daemon))) as health,
    ):
        assert client.ask(set_request(b"big", b"x" * 1_000_000)).code == ""
        # far more than the buffers of both sockets hold
        lazy.send(*[build(Function.GET, b"big", flags=Flag.DATA)] * 64)
        for _ in range(10):
            assert client.ask(build(Function.NOP)).code == ""
        assert readiness(health) == (200, "ok\n")
        os.kill(daemon.pid, signal.SIGTERM)
        # START_S and no answer would be a failure: it ends after 5 seconds
        wait_until(lambda: readiness(health) == (503, "stopping\n"))
        assert daemon.wait() == 0
    with daemon:
        with RawClient(daemon.address) as client:
            assert client.ask(build(Function.GET, b"big")).code == ""
        assert daemon.stop() == 0


def test_ready_files_name_every_address_and_go_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    options = ("--listen", "127.0.0.1:0", "--listen", f"unix:{path}")
    daemon = DaemonProcess(tmp_path, *options)
    with daemon:
        tcp, unix = daemon.addresses
        assert tcp.startswith("127.0.0.1:")
        assert not tcp.endswith(":0")
        assert unix == f"unix:{path}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        for address in (tcp, unix):
            with RawClient(address) as client:
                assert client.ask(build(Function.NOP)).code == ""
        assert daemon.stop() == 0
        assert not path.exists()
        assert not (tmp_path / "ready").exists()


def test_socket_left_by_a_killed_daemon_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    daemon = DaemonProcess(tmp_path, "--listen", f"unix:{path}")
    with daemon:
        daemon.kill()
        assert path.is_socket()
        daemon.start()
        with RawClient(daemon.address) as client:
            assert client.ask(build(Function.NOP)).code == ""
        assert daemon.stop() == 0
        assert not path.exists()


def test_socket_in_use_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with DaemonProcess(tmp_path, "--listen", f"unix:{path}") as daemon:
        other = tmp_path / "other"
        other.mkdir()
        code, said = run_to_its_end(other, "--listen", f"unix:{path}")
        assert code == 64
        assert f"--listen unix:{path}" in said
        assert "Traceback" not in said
        with RawClient(daemon.address) as client:
            assert client.ask(build(Function.NOP)).code == ""


def test_ready_file_of_before_is_gone_before_the_log_is_read(tmp_path: Path) -> None:
    ready = tmp_path / "ready-file"
    ready.write_text("127.0.0.1:1\n")
    log = tmp_path / "log"
    log.mkdir()
    for name in ("000000001.log", "000000002.log"):
        (log / name).write_bytes(b"this is not a segment, and too long for the rest of one")
    code, _ = run_to_its_end(tmp_path, "--ready-file", str(ready))
    assert code == 74
    assert not ready.exists()


@pytest.mark.parametrize("kind", ["file", "link"])
def test_ready_file_option_never_removes_another_file(tmp_path: Path, kind: str) -> None:
    notes = tmp_path / "notes.toml"
    notes.write_text("listen = 'x'\n")
    named = notes
    if kind == "link":
        named = tmp_path / "link"
        named.symlink_to(notes)
    code, said = run_to_its_end(tmp_path, "--ready-file", str(named))
    assert code == 64
    assert "--ready-file: another file is there" in said
    assert notes.read_text() == "listen = 'x'\n"


def test_stop_leaves_a_socket_that_another_daemon_bound_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with DaemonProcess(tmp_path, "--listen", f"unix:{path}") as daemon:
        path.unlink()
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))
            assert daemon.stop() == 0
            assert path.is_socket()
