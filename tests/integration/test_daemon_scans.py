"""Ranges, expressions and cursors over real sockets: beside other clients, restarts and the end."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from os import kill
from pathlib import Path

from fastjournal.protocol import QUERY_SHIFT, Function, Query, Reply, Request
from tests.integration.daemon_process import DaemonProcess
from tests.integration.raw_client import RawClient, build, set_request

PAIRS_MAX = 65_535
CURSOR = Query.CURSOR << QUERY_SHIFT
REGEX = Query.REGEX << QUERY_SHIFT
NEVER_MATCHES = b"[0-9a-f]*[0-9][0-9a-f]x{3}[0-9]*$"


def fill(client: RawClient, number: int, start: int = 0) -> list[bytes]:
    """Set that many plain keys, which are not kept on disk."""
    keys = [b"%08x" % key for key in range(start, start + number)]
    for at in range(0, number, 500):
        part = keys[at : at + 500]
        client.send(*(build(Function.SET, key, b"v") for key in part))
        assert not any(client.reply().code for _ in part)
    return keys


def all_keys(first: bytes = b"", last: bytes = b"", count: int = 0) -> Request:
    return build(Function.GET, first, uri=last, count=count)


def next_page(reply: Reply) -> Request:
    assert reply.cursor is not None
    return build(Function.GET, reply.cursor, flags=CURSOR)


def found(reply: Reply) -> list[bytes]:
    assert reply.error == ""
    assert reply.pairs is not None
    return [pair.key for pair in reply.pairs]


@contextmanager
def changing(daemon: DaemonProcess) -> Iterator[None]:
    """Change keys that end in ``+``, one after the other, until the block ends."""
    draw = random.Random(1)
    done = threading.Event()

    def change() -> None:
        with RawClient(daemon.address) as writer:
            while not done.is_set():
                key = b"%08x+" % draw.randrange(30_000)
                writer.ask(build(draw.choice([Function.SET, Function.DELETE]), key, b"w"))

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def pages(client: RawClient, request: Request) -> list[list[bytes]]:
    """Return the keys of each page of a scan."""
    reply = client.ask(request)
    pages = [found(reply)]
    while reply.cursor is not None:
        reply = client.ask(next_page(reply))
        pages.append(found(reply))
    return pages


def test_scan_pages_through_30000_keys_while_others_come_and_go(daemon: DaemonProcess) -> None:
    with RawClient(daemon.address) as client:
        throughout = fill(client, 30_000)
        with changing(daemon):
            keys = list(chain.from_iterable(pages(client, all_keys(count=4000))))
        assert keys == sorted(set(keys))
        assert [key for key in keys if not key.endswith(b"+")] == throughout


def test_reply_of_65535_pairs_comes_whole_and_the_cursor_brings_the_rest(
    daemon: DaemonProcess,
) -> None:
    with RawClient(daemon.address) as client:
        keys = fill(client, PAIRS_MAX + 10)
        reply = client.ask(all_keys())
        assert found(reply) == keys[:PAIRS_MAX]
        reply = client.ask(next_page(reply))
        assert (found(reply), reply.cursor) == (keys[PAIRS_MAX:], None)


def test_cursor_goes_on_after_a_restart(tmp_path: Path) -> None:
    daemon = DaemonProcess(tmp_path)
    with daemon:
        with RawClient(daemon.address) as client:
            client.send(*(set_request(b"k%d" % number) for number in range(9)))
            assert not any(client.reply().code for _ in range(9))
            ranged = client.ask(all_keys(b"k1", b"k7", count=3))
            searched = client.ask(build(Function.GET, b"[2468]$", flags=REGEX, count=1))
        assert daemon.stop() == 0
        daemon.start()
        with RawClient(daemon.address) as client:
            ranged = client.ask(next_page(ranged))
            assert found(ranged) == [b"k4", b"k5", b"k6"]
            assert found(client.ask(next_page(ranged))) == [b"k7"]
            assert found(client.ask(next_page(searched))) == [b"k4"]


def test_sigterm_in_the_middle_of_scans_is_orderly(daemon: DaemonProcess) -> None:
    with RawClient(daemon.address) as client:
        fill(client, 100_000)
        client.ask(all_keys(count=1))
        scanning = [RawClient(daemon.address) for _ in range(40)]
        try:
            for scanner in scanning:
                # a connection that was not accepted yet is reset when the daemon stops
                assert scanner.ask(build(Function.NOP)).error == ""
            for scanner in scanning:
                scanner.send(build(Function.GET, NEVER_MATCHES, flags=REGEX, identifier=7))
            assert client.ask(build(Function.NOP)).error == ""
            kill(daemon.pid, signal.SIGTERM)
            replies = [scanner.reply() for scanner in scanning]
            assert {reply.identifier for reply in replies} == {7}
            assert {reply.code for reply in replies} <= {"", "shutting-down"}
            assert daemon.wait() == 0
        finally:
            for scanner in scanning:
                scanner.socket.close()
