"""Listening with blocking sockets: on a connection of its own, so that requests go on elsewhere."""

from __future__ import annotations

import math
import select

from fastjournal.client.core import calls
from fastjournal.client.core.calls import Call
from fastjournal.client.core.changes import ChangeBuffer
from fastjournal.client.core.failures import (
    ReconnectEffort,
    name_daemon,
    not_connected,
    timed_out,
)
from fastjournal.client.core.multiplexer import InFlightRequest
from fastjournal.client.core.results import Change, Entry, Page
from fastjournal.client.sync.dialer import Dialer
from fastjournal.client.sync.transport import SyncTransport
from fastjournal.clock import unique_timestamp
from fastjournal.errors import BadRequestError, CannotConnectError, FastjournalError
from fastjournal.limits import CONNECT_TRY_S_MIN, LISTENER_PING_S
from fastjournal.times import Duration, duration_s


class SyncListener:
    """Changes, as they come: ``with client.listen(...) as changes: for change in changes``.

    It connects and subscribes on entering the block. ``wait`` waits for the next change for so
    long; iterating waits without end, and raises CannotConnectError where the daemon stays away.

    With an event loop of others: poll ``fileno()``, and when it is readable, or ``look_again_s()``
    seconds after the last look at the latest, call ``wait(0)`` until it gives None.
    """

    def __init__(
        self, dialer: Dialer, reply_timeout_s: float | None, call: Call[Page[Entry]]
    ) -> None:
        self._dialer = dialer
        self._reply_timeout_s = reply_timeout_s
        self._call = call
        self._changes = ChangeBuffer(lambda: None)
        self._transport: SyncTransport | None = None
        self._listened_before = False
        self._subscribing: InFlightRequest | None = None
        self._pinging: InFlightRequest | None = None
        self._act_at_s = math.inf
        """When silence means something: to ask whether the daemon is there, or that it is not."""
        self._effort: ReconnectEffort | None = None
        self._try_at_s: float | None = None
        self._failure: CannotConnectError | None = None
        self._poller: select.epoll | None = None
        """One descriptor for all connections, one after the other: it stays the same."""

    def __enter__(self) -> SyncListener:
        if hasattr(select, "epoll"):
            self._poller = select.epoll()
        try:
            self._subscribe(self._dialer.dial_first())
            while self._subscribing is not None:
                self._go_on(math.inf)
        except BaseException as error:  # a signal handler may raise anything
            self.__exit__()
            name_daemon(error, self._dialer.address)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
        if self._poller is not None:
            self._poller.close()
            self._poller = None

    def fileno(self) -> int:
        """Return a descriptor that is readable when ``wait(0)`` has something to do.

        It stays the same where the connection is lost and made again.

        Raises:
            BadRequestError: The system has no epoll (macOS); code ``no-epoll``.
        """
        if not hasattr(select, "epoll"):
            raise BadRequestError(
                "this system has no epoll, so that a listener has no descriptor",
                code="no-epoll",
                hint="call wait() in a thread, or listen with Client under asyncio",
            )
        if self._poller is None:
            raise not_connected()
        return self._poller.fileno()

    def look_again_s(self) -> float | None:
        """Return the seconds after which to call ``wait(0)`` though nothing has come; None: never.

        A daemon that is silent is asked whether it is there, and one that is away is tried again.
        """
        at_s = self._act_at_s
        if self._changes:
            return 0.0
        if self._transport is not None and self._transport.multiplexer.failed:
            at_s = self._try_at_s or 0.0
        return None if at_s == math.inf else max(at_s - self._dialer.now_s(), 0.0)

    def __iter__(self) -> SyncListener:
        return self

    def __next__(self) -> Change:
        change = self.wait()
        assert change is not None, "waiting without end gives a change"
        return change

    def wait(self, timeout: Duration | None = None) -> Change | None:
        """Return the next change; None: there was none for so long.

        A lost connection is made again meanwhile, and in the calls that follow. A try to connect to
        a machine that does not answer at all has a second, also where less is left.

        Args:
            timeout: Time to wait; 0: only what has come already; None: without end.

        Raises:
            CannotConnectError: The connection was lost, and none could be made in its place for as
                long as ``reconnect`` has patience.
        """
        end_s = math.inf
        if timeout is not None:
            end_s = self._dialer.now_s() + duration_s("timeout", timeout)
        try:
            while (change := self._changes.take()) is None:
                if not self._go_on(end_s):
                    return None
        except FastjournalError as error:
            name_daemon(error, self._dialer.address)
            raise
        return change

    def _go_on(self, end_s: float) -> bool:
        """Do what is next, and wait for it; return whether there is time left."""
        transport, now_s = self._transport, self._dialer.now_s
        if transport is None:
            raise not_connected()
        if transport.multiplexer.failed:
            return self._connect_again(transport, end_s)
        wait_s = min(end_s, self._act_at_s) - now_s()
        if transport.turn(None if wait_s == math.inf else max(wait_s, 0.0)):
            self._take_answers()
        elif now_s() >= self._act_at_s:
            self._ask_whether_it_is_there(transport)
        else:
            return now_s() < end_s
        return True

    # --- the subscription -----------------------------------------------------------------------

    def _subscribe(self, transport: SyncTransport) -> None:
        self._close()
        self._transport = transport
        if self._poller is not None:
            self._poller.register(transport, select.EPOLLIN)
        self._pinging = None
        self._changes.lost = False
        self._subscribing = transport.multiplexer.subscribe(self._call.request, self._changes.tell)
        self._expect_an_answer()

    def _take_answers(self) -> None:
        """Something was heard: see whether it is what was asked for."""
        if self._subscribing is not None and self._subscribing.done:
            if self._subscribing.error is not None and self._dialer.plan is not None:
                return  # it was lost with the connection, and goes out on the next one
            subscribed, self._subscribing = self._subscribing, None
            self._call.result(subscribed.answer())
            self._effort = None
            if self._listened_before:
                self._changes.subscribed_again()
            self._listened_before = True
        if self._pinging is not None and self._pinging.done:
            self._pinging = None
        if self._subscribing is None and self._pinging is None:
            self._act_at_s = self._dialer.now_s() + LISTENER_PING_S
        else:
            self._expect_an_answer()

    def _ask_whether_it_is_there(self, transport: SyncTransport) -> None:
        if self._subscribing is None and self._pinging is None:
            ping = calls.nop().request
            ping.timestamp = unique_timestamp()
            self._pinging = transport.multiplexer.start(ping)
            self._expect_an_answer()
        else:
            transport.multiplexer.fail(timed_out(transport.address, self._reply_timeout_s))

    def _expect_an_answer(self) -> None:
        patience_s = math.inf if self._reply_timeout_s is None else self._reply_timeout_s
        self._act_at_s = self._dialer.now_s() + patience_s

    # --- the connection -------------------------------------------------------------------------

    def _connect_again(self, lost: SyncTransport, end_s: float) -> bool:
        """Try once to connect in place of a lost connection; return whether there is time left."""
        dialer, now_s = self._dialer, self._dialer.now_s()
        failure = self._failure or lost.multiplexer.failure or not_connected()
        if dialer.plan is None:
            raise failure
        if self._effort is None:
            self._effort = ReconnectEffort(dialer.plan, dialer.rng, now_s)
        if self._try_at_s is None:
            self._effort.failed(failure)
            pause_s = self._effort.pause_s(now_s)
            if pause_s is None:
                self._effort = self._failure = None
                raise failure
            self._try_at_s = now_s + pause_s
        dialer.sleep(max(min(self._try_at_s, end_s) - now_s, 0.0))
        if self._try_at_s > end_s:
            return False
        self._try_at_s = self._failure = None
        left_s = max(end_s - dialer.now_s(), CONNECT_TRY_S_MIN)
        try:
            self._subscribe(dialer.dial_again(self._effort, left_s))
        except CannotConnectError as error:
            self._failure = error
        return True

    def _close(self) -> None:
        if self._transport is not None:
            # an epoll is shared with the parent of a fork, which goes on with it
            is_open = self._transport.fileno() >= 0 and self._transport.is_ours
            if self._poller is not None and is_open:
                self._poller.unregister(self._transport)
            self._transport.close()
            self._transport = None
