"""Call that waits beside an event loop of others: its descriptor says when to look."""

from __future__ import annotations

from typing import Generic, TypeVar

from fastjournal.client.core.calls import Call, silence_allowed_s
from fastjournal.client.core.failures import name_daemon, not_connected, timed_out
from fastjournal.client.core.pipeline import PipelinedRequest
from fastjournal.client.core.retry_policy import rule_of
from fastjournal.client.sync.dialer import Dialer
from fastjournal.client.sync.transport import SyncTransport
from fastjournal.errors import FastjournalError, RefusedError
from fastjournal.limits import CLIENT_LAST_WORDS_S

T = TypeVar("T")


class SyncWaiting(Generic[T]):
    """A call under way, for ``poll``: ``with client.waiting(calls.next_(wait=60)) as waiting``.

    It has a connection of its own, so that the client goes on. Call ``take`` whenever ``fileno()``
    is readable, and ``look_again_s()`` seconds after the last look at the latest. A connection that
    is lost is an error, and is not made again: begin another. Leaving the block before the result
    was taken cancels the call, and releases what it leased.
    """

    def __init__(self, dialer: Dialer, reply_timeout_s: float | None, call: Call[T]) -> None:
        self._dialer = dialer
        self._call = call
        self._silence_s = silence_allowed_s(reply_timeout_s, [call.request])
        self._request = PipelinedRequest(call.request, call.undo)
        self._transport: SyncTransport | None = None
        self._lost_at_s: float | None = None
        self._all_sent = False
        self._taken = False

    def __enter__(self) -> SyncWaiting[T]:
        try:
            self._transport = transport = self._dialer.dial_first()
        except FastjournalError as error:
            name_daemon(error, self._dialer.address)
            raise
        self._request.start(transport.multiplexer)
        if self._silence_s is not None:
            self._lost_at_s = self._dialer.now_s() + self._silence_s
        self._all_sent = transport.send()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        transport, self._transport = self._transport, None
        if transport is None:
            return
        try:
            if not (self._taken or transport.multiplexer.failed):
                now_s, request, reply = self._dialer.now_s, self._request, self._request.reply
                gains = []
                if request.undo is not None and reply is not None and not reply.error:
                    gains = request.undo(request.request, reply)
                transport.settle(gains, now_s() + CLIENT_LAST_WORDS_S, now_s)
        finally:
            transport.close()

    def fileno(self) -> int:
        """Return the descriptor of its connection, which is readable when something has come."""
        return self._open_transport().fileno()

    def look_again_s(self) -> float | None:
        """Return the seconds after which to call ``take`` though nothing has come; None: never."""
        if self.done or not self._all_sent:
            return 0.0
        if self._lost_at_s is None:
            return None
        return max(self._lost_at_s - self._dialer.now_s(), 0.0)

    @property
    def done(self) -> bool:
        """Whether the answer is there, or the reason why none will come: ``take`` gives it."""
        pending = self._request.pending
        return pending is not None and pending.done

    def take(self) -> T | None:
        """Return the result of the call without waiting; None: it is not there yet.

        Raises:
            CannotConnectError: The connection was lost; the daemon may have carried it out
                (``maybe_done``).
            RefusedError: As the call.
        """
        transport = self._open_transport()
        while not self.done and transport.turn(0):
            pass
        if not self.done:
            self._all_sent = transport.send()
            if self._lost_at_s is None or self._dialer.now_s() < self._lost_at_s:
                return None
            transport.multiplexer.fail(timed_out(transport.address, self._silence_s))
        self._taken = True
        try:
            return self._call.result(self._request.answer())
        except FastjournalError as error:
            name_daemon(error, transport.address)
            if not isinstance(error, RefusedError):
                error.maybe_done = rule_of(self._call.request).changes
            raise

    def _open_transport(self) -> SyncTransport:
        if self._transport is None:
            raise not_connected()
        return self._transport
