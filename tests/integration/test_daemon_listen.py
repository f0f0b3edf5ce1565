"""LISTEN against a real daemon over real sockets: a copy that follows it, also until a kill."""

from __future__ import annotations

import json
import random
import threading
import time
from pathlib import Path

import pytest

from fastjournal.protocol.constants import QUERY_SHIFT, Flag, Function, Query
from fastjournal.protocol.messages import Reply, Request
from tests.integration.daemon_process import DaemonProcess
from tests.integration.raw_client import RawClient, build, set_request

KEYS = [b"a:1:0:x", b"a:1:0:y", b"b:1:0:x", b"p", b"q"]
URIS = [None, b"u", b"v"]
EVERYTHING = build(Function.GET, b"", uri=b"", count=0, flags=Flag.LISTEN, identifier=1)


def change(draw: random.Random, number: int) -> Request:
    """Something that changes a key, perhaps."""
    key = draw.choice(KEYS)
    value = b"%d" % number + b" " * draw.choice((0, 0, 2000))
    kept = Flag.PERSIST if draw.random() < 0.5 else Flag(0)
    match draw.randrange(8):
        case 0:
            return build(Function.DELETE, key)
        case 1:
            return build(Function.NEXT, flags=draw.choice((0, Flag.OVERWRITE)), timeout=20_000)
        case 2:
            return build(Function.RENAME, key, uri=draw.choice(KEYS), flags=Flag.OVERWRITE | kept)
        case 3:
            return build(Function.LINK, key, uri=b"link%d" % draw.randrange(3))
        case _:
            uri = draw.choice(URIS) if key.endswith((b"x", b"y")) else None
            return build(Function.SET, key, value, uri=uri, flags=Flag.OVERWRITE | kept)


def value_of(reply: Reply) -> bytes:
    assert reply.pairs
    return reply.pairs[0].value


def apply(copy: dict[bytes, bytes], told: Reply) -> None:
    assert told.flags & Flag.LISTEN
    assert told.identifier == 1
    assert told.pairs
    (pair,) = told.pairs
    if told.error:
        copy.pop(pair.key, None)
    else:
        assert pair.meta is not None
        copy[pair.key] = pair.value


@pytest.mark.parametrize("seed", range(2))
def test_listener_that_keeps_a_copy_ends_with_the_state_of_the_daemon(
    tmp_path: Path, seed: int
) -> None:
    draw = random.Random(seed)
    copy: dict[bytes, bytes] = {}
    with (
        DaemonProcess(tmp_path) as daemon,
        RawClient(daemon.address, receive_bytes=4096) as listener,
        RawClient(daemon.address) as writer,
    ):
        assert listener.ask(EVERYTHING).pairs == []
        notifications = 0

        def follow() -> None:
            nonlocal notifications
            while b"end" not in copy:
                apply(copy, listener.reply())
                notifications += 1

        follower = threading.Thread(target=follow)
        follower.start()
        number = 0
        for _ in range(60):
            batch = [change(draw, number + n) for n in range(50)]
            number += len(batch)
            writer.send(*batch)
            for _ in batch:
                writer.reply()
        # a lease that ends changes something, too, where its URI was taken
        while json.loads(value_of(writer.ask(build(Function.STATS))))["worked_on"]:
            time.sleep(0.01)
        assert writer.ask(set_request(b"end")).code == ""
        follower.join()
        standing = writer.ask(build(Function.GET, b"", uri=b"", count=0, flags=Flag.DATA))
        assert standing.pairs is not None
        expected = {pair.key: pair.value for pair in standing.pairs}
        assert copy == expected
        assert 0 < notifications < number


def test_notification_before_a_kill_is_durable(tmp_path: Path) -> None:
    heard: dict[bytes, int] = {}
    number = 0
    with DaemonProcess(tmp_path) as daemon:
        for _ in range(3):
            regex = build(
                Function.GET,
                b"^k",
                flags=Flag.LISTEN | Query.REGEX << QUERY_SHIFT,
                identifier=1,
                count=1,
            )
            with RawClient(daemon.address) as listener, RawClient(daemon.address) as writer:
                assert listener.ask(regex).code == ""
                enough = len(heard) + number + 200

                def listen(listener: RawClient = listener) -> None:
                    try:
                        while True:
                            told = listener.reply()
                            assert told.pairs
                            heard[told.pairs[0].key] = int(told.pairs[0].value)
                    except (EOFError, ConnectionError):
                        return

                hearing = threading.Thread(target=listen)
                hearing.start()
                while max(heard.values(), default=0) < enough:
                    number += 1
                    overwriting = Flag.OVERWRITE | Flag.PERSIST
                    key = b"k%d" % (number % 7)
                    writer.send(build(Function.SET, key, b"%d" % number, flags=overwriting))
                daemon.kill()
                hearing.join()
            daemon.start()
            with RawClient(daemon.address) as reader:
                for key, last in heard.items():
                    found = reader.ask(build(Function.GET, key, flags=Flag.DATA))
                    assert found.pairs, f"{key!r} was told, and is not there"
                    assert int(found.pairs[0].value) >= last
    assert len(heard) == 7


def test_budget_of_matching_ends_costly_expressions_and_nobody_else_waits(tmp_path: Path) -> None:
    """A real daemon and one client whose expressions cannot keep up with 4 KB keys."""
    regex = Query.REGEX << QUERY_SHIFT | Flag.LISTEN
    with (
        DaemonProcess(tmp_path) as daemon,
        RawClient(daemon.address) as heavy,
        RawClient(daemon.address) as light,
        RawClient(daemon.address) as writer,
    ):
        for number in range(200):
            expression = b"(a|b)*a(a|b){30}[c-z]%d" % number
            asked = build(Function.GET, expression, flags=regex, identifier=number)
            assert heavy.ask(asked).code == ""
        asked = build(Function.GET, b"k1199", uri=b"k2", count=0, flags=Flag.LISTEN, identifier=7)
        assert light.ask(asked).code == ""
        draw = random.Random(1)
        keys = [b"k%04d" % number + bytes(draw.choices(b"ab", k=4000)) for number in range(1200)]
        for at in range(0, len(keys), 100):
            writer.send(*(build(Function.SET, key, b"v") for key in keys[at : at + 100]))
            assert all(writer.reply().code == "" for _ in range(100))
        # the last change is delivered while the expressions are far behind
        told = light.reply()
        assert told.pairs
        assert told.pairs[0].key == keys[-1]
        ended = [heavy.reply() for _ in range(200)]
        assert {reply.identifier for reply in ended} == set(range(200))
        assert all(reply.code == "busy" and reply.flags & Flag.LISTEN for reply in ended)
        assert heavy.ask(build(Function.NOP)).code == ""


def test_budget_ends_subscriptions_that_take_most_of_a_writers_rate(tmp_path: Path) -> None:
    """Two clients that read all the time, and a writer that waits for each window of 32 SETs."""
    regex = Query.REGEX << QUERY_SHIFT | Flag.LISTEN
    with (
        DaemonProcess(tmp_path) as daemon,
        RawClient(daemon.address) as expressions,
        RawClient(daemon.address) as ranges,
        RawClient(daemon.address) as usual,
        RawClient(daemon.address) as writer,
    ):
        for number in range(1000):
            asked = build(Function.GET, b"item%d.*[a-f]+x" % number, flags=regex, identifier=number)
            assert expressions.ask(asked).code == ""
            last = b"z%d" % number
            asked = build(
                Function.GET, b"", uri=last, count=0, flags=Flag.LISTEN, identifier=number
            )
            assert ranges.ask(asked).code == ""
        asked = build(Function.GET, b"", uri=b"z", count=0, flags=Flag.LISTEN, identifier=7)
        assert usual.ask(asked).code == ""
        ended: dict[str, set[int]] = {"expressions": set(), "ranges": set()}
        heard: set[bytes] = set()

        def read(client: RawClient, told: set[int]) -> None:
            while len(told) < 1000:
                reply = client.reply()
                if reply.code == "busy":
                    assert not reply.pairs
                    told.add(reply.identifier)

        def follow() -> None:
            while b"end" not in heard:
                reply = usual.reply()
                assert reply.pairs, "the subscriptions of others end, not this one"
                heard.add(reply.pairs[0].key)

        readers = [
            threading.Thread(target=read, args=(expressions, ended["expressions"])),
            threading.Thread(target=read, args=(ranges, ended["ranges"])),
            threading.Thread(target=follow),
        ]
        for reader in readers:
            reader.start()
        number = 0
        while any(len(told) < 1000 for told in ended.values()):
            keys = [b"example.org:128:0:%07d" % (number + n) for n in range(32)]
            number += len(keys)
            writer.send(*(build(Function.SET, key, b"v" * 100) for key in keys))
            assert all(writer.reply().code == "" for _ in keys)
        assert writer.ask(set_request(b"end")).code == ""
        for reader in readers:
            reader.join()
        assert len(heard) == number + 1
        for client in (expressions, ranges):
            assert client.ask(build(Function.NOP)).code == ""
