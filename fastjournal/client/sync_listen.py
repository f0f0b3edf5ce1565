"""Listening with blocking sockets: on a connection of its own, so that requests go on elsewhere."""

from __future__ import annotations

from types import TracebackType

from fastjournal.client import calls
from fastjournal.client.batch import Batch
from fastjournal.client.calls import Call
from fastjournal.client.changes import ChangeBuffer
from fastjournal.client.failures import not_connected, timed_out
from fastjournal.client.results import Change, Page
from fastjournal.client.sync_link import Dialer, SyncLink
from fastjournal.limits import LISTENER_PING_S
from fastjournal.numeric import check_seconds


class SyncListener:
    """Changes, as they come: ``with client.listen(...) as changes: for change in changes``.

    It connects and subscribes on entering the block. ``wait`` waits for the next change for so
    long; iterating waits without end, and raises CannotConnectError where the daemon stays away.
    """

    def __init__(self, dialer: Dialer, reply_timeout_s: float | None, call: Call[Page]) -> None:
        self._dialer = dialer
        self._reply_timeout_s = reply_timeout_s
        self._call = call
        self._changes = ChangeBuffer(lambda: None)
        self._link: SyncLink | None = None

    def __enter__(self) -> SyncListener:
        self._subscribe(self._dialer.dial())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def __iter__(self) -> SyncListener:
        return self

    def __next__(self) -> Change:
        change = self.wait()
        assert change is not None, "waiting without end gives a change"
        return change

    def wait(self, timeout_s: float | None = None) -> Change | None:
        """Return the next change; None: there was none for ``timeout_s`` seconds.

        Args:
            timeout_s: Seconds; 0: only what has come already; None: without end.

        Raises:
            CannotConnectError: The connection was lost, and none could be made in its place.
            RefusedError: ``busy``: the daemon ended the subscription, because it costs too much.
        """
        if timeout_s is not None:
            check_seconds("timeout_s", timeout_s)
        now_s = self._dialer.now_s
        end_s = None if timeout_s is None else now_s() + timeout_s
        while (change := self._changes.take()) is None:
            link = self._link
            if link is None or self._changes.lost:
                self._resubscribe()
                continue
            left_s = LISTENER_PING_S if end_s is None else end_s - now_s()
            if link.turn(min(max(left_s, 0.0), LISTENER_PING_S)):
                continue
            if end_s is not None and now_s() >= end_s:
                return None
            link.carry(Batch([(calls.nop().request, None)], None), self._reply_timeout_s)
        return change

    def _resubscribe(self) -> None:
        failure = None if self._link is None else self._link.multiplexer.failure
        if self._dialer.plan is None or failure is None:
            raise failure or not_connected()
        self._subscribe(self._dialer.redial())
        self._changes.subscribed_again()

    def _subscribe(self, link: SyncLink) -> None:
        if self._link is not None:
            self._link.close()
        self._link = link
        self._changes.lost = False
        multiplexer = link.multiplexer
        pending = multiplexer.subscribe(self._call.request, self._changes.tell)
        while not pending.done:
            if not link.turn(self._reply_timeout_s):
                multiplexer.fail(timed_out(self._dialer.address, self._reply_timeout_s))
        try:
            self._call.result(pending.answer())
        except BaseException:
            link.close()
            raise
