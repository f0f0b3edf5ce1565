"""A daemon whose disk is nearly full: what needs room is refused, what ends work is not."""

from __future__ import annotations

import pytest

from fastjournal.protocol.constants import Flag, Function, ValueType
from fastjournal.protocol.messages import Request
from fastjournald.engine.engine import Engine, Scan, Settings, new_journal
from tests.property.model_parts import Rules
from tests.property.subject import SECOND, START, EngineSubject, Subject, request

JOB = b"a:1:0:x"
ONE = {"value": b"\1", "kind": ValueType.INTEGER}


@pytest.fixture
def s() -> Subject:
    subject = Subject(EngineSubject(Rules()))
    subject.set(JOB, b"\1", kind=ValueType.INTEGER)
    subject.set(b"flag", b"\1", kind=ValueType.BOOLEAN)
    subject.set(b"text", b"text")
    subject.set(b"buried")
    subject.bury(b"buried")
    return subject


def full(s: Subject) -> Subject:
    assert isinstance(s.target, EngineSubject)
    s.target.engine.context.read_only = True
    return s


@pytest.mark.parametrize(
    "asked",
    [
        request(Function.SET, b"new", b"v"),
        request(Function.NEXT, b"a"),
        request(Function.ADD, JOB, **ONE),
        request(Function.ADD, b"new", flags=Flag.OVERWRITE, **ONE),
        request(Function.NOT, b"flag"),
        request(Function.TRUNCATE, b"text", **ONE),
        request(Function.RENAME, JOB, uri=b"new"),
        request(Function.LINK, JOB, uri=b"new"),
        request(Function.KICK, b"buried"),
        request(Function.PAUSE, b"a", ttl=1),
        request(Function.LIMIT, b"a", b'{"jobs":1}', kind=ValueType.STRING),
        request(Function.TOUCH, JOB, ttl=1),
        request(Function.BURY, b"buried", b"another reason"),
        request(Function.DELETE, b"missing", flags=Flag.PERSIST),
        request(Function.GET, JOB, timeout=SECOND),
        request(Function.GET, JOB, timeout=START + SECOND, flags=Flag.UPDATE_TIMEOUT),
        request(Function.GET, b"", uri=b"", timeout=SECOND),
        request(Function.GET, b"", uri=b"", timeout=SECOND, flags=Flag.UPDATE_TIMEOUT),
    ],
    ids=lambda asked: Function(asked.function).name,
)
def test_read_only_engine_refuses_what_needs_room_and_changes_nothing(
    s: Subject, asked: Request
) -> None:
    before = [s.pair(key) for key in (JOB, b"flag", b"text", b"buried")]
    assert full(s).ask(asked).code == "read-only"
    assert [s.pair(key) for key in (JOB, b"flag", b"text", b"buried")] == before
    assert s.value(b"new") is None


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (request(Function.SET, JOB, b"v", at=START - 1), "stale"),
        (request(Function.ADD, b"new", **ONE), "not-found"),
        (request(Function.ADD, b"text", **ONE), "type-mismatch"),
        (request(Function.NOT, JOB), "type-mismatch"),
        (request(Function.TRUNCATE, JOB, **ONE), "type-mismatch"),
        (request(Function.RENAME, JOB, uri=b"text"), "exists"),
        (request(Function.LINK, JOB, uri=b"text"), "exists"),
    ],
)
def test_read_only_is_the_last_of_the_errors(s: Subject, asked: Request, code: str) -> None:
    assert full(s).ask(asked).code == code


def test_read_only_engine_ends_work(s: Subject) -> None:
    token = s.lease()
    full(s)
    assert s.touch(JOB, token, ttl=SECOND).code == ""
    assert s.release(JOB, s.meta(JOB).worked_on_until_us) == ""
    assert (s.lock(JOB), s.unlock(JOB), s.bury(JOB)) == ("", "", "")
    assert s.pause(b"a", 0) == ""
    assert s.delete(JOB) == ""


@pytest.mark.rule("GET: while the disk is nearly full it moves in memory only")
@pytest.mark.parametrize("many", [False, True])
def test_read_only_engine_does_not_fill_the_disk_by_reads(many: bool) -> None:
    """A read moves the expiry of what has a ttl, but the log does not learn of it."""
    written: list[bytes] = []

    def append(data: bytes, _records: int, _now: int) -> int:
        written.append(data)
        return 0

    settings = Settings()
    engine = Engine(settings, new_journal(settings, append, b"12345678"))
    put = request(Function.SET, b"k", b"v", ttl=SECOND, flags=Flag.PERSIST)
    assert engine.handle("s", put, START)
    get = request(Function.GET, b"k", uri=b"k" if many else None)
    for second, read_only in enumerate((True, False)):
        engine.context.read_only = read_only
        before = len(written)
        reply = engine.handle("s", get, START + second + 1)
        while isinstance(reply, Scan):
            reply = engine.step(reply, START + second + 1) or reply
        entry = engine.store.find(b"k")
        assert entry is not None
        assert entry.expires == START + second + 1 + SECOND
        assert (len(written) == before) == read_only
