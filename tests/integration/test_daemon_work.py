"""Fencing, postponement and pauses, through a real daemon: as workers and producers meet them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastjournal.client import SyncClient
from fastjournal.errors import RefusedError
from fastjournal.keys import build_journal_key
from fastjournal.protocol.constants import Flag, Function, ValueType
from tests.integration.daemon_process import DaemonProcess
from tests.integration.raw_client import RawClient, build, listen_request, set_request

WAIT_S = 60
URI = b"http://example.org/"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path, "--max-postpone", "1") as process:
        yield process
        assert process.stop() == 0
    assert "Traceback" not in process.said()


def test_worker_that_is_slow_loses_against_a_second_one(daemon: DaemonProcess) -> None:
    with SyncClient(daemon.address) as slow, SyncClient(daemon.address) as quick:
        slow.set("d:1:0:x", b"work")
        lost = slow.next("d", lease=0.05)
        (mine,) = quick.next("d", wait=WAIT_S, meta=True)
        assert lost.token is not None
        assert mine.token is not None
        assert mine.meta is not None
        assert mine.meta.attempts == 1
        for late in (
            lambda: slow.touch("d:1:0:x", lost.token, ttl=WAIT_S),
            lambda: slow.release("d:1:0:x", lost.token),
            lambda: slow.bury("d:1:0:x", lost.token, reason="too late"),
            lambda: slow.delete("d:1:0:x", token=lost.token),
        ):
            with pytest.raises(RefusedError) as caught:
                late()
            assert caught.value.code == "lease-lost"
        quick.delete("d:1:0:x", token=mine.token)
        assert slow.stats()["entries"] == 0


def test_uri_that_is_set_again_and_again_does_run(daemon: DaemonProcess) -> None:
    def put_off(client: SyncClient, number: int) -> None:
        later = time.time_ns() // 1000 + 900_000
        client.set(build_journal_key("d", f"{number}", not_before_us=later), b"page", uri=URI)

    with SyncClient(daemon.address) as client:
        client.set(build_journal_key("d", "first"), b"page", uri=URI)
        put_off(client, 0)
        assert not client.next("d").pairs
    daemon.kill()
    daemon.start()
    with SyncClient(daemon.address) as client:
        deadline = time.monotonic() + 60
        number = 1
        while not (jobs := client.next("d", meta=True)).pairs:
            assert time.monotonic() < deadline
            put_off(client, number)
            number += 1
        (job,) = jobs
        assert job.uri == URI
        assert job.meta is not None
        assert job.meta.not_before_us < job.meta.created_us + 1_000_001
        assert client.stats()["entries"] == 1


KEY = b"locks:128:0:x"


def test_worker_gets_what_the_connection_that_is_gone_had_locked(
    daemon: DaemonProcess,
) -> None:
    with RawClient(daemon.address) as client:
        assert client.ask(set_request(KEY)).code == ""
        with RawClient(daemon.address) as owner:
            assert owner.ask(build(Function.LOCK, KEY)).code == ""
            assert client.ask(build(Function.DELETE, KEY)).code == "locked"
            client.send(listen_request(b"locks"), build(Function.NOP, identifier=3))
            assert client.reply().identifier == 3, "the NEXT waits"
        reply = client.reply()
        assert [pair.key for pair in reply.pairs or ()] == [KEY]


def test_kill_of_the_daemon_keeps_changed_values(daemon: DaemonProcess) -> None:
    with RawClient(daemon.address) as client:
        assert client.ask(set_request(KEY, b"abc")).code == ""
        for function, fields in (
            (Function.LOCK, {}),
            (Function.LINK, {"uri": b"link"}),
            (Function.TRUNCATE, {"value": b"\2"}),
            (Function.RENAME, {"uri": b"locks:1:0:y"}),
        ):
            asked = build(function, KEY, **fields)
            if asked.value_type is not None:
                asked.value_type = int(ValueType.INTEGER)
            assert client.ask(asked).code == ""
        daemon.kill()
    daemon.start()
    with RawClient(daemon.address) as client:
        reply = client.ask(build(Function.NEXT, b"locks", flags=Flag.DATA))
        assert [(pair.key, pair.value) for pair in reply.pairs or ()] == [(b"locks:1:0:y", b"ab")]
        reply = client.ask(build(Function.GET, b"link"))
        assert [pair.second_key for pair in reply.pairs or ()] == [b"locks:1:0:y"]
