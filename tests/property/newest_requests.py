"""Model of the request that stands last for a few keys and URIs that many requests are about.

Writers set a key again, delete it, or ask for a URI again, some of them with the timestamp of a
slow machine. Whatever is killed, sent twice or sent late: the request with the newest timestamp
stands in the end, and what the daemon has confirmed is never replaced by an older one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from random import Random

from fastjournal.keys import build_journal_key
from fastjournal.protocol import Flag, Function, Request

DOMAIN = "page"
"""Queue of the entries with a URI; no worker takes them."""
KEYS = (b"key-0", b"key-1")
URIS = (b"http://page/0", b"http://page/1")
LATE_US = (0, 0, 0, 800_000, 3_000_000)
"""How far the clocks of writers are behind."""


def subject_of(request: Request) -> bytes | None:
    """Return the key or URI that this request is one of many about; None: it is another one."""
    subject = request.second_key or request.key
    return subject if subject in KEYS or subject in URIS else None


class NewestRequests:
    """Record of requests: all that were drawn, the promised ones, and the confirmed ones.

    Args:
        random: Random numbers of the requests.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self.asked: defaultdict[bytes, dict[int, bytes | None]] = defaultdict(dict)
        """Values by timestamp, None for a DELETE: all that may be in the spool."""
        self.promised: defaultdict[bytes, dict[int, bool]] = defaultdict(dict)
        """Timestamps of appends that returned, and whether they were durable."""
        self.confirmed: dict[bytes, int] = {}
        """The newest timestamp for which the daemon has replied."""

    def draw(self, now_us: int) -> Request:
        """Return another request; its timestamp is no other's for this key or URI."""
        subject = self._random.choice(KEYS + URIS)
        stamp = now_us - self._random.choice(LATE_US)
        while stamp in self.asked[subject]:
            stamp -= 1
        value = b"%d of %s" % (stamp, subject)
        if subject in URIS:
            key = build_journal_key(DOMAIN, b"%d-%d" % (stamp, URIS.index(subject)))
            request = Request(Function.SET, 0, Flag.PERSIST, stamp, key, subject, 1, value)
        elif self._random.random() < 0.3:
            request = Request(Function.DELETE, 0, Flag.PERSIST, stamp, subject)
        else:
            flags = Flag.PERSIST | Flag.OVERWRITE
            request = Request(Function.SET, 0, flags, stamp, subject, None, 1, value)
        is_delete = request.function == Function.DELETE
        self.asked[subject][stamp] = None if is_delete else value
        return request

    def promise(self, request: Request, *, durable: bool) -> None:
        """Note that the append of a request returned."""
        subject = subject_of(request)
        assert subject is not None
        self.promised[subject][request.timestamp] = durable

    def lose_power(self) -> None:
        """Forget the promises that a power loss breaks."""
        for subject, stamps in self.promised.items():
            self.promised[subject] = {stamp: True for stamp, durable in stamps.items() if durable}

    def confirm(self, request: Request, standing: int) -> None:
        """Note that the daemon has replied to a request that reached it, well or with ``stale``.

        Args:
            request: Which.
            standing: Timestamp that stands there after it.
        """
        subject = subject_of(request)
        if subject is None:
            return
        value = None if request.function == Function.DELETE else request.value
        assert (request.timestamp, value) in self.asked[subject].items(), "changed on its way"
        assert standing >= request.timestamp, f"{subject!r}: an older request stands"
        self.confirmed[subject] = max(self.confirmed.get(subject, 0), standing)

    def missing(self, standing: Callable[[bytes], int]) -> dict[bytes, int]:
        """Return the newest promised timestamps that the daemon lacks; they have to be pending.

        Args:
            standing: Returns the timestamp that stands for a key or URI at the daemon.
        """
        found = {}
        for subject in KEYS + URIS:
            stands = standing(subject)
            assert stands >= self.confirmed.get(subject, 0), f"{subject!r}: went back"
            newest = max(self.promised[subject], default=0)
            if newest > stands:
                found[subject] = newest
        return found

    def check_last(self, standing: Callable[[bytes], int], values: dict[bytes, bytes]) -> None:
        """All is delivered: what stands is the newest that was promised, or newer.

        Args:
            standing: As for ``missing``.
            values: Values at the daemon, by key or URI.
        """
        assert not self.missing(standing)
        for subject, asked in self.asked.items():
            stands = (standing(subject), values.get(subject))
            assert stands in {0: None, **asked}.items(), f"{subject!r}: nobody asked for {stands}"
