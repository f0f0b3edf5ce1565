"""SyncClient over real sockets, against a daemon that follows a script."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.abc
import trio.lowlevel

from fastjournal import BadRequestError, build_journal_key
from fastjournal.client import Client, SyncClient, calls
from fastjournal.client.core.calls import Call
from fastjournal.errors import (
    CannotConnectError,
    ProtocolError,
    RefusedError,
)
from fastjournal.protocol import Function, Pair, Reply, Request
from fastjournal.testing.scripted_daemon import Answer, Do, ScriptedDaemon
from fastjournal.times import to_datetime
from tests.integration.both_clients import KINDS, connected
from tests.integration.daemon_process import DaemonProcess


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


class WaitingNext:
    """Answers everything at once, but a NEXT only when a RELEASE or a SET comes."""

    def __init__(self) -> None:
        self.waiting: list[Request] = []

    def __call__(self, request: Request) -> Answer:
        if request.function == Function.NEXT:
            self.waiting.append(request)
            return []
        answers = list(echo(request))
        if request.function == Function.SET:
            answers += [
                Reply(r.identifier, timeout=9, pairs=[Pair(request.key)]) for r in self.waiting
            ]
            self.waiting.clear()
        return answers


async def until(condition: Callable[[], object]) -> None:
    with trio.fail_after(20):
        while not condition():  # noqa: ASYNC110 - what is awaited happens in another thread
            await trio.sleep(0.002)


async def test_next_that_waits_holds_up_no_other_task_of_the_connection() -> None:
    with ScriptedDaemon(WaitingNext()) as daemon:
        async with Client(daemon.address) as client, trio.open_nursery() as nursery:
            tokens: list[int | None] = []

            async def wait_for_work() -> None:
                tokens.append((await client.next(wait=10)).token)

            nursery.start_soon(wait_for_work)
            await until(lambda: daemon.requests)
            for n in range(20):
                assert (await client.get(b"%d" % n)).key == b"%d" % n
            assert tokens == []
            await client.set("d:1:1:x")
            await until(lambda: tokens == [9])
    assert daemon.connections == 1


async def test_trio_pipeline_larger_than_every_buffer_on_both_ways_does_not_lock_up() -> None:
    value = bytes(100_000)
    with ScriptedDaemon(echo) as daemon:
        async with Client(daemon.address) as client:
            replies = await client.request_many(
                Request(Function.SET, key=b"%d" % n, value_type=1, value=value) for n in range(300)
            )
    assert [
        reply.pairs and (reply.pairs[0].key, len(reply.pairs[0].value)) for reply in replies
    ] == [(b"%d" % n, 100_000) for n in range(300)]


async def test_block_passes_an_exception_on_as_it_is_and_not_in_a_group() -> None:
    with ScriptedDaemon(echo) as daemon:
        with pytest.raises(KeyError):
            async with Client(daemon.address):
                raise KeyError("mine")
        with trio.move_on_after(0.01) as scope:
            async with Client(daemon.address):
                await trio.sleep_forever()
        assert scope.cancelled_caught


async def test_trio_daemon_that_stays_silent_is_an_error_after_the_timeout() -> None:
    with ScriptedDaemon(lambda _: []) as daemon:
        async with Client(daemon.address, reconnect=None, reply_timeout=0.05) as client:
            with pytest.raises(CannotConnectError, match="has not answered") as caught:
                await client.nop()
            assert caught.value.code == "timed-out"


async def test_trio_refusal_that_comes_before_the_request_is_sent_whole_is_not_lost() -> None:
    with ScriptedDaemon(echo) as daemon:
        async with Client(daemon.address) as client:
            with pytest.raises(RefusedError) as caught:
                await client.set("k", bytes(20_000_000))
            assert caught.value.code == "too-large"


def test_pipeline_of_thousands_is_answered_in_order(daemon: DaemonProcess) -> None:
    with SyncClient(daemon.address) as client:
        many = [calls.set_(build_journal_key("d", b"%d" % n), b"%d" % n) for n in range(5000)]
        results = client.call_many(many)
        assert not [result for result in results if isinstance(result, RefusedError)]
        values = client.call_many(calls.get(call.request.key) for call in many)
        assert [not isinstance(v, RefusedError) and v.value for v in values] == [
            b"%d" % n for n in range(5000)
        ]


async def ask_without_end(client: Client) -> None:
    while True:
        await client.nop()


async def test_quit_ends_a_waiting_next_and_then_the_connection(daemon: DaemonProcess) -> None:
    async with Client(daemon.address, reconnect=None) as client:
        found: list[int] = []

        async def wait_for_work() -> None:
            found.append(len(await client.next(wait=600)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_work)
            await client.nop()
            await client.call(calls.quit_())
        assert found == [0]
        with trio.fail_after(60), pytest.raises(CannotConnectError):
            await ask_without_end(client)


def malformed() -> Call[None]:
    return Call(Request(Function.SET, key=b"k", value=b"a value without its type"), lambda *_: None)


@pytest.mark.parametrize("kind", KINDS)
async def test_malformed_request_among_many_is_found_before_anything_is_sent(kind: str) -> None:
    with ScriptedDaemon(echo) as daemon:
        async with connected(kind, daemon.address) as client:
            many = [*(calls.set_(b"%d" % n) for n in range(20_000)), malformed()]
            with pytest.raises(BadRequestError):
                await client.call_many(many)
            with pytest.raises(BadRequestError):
                await client.request_many([call.request for call in many])
            with pytest.raises(BadRequestError):
                await client.call(malformed())
            await client.nop()
    assert [request.function for request in daemon.requests] == [Function.NOP]


class Steps(trio.abc.Instrument):
    """Counts how often tasks run."""

    def __init__(self) -> None:
        self.taken = 0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.taken += 1


@pytest.mark.parametrize("value_bytes", [0, 20_000])
async def test_connection_wakes_tasks_that_wait_for_room_about_once(
    value_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of the room is taken: of requests in flight, or of unsent bytes."""
    if value_bytes == 0:
        monkeypatch.setattr("fastjournal.client.core.multiplexer.CLIENT_IN_FLIGHT_MAX", 100)
    tasks = 2000
    value, done, steps = bytes(value_bytes), 0, Steps()

    async def ask(client: Client, n: int) -> None:
        nonlocal done
        await client.set(b"%d" % n, value)
        done += 1

    with ScriptedDaemon(echo) as daemon:
        async with Client(daemon.address) as client:
            trio.lowlevel.add_instrument(steps)
            async with trio.open_nursery() as nursery:
                for n in range(tasks):
                    nursery.start_soon(ask, client, n)
            trio.lowlevel.remove_instrument(steps)
    assert done == tasks
    assert steps.taken < 5 * tasks


async def test_timeout_does_not_count_a_wait_for_room_while_others_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fastjournal.client.core.multiplexer.CLIENT_IN_FLIGHT_MAX", 1)

    def slow(request: Request) -> Answer:
        time.sleep(0.2)
        return echo(request)

    with ScriptedDaemon(slow) as daemon:
        async with (
            Client(daemon.address, reconnect=None, reply_timeout=1.5) as client,
            trio.open_nursery() as nursery,
        ):
            for n in range(10):
                nursery.start_soon(client.get, b"%d" % n)
    assert len(daemon.requests) == 10


async def test_malformed_request_passes_its_turn_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastjournal.client.core.multiplexer.CLIENT_IN_FLIGHT_MAX", 1)

    async def fail(client: Client) -> None:
        with pytest.raises(BadRequestError):
            await client.call(malformed())

    with ScriptedDaemon(echo) as daemon, trio.fail_after(20):
        async with Client(daemon.address) as client, trio.open_nursery() as nursery:
            for n in range(10):
                nursery.start_soon(client.get, b"%d" % n)
                nursery.start_soon(fail, client)
    assert len(daemon.requests) == 10
