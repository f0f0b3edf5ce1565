"""Requests in bulk do what they do one by one: same replies, same notifications, same log."""

from __future__ import annotations

import random
from collections import Counter
from hashlib import sha256
from typing import Any

import pytest

from fastjournal.protocol import Function, Request
from fastjournal.protocol.constants import Flag, Query
from fastjournal.protocol.messages import Reply
from fastjournald.engine.authorization import RIGHTS, Grant, Grants
from fastjournald.engine.engine import Engine
from tests.property.model_parts import Rules
from tests.property.random_sessions import Choices, draw_session
from tests.property.subject import LOG, SECOND, START, EngineSubject, decoded, request

pytestmark = pytest.mark.usefixtures("native")

SESSION = "one"

TOKENS = (b"of all", b"of a and uri", b"of a plain prefix", b"of workers", b"of b", b"unknown")
_ALL, _WRITES, _WORKS = sum(RIGHTS.values()), RIGHTS["write"], RIGHTS["next"]
GRANTS = [
    Grant(f"grant {number}", sha256(token).digest(), rights, prefixes)
    for number, (token, rights, prefixes) in enumerate(
        zip(
            TOKENS,
            (_ALL, _WRITES | _WORKS, _WRITES | _WORKS, _WORKS, _WRITES),
            ((b"",), (b"a:", b"uri/1"), (b"a", b"u"), (b"a:", b"b:"), (b"b:", b"p")),
            strict=False,
        )
    )
]
"""Access tokens of all rights for everything, and of some for some domains; one is unknown."""


class Twin:
    """A subject that is asked whole batches; every one of its replies is kept."""

    def __init__(self, rules: Rules, *, bulk: bool) -> None:
        self.subject = EngineSubject(rules)
        self.bulk = bulk
        self.together = 0
        """Requests that were carried out in bulk."""
        self.moved = 0
        """SETs among them that took the URI of a waiting entry."""
        self.told: list[object] = []
        self.refused = Counter[str]()
        """Codes of the errors."""

    def ask(self, requests: list[Request], now: int) -> list[Reply | None]:
        """Carry out a batch, as one read of a connection may hold it, and check once behind it."""
        with self.subject.checked_once():
            return self._ask(requests, now)

    def _ask(self, requests: list[Request], now: int) -> list[Reply | None]:
        subject, at = self.subject, 0
        replies: list[Reply | None] = []
        while at < len(requests):
            find, waiting = subject.engine.store.find, set[int]()
            for number, asked in enumerate(requests[at:] if self.bulk else []):
                if asked.second_key is not None and find(asked.second_key) is not None:
                    waiting.add(number)
            done = subject.engine.handle_bulk(SESSION, requests[at:], now) if self.bulk else []
            if done:
                if requests[at].function == Function.SET:
                    self.moved += len(waiting.intersection(range(len(done))))
                subject.evict()
                replies += [reply for data in done for reply in decoded(data)]
                at += len(done)
                self.together += len(done)
            else:
                # the attempt in bulk was made already
                subject.in_bulk = True
                replies.append(subject.handle(SESSION, requests[at], now))
                at += 1
        self.told += [*subject.serve_waiters(now), *subject.tell(now)]
        self.refused.update(reply.code for reply in replies if reply is not None)
        return replies

    def log(self) -> list[tuple[str, bytes]]:
        """Return the bytes of all segments."""
        self.subject.writer.flush()
        disk = self.subject.disk
        return [(name, disk.read(f"{LOG}/{name}")) for name in sorted(disk.listdir(LOG))]


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_bulk_requests_give_the_same_as_one_by_one(seed: int, cold: bool) -> None:
    twins = ask_twins(seed, cold=cold)
    assert twins[1].together > 50
    assert twins[1].moved > 5


@pytest.mark.parametrize("seed", range(6))
def test_bulk_requests_have_the_same_rights_as_one_by_one(seed: int) -> None:
    twins = ask_twins(seed, tokens=True)
    assert twins[1].together > 50
    assert twins[1].moved > 0
    assert twins[1].refused["forbidden"] > 20
    assert twins[1].refused["auth-required"] > 10


def ask_twins(seed: int, *, cold: bool = False, tokens: bool = False) -> list[Twin]:
    """Ask two subjects the same batches, the second one in bulk, and compare what they say.

    Args:
        seed: Seed of the batches.
        cold: Whether values leave memory.
        tokens: Whether clients need a token: the session shows one of several before most batches.
    """
    rules = Rules(lease_us_default=5 * SECOND, attempts_max=seed % 3, postpone_us_max=SECOND)
    choices = Choices(START, queries=(Query.KEY,), listens=seed % 2 == 0)
    twins = [Twin(rules, bulk=bulk) for bulk in (False, True)]
    if cold:
        for twin in twins:
            twin.subject = EngineSubject(rules, cold=True)
    for twin in twins:
        # the first record of the log has an id, too
        twin.subject.handle(SESSION, request(Function.SET, b"0", b"v", flags=Flag.PERSIST), START)
        if tokens:
            twin.subject.engine.context.grants = Grants(GRANTS)
    now, leases = START, list[tuple[int, bytes]]()
    draw = random.Random(seed)
    steps = draw_session(seed, 500, choices)
    while steps:
        batch, steps = steps[: (number := draw.randint(1, 30))], steps[number:]
        now += batch[0].wait
        requests = []
        if tokens and draw.random() < 0.8:
            token = draw.choice((*TOKENS[:2], *TOKENS))
            requests.append(request(Function.AUTH, value=token, at=now))
            requests += new_jobs(draw, now)
        for step in batch:
            requests.append(step.request(now, leases))
            if step.function == Function.SET and draw.random() < 0.5:
                # a window of new jobs
                requests += new_jobs(draw, now)
        replies = [twin.ask(requests, now) for twin in twins]
        assert replies[0] == replies[1]
        for reply in replies[0]:
            if reply is not None and reply.timeout is not None and reply.pairs:
                leases += [(reply.timeout, pair.key) for pair in reply.pairs]
        if tokens:
            # jobs of a lease are completed in a row
            done = [
                request(Function.DELETE, key, flags=Flag.WORKED_ON, timeout=token, at=now)
                for token, key in leases[-3:]
            ]
            answers = [twin.ask(done, now) for twin in twins]
            assert answers[0] == answers[1]
    assert twins[0].told == twins[1].told
    # where values leave memory, the log is written after each request, and other segments begin
    assert cold or twins[0].log() == twins[1].log()
    return twins


def new_jobs(draw: random.Random, now: int) -> list[Request]:
    """Return SETs that mostly put in something new, or move what waits."""
    jobs = []
    for _ in range(draw.randint(1, 8)):
        number = draw.randrange(60)
        # mostly in the same domain, and as late as before
        domain = b"abc"[number % 3] if draw.random() < 0.8 else b"a"[0]
        due = now + SECOND if draw.random() < 0.1 + 0.6 * (number % 2) else now % 2
        jobs.append(
            request(
                Function.SET,
                b"%c:%d:%d:%d" % (domain, draw.randint(1, 3), due, draw.randrange(900)),
                b"v" * draw.choice([1, 50, 5000]),
                uri=b"uri/%d" % number if draw.random() < 0.7 else None,
                flags=draw.choice([Flag.PERSIST, Flag.PERSIST, 0]),
                at=now - draw.randint(0, 3),
                identifier=number,
            )
        )
    return jobs


def waiting_engine(*requests: Request) -> Engine:
    """Return an engine in which these SETs were carried out."""
    engine = EngineSubject(Rules()).engine
    for asked in requests:
        engine.handle("another", asked, START)
    return engine


STANDING = request(Function.SET, b"a:1:0:x", b"v", uri=b"u", flags=Flag.PERSIST)
LATER = START + SECOND
MOVED = request(Function.SET, b"a:2:1:y", b"w", uri=b"u", flags=Flag.PERSIST, at=START)


def test_bulk_insert_moves_a_waiting_entry_of_the_same_domain() -> None:
    engine = waiting_engine(STANDING)
    assert len(engine.handle_bulk(SESSION, [MOVED], START + 1)) == 1
    moved = engine.store.find(b"u")
    assert moved is not None
    assert (moved.key, moved.created, moved.modified) == (b"a:2:1:y", START, START + 1)
    assert moved.extra.first_due == START
    assert engine.store.find(STANDING.key) is None
    assert engine.store.tombstones.get(STANDING.key, START + 1) == START
    engine.check()


def test_bulk_insert_delays_entries_as_long_as_another_one_is_ready() -> None:
    """Its domain keeps its turn: the order of insert and remove makes no difference."""
    jobs = [moving(b"a:1:0:%d" % number, b"u%d" % number) for number in range(3)]
    engine = waiting_engine(*jobs)
    later = [moving(b"a:1:%d:%d" % (LATER, n), b"u%d" % n, at=START + 1) for n in range(3)]
    assert len(engine.handle_bulk(SESSION, later, START + 1)) == 2
    domain = engine.store.scheduler.domains[b"a"]
    assert (len(domain.ready), len(domain.delayed)) == (1, 2)
    engine.check()


def test_bulk_insert_that_moves_an_entry_notes_only_keys_that_come_or_go() -> None:
    engine = waiting_engine(STANDING)
    index = engine.store.keys.sorted_keys()
    while index.merge(100):
        pass
    assert len(engine.handle_bulk(SESSION, [MOVED], START)) == 1
    assert index.unmerged() == {STANDING.key, MOVED.key}
    engine.check()


def test_bulk_insert_moves_an_entry_once() -> None:
    engine = waiting_engine(STANDING)
    again = request(Function.SET, b"a:1:0:z", b"v", uri=b"u", flags=Flag.PERSIST, at=START)
    same_key = request(Function.SET, STANDING.key, b"v", uri=b"v", at=START)
    assert len(engine.handle_bulk(SESSION, [MOVED, again], START)) == 1
    assert len(engine.handle_bulk(SESSION, [again, same_key], START)) == 1
    engine.check()


def moving(key: bytes, uri: bytes | None = b"u", **fields: Any) -> Request:
    """Return a SET that takes the URI of ``STANDING``, if that is ``uri``."""
    return request(Function.SET, key, b"w", **{"uri": uri, "flags": Flag.PERSIST, **fields})


@pytest.mark.parametrize(
    ("before", "asked"),
    [
        pytest.param([], moving(b"a:1:0:x", at=START + 1), id="overwrites"),
        pytest.param([], moving(b"b:1:0:y"), id="another domain"),
        pytest.param([], moving(b"y"), id="plain key"),
        pytest.param([], moving(b"u", None), id="further key"),
        pytest.param([], moving(b"a:1:0:y", b"a:1:0:x"), id="primary key"),
        pytest.param([], moving(b"a:1:%d:y" % LATER), id="delays all that is ready"),
        pytest.param([], moving(b"a:1:0:y", flags=0), id="not persistent"),
        pytest.param([], moving(b"a:1:0:y", at=START - 1), id="stale"),
        pytest.param([request(Function.NEXT)], MOVED, id="leased"),
        pytest.param([request(Function.LINK, b"a:1:0:x", uri=b"link")], MOVED, id="linked"),
        pytest.param([request(Function.LOCK, b"a:1:0:x", timeout=SECOND)], MOVED, id="locked"),
    ],
)
def test_bulk_insert_leaves_a_set_that_does_more(before: list[Request], asked: Request) -> None:
    engine = waiting_engine(STANDING, *before)
    assert engine.handle_bulk(SESSION, [asked], START + 1) == []
    engine.handle(SESSION, asked, START + 1)
    engine.check()


def test_bulk_looks_at_no_request_behind_the_first_that_it_leaves() -> None:
    engine = waiting_engine(STANDING)
    moved = [moving(b"b:1:0:%d" % n) for n in range(250)]
    looked_at: list[int] = []

    class Noted(list[Request]):
        def __getitem__(self, place: Any) -> Any:
            if isinstance(place, int):
                looked_at.append(place)
            return super().__getitem__(place)

    assert engine.handle_bulk(SESSION, Noted(moved), START, 7, 200) == []
    assert set(looked_at) == {7}
