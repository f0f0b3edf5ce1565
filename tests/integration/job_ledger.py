"""Ledger of jobs: producers and workers beside kills, and what was promised to them.

Producers SET jobs and send again, with the same timestamp, what was not answered. Workers lease and
complete. Lost is a job whose SET got OK and that nobody was given; doubled is one that was
completed twice, or given to somebody who asked when its completion had got OK.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from fastjournal.clock import unique_timestamp
from fastjournal.protocol.constants import Flag, Function
from fastjournal.protocol.messages import Reply, Request
from tests.integration.raw_client import SILENCE_S, RawClient, build, set_request

LEASE_US = 3_000_000
SHARED_URIS = 5
LATER = {"shutting-down", "busy", "read-only"}
"""Replies after which a request is sent again; the daemon has not carried it out."""
_LAST = b"other:0:0:last"
NOT_SENT = "not-sent"


class Bookkeeping:
    """Record of the replies to clients, and how to go on after a kill.

    Args:
        connect: Connects to the daemon; raises ``OSError`` where there is none.
        retry_seconds: Pause before it is tried again, if ``started`` does not end it.
        pause_seconds: Pause of a producer between two windows.
    """

    def __init__(
        self,
        connect: Callable[[], RawClient],
        *,
        retry_seconds: float = SILENCE_S,
        pause_seconds: float = 0.0,
    ) -> None:
        self._connect = connect
        self._retry_seconds = retry_seconds
        self.pause_seconds = pause_seconds
        self._changed = threading.Condition()
        self._life = 0
        self.producing = True
        self.working = True
        self.acknowledged: set[bytes] = set()
        self.done: set[bytes] = set()
        self.newest: Counter[bytes] = Counter()
        """URI to the timestamp of the newest acknowledged SET."""
        self.completed: Counter[bytes] = Counter()
        self.completed_at: dict[bytes, float] = {}
        """Key to when its completion got OK, by the monotonic clock."""
        self.given_again: set[bytes] = set()
        """Keys that were given to somebody who asked behind their completion."""
        self.finished: Counter[bytes] = Counter()
        """URI to the timestamp of the newest SET whose job was completed."""
        self.told = 0
        """Answers."""
        self.told_at = time.monotonic()
        """When the last one came."""
        self.longest_silence = 0.0
        """Longest time between two of them."""
        self.problems: list[str] = []

    def note(self, change: Callable[[], object]) -> None:
        with self._changed:
            change()
            self.told += 1
            now = time.monotonic()
            self.longest_silence = max(self.longest_silence, now - self.told_at)
            self.told_at = now
            self._changed.notify_all()

    def wait_told(self, more: int) -> None:
        """Return after that many more answers."""
        with self._changed:
            goal = self.told + more
            assert self._changed.wait_for(lambda: self.told >= goal or self.problems, SILENCE_S)

    def started(self) -> None:
        """The daemon listens again."""
        with self._changed:
            self._life += 1
            self._changed.notify_all()

    def connect(self) -> RawClient:
        """Connect as soon as there is a daemon."""
        while True:
            life = self._life
            try:
                return self._connect()
            except OSError:
                self._wait_for_life_after(life)

    def _wait_for_life_after(self, life: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._life > life, self._retry_seconds)

    def run(self, part: Callable[[Bookkeeping, int], None], seed: int) -> threading.Thread:
        def body() -> None:
            try:
                part(self, seed)
            except (AssertionError, OSError) as error:
                self.problems.append(f"{part.__name__} {seed}: {error!r}")

        thread = threading.Thread(target=body, daemon=True)
        thread.start()
        return thread

    def drain(self, left: int = 0) -> None:
        """Return when everything is worked off but so many entries, or something went wrong.

        The producers have ended.
        """
        peer = Peer(self)
        waiting = [set_request(_LAST)]
        while not self.problems:
            (reply,) = peer.ask(waiting)
            if reply.code == "":
                break
        while not self.problems:
            (reply,) = peer.ask([build(Function.STATS)])
            if reply.pairs and b'"entries":%d,' % left in reply.pairs[0].value:
                break
            time.sleep(0.01)
        peer.close()

    @property
    def lost(self) -> set[bytes]:
        """Jobs whose SET got OK, and that nobody completed, when all has been worked off."""
        return self.acknowledged - self.done

    @property
    def doubled(self) -> set[bytes]:
        """Jobs that were completed twice, or given to somebody behind their completion."""
        return {key for key, times in self.completed.items() if times > 1} | self.given_again

    @property
    def lost_uris(self) -> set[bytes]:
        """URIs whose newest acknowledged job was not completed, nor a newer one."""
        return {uri for uri, at in self.newest.items() if self.finished[uri] < at}


class Peer:
    """A client that sends again, over a new connection, what was not answered."""

    def __init__(self, books: Bookkeeping) -> None:
        self._books = books
        self._client = books.connect()

    def ask(self, requests: list[Request]) -> list[Reply]:
        """Send requests in one piece; return the replies, with ``not-sent`` where none came."""
        replies: list[Reply] = []
        with suppress(OSError, EOFError):
            self._client.send(*requests)
            for _ in requests:
                reply = self._client.reply()
                replies.append(Reply(error=NOT_SENT) if reply.code in LATER else reply)
                if reply.code == "shutting-down":
                    raise EOFError
            return replies
        self._client.socket.close()
        self._client = self._books.connect()
        missing = len(requests) - len(replies)
        return replies + [Reply(error=NOT_SENT)] * missing

    def close(self) -> None:
        self._client.socket.close()


def produce(books: Bookkeeping, seed: int) -> None:
    """SET, and SET again after a lost reply, as the forwarder does."""
    draw = random.Random(seed)
    peer = Peer(books)
    serial = 0
    waiting: list[Request] = []
    while books.producing or waiting:
        while books.producing and len(waiting) < 8:
            serial += 1
            at = unique_timestamp()
            key = b"d%d:%03d:%016d:%d-%d" % (draw.randrange(3), draw.randrange(256), 0, seed, at)
            shared = draw.random() < 0.3
            uri = b"shared/%d" % draw.randrange(SHARED_URIS) if shared else b"own/" + key
            waiting.append(set_request(key, b"v" * draw.choice((1, 100)), uri=uri, at=at))
        replies = peer.ask(waiting)
        again = []
        for request, reply in zip(waiting, replies, strict=True):
            if reply.code == NOT_SENT:
                again.append(request)
                continue
            # stale: it was there, and is done or replaced already
            assert reply.code in ("", "stale"), reply.error
            books.note(partial(told_set, books, request))
        waiting = again
        time.sleep(books.pause_seconds)
    peer.close()


def told_set(books: Bookkeeping, request: Request) -> None:
    uri = request.second_key
    assert uri is not None
    if uri.startswith(b"own/"):
        books.acknowledged.add(request.key)
    else:
        books.newest[uri] = max(books.newest[uri], request.timestamp)


def work(books: Bookkeeping, seed: int) -> None:
    """Lease and complete."""
    peer = Peer(books)
    while books.working:
        asked = build(
            Function.NEXT, count=4, timeout=LEASE_US, ttl=50_000, flags=Flag.LISTEN | Flag.META
        )
        asked_at = time.monotonic()
        (reply,) = peer.ask([asked])
        if reply.code == NOT_SENT:
            continue
        assert reply.code == "", reply.error
        jobs = {}
        for pair in reply.pairs or ():
            delete = build(Function.DELETE, pair.key, flags=Flag.WORKED_ON, timeout=reply.timeout)
            assert pair.meta is not None
            jobs[pair.key] = (delete, pair.second_key, pair.meta.timestamp_us)
            if books.completed_at.get(pair.key, asked_at) < asked_at:
                books.given_again.add(pair.key)
        unanswered: set[bytes] = set()
        while jobs:
            replies = peer.ask([delete for delete, _, _ in jobs.values()])
            for (key, (_, uri, at)), answer in zip(list(jobs.items()), replies, strict=True):
                if answer.code == NOT_SENT:
                    unanswered.add(key)
                    continue
                # not-found: done by the request whose reply was lost, or, where every request was
                # answered, by who had it after this lease
                assert answer.code in ("", "not-found", "lease-lost"), answer.error
                del jobs[key]
                if answer.code == "" or (answer.code == "not-found" and key in unanswered):
                    books.note(partial(told_done, books, key, uri, at, answer))
    peer.close()


def told_done(books: Bookkeeping, key: bytes, uri: bytes, at: int, answer: Reply) -> None:
    if answer.code == "":
        books.completed[key] += 1
        books.completed_at[key] = time.monotonic()
    books.finished[uri] = max(books.finished[uri], at)
    books.done.add(key)
