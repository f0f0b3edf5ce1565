"""SyncClient over real sockets, against a daemon that follows a script."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from fastjournal.client import SyncClient, calls
from fastjournal.errors import (
    CannotConnectError,
    LockLostError,
    ProtocolError,
    RefusedError,
)
from fastjournal.protocol import Function, Pair, Reply, Request
from fastjournal.testing.scripted_daemon import Answer, Do, ScriptedDaemon
from fastjournal.times import to_datetime


def echo(request: Request) -> Answer:
    return [Reply(request.identifier, timestamp=5, pairs=[Pair(request.key, 1, request.value)])]


def test_request_without_timestamp_is_stamped_and_one_with_keeps_it() -> None:
    with ScriptedDaemon(echo) as daemon, SyncClient(daemon.address) as client:
        client.set("a", timestamp_us=77)
        first, second = client.set("b"), client.set("c")
    assert [request.timestamp for request in daemon.requests] == [
        77,
        first.timestamp_us,
        second.timestamp_us,
    ]
    assert 77 < first.timestamp_us < second.timestamp_us


def test_pipeline_larger_than_every_buffer_on_both_ways_does_not_lock_up() -> None:
    value = bytes(100_000)
    with ScriptedDaemon(echo) as daemon, SyncClient(daemon.address) as client:
        results = client.call_many(calls.get(b"%d" % n) for n in range(3))
        replies = client.request_many(
            Request(Function.SET, key=b"%d" % n, value_type=1, value=value) for n in range(300)
        )
    assert len(results) == 3
    assert all(reply.pairs and reply.pairs[0].value == value for reply in replies)


def test_connect_without_a_daemon_is_a_named_error_that_says_what_to_look_at(
    tmp_path: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    for address in (f"127.0.0.1:{port}", f"unix:{tmp_path}/none"):
        with pytest.raises(
            CannotConnectError, match="check that fastjournald is running there"
        ) as caught:
            SyncClient(address).nop()
        assert caught.value.code == "cannot-connect"
        assert address in str(caught.value)


def test_client_without_reconnect_works_again_once_it_is_connected() -> None:
    def close_on_set(request: Request) -> Answer:
        return [Do.CLOSE] if request.function == Function.SET else echo(request)

    with ScriptedDaemon(close_on_set) as daemon:
        client = SyncClient(daemon.address, reconnect=None)
        assert client.nop() == to_datetime(5)
        with pytest.raises(CannotConnectError) as caught:
            client.set("k")
        assert caught.value.code == "connection-lost"
        with pytest.raises(CannotConnectError) as caught:
            client.nop()
        assert caught.value.code == "not-connected"
        client.connect()
        client.connect()
        assert client.nop() == to_datetime(5)
        client.close()
        client.close()
        with pytest.raises(CannotConnectError):
            client.nop()
    assert daemon.connections == 2


def test_daemon_that_stays_silent_is_an_error_after_the_timeout() -> None:
    with ScriptedDaemon(lambda _: []) as daemon:
        client = SyncClient(daemon.address, reconnect=None, reply_timeout=0.05)
        with pytest.raises(CannotConnectError, match="has not answered") as caught:
            client.nop()
        assert caught.value.code == "timed-out"
        client.connect()
        with pytest.raises(CannotConnectError, match=r"has not answered for 0\.06 s"):
            client.next(wait=0.01)


def test_protocol_of_a_peer_that_is_another_is_named_as_such() -> None:
    with ScriptedDaemon(lambda _: [b"HTTP/1.1 400 Bad Request\r\n\r\n"]) as daemon:
        client = SyncClient(daemon.address)
        with pytest.raises(ProtocolError, match="check that this is the port of fastjournald"):
            client.nop()


def test_refusal_that_comes_before_the_request_is_sent_whole_is_not_lost() -> None:
    with ScriptedDaemon(echo) as daemon:
        client = SyncClient(daemon.address)
        with pytest.raises(RefusedError) as caught:
            client.set("k", bytes(20_000_000))
        assert caught.value.code == "too-large"
        client.connect()
        assert client.nop() == to_datetime(5)
        client.close()


def test_threads_take_turns_on_one_client() -> None:
    with ScriptedDaemon(echo) as daemon, SyncClient(daemon.address) as client:
        found: list[bytes] = []

        def ask(key: bytes) -> None:
            found.extend(client.get(key).key for _ in range(50))

        threads = [threading.Thread(target=ask, args=(b"%d" % n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(found) == sorted([b"0", b"1", b"2", b"3"] * 50)
    assert daemon.connections == 1


def test_lock_is_held_while_a_block_runs_and_its_early_end_is_an_error() -> None:
    over: list[str] = []

    def lock(request: Request) -> Answer:
        error = over[0] if over and request.function == Function.UNLOCK else ""
        return [Reply(request.identifier, error=error)]

    with ScriptedDaemon(lock) as daemon, SyncClient(daemon.address) as client:
        with client.locked("k", timeout=5):
            client.nop()
        functions = [request.function for request in daemon.requests]
        assert functions == [Function.LOCK, Function.NOP, Function.UNLOCK]
        assert daemon.requests[0].timeout == 5_000_000
        over.append("not-found the lock is over")
        with pytest.raises(LockLostError) as caught, client.locked("k"):
            pass
        assert "the lock is over" in str(caught.value.__cause__)
        with pytest.raises(KeyError), client.locked("k"):
            raise KeyError("mine")
    assert daemon.requests[-1].function == Function.UNLOCK
