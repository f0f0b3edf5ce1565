"""Where many listen, few of them are notified in one round of the event loop."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import trio
import trio.testing

from fastjournal.limits import NOTIFICATION_TURNS_A_ROUND
from fastjournald.admission.turn_budget import TurnBudget
from fastjournald.engine.engine import Engine
from fastjournald.runtime import Counters
from fastjournald.tasks.notifier import Notifier

SESSIONS = 1000


class Rounds(trio.abc.Instrument):
    """Counts the rounds of the event loop."""

    def __init__(self) -> None:
        self.number = 0

    def after_io_wait(self, timeout: float) -> None:
        self.number += 1


def runtime_of(engine: Engine) -> Any:
    """Return what the notifier takes of the daemon."""
    return SimpleNamespace(engine=engine, turns=TurnBudget(engine.store), counters=Counters())


def most_in_two(rounds: list[int]) -> int:
    """How often something happened in one round and the next, at the most."""
    return max(sum(number in (one, one + 1) for number in rounds) for one in set(rounds))


async def test_notifier_lets_few_sessions_send_in_one_round_and_none_waits_for_ever() -> None:
    notifier = Notifier(runtime_of(Engine()), lambda _: None, lambda _: None)
    told: list[int] = []
    rounds = Rounds()
    trio.lowlevel.add_instrument(rounds)

    async def tell() -> None:
        for _ in range(3):
            await notifier.wait_notification_turn()
            told.append(rounds.number)

    async with trio.open_nursery() as pacing:
        pacing.start_soon(notifier.pace)
        async with trio.open_nursery() as nursery:
            for _ in range(SESSIONS):
                nursery.start_soon(tell)
        pacing.cancel_scope.cancel()
    assert len(told) == 3 * SESSIONS
    assert most_in_two(told) <= 4 * NOTIFICATION_TURNS_A_ROUND
