"""Many requests at a time: a malformed one is found before any is sent, and waiting is cheap."""

from __future__ import annotations

import time

import pytest
import trio
import trio.abc
import trio.lowlevel

from fastjournal import BadRequestError, Client
from fastjournal.client.core import calls
from fastjournal.client.core.calls import Call
from fastjournal.protocol import Function, Pair, Reply, Request
from fastjournal.testing.scripted_daemon import Answer, ScriptedDaemon
from tests.integration.both_clients import KINDS, connected


def echo(request: Request) -> Answer:
    return [Reply(request.identifier, timestamp=5, pairs=[Pair(request.key)])]


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
