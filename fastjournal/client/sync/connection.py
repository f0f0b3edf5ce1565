"""Connection of a SyncClient: made at the first use, made again where it is lost.

Threads take turns; a signal handler may come in the middle of anything and must not wait for the
turn that it interrupts. Releases of leases have ways of their own: finalizers neither take a lock
nor wait.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias, TypeVar
from weakref import WeakSet

import msgspec

from fastjournal.client.core.calls import Call
from fastjournal.client.core.failures import (
    copy_error,
    name_daemon,
    no_turn_before_lock_end,
    not_connected,
)
from fastjournal.client.core.pipeline import Pipeline, Read, Undoable, raw, single
from fastjournal.client.core.retry_policy import Reconnect
from fastjournal.client.sync.dialer import Dialer
from fastjournal.client.sync.sockets import Stopped, StopSignal
from fastjournal.client.sync.transport import SyncTransport
from fastjournal.errors import FastjournalError
from fastjournal.limits import CLIENT_LAST_WORDS_S, LEASE_RENEWAL_PAUSE_S_MIN
from fastjournal.protocol import Request

T = TypeVar("T")

LastWord: TypeAlias = Callable[[], Request | None]
"""Builds the request that releases a job when it is sent; None: there is nothing to release."""

_connections: WeakSet[SyncConnection] = WeakSet()


class SyncConnection:
    """One transport at a time, and what is made of its losses.

    Args:
        dialer: Makes transports.
        reply_timeout_s: Seconds of silence after which a daemon that owes a reply counts as lost.
    """

    def __init__(self, dialer: Dialer, reply_timeout_s: float | None) -> None:
        self.dialer = dialer
        self.reply_timeout_s = reply_timeout_s
        self.transport: SyncTransport | None = None
        self.busy = False
        """A request is in progress; code that holds the lock and sees this is a signal handler."""
        self._was_connected = False
        self._ended = False
        self._last_failure: tuple[float, FastjournalError] | None = None
        self._lock = threading.RLock()
        self._leaving = threading.RLock()
        self._left: deque[LastWord] = deque()
        """Releases that finalizers have queued."""
        _connections.add(self)

    def connect(self) -> None:
        """Connect, unless that is done; see ``SyncClient.connect``."""
        with self._turn():
            self._ended = False
            if self.transport is None:
                try:
                    self.transport = self.dialer.dial_first(ended=lambda: self._ended)
                except FastjournalError as error:
                    name_daemon(error, self.dialer.address)
                    raise
                self._was_connected = True
            if self._ended:  # by a signal handler, meanwhile
                raise not_connected()

    def close(self) -> None:
        """Close the connection, also one that is waited for; see ``SyncClient.close``."""
        self._ended = True
        if not self._lock.acquire(blocking=False):
            self._interrupt()
            self._lock.acquire()
        try:
            if self.busy:  # by this thread: this is a signal handler of it
                self._interrupt()
                return
            if self._ended:
                self._drop()
        finally:
            self._lock.release()
        self.settle()

    def call(self, call: Call[T], stop: StopSignal | None = None) -> T:
        """Send a call in this thread's turn; return its result.

        Raises:
            Stopped: ``stop`` was set; leases and locks of the reply are released.
        """
        return self.exchange(*single(call), stop)

    def exchange(
        self,
        requests: list[Undoable],
        read: Read[T],
        stop: StopSignal | None = None,
        *,
        end_s: float | None = None,
    ) -> T:
        """Send requests in this thread's turn; return what ``read`` makes of their replies.

        Where that fails, the leases and locks of the replies are released. ``end_s`` is the instant
        after which nobody needs the replies, nor a turn for them.

        Raises:
            Stopped: ``stop`` was set while it waited.
        """
        plan, reply_s = self.dialer.plan, self.reply_timeout_s
        if end_s is not None:
            plan, reply_s = self._plan_until(end_s)
        pipeline = Pipeline(requests, plan)
        asked_at_s = self.dialer.now_s()
        with self._turn(end_s):
            try:
                silence_s = pipeline.silence_s(reply_s)
                self._carry(pipeline, plan, silence_s, asked_at_s, stop)
                return read(pipeline.requests)
            except BaseException as error:  # a signal handler may raise anything
                self._undo(pipeline)
                name_daemon(error, self.dialer.address)
                if not isinstance(error, FastjournalError | Stopped) or not self._is_idle:
                    # a signal handler's exception comes in the middle of anything
                    self._drop()
                raise

    def exchange_beside(self, call: Call[T], end_s: float) -> T:
        """Send a call and return its result, without waiting for the turn of another thread.

        If another request is in progress, the call has a connection of its own. Without an answer
        it fails at about ``end_s`` at the latest, independent of the timeouts of the client.
        """
        if self._lock.acquire(blocking=False):
            try:
                if not self.busy:
                    return self.exchange(*single(call), end_s=end_s)
            finally:
                self._lock.release()
        requests, read = single(call)
        return read(self._carry_apart(requests, end_s).requests)

    # --- releases -------------------------------------------------------------------------------

    def send_releases(self, releases: Iterable[LastWord]) -> None:
        """Send releases within a few seconds, and ignore their replies.

        Raises:
            CannotConnectError: The daemon stayed away.
        """
        requests = [request for release in releases if (request := release()) is not None]
        if not requests:
            return
        if self._lock.acquire(blocking=False):
            try:
                if not self.busy:
                    with self._turn():
                        self._release(requests)
                    return
            finally:
                self._lock.release()
        # Another thread waits for an answer, perhaps for long.
        self._carry_apart(raw(requests)[0])

    def send_releases_later(self, releases: Iterable[LastWord]) -> None:
        """Send releases in a thread of their own.

        For finalizers: they may run in the middle of anything, so they take no lock and wait for
        nothing.
        """
        self._left.extend(releases)
        # While the interpreter ends no thread begins; then this is done at its exit.
        with contextlib.suppress(RuntimeError):
            _thread.start_new_thread(self.settle, ())

    def settle(self) -> None:
        """Send releases that finalizers queued, within a few seconds."""
        with self._leaving:
            requests: list[Request] = []
            while self._left:
                if (request := self._left.popleft()()) is not None:
                    requests.append(request)
            if requests:
                with contextlib.suppress(FastjournalError):
                    self._carry_apart(raw(requests)[0])

    def _undo(self, pipeline: Pipeline) -> None:
        """Give back what requests were given that failed, or that a signal's exception ended."""
        gains, transport = pipeline.gains(), self.transport
        if transport is not None and not transport.multiplexer.failed:
            now_s = self.dialer.now_s
            transport.settle(gains, now_s() + CLIENT_LAST_WORDS_S, now_s)
        elif gains:
            with contextlib.suppress(FastjournalError):
                self._release(gains)

    def _release(self, requests: list[Request]) -> None:
        plan, wait_s = self._short_plan()
        pipeline = Pipeline(raw(requests)[0], plan)
        self._carry(pipeline, plan, wait_s, self.dialer.now_s())

    def _carry_apart(self, requests: list[Undoable], end_s: float | None = None) -> Pipeline:
        """Send requests by a transport of their own, once, within a few seconds; return them."""
        plan, wait_s = self._short_plan() if end_s is None else self._plan_until(end_s)
        pipeline = Pipeline(requests, plan)
        transport = self.dialer.dial() if plan is None else self.dialer.redial(plan)
        try:
            transport.carry(pipeline, wait_s)
        finally:
            transport.close()
        return pipeline

    def _short_plan(self) -> tuple[Reconnect | None, float]:
        """Return how to connect for last words, and how long to wait for each answer."""
        return self._plan_within(CLIENT_LAST_WORDS_S)

    def _plan_until(self, end_s: float) -> tuple[Reconnect | None, float]:
        """Return how to connect and how long to wait, so that all is over at an instant.

        A third each for silence, for another connection, and for silence on that one.
        """
        left_s = end_s - self.dialer.now_s()
        return self._plan_within(max(left_s / 3, LEASE_RENEWAL_PAUSE_S_MIN))

    def _plan_within(self, wait_s: float) -> tuple[Reconnect | None, float]:
        plan = self.dialer.plan
        if plan is not None:
            plan = msgspec.structs.replace(plan, patience=min(plan.patience_s, wait_s))
        if self.reply_timeout_s is not None:
            wait_s = min(wait_s, self.reply_timeout_s)
        return plan, wait_s

    # --- one turn -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _turn(self, end_s: float | None = None) -> Iterator[None]:
        with self._lock if end_s is None else self._locked_before(end_s):
            if self.busy:
                raise RuntimeError("a request of this thread is under way: one at a time")
            try:
                self.busy = True
                yield
            finally:
                self.busy = False
                if self._ended:  # by a signal handler or another thread, meanwhile
                    self._drop()

    @contextlib.contextmanager
    def _locked_before(self, end_s: float) -> Iterator[None]:
        """Hold the lock; for threads that renew, in which no signal handler raises."""
        if not self._lock.acquire(timeout=max(end_s - self.dialer.now_s(), 0)):
            raise no_turn_before_lock_end()
        try:
            yield
        finally:
            self._lock.release()

    def _carry(
        self,
        pipeline: Pipeline,
        plan: Reconnect | None,
        silence_s: float | None,
        asked_at_s: float,
        stop: StopSignal | None = None,
    ) -> None:
        while pipeline.unanswered():
            try:
                transport = self._usable_transport(plan, asked_at_s, stop)
            except FastjournalError as error:
                raise pipeline.failed(error) from error.__cause__
            transport.carry(pipeline, silence_s, stop)
            if not transport.is_idle:
                self._drop()
            if pipeline.unanswered():
                if self._ended:
                    raise pipeline.failed(not_connected())
                if plan is None:
                    self._ended = True
                name_daemon(transport.multiplexer.failure, transport.address)
                pipeline.lost(transport.multiplexer, self.dialer.now_s())

    def _usable_transport(
        self, plan: Reconnect | None, asked_at_s: float, stop: StopSignal | None
    ) -> SyncTransport:
        """Return the transport, or make one."""
        if self.transport is not None and not self.transport.is_ours:
            self._drop()
        if self.transport is not None and plan is not None:
            # One that was lost while nobody looked is replaced before anything is sent on it.
            self.transport.look()
            if self.transport.multiplexer.failed:
                self._drop()
        if self.transport is not None:
            return self.transport
        if self._ended:
            raise not_connected()
        if self._last_failure is not None and self._last_failure[0] >= asked_at_s:
            # Another thread has tried in vain while this one waited for its turn.
            raise copy_error(self._last_failure[1])
        self.transport = transport = self._dial(plan, stop)
        self._was_connected = True
        if self._ended:  # by a signal handler, meanwhile
            raise not_connected()
        return transport

    def _dial(self, plan: Reconnect | None, stop: StopSignal | None) -> SyncTransport:
        def is_stopped() -> bool:
            return stop is not None and stop.is_set

        def ended() -> bool:
            return self._ended or is_stopped()

        try:
            if self._was_connected:
                return self.dialer.redial(plan, ended=ended)
            return self.dialer.dial_first(ended=ended)
        except FastjournalError as error:
            if not is_stopped():  # else only its caller has ended the tries
                self._last_failure = self.dialer.now_s(), error
            raise

    @property
    def _is_idle(self) -> bool:
        return self.transport is not None and self.transport.is_idle

    def _interrupt(self) -> None:
        if (transport := self.transport) is not None:
            transport.interrupt()

    def _drop(self) -> None:
        if self.transport is not None:
            self.transport.close()
            self.transport = None

    def renew_locks(self) -> None:
        """Have locks that nobody holds."""
        self._lock, self._leaving, self.busy = threading.RLock(), threading.RLock(), False


def _renew_locks() -> None:
    """In the child of a fork no thread is left that could release what another one held."""
    for connection in list(_connections):
        connection.renew_locks()


os.register_at_fork(after_in_child=_renew_locks)
