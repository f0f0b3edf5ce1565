"""Requests in bulk do what they do one by one: same replies, same notifications, same log."""

from __future__ import annotations

import random
from typing import Any

import pytest

from fastjournal.protocol import Function, Request
from fastjournal.protocol.constants import Flag, Query
from fastjournal.protocol.messages import Reply
from tests.property.model_parts import Rules
from tests.property.random_sessions import Choices, draw_session
from tests.property.subject import LOG, SECOND, START, EngineSubject, decoded, request

SESSION = "one"


class Twin:
    """A subject that is asked whole batches; every one of its replies is kept."""

    def __init__(self, rules: Rules, *, bulk: bool) -> None:
        self.subject = EngineSubject(rules)
        self.bulk = bulk
        self.together = 0
        """Requests that were carried out in bulk."""
        self.told: list[object] = []

    def ask(self, requests: list[Request], now: int) -> list[Reply | None]:
        """Carry out a batch, as one read of a connection may hold it."""
        subject, at = self.subject, 0
        replies: list[Reply | None] = []
        while at < len(requests):
            done = subject.engine.handle_bulk(requests[at:], now) if self.bulk else []
            if done:
                subject.check()
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
        return replies

    def log(self) -> list[tuple[str, bytes]]:
        """Return the bytes of all segments."""
        self.subject.writer.flush()
        disk = self.subject.disk
        return [(name, disk.read(f"{LOG}/{name}")) for name in sorted(disk.listdir(LOG))]


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_in_bulk_and_one_by_one_give_the_same(seed: int, cold: bool) -> None:
    rules = Rules(lease_us_default=5 * SECOND, attempts_max=seed % 3, postpone_us_max=SECOND)
    choices = Choices(START, queries=(Query.KEY,), listens=seed % 2 == 0)
    twins = [Twin(rules, bulk=bulk) for bulk in (False, True)]
    if cold:
        for twin in twins:
            twin.subject = EngineSubject(rules, cold=True)
    for twin in twins:
        # the first record of the log has an id, too
        twin.subject.handle(SESSION, request(Function.SET, b"0", b"v", flags=Flag.PERSIST), START)
    now, leases = START, list[tuple[int, bytes]]()
    draw = random.Random(seed)
    steps = draw_session(seed, 400, choices)
    while steps:
        batch, steps = steps[: (number := draw.randint(1, 30))], steps[number:]
        now += batch[0].wait
        requests = []
        for step in batch:
            requests.append(step.request(now, leases))
            if step.function == Function.SET and draw.random() < 0.5:
                # a window of new jobs
                requests += new_jobs(draw, now)
        replies = [twin.ask(requests, now) for twin in twins]
        assert replies[0] == replies[1]
        for reply in replies[0]:
            if reply is not None and reply.timeout is not None and reply.pairs:
                leases.append((reply.timeout, reply.pairs[0].key))
    assert twins[0].told == twins[1].told
    # where values leave memory, the log is written after each request, and other segments begin
    assert cold or twins[0].log() == twins[1].log()
    assert twins[1].together > 50


def new_jobs(draw: random.Random, now: int) -> list[Request]:
    """Return SETs that mostly put in something new."""
    jobs = []
    for _ in range(draw.randint(1, 8)):
        number = draw.randrange(200)
        jobs.append(
            request(
                Function.SET,
                b"%c:%d:%d:%d" % (draw.choice(b"abc"), draw.randint(1, 3), now % 2, number),
                b"v" * draw.choice([1, 50, 5000]),
                uri=b"uri/%d" % number if draw.random() < 0.7 else None,
                flags=draw.choice([Flag.PERSIST, Flag.PERSIST, 0]),
                at=now - draw.randint(0, 3),
                identifier=number,
            )
        )
    return jobs


def test_a_key_or_uri_that_stands_ends_the_bulk() -> None:
    engine = EngineSubject(Rules()).engine
    new = request(Function.SET, b"a:1:0:x", b"v", uri=b"u")
    same_uri = request(Function.SET, b"a:1:0:y", b"v", uri=b"u")
    same_key = request(Function.SET, b"u", b"v")
    other = request(Function.NOP)
    assert len(engine.handle_bulk([new, same_uri], START)) == 1
    assert engine.handle_bulk([same_uri], START) == []
    assert engine.handle_bulk([same_key], START) == []
    assert engine.handle_bulk([other, new], START) == []


def test_bulk_looks_at_no_request_behind_the_first_that_it_leaves() -> None:
    engine = EngineSubject(Rules()).engine
    moved = [request(Function.SET, b"a:1:0:%d" % n, b"v", uri=b"u") for n in range(250)]
    assert len(engine.handle_bulk(moved[:2], START)) == 1
    looked_at: list[int] = []

    class Noted(list[Request]):
        def __getitem__(self, place: Any) -> Any:
            if isinstance(place, int):
                looked_at.append(place)
            return super().__getitem__(place)

    assert engine.handle_bulk(Noted(moved), START, 7, 200) == []
    assert set(looked_at) == {7}
