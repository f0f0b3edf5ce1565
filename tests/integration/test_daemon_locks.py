"""Values, names and locks: a real daemon that is killed, and clients that vanish."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fastjournal.protocol.constants import Flag, Function, ValueType
from tests.integration.daemon_process import DaemonProcess
from tests.integration.raw_client import RawClient, build, listen_request, set_request

KEY = b"locks:128:0:x"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path) as process:
        yield process
        assert process.stop() == 0
    assert "Traceback" not in process.said()


@pytest.fixture
def client(daemon: DaemonProcess) -> Iterator[RawClient]:
    with RawClient(daemon.address) as client:
        yield client


def test_worker_gets_what_the_connection_that_is_gone_had_locked(
    daemon: DaemonProcess, client: RawClient
) -> None:
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
