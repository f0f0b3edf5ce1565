"""Job loops of both clients where the daemon says no, or nothing: by a script."""

from __future__ import annotations

import pytest
import trio

from fastjournal import Client, LeaseLostError, Reconnect, RefusedError, SyncClient
from fastjournal.client.core import calls
from fastjournal.protocol import Function, Meta, Pair, Reply, Request
from fastjournal.testing.scripted_daemon import Answer, Do, ScriptedDaemon
from tests.integration.renewed_lease import NOW_US, renewed_lease
from tests.integration.scripted_answers import ScriptedAnswers

QUICK = Reconnect(first_pause=0.001, longest_pause=0.01, patience=30)


class Handing:
    """Delivers one job; its other answers are given by function, one after the other."""

    def __init__(self, **answers: list[str | Do | None]) -> None:
        self._scripted = ScriptedAnswers(answers)
        self.token = 0

    def __call__(self, request: Request) -> Answer:
        answer = self._scripted.next(request)
        if answer is not None:
            return answer
        if request.function == Function.NEXT and not self.token:
            self.token = 7
            return [Reply(request.identifier, timeout=7, pairs=[Pair(b"d:1:1:x", meta=Meta())])]
        if request.function == Function.TOUCH:
            return [renewed_lease(request)]
        return [Reply(request.identifier, timeout=8, pairs=[])]


def functions(daemon: ScriptedDaemon) -> list[str]:
    return [Function(request.function).name for request in daemon.requests]


async def test_completion_that_is_cancelled_in_flight_is_sent_once_more() -> None:
    with ScriptedDaemon(Handing(DELETE=[None])) as daemon:
        async with Client(daemon.address) as client:
            with trio.move_on_after(0.05) as scope:
                async for _job in client.jobs("d", wait=None):
                    pass
            assert scope.cancelled_caught
    assert functions(daemon) == ["NEXT", "DELETE", "DELETE"]


async def test_next_that_was_lost_or_refused_for_now_is_asked_again() -> None:
    script = Handing(NEXT=[Do.CLOSE, "busy", "shutting-down", "read-only", Do.CLOSE])
    with ScriptedDaemon(script) as daemon:
        async with Client(daemon.address, reconnect=QUICK) as client:
            assert [job.key async for job in client.jobs("d", wait=None)] == [b"d:1:1:x"]
    assert functions(daemon) == ["NEXT"] * 6 + ["DELETE", "NEXT"]


def test_blocking_next_that_was_lost_or_refused_for_now_is_asked_again() -> None:
    script = Handing(NEXT=[Do.CLOSE, "busy", "shutting-down", "read-only", Do.CLOSE])
    with ScriptedDaemon(script) as daemon, SyncClient(daemon.address, reconnect=QUICK) as client:
        assert [job.key for job in client.jobs("d", wait=None)] == [b"d:1:1:x"]
    assert functions(daemon) == ["NEXT"] * 6 + ["DELETE", "NEXT"]


def test_refusal_that_stays_ends_the_loop_and_so_does_impatience() -> None:
    with ScriptedDaemon(Handing(NEXT=["forbidden"])) as daemon, SyncClient(daemon.address) as one:
        with pytest.raises(RefusedError) as caught:
            next(one.jobs("d"))
        assert caught.value.code == "forbidden"
    impatient = Reconnect(patience=0)
    with ScriptedDaemon(Handing(NEXT=["busy"] * 9)) as daemon:
        client = SyncClient(daemon.address, reconnect=impatient)
        with pytest.raises(RefusedError, match="try again later"):
            next(client.jobs("d"))
        client.close()
    assert functions(daemon) == ["NEXT", "NEXT"]


async def test_completion_whose_reply_was_lost_counts_as_done() -> None:
    with ScriptedDaemon(Handing(DELETE=[Do.CLOSE, "not-found"])) as daemon:
        async with Client(daemon.address, reconnect=QUICK) as client:
            assert [job.key async for job in client.jobs("d", wait=None)] == [b"d:1:1:x"]
    assert functions(daemon) == ["NEXT", "DELETE", "DELETE", "NEXT"]


async def test_extension_that_is_refused_for_now_is_tried_again() -> None:
    with ScriptedDaemon(Handing(TOUCH=["busy", "", "lease-lost"])) as daemon:
        async with Client(daemon.address) as client:
            async for job in client.jobs("d", lease=1, wait=None):
                with pytest.raises(LeaseLostError):
                    async with job:
                        await trio.sleep_forever()
                assert job.lost.is_set()
    assert functions(daemon)[:4] == ["NEXT", "TOUCH", "TOUCH", "TOUCH"]
    assert [request.timeout for request in daemon.requests[1:4]] == [7, 7, NOW_US + 1_000_000]


def test_loop_without_end_waits_for_a_daemon_that_is_read_only() -> None:
    impatient = Reconnect(first_pause=0.001, longest_pause=0.001, patience=0)
    for wait, patient in ((calls.WAIT_WITHOUT_END, True), (None, False)):
        with (
            ScriptedDaemon(Handing(NEXT=["read-only"] * 50)) as daemon,
            SyncClient(daemon.address, reconnect=impatient) as client,
        ):
            if patient:
                assert next(client.jobs("d", wait=wait)).key == b"d:1:1:x"
                continue
            with pytest.raises(RefusedError) as caught:
                next(client.jobs("d", wait=wait))
            assert caught.value.code == "read-only"
