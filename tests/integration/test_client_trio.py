"""Client over real sockets: tasks that share a connection, against a daemon with a script."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from fastjournal.client import Client
from fastjournal.errors import CannotConnectError, RefusedError
from fastjournal.protocol import Function, Pair, Reply, Request
from fastjournal.testing.scripted_daemon import Answer, ScriptedDaemon
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


async def test_block_passes_an_exception_on_as_it_is_and_not_in_a_group() -> None:
    with ScriptedDaemon(echo) as daemon:
        with pytest.raises(KeyError):
            async with Client(daemon.address):
                raise KeyError("mine")
        with trio.move_on_after(0.01) as scope:
            async with Client(daemon.address):
                await trio.sleep_forever()
        assert scope.cancelled_caught


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
