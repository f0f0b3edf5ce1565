"""Shared batch: requests of several clients in bulk do what they do one after the other."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from fastjournal.protocol import Flag, Function
from fastjournal.protocol.messages import Reply, Request
from fastjournald.engine.authorization import Grants
from fastjournald.net.session_steps import COMMIT, RECEIVE, WaitRoom
from fastjournald.net.shared_batch import SharedBatch
from tests.property.subject import LOG, SECOND, START, request
from tests.property.test_bulk_requests import GRANTS, TOKENS
from tests.unit.test_session_sans_io import Client, Daemon, codes, encode, set_

pytestmark = pytest.mark.usefixtures("native")

CLIENTS = 12
"""Clients of the random rounds."""
LISTENING = Flag.PERSIST | Flag.LISTEN


class Round:
    """Clients that send at once, as the poller serves them.

    Args:
        number: So many clients.
        tokens: Access tokens that they show first; none: the daemon has none.
    """

    def __init__(self, number: int, tokens: tuple[bytes, ...] = ()) -> None:
        self.daemon = Daemon()
        # the first record of the log has an id, too
        self.daemon.set(set_(b"first"))
        self.together = SharedBatch(self.daemon.shared)
        self.clients = [Client(self.daemon) for _ in range(number)]
        if tokens:
            self.daemon.engine.context.grants = Grants(GRANTS)
        for at, client in enumerate(self.clients):
            assert client.run() is RECEIVE
            if tokens:
                token = tokens[at % len(tokens)]
                assert codes(client.ask(request(Function.AUTH, value=token, at=START))) == [""]

    def ask(self, *asked: Request) -> tuple[list[Reply | None], list[int]]:
        """Return the replies of a round, one request of each client, and the order of the log.

        A NEXT that waits has no reply.
        """
        order, alone = list[int](), list[int]()
        for at, (client, each) in enumerate(zip(self.clients, asked, strict=False)):
            del client.replies[:]
            client.session.receive_data(encode(each))
            if not client.session.join(self.together):
                # carried out before those that are taken
                order.append(at)
                assert client.step() is COMMIT
        left = self.together.carry_out(self.daemon.now)
        taken = [at for at in range(len(asked)) if at not in order]
        alone = [at for at in taken if self.clients[at].session in left]
        for function in (Function.SET, Function.DELETE):
            order += [at for at in taken if asked[at].function == function and at not in alone]
        for at in alone:
            self.clients[at].session.leave()
            assert self.clients[at].step() is COMMIT
        order += alone
        self.daemon.commit()
        for client in self.clients[: len(asked)]:
            client.session.committed()
            client.take()
            assert client.run() is RECEIVE
        replies = [client.replies for client in self.clients[: len(asked)]]
        assert all(len(each) <= 1 for each in replies)
        return [each[0] if each else None for each in replies], order

    def log(self) -> list[bytes]:
        """Return the segments."""
        disk = self.daemon.subject.disk
        return [disk.read(f"{LOG}/{name}") for name in sorted(disk.listdir(LOG))]


@pytest.mark.parametrize("tokens", [(), TOKENS[:1], TOKENS[:3]], ids=["none", "one", "several"])
@pytest.mark.parametrize("seed", range(4))
def test_shared_batch_and_one_after_the_other_give_the_same(
    seed: int, tokens: tuple[bytes, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds, single = Round(CLIENTS, tokens), Round(CLIENTS, tokens)
    draw, together, leases = Random(seed), 0, list[tuple[int, bytes]]()
    handle_together = rounds.daemon.engine.handle_together

    def counted(*given: Any) -> list[bytes]:
        nonlocal together
        replies = handle_together(*given)
        together += len(replies)
        return replies

    monkeypatch.setattr(rounds.daemon.engine, "handle_together", counted)
    for number in range(30):
        rounds.daemon.now = single.daemon.now = now = START + number * SECOND
        asked = [drawn(draw, now, leases, number * CLIENTS + at) for at in range(CLIENTS)]
        replies, order = rounds.ask(*asked)
        assert sorted(order) == list(range(CLIENTS))
        for at in order:
            client = single.clients[at]
            assert client.ask(asked[at]) == ([] if replies[at] is None else [replies[at]])
        leases += [
            (reply.timeout, pair.key)
            for reply in replies
            if reply is not None and reply.timeout
            for pair in reply.pairs or ()
        ]
        rounds.daemon.engine.check()
        assert rounds.log() == single.log()
    assert together > 15
    for each in (rounds, single):
        for client in each.clients:
            client.end()
        assert each.daemon.memory.bytes == 0


def drawn(draw: Random, now: int, leases: list[tuple[int, bytes]], number: int) -> Request:
    """Return a request: mostly a new job, or the end of one."""
    kind = draw.random()
    if kind < 0.25 and leases:
        token, key = leases.pop(draw.randrange(len(leases)))
        return request(Function.DELETE, key, flags=Flag.WORKED_ON, timeout=token, at=now)
    if kind < 0.4:
        return request(Function.NEXT, b"a", flags=Flag.DATA, count=draw.randint(1, 4), at=now)
    key = b"%s:1:0:%d" % (draw.choice((b"a", b"a", b"b")), draw.choice((number, number % 5)))
    uri = draw.choice((None, b"uri/%d" % draw.randint(1, 9)))
    flags = draw.choice((*[Flag.PERSIST] * 8, LISTENING, Flag.OVERWRITE | Flag.PERSIST, Flag(0)))
    return request(Function.SET, key, b"v", uri=uri, flags=flags, at=now)


def test_shared_batch_leaves_one_request_and_carries_out_the_others() -> None:
    clients = Round(6)
    clients.daemon.set(set_(b"a:1:0:2", at=START - 1))
    sets = [request(Function.SET, b"a:1:0:%d" % at, b"v", flags=Flag.PERSIST) for at in range(6)]
    replies, order = clients.ask(*sets)
    assert [reply.code for reply in replies if reply] == ["", "", "exists", "", "", ""]
    assert order == [0, 1, 3, 4, 5, 2]


def test_shared_batch_leaves_its_requests_to_sessions_when_writers_begin_to_wait() -> None:
    """Another request of the round, or its first run, has made the log far too large."""
    clients = Round(4)
    for at, client in enumerate(clients.clients):
        client.session.receive_data(encode(set_(b"a:1:0:%d" % at)))
        assert client.session.join(clients.together)
    clients.daemon.backpressure.closed = True
    assert clients.together.carry_out(START) == {client.session for client in clients.clients}
    for client in clients.clients:
        client.session.leave()
        assert isinstance(client.step(), WaitRoom)


def test_session_of_a_shared_batch_ends_when_it_is_abandoned_meanwhile() -> None:
    clients = Round(2)
    for at, client in enumerate(clients.clients):
        client.session.receive_data(encode(set_(b"a:1:0:%d" % at)))
        assert client.session.join(clients.together)
    assert not clients.together.carry_out(START)
    first, second = clients.clients
    first.session.abandon("gone", "busy")
    for client in (first, second):
        client.commit()
        assert codes(client.replies) == [""]
    first.run()
    first.take()
    assert codes(first.replies) == ["", "busy"]
    assert second.run() is RECEIVE
