"""Notifications applied to a copy make it equal to the engine, and none comes twice.

Operations, time, matching in the smallest steps and telling are mixed at random. Beside each
subscription stands what it must hear of: found by comparing all keys before and after each step.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from fastjournal.protocol import ClientConnection, decode_reply
from fastjournal.protocol.constants import Flag, Function
from fastjournal.protocol.messages import Request
from fastjournald.engine.engine import Engine, Settings
from fastjournald.engine.key_filter import KeyFilter, expression_filter, range_filter
from tests.property.subject import SECOND, START, request

KEYS = [b"a:1:0:x", b"a:1:0:y", b"b:1:0:x", b"p"]
URIS = [b"u", b"v"]
SESSIONS = ["one", "two"]
FILTERS = [range_filter(b"", b""), range_filter(b"a", b"p"), expression_filter(b"x$|u")]

SEEDS = 60
STEPS = 150


def draw_step(draw: random.Random) -> tuple[Any, ...]:
    """Something that happens, with few keys, so that they collide."""
    session, identifier = draw.choice(SESSIONS), draw.choice((1, 2))
    key = draw.choice(KEYS + URIS)
    uri = draw.choice([None, *URIS])
    life = draw.choice((None, None, SECOND, 3 * SECOND))
    possible: list[tuple[int, tuple[Any, ...]]] = [
        (12, ("set", draw.choice(KEYS), uri, draw.random() < 0.7, life)),
        (3, ("delete", key)),
        (3, ("next", draw.random() < 0.5)),
        (1, ("touch", key)),
        (3, ("later", draw.choice((1, SECOND, 5 * SECOND)))),
        (8, ("match", draw.randint(1, 4))),
        (6, ("tell", session)),
        (3, ("listen", session, identifier, draw.choice([*KEYS, *URIS, 0, 1, 2]))),
        (1, ("unlisten", session, identifier)),
        (1, ("end_session", session)),
    ]
    weights = [weight for weight, _ in possible]
    return draw.choices([step for _, step in possible], weights)[0]


@dataclass
class Copy:
    """State as one subscriber knows it, and the keys whose changes it has still to hear."""

    about: bytes | KeyFilter
    values: dict[bytes, bytes]
    owed: set[bytes] = field(default_factory=set)

    def wants(self, key: bytes) -> bool:
        return key == self.about if isinstance(self.about, bytes) else self.about.matches(key)


class World:
    """An engine and its subscribers."""

    def __init__(self) -> None:
        self.engine = Engine(Settings(lease_us_default=2 * SECOND))
        self.now = self.at = START
        self.copies: dict[tuple[str, int], Copy] = {}

    def standing(self) -> dict[bytes, tuple[Any, ...]]:
        """Return the marks that tell a changed key from one that is as it was."""
        return {
            key: (entry, entry.timestamp, entry.value)
            for key, entry in self.engine.store.keys.items()
        }

    def values(self, copy: Copy) -> dict[bytes, bytes]:
        return {key: what[-1] for key, what in self.standing().items() if copy.wants(key)}

    def take(self, step: tuple[Any, ...]) -> None:
        """Carry out a step, and note whom it concerns."""
        before, already = self.standing(), dict(self.copies)
        getattr(self, step[0])(*step[1:])
        after = self.standing()
        changed = {
            key for key in {*before, *after} if before.get(key, [None]) != after.get(key, [None])
        }
        for name, copy in self.copies.items():
            if already.get(name) is copy:
                copy.owed |= {key for key in changed if copy.wants(key)}

    def ask(self, asked: Request, session: str = "writer") -> str:
        answer = self.engine.handle(session, asked, self.now)
        assert answer is not None
        return decode_reply(answer).code

    def set(self, key: bytes, uri: bytes | None, overwrite: bool, life: int | None) -> None:
        self.at += 1
        flags = Flag.OVERWRITE if overwrite else Flag(0)
        expires = None if life is None else self.now + life
        value = b"%d" % self.at
        self.ask(
            request(Function.SET, key, value, uri=uri, flags=flags, at=self.at, timeout=expires)
        )

    def delete(self, key: bytes) -> None:
        self.at += 1
        self.ask(request(Function.DELETE, key, at=self.at))

    def next(self, pop: bool) -> None:
        self.ask(request(Function.NEXT, flags=Flag.OVERWRITE if pop else Flag(0)))

    def touch(self, key: bytes) -> None:
        self.ask(request(Function.TOUCH, key, ttl=SECOND))

    def later(self, us: int) -> None:
        self.now += us
        self.engine.advance(self.now)

    def match(self, goes: int) -> None:
        for _ in range(goes):
            if self.engine.notifications.unmatched:
                awake, overrun = self.engine.notifications.match()
                assert not overrun
                assert {*awake} <= {*SESSIONS}

    def tell(self, session: str) -> None:
        connection = ClientConnection()
        connection.receive_data(self.engine.notifications.pop(session, self.now) or encoded_nop())
        for told in connection.next_events():
            if not told.flags & Flag.LISTEN:
                continue
            assert told.pairs
            (pair,) = told.pairs
            copy = self.copies[session, told.identifier]
            assert pair.key in copy.owed, "told without a change since it was told"
            copy.owed.discard(pair.key)
            if told.error:
                copy.values.pop(pair.key, None)
            else:
                copy.values[pair.key] = pair.value

    def listen(self, session: str, identifier: int, about: bytes | int) -> None:
        if isinstance(about, bytes):
            asked = request(Function.GET, about, flags=Flag.LISTEN, identifier=identifier)
            if self.ask(asked, session):
                return
            copy = Copy(about, {})
        else:
            keys = FILTERS[about]
            assert isinstance(keys, KeyFilter)
            self.engine.subscriptions.begin(session, identifier, keys)
            copy = Copy(keys, {})
        copy.values = self.values(copy)
        self.copies[session, identifier] = copy

    def unlisten(self, session: str, identifier: int) -> None:
        self.ask(request(Function.GET, b"nothing", identifier=identifier), session)
        self.copies.pop((session, identifier), None)

    def end_session(self, session: str) -> None:
        self.engine.end_session(session)
        self.copies = {name: copy for name, copy in self.copies.items() if name[0] != session}


def encoded_nop() -> bytes:
    """A message that is no notification."""
    engine = Engine()
    reply = engine.handle("s", request(Function.NOP), START)
    assert reply is not None
    return reply


def run(seed: int) -> None:
    draw, world = random.Random(seed), World()
    for _ in range(STEPS):
        world.take(draw_step(draw))
    world.engine.check()
    while world.engine.notifications.unmatched:
        world.take(("match", 1))
    for session in SESSIONS:
        while world.engine.notifications.has_notifications(session):
            world.take(("tell", session))
    for copy in world.copies.values():
        assert copy.owed == set(), "a change that nobody was told of"
        assert copy.values == world.values(copy)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_listener_with_a_copy_converges_and_gets_nothing_twice(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastjournald.engine.engine.MATCH_STEPS_MAX", size)
    monkeypatch.setattr("fastjournald.engine.engine.NOTIFICATIONS_TURN_BYTES", 1)
    for seed in range(SEEDS):
        run(seed)
