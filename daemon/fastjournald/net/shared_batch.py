"""Shared batch: requests of several clients, one of each, that are handled in bulk. Pure.

Many clients that each wait for a reply send one small request each, and the poller receives these
in one round. The requests are concurrent: any order is correct, and the order of handling is the
order of the log. Requests of one function go to its bulk handler together, like the requests of a
window, with one append, one commit mark and one check of the tasks that wait.

A request that the bulk handler does not handle is left to its session, which handles it alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Protocol, TypeVar

import msgspec

from fastjournal import _native
from fastjournal.protocol import Request
from fastjournald.admission.log_growth import WriterQueue
from fastjournald.admission.memory_budget import MemoryBudget
from fastjournald.admission.turn_budget import TurnBudget
from fastjournald.engine.authorization import Grant
from fastjournald.engine.engine import BULK_HANDLERS, Engine
from fastjournald.engine.undelivered import DeliveredJobs
from fastjournald.histogram import Latencies
from fastjournald.net.outbox import Log


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of the daemon that all sessions share: engine, log, budgets and counters."""

    engine: Engine
    log: Log
    memory: MemoryBudget
    turns: TurnBudget
    backpressure: WriterQueue
    connections_closed: Counter[str]
    protocol_errors: Counter[str]
    latencies: Latencies
    after_requests: Callable[[int], None]
    """Called after requests that set signals, or that made the log grow by much."""
    wake_tasks: Callable[[], None]
    release_undelivered: Callable[[list[DeliveredJobs]], None]


T = TypeVar("T")


class Member(Hashable, Protocol):
    """Session of a client: the part that a shared batch uses."""

    def answer(self, reply: bytes, mark: int) -> None:
        """Take the reply to its request, which was handled."""

    def count_alone(self) -> None:
        """Count the work of its request, whose client is alone in the round."""


class Run:
    """Requests of one function."""

    __slots__ = ("grant", "members", "requests")

    def __init__(self) -> None:
        self.members: list[Member] = []
        self.requests: list[Request] = []
        """Request of each member."""
        self.grant: Grant | None = None
        """Grant of all of them; None: the daemon has no access tokens."""


class SharedBatch:
    """Requests of one round of the poller.

    Args:
        shared: Engine and log.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._context = shared.engine.context
        self._value_size_max = self._context.settings.value_bytes_max + 1
        self._runs = {int(function): Run() for function in BULK_HANDLERS}

    def takes(self, member: Member, request: Request) -> bool:
        """Take the request of a client, if a bulk may have it; return whether it did. O(1)."""
        run = self._runs.get(request.function)
        if run is None or self._shared.backpressure.closed:
            return False
        grants = self._context.grants
        if grants is not None:
            grant = grants.of_run(member, request)
            if grant is None or (run.requests and grant is not run.grant):
                return False
            run.grant = grant
        run.members.append(member)
        run.requests.append(request)
        return True

    def take_received(
        self,
        clients: list[T],
        received: list[bytes | int | None],
        at: int,
        unsettled: list[T],
        *,
        alone: bool = False,
    ) -> int:
        """Take the requests of clients natively, up to the first that is not plain; return it.

        It is ``PolledTransport.receive`` for each, once the bytes were received.

        Args:
            clients: Connections of the poller.
            received: What was received from each.
            at: Index of the first.
            unsettled: Gets the clients whose requests were taken.
            alone: There is one client. It joins only natively: in Python a bulk of one is dearer
                than a request alone.
        """
        rounds, shared = _native.rounds, self._shared
        if rounds is None or shared.backpressure.closed or shared.memory.scarce:
            return at
        joined: int = rounds.join(
            *(clients, received, at, self._runs, self),
            *(shared.latencies.began, self._value_size_max, unsettled, alone),
        )
        return joined

    def carry_out(self, now: int, *, alone: bool = False) -> set[Member]:
        """Handle the requests that were taken; return the members that keep theirs.

        Args:
            now: The present.
            alone: The client of the one request is alone in the round.
        """
        left: set[Member] = set()
        for run in self._runs.values():
            if run.requests:
                if self._shared.backpressure.closed:
                    # writers are slowed down since then: the sessions wait for room
                    left.update(run.members)
                else:
                    self._carry_out(run, now, left, alone=alone)
                run.members, run.requests, run.grant = [], [], None
        return left

    def _carry_out(self, run: Run, now: int, left: set[Member], *, alone: bool) -> None:
        """Handle the requests of a run as bulks; add members that keep their request to ``left``.

        A bulk ends at a request that it cannot handle, and that member keeps it. After a bulk of
        one request or none, a miss, the next bulk begins further on: 2, 4, 8 ... members keep
        theirs.
        """
        members, requests, shared = run.members, run.requests, self._shared
        latencies, log = shared.latencies, shared.log
        at, end, misses = 0, len(requests), 0
        while at < end - (not alone):
            replies = shared.engine.handle_together(requests, run.grant, now, at)
            done = len(replies)
            if done:
                mark = log.appended
                self._answer(members, at, replies, mark)
                if alone:
                    members[at].count_alone()
                latencies.answered.append((mark, latencies.began, requests[at].function, done))
                at += done
            if at < end:
                misses = 0 if done > 1 else misses + 1
                left.update(members[at : at + (1 << misses)])
                at += 1 << misses
        if at < end:
            left.update(members[at:])
        if shared.engine.signals.bits or shared.log.appended >= shared.backpressure.look_at:
            shared.after_requests(now)

    def _answer(self, members: list[Member], at: int, replies: list[bytes], mark: int) -> None:
        """Hand the replies, and their commit mark, to the members from ``at`` on."""
        rounds, done = _native.rounds, 0
        if rounds is not None:
            done = rounds.answer(members, at, replies, mark, self._shared.memory)
        for place in range(done, len(replies)):
            members[at + place].answer(replies[place], mark)
