"""TLS, tokens and unix sockets of a real daemon, with the real clients."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from fastjournal.client import SyncClient
from fastjournal.client.address import parse_address
from fastjournal.errors import FastjournalError, RefusedError
from fastjournal.protocol import Function
from tests.certificates import Authority, Files
from tests.integration.daemon_process import START_S, DaemonProcess
from tests.integration.raw_client import RawClient, build, codes, set_request

ALL, CRAWL = "token-for-everything-0123", "token-for-crawl-4567890"


def write_tokens(directory: Path, text: str | None = None) -> Path:
    """Write a file of two tokens, one as it is and one as its hash."""
    file = directory / "tokens.toml"
    file.touch(0o600)
    file.write_text(
        text
        or f"""
[[token]]
name = "all"
token = "{ALL}"
rights = ["read", "write", "next", "admin"]
prefixes = [""]

[[token]]
name = "crawler"
token_sha256 = "{sha256(CRAWL.encode()).hexdigest()}"
rights = ["write", "next"]
prefixes = ["crawl:"]
"""
    )
    return file


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def files(authority: Authority) -> Files:
    return authority.sign("server")


def tls_options(files: Files) -> tuple[str, ...]:
    return "--tls-cert", files.cert, "--tls-key", files.key


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def connect(address: str) -> socket.socket:
    place = parse_address(address)
    assert isinstance(place, tuple)
    return socket.create_connection(place[:2], START_S)


def test_clients_work_by_tls_and_plain_ones_are_not_let_in(
    tmp_path: Path, authority: Authority, files: Files
) -> None:
    unix = f"unix:{tmp_path}/s"
    options = ("--listen", "127.0.0.1:0", "--listen", unix, *tls_options(files))
    with DaemonProcess(tmp_path, *options) as daemon:
        with SyncClient(daemon.address, tls=authority.path) as client:
            for number in range(5):
                client.set(f"big{number}", b"x" * 1_000_000)
            entries = client.request_many(
                build(Function.GET, b"big%d" % number, flags=1 << 10) for number in range(5)
            )
            assert [len((reply.pairs or [])[0].value) for reply in entries] == [1_000_000] * 5
        with pytest.raises(FastjournalError), SyncClient(daemon.address) as client:
            client.nop()
        with SyncClient(unix) as client:
            assert client.get("big1").value == b"x" * 1_000_000
        assert daemon.stop() == 0
    assert "event=tls-failed peer=127.0.0.1:" in daemon.said()


def test_a_token_is_needed_and_gives_what_it_gives(tmp_path: Path) -> None:
    options = ("--auth-tokens", str(write_tokens(tmp_path)))
    with DaemonProcess(tmp_path, *options) as daemon:
        with RawClient(daemon.address) as raw:
            raw.send(
                build(Function.NOP),
                set_request(b"crawl:1:0:a"),
                build(Function.SNAPSHOT),
                build(999),
                build(Function.QUIT),
            )
            required = "auth-required"
            assert codes(raw.rest()) == ["", required, required, required, ""]
        with SyncClient(daemon.address, auth=CRAWL) as client:
            client.set("crawl:1:0:a", b"", uri="https://example.org/")
            with pytest.raises(RefusedError, match="'read'") as caught:
                client.get("crawl:1:0:a")
            assert caught.value.code == "forbidden"
            with pytest.raises(RefusedError, match="prefixes"):
                client.set("crawler:1:0:a")
            with pytest.raises(RefusedError, match="name a domain"):
                client.next()
            with pytest.raises(RefusedError, match="'admin'"):
                client.snapshot()
            jobs = client.next("crawl")
            client.delete(jobs.pairs[0].key, token=jobs.token)
        with SyncClient(daemon.address, auth=ALL) as client:
            assert client.stats()["entries"] == 0
            assert client.snapshot()
        with pytest.raises(RefusedError) as caught, SyncClient(daemon.address, auth="x" * 20):
            pass
        assert caught.value.code == "auth-failed"
        assert daemon.stop() == 0
    assert "event=auth-failed peer=127.0.0.1:" in daemon.said()
