"""Sessions without IO: bytes in, chopped everywhere; replies, marks and waits out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from hashlib import sha256
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from fastjournal import limits
from fastjournal.protocol import ClientConnection, Flag, Function, encode_reply, encode_request
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
    FLUSH,
    MATCH,
    PASS_ON,
    PENALTY,
    RECEIVE,
    ReadValues,
    RunScan,
    Stage,
    Step,
    TakeSnapshot,
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
NEXT = request(Function.NEXT, b"a")
WAITING = request(Function.NEXT, b"a", flags=Flag.LISTEN, identifier=50)
SCAN = request(Function.GET, b"a", uri=b"z", flags=Flag.DATA, count=0)
GARBAGE = b"garbage, and enough of it to be judged"


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

STREAM = encode(
    set_(b"k", identifier=1),
    set_(JOB, identifier=2),
    request(Function.GET, b"k", flags=Flag.DATA, identifier=3),
    request(Function.NEXT, b"a", identifier=4),
    request(Function.GET, b"none", identifier=5),
)


def answers(pieces: Iterable[bytes]) -> list[tuple[int, str, bytes | None]]:
    client = Client(Daemon())
    for piece in pieces:
        assert client.send(piece) is RECEIVE
    client.end()
    assert client.daemon.memory.bytes == 0
    return [
        (reply.identifier, reply.code, reply.pairs[0].value if reply.pairs else None)
        for reply in client.replies
    ]


def test_session_answers_the_same_however_its_bytes_are_cut() -> None:
    whole = answers([STREAM])
    assert [identifier for identifier, _, _ in whole] == [1, 2, 3, 4, 5]
    assert whole[2] == (3, "", b"v")
    assert answers(STREAM[at : at + 1] for at in range(len(STREAM))) == whole
    for at in range(1, len(STREAM)):
        assert answers([STREAM[:at], STREAM[at:]]) == whole
    for seed in range(50):
        draw = Random(seed)
        cuts = sorted(draw.sample(range(1, len(STREAM)), draw.randint(1, 12)))
        edges = [0, *cuts, len(STREAM)]
        assert answers(STREAM[a:b] for a, b in pairwise(edges)) == whole


def test_session_waits_for_the_rest_of_a_request(client: Client) -> None:
    whole = encode(set_(b"k"))
    assert client.send(whole[:-1]) is RECEIVE
    assert client.replies == []
    assert client.session.partial_bytes == len(whole) - 1
    assert client.daemon.memory.bytes == len(whole) - 1
    assert client.send(whole[-1:]) is RECEIVE
    assert codes(client.replies) == [""]
    assert client.session.partial_bytes == client.daemon.memory.bytes == 0


@pytest.mark.parametrize("cut", [1, 7, 20, len(GARBAGE)])
def test_malformed_bytes_are_answered_once_behind_what_came_before_them(
    client: Client, cut: int
) -> None:
    data = encode(NOP, set_(b"k")) + GARBAGE + encode(NOP)
    at = len(encode(NOP, set_(b"k"))) + cut
    step = client.send(data[:at])
    if step is RECEIVE:
        step = client.send(data[at:])
    assert step is CLOSE
    client.take()
    assert codes(client.replies) == ["", "", "bad-request"]
    assert client.daemon.errors == {"bad-request": 1}
    assert client.step() is CLOSE
    assert client.daemon.engine.store.find(b"k") is not None


def test_malformed_bytes_end_what_the_client_waited_for(client: Client) -> None:
    client.ask(WAITING)
    assert client.send(GARBAGE) is CLOSE
    assert not client.daemon.engine.waiters
    assert client.daemon.woken > 0


def test_stream_that_ends_between_requests_is_closed_and_its_waits_end(client: Client) -> None:
    client.ask(WAITING)
    assert len(client.daemon.engine.waiters) == 1
    assert client.send(b"") is CLOSE
    assert len(client.daemon.engine.waiters) == 0
    assert client.daemon.woken > 0
    assert client.replies == []


def test_stream_that_ends_within_a_request_is_told(client: Client) -> None:
    client.ask(NOP)
    assert client.send(encode(set_(b"k", identifier=8))[:-1]) is RECEIVE
    assert client.send(b"") is CLOSE
    client.take()
    assert codes(client.replies) == ["", "bad-request"]
    assert identifiers(client.replies)[-1] == 8


def test_quit_is_answered_and_what_follows_is_ignored(client: Client) -> None:
    assert client.send(encode(NOP, QUIT, set_(b"k"))) is CLOSE
    assert identifiers(client.replies) == [7, 99]
    assert client.daemon.engine.store.find(b"k") is None
    assert client.step() is CLOSE


def test_session_that_stops_receiving_closes(client: Client) -> None:
    client.ask(NOP)
    assert client.run() is RECEIVE
    client.session.stop_receiving()
    assert client.step() is CLOSE


@pytest.mark.parametrize("stops", [False, True])
def test_abandoned_request_is_answered_with_its_identifier(client: Client, stops: bool) -> None:
    assert client.send(encode(set_(b"k" * 100, identifier=8))[:-1]) is RECEIVE
    client.session.abandon("the request was not whole in time", "bad-request")
    if stops:
        # the transport ended the wait for bytes
        client.session.stop_receiving()
    assert client.daemon.memory.bytes == 0
    assert client.step() is CLOSE
    client.take()
    assert [(reply.code, reply.identifier) for reply in client.replies] == [("bad-request", 8)]


# --- marks ------------------------------------------------------------------------------------


def test_signals_are_told_where_requests_have_set_some_or_the_log_has_grown(
    daemon: Daemon, client: Client
) -> None:
    client.ask(NOP)
    told = daemon.told
    client.ask(set_(b"k"))
    assert daemon.told == told
    client.ask(WAITING)
    client.ask(set_(JOB))
    assert codes(client.replies) == ["", ""]
    assert daemon.told == told + 1
    daemon.backpressure.look_at = daemon.writer.appended + 1
    client.ask(set_(b"k2"), set_(b"k3"))
    assert daemon.told == told + 2


def test_window_of_sets_that_change_the_domain_tries_few_bulks(
    daemon: Daemon, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def window(domain: bytes) -> list[Request]:
        return [
            request(Function.SET, b"%s:1:0:%d" % (domain, n), b"v", uri=b"u%d" % n, identifier=n)
            for n in range(200)
        ]

    # all of a window in one slice
    monkeypatch.setattr("fastjournald.admission.turn_budget.SLICE_WORK", limits.TURN_WORK)
    tried: list[int] = []
    handle_bulk = daemon.engine.handle_bulk

    def noted(
        session: Hashable, requests: list[Request], now: int, start: int, stop: int
    ) -> list[bytes]:
        done = handle_bulk(session, requests, now, start, stop)
        tried.append(len(done))
        return done

    monkeypatch.setattr(daemon.engine, "handle_bulk", noted)
    assert [reply.code for reply in client.ask(*window(b"a"))] == [""] * 200
    assert sum(tried) > 190
    del tried[:]
    daemon.now += 1
    moves = client.ask(*window(b"b"), request(Function.NOP, identifier=999))
    assert [reply.identifier for reply in moves] == [*range(200), 999]
    assert sum(tried) == 0
    assert 0 < len(tried) < 10


def test_reply_leaves_only_when_its_mark_is_settled(daemon: Daemon, client: Client) -> None:
    assert client.run() is RECEIVE
    client.session.receive_data(encode(set_(b"k")))
    before = daemon.writer.settled
    assert client.step() is COMMIT
    assert client.session.mark == daemon.writer.appended > before
    client.take()
    assert client.replies == []
    client.commit()
    assert codes(client.replies) == [""]


def test_reply_that_shows_a_change_of_another_waits_for_that_change(
    daemon: Daemon, client: Client
) -> None:
    other = Client(daemon)
    for each, data in ((client, encode(set_(b"k"))), (other, encode(GET))):
        assert each.run() is RECEIVE
        each.session.receive_data(data)
        assert each.step() is COMMIT
    assert other.session.mark == client.session.mark == daemon.writer.appended
    other.take()
    assert other.replies == []
    other.commit()
    assert [reply.pairs and reply.pairs[0].value for reply in other.replies] == [b"v"]


def test_mark_of_a_push_is_taken_when_its_bytes_are_made(daemon: Daemon, client: Client) -> None:
    client.ask(WAITING)
    other = Client(daemon)
    assert other.run() is RECEIVE
    other.session.receive_data(encode(set_(JOB)))
    assert other.step() is COMMIT
    mark = client.session.unsent_mark
    assert mark == daemon.writer.appended
    daemon.commit()
    # the log goes on: the push does not wait for that
    daemon.engine.handle(0, set_(b"later"), START)
    assert daemon.writer.settled == mark < daemon.writer.appended
    client.take()
    assert identifiers(client.replies) == [50]
    assert client.replies[0].pairs


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


def test_pushed_answers_leave_before_the_client_is_listened_to_again(
    daemon: Daemon, client: Client
) -> None:
    client.ask(WAITING)
    assert client.run() is RECEIVE
    assert Client(daemon).ask(set_(JOB))[0].code == ""
    client.session.receive_data(encode(NOP))
    assert client.run() is RECEIVE
    assert identifiers(client.replies) == [50, 7]
    # the same, where it was pushed behind the last commit
    client.ask(WAITING)
    assert Client(daemon).ask(set_(b"a:1:0:y"))[0].code == ""
    client.session.receive_data(encode(NOP)[:3])
    assert client.step() is FLUSH
    client.take()
    assert client.step() is RECEIVE


def test_news_are_told_when_no_reply_is_owed(daemon: Daemon, client: Client) -> None:
    listen = request(Function.GET, b"k", flags=Flag.LISTEN, identifier=60)
    client.ask(set_(b"k"), listen)
    del client.replies[:]
    assert Client(daemon).ask(set_(b"k", b"new", at=START + 1))[0].code == ""
    daemon.engine.notifications.match()
    client.session.receive_data(encode(set_(b"k2")))
    assert client.step() is COMMIT
    assert not client.session.has_notifications(), "a reply is owed"
    client.commit()
    assert client.step() is FLUSH
    assert client.session.tell(START)
    assert not client.session.tell(START)
    client.take()
    assert identifiers(client.replies) == [7, 60]
    assert client.step() is RECEIVE


def test_session_does_not_listen_while_too_many_changes_wait(
    daemon: Daemon, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastjournald.engine.notifications.CHANGES_STOP_BYTES", 0)
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


def test_client_counts_as_heard_before_it_can_read_its_first_reply(client: Client) -> None:
    """Else the connection of a client that has its reply could still be closed to make room."""
    heard: list[object] = []
    client.session.on_first_request = lambda: heard.append(client)
    assert client.send(encode(NOP)[:5]) is RECEIVE
    assert heard == []
    client.session.receive_data(encode(NOP)[5:])
    assert client.step() is COMMIT
    assert client.replies == []
    assert heard == [client]


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


def test_values_are_read_before_a_request_is_asked_again() -> None:
    daemon = Daemon(cold=True)
    client = Client(daemon)
    client.ask(set_(b"k"), set_(b"k2", b"w"))
    daemon.subject.evict()
    ahead = request(Function.GET, b"k2", flags=Flag.DATA, identifier=8)
    step = client.send(encode(NOP, GET, ahead, NOP))
    assert isinstance(step, ReadValues)
    assert codes(client.replies[2:]) == [""], "the reply before it has left"
    assert {entry.key for entry in step.missing.entries} == {b"k", b"k2"}
    client.session.values_read(daemon.subject.fetch(step.missing))
    assert client.run() is RECEIVE
    found = [reply.pairs[0].value for reply in client.replies if reply.pairs]
    assert found == [b"v", b"w"]
    assert len(client.replies) == 6


def test_scan_and_snapshot_are_answered_in_their_turn(client: Client) -> None:
    client.ask(set_(b"b"))
    del client.replies[:]
    snapshot = request(Function.SNAPSHOT, identifier=31)
    step = client.send(encode(NOP, SCAN, snapshot, request(Function.NOP, identifier=32)))
    assert isinstance(step, RunScan)
    assert len(client.replies) == 1
    client.scan(step)
    step = client.run()
    assert isinstance(step, TakeSnapshot)
    assert step.request.identifier == 31
    assert len(client.replies) == 2
    taken = Reply(31, error="not-persisted no disk")
    client.session.take_reply(encode_reply(taken))
    assert client.run() is RECEIVE
    assert identifiers(client.replies) == [7, 7, 31, 32]


def test_writers_wait_for_room_in_the_log_and_give_back_what_they_do_not_use(
    daemon: Daemon, client: Client
) -> None:
    client.ask(NOP)
    daemon.backpressure.closed = True
    first, last = set_(b"k", b"v" * 100), set_(b"k2", b"v" * 200)
    data = encode(first, SCAN, last)
    step = client.send(data)
    assert step == WaitRoom(len(data))
    assert daemon.engine.store.find(b"k") is None
    assert daemon.memory.bytes > len(data), "it holds what was decoded"
    step = client.run()
    # the scan takes long: others may use the room for what is behind it, which waits again
    left = len(SCAN.key) + len(last.key) + len(last.value)
    assert daemon.backpressure.ended == [(len(data), left)]
    assert step == WaitRoom(left)
    step = client.run()
    assert isinstance(step, RunScan)
    client.scan(step)
    assert client.run() is RECEIVE
    assert daemon.backpressure.ended[1:] == [(left, 0)]
    assert daemon.engine.store.find(b"k2") is not None
    assert daemon.memory.bytes == 0
    # who does not make the log grow does not wait
    assert codes(client.ask(GET)) == [""]


def test_writers_in_the_middle_of_a_batch_wait_for_room_that_ended_while_others_had_their_turn(
    daemon: Daemon, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastjournald.admission.turn_budget.SLICE_WORK", 10 * limits.REQUEST_WORK)
    client.ask(NOP)
    asked = [set_(b"k%02d" % number, identifier=number) for number in range(100)]
    client.session.receive_data(encode(*asked))
    assert client.step() is PASS_ON
    done = daemon.engine.store.entries
    assert 0 < done < len(asked)
    daemon.backpressure.closed = True
    assert client.step() is COMMIT
    client.commit()
    assert len(client.replies) == 1 + done, "replies do not wait"
    left = sum(len(each.key) + len(each.value) for each in asked[done:])
    assert client.step() == WaitRoom(left)
    assert daemon.engine.store.entries == done
    while (step := client.run()) is PASS_ON:
        # it has room for all that is left
        assert daemon.backpressure.ended == []
    assert step is RECEIVE
    assert daemon.backpressure.ended == [(left, 0)]
    assert identifiers(client.replies[1:]) == list(range(100))


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


def test_client_waits_for_its_turn_before_its_bytes_are_decoded(
    daemon: Daemon, client: Client
) -> None:
    client.ask(NOP)
    daemon.turns.start()
    daemon.engine.store.work += 3 * limits.TURN_WORK
    data = encode(set_(b"k"))
    step = client.send(data)
    assert isinstance(step, WaitTurn)
    assert step.expected > limits.BATCH_WORK
    assert daemon.memory.bytes == len(data)
    for _ in range(4):
        daemon.turns.begin_turn()
    assert daemon.turns.admits(client.session.share, waited=True)
    assert client.run() is RECEIVE
    assert codes(client.replies) == ["", ""]


def test_long_batch_passes_its_turn_on_and_commits_once(
    daemon: Daemon, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastjournald.admission.turn_budget.SLICE_WORK", 10 * limits.REQUEST_WORK)
    client.ask(NOP)
    asked = [set_(b"k%d" % number, identifier=number) for number in range(100)]
    client.session.receive_data(encode(*asked))
    passed_on = 0
    while (step := client.step()) is PASS_ON:
        passed_on += 1
        assert client.replies[1:] == []
        assert daemon.turns.admits(client.session.share)
    assert step is COMMIT
    assert passed_on >= 5
    client.commit()
    assert client.step() is RECEIVE
    assert identifiers(client.replies[1:]) == list(range(100))


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


def test_session_decodes_little_at_a_time_while_memory_is_scarce(daemon: Daemon) -> None:
    client = Client(daemon)
    client.ask(NOP)
    daemon.memory.hold(2 << 20)
    assert daemon.memory.scarce
    count = 4 * limits.SCARCE_BYTES // len(encode(NOP))
    client.session.receive_data(encode(*[NOP] * count))
    assert_answered_in_parts(client, count + 1)
    assert daemon.memory.bytes == 2 << 20


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


def test_batch_that_passed_its_turn_on_gathers_little_once_memory_is_scarce(
    daemon: Daemon, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastjournald.admission.turn_budget.SLICE_WORK", 10 * limits.REQUEST_WORK)
    client.ask(set_(b"k", bytes(400)))
    del client.replies[:]
    client.session.receive_data(encode(*[GET] * 200))
    assert client.step() is PASS_ON
    before = client.session.account.bytes
    daemon.memory.hold(2 << 20)
    assert daemon.memory.scarce
    while (step := client.step()) is PASS_ON:
        assert daemon.turns.admits(client.session.share)
    assert step is COMMIT
    assert client.session.account.bytes <= before + limits.SCARCE_BYTES + 500
    client.commit()
    while client.step() is not RECEIVE:
        client.commit()
    assert len(client.replies) == 200


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


@pytest.mark.parametrize("asked", [NEXT, request(Function.NEXT, b"a", flags=Flag.OVERWRITE)])
def test_work_in_an_unsent_reply_is_given_back_and_what_was_sent_is_not(
    daemon: Daemon, client: Client, asked: Request
) -> None:
    client.ask(set_(JOB), set_(b"a:1:0:y"))
    assert codes(client.ask(asked)) == [""]
    client.session.receive_data(encode(asked))
    assert client.step() is COMMIT
    assert daemon.memory.bytes > 0
    client.end()
    assert [entry.key for _, entries in daemon.released for entry in entries] == [b"a:1:0:y"]
    assert daemon.memory.bytes == 0


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
