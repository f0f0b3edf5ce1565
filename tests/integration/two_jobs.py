"""A client that looks at two jobs of a daemon from outside, and a clock for waits of a client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fastjournal import Reconnect, SyncClient, build_journal_key

QUICK = Reconnect(first_pause=0.01, longest_pause=0.1, patience=60)


def key_of(name: str) -> bytes:
    return build_journal_key("d", name)


@contextmanager
def client_with_two_jobs(address: str) -> Iterator[SyncClient]:
    """Connect a client, and set the jobs 1 and 2."""
    with SyncClient(address, reconnect=QUICK) as client:
        for name in ("1", "2"):
            client.set(key_of(name), name)
        yield client


class SleepingClock:
    """Clock of a blocking client that advances only when the client sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def monotonic(self) -> float:
        return self.now_s
