"""Ledger of a scripted daemon: requests that came, writes that it applied, and how often.

ledger = Ledger()
with ScriptedDaemon(ledger.answer) as daemon:
    ...
assert ledger.applied == {key: timestamp, ...}
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable

from fastjournal.protocol import Function, Reply, Request
from fastjournal.testing.scripted_daemon import Answer, Do


class Ledger:
    """Applies SETs and DELETEs as the protocol says where timestamps decide, and counts.

    Args:
        refuse: Returns the error to answer a request with (then it is not applied), or None.
        lose_reply: Whether the connection ends after this request was applied, without a reply.
        lose_request: Whether the connection ends before this request is applied.
    """

    def __init__(
        self,
        *,
        refuse: Callable[[Request], str | None] = lambda _: None,
        lose_reply: Callable[[Request], bool] = lambda _: False,
        lose_request: Callable[[Request], bool] = lambda _: False,
    ) -> None:
        self._refuse = refuse
        self._lose_reply = lose_reply
        self._lose_request = lose_request
        self._changed = threading.Condition()
        self.applied: dict[bytes, int] = {}
        """Key to the timestamp of its SET."""
        self.times_applied: Counter[bytes] = Counter()
        self.times_seen: Counter[bytes] = Counter()
        self.seen = 0
        """Requests that came, of any kind."""

    def answer(self, request: Request) -> Answer:
        """Apply a request and return its reply; for ``ScriptedDaemon``."""
        with self._changed:
            self.seen += 1
            self.times_seen[request.key] += 1
            self._changed.notify_all()
            if self._lose_request(request):
                return [Do.CLOSE]
            error = self._refuse(request) or self._apply(request)
            if self._lose_reply(request):
                return [Do.CLOSE]
        return [Reply(request.identifier, timestamp=request.timestamp, error=error)]

    def wait_seen(self, count: int, *, timeout_s: float = 60.0) -> None:
        """Return when ``count`` requests have come.

        Raises:
            TimeoutError: They did not come.
        """
        self._wait(lambda: self.seen >= count, timeout_s)

    def wait_applied(self, keys: Iterable[bytes], *, timeout_s: float = 60.0) -> None:
        """Return when all these keys were set.

        Raises:
            TimeoutError: They were not.
        """
        wanted = set(keys)
        self._wait(lambda: wanted <= self.applied.keys(), timeout_s)

    def _wait(self, condition: Callable[[], bool], timeout_s: float) -> None:
        with self._changed:
            if not self._changed.wait_for(condition, timeout_s):
                raise TimeoutError(f"only {self.seen} requests came, {len(self.applied)} applied")

    def _apply(self, request: Request) -> str:
        key, stands = request.key, self.applied.get(request.key)
        if request.function == Function.SET:
            if stands == request.timestamp:
                return ""
            if stands is not None:
                return "stale" if request.timestamp < stands else "exists"
            self.applied[key] = request.timestamp
            self.times_applied[key] += 1
        elif request.function == Function.DELETE:
            if stands is None:
                return "not-found"
            del self.applied[key]
        return ""
