"""Job loops of both clients where the daemon says no, or nothing: by a script."""

from __future__ import annotations

import trio

from fastjournal import Client, Reconnect
from fastjournal.protocol import Function, Meta, Pair, Reply, Request
from fastjournal.testing.scripted_daemon import Answer, Do, ScriptedDaemon
from tests.integration.renewed_lease import renewed_lease
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
