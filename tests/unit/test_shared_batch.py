"""Shared batch: requests of several clients in bulk do what they do one after the other."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from fastjournal.limits import TURN_WORK
from fastjournal.protocol import Flag, Function, encode_request
from fastjournal.protocol.messages import Reply, Request
from fastjournald.engine.authorization import Grants
from fastjournald.engine.engine import Scan
from fastjournald.net.session_steps import CLOSE, COMMIT, RECEIVE, WaitRoom, WaitTurn
from fastjournald.net.shared_batch import SharedBatch
from tests.property.subject import LOG, SECOND, START, request
from tests.property.test_bulk_requests import GRANTS, TOKENS
from tests.unit.test_session_sans_io import Client, Daemon, codes, encode, set_

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


def test_request_that_a_shared_batch_leaves_counts_as_much_as_one_that_comes_alone() -> None:
    def counted(*, joins: bool) -> tuple[int, float]:
        clients = Round(1)
        (client,) = clients.clients
        store, share = clients.daemon.engine.store, client.session.share
        # its virtual time begins
        assert codes(client.ask(set_(b"a"))) == [""]
        work, virtual = store.work, share.virtual
        if joins:
            assert clients.ask(set_(b"b"))[1] == [0]
        else:
            assert codes(client.ask(set_(b"b"))) == [""]
        return store.work - work, share.virtual - virtual

    assert counted(joins=True) == counted(joins=False)


@pytest.mark.parametrize(
    "asked",
    [
        encode_request(set_(b"k"))[:-1],
        encode(set_(b"k"), set_(b"l")),
        encode(request(Function.GET, b"k")),
        encode(set_(b"k")) + b"garbage",
        b"",
    ],
    ids=["part", "two", "get", "malformed", "end"],
)
def test_shared_batch_takes_only_a_single_request(asked: bytes) -> None:
    clients = Round(1)
    (client,) = clients.clients
    client.session.receive_data(asked)
    assert not client.session.join(clients.together)
    assert not clients.together.waits


def answered(number: int) -> Round:
    """Return clients, so many of whom have a reply of a shared batch, and one more."""
    clients = Round(number + 1)
    for at, client in enumerate(clients.clients[:-1]):
        client.session.receive_data(encode(set_(b"%d" % at)))
        assert client.session.join(clients.together)
    assert not clients.together.carry_out(clients.daemon.now)
    clients.daemon.commit()
    return clients


def test_session_listens_again_behind_the_reply_of_a_shared_batch() -> None:
    clients = answered(2)
    for client in clients.clients[:2]:
        session = client.session
        assert not session.listen_again(), "the reply was not sent"
        client.take()
        assert session.listen_again()
        assert session.receiving_since == clients.daemon.memory.now
        assert not session.listen_again(), "it listens"
        assert codes(client.ask(request(Function.GET, b"0"))) == [""]
    assert not clients.clients[2].session.listen_again(), "it was not answered"


@pytest.mark.parametrize("change", ["listens", "stops", "abandoned"])
def test_session_takes_its_next_step_where_there_is_more_to_do_behind_the_reply(
    change: str,
) -> None:
    clients = answered(2)
    first, _, other = clients.clients
    first.take()
    if change == "listens":
        asked = request(Function.GET, b"", uri=b"", flags=Flag.LISTEN, count=0)
        assert isinstance(clients.daemon.engine.handle(other.session, asked, START), Scan)
    elif change == "stops":
        first.session.stop_receiving()
    else:
        first.session.abandon("too late", "timeout")
    assert not first.session.listen_again()
    if change == "listens":
        assert first.run() is RECEIVE
    else:
        assert first.run() is CLOSE


def test_shared_batch_takes_nothing_while_writers_wait_for_room() -> None:
    clients = Round(1)
    (client,) = clients.clients
    clients.daemon.backpressure.closed = True
    client.session.receive_data(encode(set_(b"k")))
    assert not client.session.join(clients.together)
    assert not clients.together.waits


def test_shared_batch_leaves_its_requests_to_sessions_when_writers_begin_to_wait() -> None:
    """Another request of the round, or its first run, has made the log far too large."""
    clients = Round(4)
    for at, client in enumerate(clients.clients):
        client.session.receive_data(encode(set_(b"a:1:0:%d" % at)))
        assert client.session.join(clients.together)
    clients.daemon.backpressure.closed = True
    left = clients.together.carry_out(START)
    assert left == {client.session for client in clients.clients}
    for client in clients.clients:
        client.session.leave()
        assert isinstance(client.step(), WaitRoom)


def test_requests_of_a_shared_batch_use_the_budget_of_the_turn() -> None:
    clients = Round(300)
    clients.daemon.turns.start()
    taken, waiting = 0, 0
    for at, client in enumerate(clients.clients):
        client.session.receive_data(encode(set_(b"a:1:0:%d" % at)))
        if client.session.join(clients.together):
            taken += 1
        else:
            assert isinstance(client.step(), WaitTurn)
            waiting += 1
    before = clients.daemon.engine.store.work
    assert not clients.together.carry_out(START)
    assert taken + waiting == 300
    assert waiting
    # idle clients may use what the next turn has, too
    assert clients.daemon.engine.store.work < 3 * TURN_WORK
    assert clients.daemon.engine.store.work > before


def test_shared_batch_of_fifty_clients_fits_into_each_turn() -> None:
    """Else some of them would wait for the turn behind, and for a sync of their own."""
    clients = Round(50)
    turns, store = clients.daemon.turns, clients.daemon.engine.store
    turns.start()
    for number in range(40):
        turns.begin_turn()
        before = store.work
        asked = [set_(b"a:1:0:%d" % (50 * number + at)) for at in range(50)]
        replies, _ = clients.ask(*asked)
        assert [reply.error for reply in replies if reply is not None] == [""] * 50
        assert store.work - before <= TURN_WORK


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
