"""Memory that requests leave behind is counted in bytes, and bounded for all connections."""

from __future__ import annotations

from collections.abc import Hashable

import pytest

from fastjournal.cmdlog.recovery.replay_state import ReplayState
from fastjournal.limits import PAUSE_BYTES
from fastjournal.protocol import decode_reply
from fastjournal.protocol.constants import Flag, Function, ValueType
from fastjournald.engine.engine import Engine
from fastjournald.engine.waiters import DOMAIN_BYTES, WAIT_BYTES
from tests.property.subject import SECOND, START, request


def code_of(engine: Engine, function: Function, key: bytes, **fields: object) -> str:
    """The code of the reply; ``waits``: there is none yet."""
    session: Hashable = fields.pop("session", "one")
    asked = request(function, key, **fields)
    reply = engine.handle(session, asked, START)
    return decode_reply(reply).code if isinstance(reply, bytes) else "waits"


def wait(engine: Engine, domain: bytes, **fields: object) -> str:
    return code_of(engine, Function.NEXT, domain, flags=Flag.LISTEN, **fields)


def test_waits_are_bounded_in_bytes_for_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastjournald.engine.handlers.next.WAITS_BYTES_MAX", 10_500)
    engine = Engine()
    longest = bytes(4000)
    assert [wait(engine, longest + b"%d" % n, session=n) for n in range(3)] == [
        *("waits", "waits", "busy")
    ]
    assert engine.waiters.bytes == 2 * (WAIT_BYTES + DOMAIN_BYTES + 4001)
    # a short name has its price, too
    assert wait(engine, b"") == "busy"
    engine.end_session(0)
    assert wait(engine, longest + b"1", session=5) == "waits"
    assert engine.waiters.bytes == 2 * (WAIT_BYTES + 4001) + DOMAIN_BYTES
    for session in (1, 5):
        engine.end_session(session)
    assert engine.waiters.bytes == 0


def test_waits_count_their_options_and_keep_no_second_key() -> None:
    engine = Engine()
    options = b'{"attempts":2%s}' % (b" " * 4000)
    asked = request(
        *(Function.NEXT, b"d", options),
        kind=ValueType.STRING,
        flags=Flag.LISTEN | Flag.DATA,
        uri=b"u",
    )
    assert engine.handle("one", asked, START) is None
    (waiter,) = engine.waiters.all()
    kept = waiter.request
    assert (kept.key, kept.value, kept.second_key) == (b"d", options, None)
    assert engine.waiters.bytes > WAIT_BYTES + DOMAIN_BYTES + len(options)
    engine.end_session("one")
    assert engine.waiters.bytes == 0
    assert (kept.identifier, kept.timestamp, kept.flags & Flag.DATA) == (7, START, Flag.DATA)


def test_pauses_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "fastjournald.engine.handlers.domains.PAUSED_BYTES_MAX", 2 * (PAUSE_BYTES + 1000)
    )
    engine = Engine()
    names = [b"%01000d" % number for number in range(3)]
    codes = [code_of(engine, Function.PAUSE, name, ttl=SECOND) for name in names]
    assert codes == ["", "", "busy"]
    assert engine.store.rules.pauses.bytes == 2 * (PAUSE_BYTES + 1000)
    # what is paused may be paused again, and what ends makes room
    assert code_of(engine, Function.PAUSE, names[0], ttl=2 * SECOND) == ""
    assert code_of(engine, Function.PAUSE, names[1], ttl=0) == ""
    assert code_of(engine, Function.PAUSE, names[2], ttl=SECOND) == ""
    engine.advance(START + 5 * SECOND)
    assert engine.store.rules.pauses.bytes == 0


def test_pauses_that_are_over_leave_a_replay_before_they_take_too_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "fastjournal.cmdlog.recovery.replay_state.PAUSED_BYTES_MAX", 10 * (PAUSE_BYTES + 1000)
    )
    state = ReplayState()
    for number in range(100):
        state.pause(b"%01000d" % number, START + number, START + number, 1)
        assert len(state.pauses) <= 20
        assert state.pauses_bytes == sum(PAUSE_BYTES + len(name) for name in state.pauses)
    state.pause(b"%01000d" % 99, 0, START + 99, 1)
    assert state.pauses_bytes == sum(PAUSE_BYTES + len(name) for name in state.pauses)


def test_segments_remember_pauses_of_long_names_in_few_bytes() -> None:
    usage = Engine().journal.usage
    names = [b"%04096d" % number for number in range(50)]
    for number in range(20):
        for name in (*names, b"short"):
            usage.paused(number, name, START + number)
    kept = [name for of_segment in usage.paused_until.values() for name in of_segment]
    assert len(kept) == 20 * 51
    assert sum(map(len, kept)) <= 32 * len(kept)
    assert usage.pauses_before(20, names[7], START + 18)
    assert not usage.pauses_before(19, names[7], START + 18)
    assert usage.pauses_before(20, b"short", START)
    assert not usage.pauses_before(20, b"%04096d" % 50, START)


def test_locks_are_bounded_for_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastjournald.engine.handlers.lock_unlock.LOCKS_MAX", 2)
    engine = Engine()
    for key in (b"p", b"q", b"r"):
        assert code_of(engine, Function.SET, key, value=b"v") == ""
    codes = [code_of(engine, Function.LOCK, key, session=key) for key in (b"p", b"q", b"r")]
    assert codes == ["", "", "busy"]
    assert code_of(engine, Function.LOCK, b"p", session=b"p") == ""
    engine.end_session(b"p")
    assert code_of(engine, Function.LOCK, b"r", session=b"r") == ""


def test_keys_told_early_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound some are notified twice, and none is missed."""
    monkeypatch.setattr("fastjournald.engine.pubsub.subscriber.EARLY_DELIVERIES_BYTES_MAX", 3000)
    engine = Engine()
    keys = [b"%01000d" % number for number in range(10)]
    for at, key in enumerate(keys):
        assert code_of(engine, Function.SET, key, value=b"v") == ""
        assert code_of(engine, Function.GET, key, flags=Flag.LISTEN, identifier=at) == ""
    for round_ in (1, 2):
        for key in keys:
            asked = request(Function.SET, key, b"w", flags=Flag.OVERWRITE, at=START + round_)
            engine.handle("one", asked, START)
        if round_ == 1:
            while engine.notifications.unmatched:
                engine.notifications.match()
    while engine.notifications.has_notifications("one"):
        assert engine.notifications.pop("one", START)
        assert engine.subscriptions.notifications_bytes <= 10 * 1300
        engine.check()
    assert engine.subscriptions.notifications_bytes <= 3000 + 1300
    while engine.notifications.unmatched:
        engine.notifications.match()
    assert engine.subscriptions.notifications_bytes <= 10 * 1300
    engine.check()
