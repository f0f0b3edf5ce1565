"""Client over real sockets: tasks that share a connection, against a daemon with a script."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from fastjournal.client import Client, calls
from fastjournal.errors import CannotConnectError, LockLostError, ProtocolError, RefusedError
from fastjournal.protocol import Function, Pair, Query, Reply, Request
from fastjournal.testing.scripted_daemon import Answer, Do, ScriptedDaemon
from fastjournal.times import to_datetime


def echo(request: Request) -> Answer:
    return [Reply(request.identifier, timestamp=5, pairs=[Pair(request.key, 1, request.value)])]


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


async def test_request_is_answered_over_tcp_and_over_a_unix_socket(tmp_path: Path) -> None:
    for path in (None, str(tmp_path / "socket")):
        with ScriptedDaemon(echo, unix_path=path) as daemon:
            async with Client(daemon.address) as client:
                assert await client.nop() == to_datetime(5)
                assert (await client.get("k")).key == b"k"


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


async def test_replies_in_any_order_reach_the_tasks_that_asked() -> None:
    held: list[Request] = []

    def backwards(request: Request) -> Answer:
        held.append(request)
        if len(held) < 50:
            return []
        return [Reply(r.identifier, pairs=[Pair(r.key)]) for r in reversed(held)]

    with ScriptedDaemon(backwards) as daemon:
        async with Client(daemon.address) as client:
            found: dict[int, bytes] = {}

            async def ask(n: int) -> None:
                found[n] = (await client.get(b"%d" % n)).key

            async with trio.open_nursery() as nursery:
                for n in range(50):
                    nursery.start_soon(ask, n)
    assert found == {n: b"%d" % n for n in range(50)}


async def test_pipeline_larger_than_every_buffer_on_both_ways_does_not_lock_up() -> None:
    value = bytes(100_000)
    with ScriptedDaemon(echo) as daemon:
        async with Client(daemon.address) as client:
            replies = await client.request_many(
                Request(Function.SET, key=b"%d" % n, value_type=1, value=value) for n in range(300)
            )
    assert [
        reply.pairs and (reply.pairs[0].key, len(reply.pairs[0].value)) for reply in replies
    ] == [(b"%d" % n, 100_000) for n in range(300)]


async def test_refusal_in_a_pipeline_stands_in_its_place() -> None:
    def odd_are_missing(request: Request) -> Answer:
        error = "not-found" if request.key in (b"1", b"3") else ""
        return [Reply(request.identifier, error=error, pairs=[Pair(request.key)])]

    with ScriptedDaemon(odd_are_missing) as daemon:
        async with Client(daemon.address) as client:
            results = await client.call_many([calls.get(b"%d" % n) for n in range(4)])
    assert [r.code if isinstance(r, RefusedError) else r.key for r in results] == [
        b"0",
        "not-found",
        b"2",
        "not-found",
    ]


async def test_lease_of_a_cancelled_task_is_released() -> None:
    script = WaitingNext()
    with ScriptedDaemon(script) as daemon:
        async with Client(daemon.address) as client:
            with trio.move_on_after(0.02) as scope:
                await client.next(wait=60)
            assert scope.cancelled_caught
            await client.set("d:1:1:x")
            await until(lambda: daemon.requests[-1].function == Function.RELEASE)
            assert (daemon.requests[-1].key, daemon.requests[-1].timeout) == (b"d:1:1:x", 9)
            assert await client.nop() == to_datetime(5)


async def test_block_passes_an_exception_on_as_it_is_and_not_in_a_group() -> None:
    with ScriptedDaemon(echo) as daemon:
        with pytest.raises(KeyError):
            async with Client(daemon.address):
                raise KeyError("mine")
        with trio.move_on_after(0.01) as scope:
            async with Client(daemon.address):
                await trio.sleep_forever()
        assert scope.cancelled_caught


async def test_connect_without_a_daemon_is_a_named_error_and_not_a_group(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    for address in (f"127.0.0.1:{port}", f"unix:{tmp_path}/none"):
        with pytest.raises(
            CannotConnectError, match="check that fastjournald is running there"
        ) as caught:
            async with Client(address):
                pass
        assert address in str(caught.value)


async def test_connection_that_is_lost_is_an_error_of_all_tasks_and_connect_replaces_it() -> None:
    with ScriptedDaemon(WaitingNext()) as daemon:
        async with Client(daemon.address, reconnect=None) as client:
            codes: list[str] = []

            async def wait_for_work() -> None:
                with pytest.raises(CannotConnectError) as caught:
                    await client.next(wait=60)
                codes.append(caught.value.code)

            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(wait_for_work)
                await until(lambda: len(daemon.requests) == 3)
                daemon.drop_connections()
            assert codes == ["connection-lost"] * 3
            with pytest.raises(CannotConnectError) as caught:
                await client.nop()
            assert caught.value.code == "not-connected"
            await client.connect()
            assert await client.nop() == to_datetime(5)
    assert daemon.connections == 2


async def test_refusal_that_comes_before_the_daemon_closes_is_not_lost() -> None:
    def too_large(request: Request) -> Answer:
        return [Reply(request.identifier, error="too-large the limit is 9 bytes"), Do.CLOSE]

    with ScriptedDaemon(too_large) as daemon:
        async with Client(daemon.address) as client:
            with pytest.raises(RefusedError, match="the limit is 9 bytes"):
                await client.set("k", b"ten bytes!")


async def test_daemon_that_stays_silent_is_an_error_after_the_timeout() -> None:
    with ScriptedDaemon(lambda _: []) as daemon:
        async with Client(daemon.address, reconnect=None, reply_timeout=0.05) as client:
            with pytest.raises(CannotConnectError, match="has not answered") as caught:
                await client.nop()
            assert caught.value.code == "timed-out"


async def test_refusal_that_comes_before_the_request_is_sent_whole_is_not_lost() -> None:
    with ScriptedDaemon(echo) as daemon:
        async with Client(daemon.address) as client:
            with pytest.raises(RefusedError) as caught:
                await client.set("k", bytes(20_000_000))
            assert caught.value.code == "too-large"


async def test_protocol_of_a_peer_that_is_another_is_named_as_such() -> None:
    with ScriptedDaemon(lambda _: [b"220 mail.example.org ESMTP\r\n"]) as daemon:
        async with Client(daemon.address) as client:
            with pytest.raises(ProtocolError, match="check that this is the port of fastjournald"):
                await client.nop()


async def test_client_that_was_left_says_that_it_is_not_connected() -> None:
    with ScriptedDaemon(echo) as daemon:
        async with Client(daemon.address) as client:
            pass
        with pytest.raises(CannotConnectError) as caught:
            await client.nop()
        assert caught.value.code == "not-connected"


def pages_of_three(request: Request) -> Answer:
    """Ten keys, three a page; the cursor is the place."""
    first = 0 if request.query == Query.RANGE else int(request.key)
    pairs = [Pair(b"%d" % n) for n in range(first, min(first + 3, 10))]
    cursor = b"%d" % (first + 3) if first + 3 < 10 else None
    return [Reply(request.identifier, cursor=cursor, pairs=pairs)]


async def test_range_is_read_a_page_at_a_time_and_only_as_far_as_it_is_wanted() -> None:
    with ScriptedDaemon(pages_of_three) as daemon:
        async with Client(daemon.address) as client:
            found = [entry.key async for entry in client.range("0", page=3)]
            assert found == [b"%d" % n for n in range(10)]
            assert len(daemon.requests) == 4
            async for entry in client.prefix("", page=3):
                if entry.key == b"4":
                    break
    assert [request.query for request in daemon.requests[4:]] == [Query.RANGE, Query.CURSOR]
    assert daemon.requests[4].count == 3


async def test_lock_is_held_while_a_block_runs_and_its_early_end_is_an_error() -> None:
    over: list[str] = []

    def lock(request: Request) -> Answer:
        error = over[0] if over and request.function == Function.UNLOCK else ""
        return [Reply(request.identifier, error=error)]

    with ScriptedDaemon(lock) as daemon:
        async with Client(daemon.address) as client:
            async with client.locked("k", timeout=5):
                await client.nop()
            functions = [request.function for request in daemon.requests]
            assert functions == [Function.LOCK, Function.NOP, Function.UNLOCK]
            assert daemon.requests[0].timeout == 5_000_000
            over.append("not-found the lock is over")
            with pytest.raises(LockLostError) as lost:
                async with client.locked("k"):
                    pass
            assert "the lock is over" in str(lost.value.__cause__)
            with pytest.raises(KeyError):
                async with client.locked("k"):
                    raise KeyError("mine")
    assert daemon.requests[-1].function == Function.UNLOCK
