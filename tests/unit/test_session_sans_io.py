"""Sessions without IO: bytes in, chopped everywhere; replies, marks and waits out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from hashlib import sha256
from typing import Any

import pytest

from fastjournal import limits
from fastjournal.protocol import ClientConnection, Flag, Function, encode_request
from fastjournal.protocol.messages import Reply, Request
from fastjournald.admission.memory_budget import MemoryBudget
from fastjournald.admission.turn_budget import TurnBudget
from fastjournald.engine.authorization import Grant, Grants
from fastjournald.engine.undelivered import DeliveredJobs
from fastjournald.histogram import Latencies
from fastjournald.net.session import ADVANCE, Session
from fastjournald.net.session_steps import (
    CLOSE,
    COMMIT,
    MATCH,
    PASS_ON,
    PENALTY,
    RECEIVE,
    ReadValues,
    RunScan,
    Stage,
    Step,
    WaitRoom,
    WaitTurn,
)
from fastjournald.net.shared_batch import Shared
from tests.property.model_parts import Rules
from tests.property.subject import SECOND, START, EngineSubject, request

TOKEN = b"a token of sixteen bytes"
JOB = b"a:1:0:x"
NOP = request(Function.NOP)
QUIT = request(Function.QUIT, identifier=99)
GET = request(Function.GET, b"k", flags=Flag.DATA)
SCAN = request(Function.GET, b"", uri=b"", count=0)
NEXT = request(Function.NEXT, b"a")
WAITING = request(Function.NEXT, b"a", flags=Flag.LISTEN, identifier=50)


def set_(key: bytes, value: bytes = b"v", **fields: Any) -> Request:
    return request(Function.SET, key, value, flags=Flag.PERSIST | Flag.OVERWRITE, **fields)


def encode(*requests: Request) -> bytes:
    return b"".join(map(encode_request, requests))


class Backpressure:
    """Notes the turns that end."""

    closed = False
    look_at = 1 << 63

    def __init__(self) -> None:
        self.ended: list[tuple[int, int]] = []

    def turn_over(self, size: int, unused: int = 0) -> None:
        self.ended.append((size, unused))


class Daemon:
    """An engine over a log on a simulated disk; the test carries out what sessions wait for."""

    def __init__(self, *, inflight: int = 1 << 20, cold: bool = False) -> None:
        self.subject = EngineSubject(Rules(), cold=cold)
        self.engine, self.writer = self.subject.engine, self.subject.writer
        self.memory = MemoryBudget(inflight, self.engine.context.ration)
        self.turns = TurnBudget(self.engine.store)
        self.backpressure = Backpressure()
        self.released: list[DeliveredJobs] = []
        self.woken = self.told = 0
        self.closed: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.latencies = Latencies(Function)
        self.now = START
        self.shared = Shared(
            engine=self.engine,
            log=self.writer,
            memory=self.memory,
            turns=self.turns,
            backpressure=self.backpressure,
            connections_closed=self.closed,
            protocol_errors=self.errors,
            latencies=self.latencies,
            after_requests=self._after_requests,
            wake_tasks=self._wake_tasks,
            release_undelivered=self.released.extend,
        )
        self.clients: dict[object, Client] = {}

    def _after_requests(self, now: int) -> None:
        self.told += 1
        self.engine.signals.take()
        for session, data in self.engine.serve_waiters(now):
            assert isinstance(session, Session)
            session.deliver([data])

    def _wake_tasks(self) -> None:
        self.woken += 1

    def set(self, asked: Request) -> None:
        """Let another client set something, and those who wait have it."""
        self.engine.handle("another client", asked, START)
        self._after_requests(START)

    def commit(self) -> None:
        self.writer.flush()
        assert self.writer.settled == self.writer.appended


class Client:
    """The other end of a session: asks for its steps, and reads what it sends."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.session = Session(daemon.shared)
        self.replies: list[Reply] = []
        self.hung_up = False
        self._connection = ClientConnection()

    def step(self) -> Step:
        return self.session.next_step(self.daemon.now)

    def take(self) -> None:
        """Read all that may leave."""
        settled = self.daemon.writer.settled
        while data := self.session.data_to_send(settled, lambda: self.hung_up):
            self.session.data_sent()
            self._connection.receive_data(data)
        self.replies += self._connection.next_events()

    def commit(self) -> None:
        """Carry out a COMMIT."""
        assert self.session.mark <= self.daemon.writer.appended
        self.daemon.commit()
        self.session.committed()
        self.take()

    def run(self) -> Step:
        """Carry out COMMITs; return the step behind them."""
        while (step := self.step()) is COMMIT:
            self.commit()
        return step

    def send(self, data: bytes) -> Step:
        """Let the session receive that; return what it waits for then, besides commits."""
        assert self.run() is RECEIVE
        self.session.receive_data(data)
        return self.run()

    def ask(self, *requests: Request) -> list[Reply]:
        """Return the replies to requests."""
        del self.replies[:]
        assert self.send(encode(*requests)) is RECEIVE
        return self.replies

    def scan(self, step: RunScan) -> None:
        """Carry out a scan."""
        while not isinstance(reply := self.daemon.engine.step(step.scan, START), bytes):
            pass
        self.session.take_reply(reply)

    def end(self) -> None:
        self.session.end()


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()


@pytest.fixture
def client(daemon: Daemon) -> Client:
    return Client(daemon)


def codes(replies: Iterable[Reply]) -> list[str]:
    return [reply.code for reply in replies]


def identifiers(replies: Iterable[Reply]) -> list[int]:
    return [reply.identifier for reply in replies]


# --- bytes in ---------------------------------------------------------------------------------


def test_quit_is_answered_and_what_follows_is_ignored(client: Client) -> None:
    assert client.send(encode(NOP, QUIT, set_(b"k"))) is CLOSE
    assert identifiers(client.replies) == [7, 99]
    assert client.daemon.engine.store.find(b"k") is None
    assert client.step() is CLOSE


# --- marks ------------------------------------------------------------------------------------


def test_messages_leave_together_as_far_as_they_are_settled(daemon: Daemon, client: Client) -> None:
    client.ask(WAITING, request(Function.NEXT, b"b", flags=Flag.LISTEN, identifier=51))
    daemon.set(set_(JOB))
    daemon.commit()
    daemon.set(set_(b"b:1:0:x"))
    client.take()
    assert identifiers(client.replies) == [50]
    daemon.commit()
    client.take()
    assert identifiers(client.replies) == [50, 51]


# --- waits ------------------------------------------------------------------------------------


def test_session_does_not_listen_while_too_many_changes_wait(
    daemon: Daemon, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastjournald.engine.engine.CHANGES_STOP_BYTES", 0)
    listen = request(Function.GET, b"k", flags=Flag.LISTEN)
    client.ask(set_(b"k"), listen)
    assert client.send(encode(set_(b"k", b"new", at=START + 1))) is MATCH
    daemon.engine.notifications.match()
    assert client.run() is RECEIVE


def test_wrong_tokens_are_answered_late_and_end_the_connection(daemon: Daemon) -> None:
    grant = Grant("t", sha256(TOKEN).digest(), 15, (b"",))
    daemon.engine.context.grants = Grants([grant])
    client = Client(daemon)
    assert client.session.unknown
    wrong = request(Function.AUTH, value=b"another token of some bytes", identifier=1)
    for number in range(1, limits.AUTH_FAILURES_MAX + 1):
        del client.replies[:]
        assert client.send(encode(NOP, wrong, NOP)) is PENALTY
        assert len(client.replies) == 1, "the answer to the token takes its time"
        assert client.run() is (CLOSE if number == limits.AUTH_FAILURES_MAX else RECEIVE)
        assert client.replies[1].identifier == 1
        assert client.replies[1].code != ""


def test_right_token_is_answered_at_once(daemon: Daemon) -> None:
    grant = Grant("t", sha256(TOKEN).digest(), 15, (b"",))
    daemon.engine.context.grants = Grants([grant])
    client = Client(daemon)
    first: list[object] = []
    client.session.on_first_request = lambda: first.append(client)
    assert codes(client.ask(GET)) == ["auth-required"]
    assert first == []
    assert codes(client.ask(request(Function.AUTH, value=TOKEN), NOP)) == ["", ""]
    assert not client.session.unknown
    assert first == [client]


def test_readers_in_the_middle_of_a_batch_wait_for_no_room(
    daemon: Daemon, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastjournald.admission.turn_budget.SLICE_WORK", 10 * limits.REQUEST_WORK)
    client.ask(NOP)
    client.session.receive_data(encode(*[GET] * 100))
    assert client.step() is PASS_ON
    daemon.backpressure.closed = True
    steps = []
    while (step := client.step()) is not RECEIVE:
        steps.append(step)
        if step is COMMIT:
            client.commit()
    assert not any(isinstance(step, WaitRoom) for step in steps)
    assert len(client.replies) == 101


def test_scan_waits_for_a_sync_only_at_its_end_or_where_replies_are_owed(
    daemon: Daemon, client: Client
) -> None:
    """Another client's change, which it may show, is on its way to the disk."""
    assert client.run() is RECEIVE
    daemon.set(set_(b"k"))
    client.session.receive_data(encode(SCAN))
    step = client.step()
    assert isinstance(step, RunScan)
    client.scan(step)
    assert client.step() is COMMIT
    client.take()
    assert client.replies == []
    client.commit()
    assert [pair.key for pair in client.replies[0].pairs or ()] == [b"k"]
    assert client.run() is RECEIVE
    client.session.receive_data(encode(NOP, SCAN))
    assert client.step() is COMMIT
    client.commit()
    assert len(client.replies) == 2, "the reply to the NOP waits for no scan"
    assert isinstance(client.step(), RunScan)


def test_writers_wait_for_room_that_ended_while_values_were_read_for_them() -> None:
    daemon = Daemon(cold=True)
    client = Client(daemon)
    client.ask(set_(b"k"))
    daemon.subject.evict()
    step = client.send(encode(GET, set_(b"k2")))
    assert isinstance(step, ReadValues)
    daemon.backpressure.closed = True
    client.session.values_read(daemon.subject.fetch(step.missing))
    assert client.step() is COMMIT
    client.commit()
    assert isinstance(client.step(), WaitRoom)
    assert daemon.engine.store.find(b"k2") is None
    assert client.run() is RECEIVE
    assert daemon.engine.store.find(b"k2") is not None


def test_end_of_a_connection_gives_its_room_to_others(daemon: Daemon, client: Client) -> None:
    daemon.backpressure.closed = True
    data = encode(set_(b"k"))
    assert client.send(data) == WaitRoom(len(data))
    assert client.step() is COMMIT
    client.end()
    assert daemon.backpressure.ended == [(len(data), 0)]
    assert daemon.memory.bytes == 0


def test_replies_leave_in_parts(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastjournal.limits.REPLIES_BYTES_MAX", 1000)
    client.ask(set_(b"k", bytes(400)))
    client.session.receive_data(encode(*[GET] * 10))
    sent = []
    while client.step() is COMMIT:
        del client.replies[:]
        client.commit()
        sent.append(len(client.replies))
    assert sent == [3, 3, 3, 1]


# --- memory and the end -----------------------------------------------------------------------


def assert_answered_in_parts(client: Client, replies: int) -> None:
    """Assert that received requests are answered in at least four batches, with so many replies."""
    batches = 0
    while (step := client.step()) in (COMMIT, PASS_ON):
        if step is COMMIT:
            batches += 1
            client.commit()
    assert step is RECEIVE
    assert batches >= 4
    assert len(client.replies) == replies


def test_bytes_that_wait_for_a_turn_are_decoded_in_parts_once_memory_is_scarce(
    daemon: Daemon, client: Client
) -> None:
    client.ask(NOP)
    daemon.turns.start()
    daemon.engine.store.work += 3 * limits.TURN_WORK
    count = 4 * limits.SCARCE_BYTES // len(encode(NOP))
    client.session.receive_data(encode(*[NOP] * count))
    assert isinstance(client.step(), WaitTurn)
    daemon.memory.hold(2 << 20)
    assert daemon.memory.scarce
    # its turn has come
    daemon.turns.stop()
    assert daemon.turns.admits(client.session.share, waited=True)
    assert_answered_in_parts(client, count + 1)
    assert daemon.memory.bytes == 2 << 20


def test_large_request_is_refused_while_memory_is_scarce(daemon: Daemon, client: Client) -> None:
    client.ask(NOP)
    daemon.memory.hold(2 << 20)
    large = encode(set_(b"k", bytes(200_000), identifier=9))
    client.session.receive_data(large)
    assert client.run() is CLOSE
    client.take()
    assert [(reply.code, reply.identifier) for reply in client.replies[1:]] == [("busy", 9)]
    assert daemon.closed == {"busy": 1}
    client.end()
    assert daemon.memory.bytes == 2 << 20


def test_session_withdraws_only_pushed_work_from_a_client_that_hung_up(
    daemon: Daemon, client: Client
) -> None:
    client.ask(set_(b"a:1:0:y"))
    client.ask(request(Function.NEXT, b"b", flags=Flag.LISTEN, identifier=51))
    client.session.receive_data(encode(NEXT))
    assert client.step() is COMMIT
    assert Client(daemon).ask(set_(b"b:1:0:z"))[0].code == ""
    client.hung_up = True
    client.commit()
    assert [entry.key for _, entries in daemon.released for entry in entries] == [b"b:1:0:z"]
    assert len(client.replies) == 1
    assert client.replies[0].pairs


def test_end_forgets_locks_waits_and_subscriptions(daemon: Daemon, client: Client) -> None:
    listen = request(Function.GET, b"k", flags=Flag.LISTEN)
    lock = request(Function.LOCK, JOB, timeout=SECOND)
    client.ask(set_(b"k"), set_(JOB), listen, lock, WAITING)
    engine = daemon.engine
    assert engine.expects(client.session)
    client.end()
    assert not engine.expects(client.session)
    assert not engine.waiters
    assert not engine.subscriptions
    engine.check()


def test_session_listens_again_once_the_replies_of_a_batch_are_sent(client: Client) -> None:
    assert client.run() is RECEIVE
    session = client.session
    session.receive_data(encode(set_(b"k"), set_(b"l")))
    assert not session.listen_again(), "nothing was handled"
    assert client.step() is COMMIT
    assert not session.listen_again(), "the replies were not sent"
    client.commit()
    assert session.listen_again()
    assert session.receiving_since == client.daemon.memory.now
    assert not session.listen_again(), "it listens"
    assert codes(client.ask(request(Function.GET, b"l"))) == [""]


def test_session_does_not_listen_again_where_an_error_follows_the_batch(client: Client) -> None:
    assert client.run() is RECEIVE
    client.session.receive_data(encode(set_(b"k")) + b"\xff" * 100)
    assert client.step() is COMMIT
    client.commit()
    assert not client.session.listen_again()
    assert client.run() is CLOSE


def test_session_keeps_its_attributes_inline(client: Client) -> None:
    # no dictionary of each session: see bench_instructions
    assert not hasattr(client.session, "__dict__")


def test_session_has_a_method_for_every_stage() -> None:
    assert set(ADVANCE) == set(Stage)
