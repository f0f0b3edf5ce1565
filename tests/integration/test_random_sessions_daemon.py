"""Random sessions of two clients over real sockets: the daemon answers as the naive model does.

The model is given the instant of each reply as its clock, so that all but what time alone brings
is compared exactly; delays, leases, locks and lives are of hours, and end by requests only.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial

import pytest

from fastjournal.clock import unique_timestamp
from fastjournal.protocol.constants import Flag, Function, ValueType
from fastjournal.protocol.messages import Reply, Request
from tests.integration.daemon_process import DaemonProcess, lasting_daemon
from tests.integration.raw_client import RawClient, build
from tests.property.model import Model
from tests.property.model_parts import Rules
from tests.property.random_sessions import (
    FURTHER,
    SESSIONS,
    Choices,
    Step,
    check_session,
    draw_session,
    play,
)
from tests.property.side_by_side import SideBySide

HOUR = 3_600_000_000
NUMBER = 30
REQUESTS = 200
START = unique_timestamp()
"""Part of some keys: one for all sessions, so that each removes what the last one left."""

NO_LIMIT = b'{"interval_us":0,"jobs":0,"lease_us":0,"attempts":0}'

NOT_ASKED = (Function.QUIT, *(each for each in Function if not each.declared.by_engine))


class DaemonSubject:
    """A real daemon, and a connection for each session."""

    def __init__(self, address: str) -> None:
        self.clients = {session: RawClient(address) for session in SESSIONS}

    def handle(self, session: Hashable, request: Request, now: int) -> Reply | None:
        return self.clients[str(session)].ask(request)

    def tell(self, now: int) -> None:
        """Nothing is compared: when notifications come is not said."""

    def clean(self, keys: Sequence[bytes]) -> int:
        """Remove everything that a session may have left; return the number of leases so far."""
        first = self.clients[SESSIONS[0]]
        for client in self.clients.values():
            for key in keys:
                client.ask(build(Function.UNLOCK, key))
        first.ask(build(Function.PAUSE, ttl=0))
        for domain in (b"a", b"b"):
            first.ask(build(Function.PAUSE, domain, ttl=0))
            no_limit = build(Function.LIMIT, domain, NO_LIMIT)
            no_limit.value_type = int(ValueType.STRING)
            assert first.ask(no_limit).error == ""
        for key in (*keys, *keys):
            # the second time, the tombstone goes
            first.ask(build(Function.DELETE, key, flags=Flag.OVERWRITE))
        assert first.ask(build(Function.SET, b"lease:1:0:", b"")).error == ""
        token = first.ask(build(Function.NEXT, b"lease")).timeout
        assert token is not None
        for _ in range(2):
            first.ask(build(Function.DELETE, b"lease:1:0:", flags=Flag.OVERWRITE))
        return token % 1000 + 1


daemon = lasting_daemon("--cmdlog-sync", "os")


def run(steps: Sequence[Step], *, daemon: DaemonProcess, keys: Sequence[bytes]) -> None:
    subject = DaemonSubject(daemon.address)
    try:
        model = Model(Rules())
        model.leases = subject.clean(keys)
        play(steps, SideBySide(subject, model), lambda _: unique_timestamp())
    finally:
        for client in subject.clients.values():
            client.socket.close()


@pytest.mark.parametrize("seeds", [range(part, NUMBER, 3) for part in range(3)], ids=str)
def test_random_sessions_over_sockets_pass_with_the_model_beside(
    daemon: DaemonProcess, seeds: range
) -> None:
    choices = Choices(
        START,
        durations=(HOUR, 2 * HOUR),
        waits=(0,),
        functions=tuple(f for f in Function if f not in NOT_ASKED),
        listens=False,
    )
    keys = [*choices.keys(), *FURTHER]
    for seed in seeds:
        steps = draw_session(seed, REQUESTS, choices)
        check_session(steps, partial(run, daemon=daemon, keys=keys), START, seed)
