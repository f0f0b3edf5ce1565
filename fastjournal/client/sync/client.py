"""``SyncClient``: blocking sockets, the standard library only."""

from __future__ import annotations

import _thread
import contextlib
import functools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from random import Random
from types import TracebackType
from typing import TypeVar
from weakref import WeakSet

import msgspec

from fastjournal.client.core.access import Tls, make_access
from fastjournal.client.core.address import DEFAULT_ADDRESS, parse_address
from fastjournal.client.core.backoff import Reconnect, check_limits
from fastjournal.client.core.batch import Batch, Errand, outcomes_of, replies_of, result_of
from fastjournal.client.core.calls import WAIT_WITHOUT_END, Call
from fastjournal.client.core.failed_attempts import FailureCounter
from fastjournal.client.core.failures import not_connected
from fastjournal.client.core.multiplexer import Undo, copy_error
from fastjournal.client.core.results import Entry, Page
from fastjournal.client.core.shared_locks import Claims
from fastjournal.client.core.worker_options import RetryDelay, WorkerOptions
from fastjournal.client.sync.job_loop import SyncJobLoop
from fastjournal.client.sync.link import Dialer, SyncLink
from fastjournal.client.sync.listen import SyncListener
from fastjournal.client.sync.methods import SyncMethods
from fastjournal.client.sync.stop_signal import Stopped, StopSignal
from fastjournal.errors import FastjournalError, RefusedError
from fastjournal.limits import CLIENT_LAST_WORDS_S, CLIENT_REPLY_BYTES_MAX, SYNC_JOB_LEASE_US
from fastjournal.protocol import Reply, Request

T = TypeVar("T")

_clients: WeakSet[SyncClient] = WeakSet()


class SyncClient(SyncMethods):
    """Connection to a daemon for programs without an event loop.

    It connects at the first use. Where the connection is lost later, it makes another one, and
    sends again what is safe to repeat; all else raises CannotConnectError, whose ``maybe_done``
    says whether the daemon may have carried it out. After ``close``, or without ``reconnect`` after
    a lost connection, every request raises it (code ``not-connected``) until ``connect`` is called.

    Threads may share a client: they take turns, so one that waits for work holds up the others. Do
    not use it on both sides of a fork.

    Args:
        address: ``HOST:PORT``, ``[::1]:PORT``, ``tls://HOST:PORT`` or ``unix:PATH``.
        tls: For TCP addresses. An ``ssl.SSLContext``; or the path of a PEM file of authorities to
            trust; or True: trust those of the system. None: TLS only where the address says so.
        auth: The token that AUTH sends before all else, at every connect. None: none is sent.
        reconnect: What to do about a lost connection; None: nothing.
        connect_timeout_s: Seconds to establish the connection.
        reply_timeout_s: Seconds of silence, while an answer is due, after which the connection
            counts as lost. The time that a NEXT may wait is added. None: no limit.
        reply_bytes_max: Bytes of the largest reply to accept.
        rng: Draws the pauses before connecting again.
        sleep: Pauses for so many seconds.
        monotonic: Seconds of a clock that does not jump.

    Raises:
        BadRequestError: The address or the token is none, or a number is out of range.
        ConfigError: The file of authorities cannot be used.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        tls: Tls = None,
        auth: str | bytes | None = None,
        reconnect: Reconnect | None = Reconnect(),  # noqa: B008 - it is immutable
        connect_timeout_s: float = 10.0,
        reply_timeout_s: float | None = 60.0,
        reply_bytes_max: int = CLIENT_REPLY_BYTES_MAX,
        rng: Random | None = None,
        sleep: Callable[[float], object] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.address = parse_address(address)
        self._claims = Claims()
        check_limits(connect_timeout_s, reply_timeout_s, reply_bytes_max)
        self._dialer = Dialer(
            self.address,
            make_access(tls, auth),
            connect_timeout_s=connect_timeout_s,
            reply_bytes_max=reply_bytes_max,
            plan=reconnect,
            rng=rng,
            sleep=sleep,
            monotonic=monotonic,
        )
        self._reply_timeout_s = reply_timeout_s
        self._link: SyncLink | None = None
        self._was_connected = False
        self._ended = False
        self._gave_up: tuple[float, FastjournalError] | None = None
        self._lock = threading.RLock()
        self._busy = False
        """A request is under way; whoever holds the lock and finds this is a signal handler."""
        self._leaving = threading.RLock()
        self.failures = FailureCounter()
        self._left: deque[Request] = deque()
        """Releases that finalizers have left behind."""
        _clients.add(self)

    # --- connection -----------------------------------------------------------------------------

    def connect(self) -> None:
        """Connect, unless it is connected; try once.

        A daemon that has no room, or is stopping, is tried again as ``reconnect`` says.

        Raises:
            CannotConnectError: Nobody listens there, or TLS fails, or the daemon takes no more.
            RefusedError: ``auth-failed``.
        """
        with self._turn():
            self._ended = False
            if self._link is None:
                self._link = self._dialer.dial_first(ended=lambda: self._ended)
                self._was_connected = True
            if self._ended:  # by a signal handler, meanwhile
                raise not_connected()

    def close(self) -> None:
        """Close the connection; a lease goes on until it ends or is released.

        A signal handler, or another thread, may call this while a request waits: that request then
        raises CannotConnectError (code ``not-connected``).
        """
        self._ended = True
        if not self._lock.acquire(blocking=False):
            self._interrupt()
            self._lock.acquire()
        try:
            if self._busy:  # by this thread: this is a signal handler of it
                self._interrupt()
                return
            if self._ended:
                self._drop_link()
        finally:
            self._lock.release()
        self.settle()

    def _interrupt(self) -> None:
        if (link := self._link) is not None:
            link.interrupt()

    def __enter__(self) -> SyncClient:
        self.connect()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # --- more than one request ------------------------------------------------------------------

    def jobs(
        self,
        domain: str | bytes = b"",
        *,
        count: int = 1,
        lease_us: int = SYNC_JOB_LEASE_US,
        wait_us: int | None = WAIT_WITHOUT_END,
        retry_delay_us: RetryDelay = None,
        retry_delay_us_max: int | None = None,
        attempts_max: int = 0,
        patience_s: float | None = None,
    ) -> SyncJobLoop:
        """Work loop over due jobs: ``for job in client.jobs("pages"): ...``.

        A job is completed when the loop asks for the next one. Where the body is left otherwise (an
        exception, break, return), the job is released. No thread runs beside the body, so nobody
        renews its lease but the body itself, by ``job.extend()``: ``lease_us`` has to be longer
        than the longest work, or than the time between two renewals. Where the lease is lost,
        extending, and asking for the next job, raise LeaseLostError; the loop can be begun again.

        That release is sent by a thread when Python drops the iterator, so soon where only the loop
        has it, and at the latest when the client is closed or the program ends.
        ``with client.jobs("pages") as jobs: for job in jobs: ...`` has released all when the block
        ends. ``with job: ...`` around the body completes or releases this job at its end.
        ``stop()`` of the loop ends it cleanly, for instance at SIGTERM.

        A loop goes on over lost connections and restarts of the daemon for as long as ``reconnect``
        has patience. One that waits without end also waits while the daemon is read-only.

        Args:
            domain: Of this domain only; empty: the domains take turns.
            count: How many to lease at a time, 1 to 65,535. They are worked on one after the other,
                under leases that began together.
            lease_us: Microseconds of the lease, at least 1,000,000: how late the work of a killed
                worker is found out.
            wait_us: The loop ends when there was nothing for so many microseconds; None: as soon as
                nothing is due.
            retry_delay_us: A job that failed (``job.fail``, or an exception of its body) is due
                again after so many microseconds, or as many as this function returns for the job.
                None, and where the function fails (its error is logged): at once. In a loop without
                a block ``break`` and ``return`` look like an exception.
            retry_delay_us_max: The delay is doubled for each earlier failure, up to so many
                microseconds; None: it stays.
            attempts_max: A job that failed that often is buried instead; 0: no limit. Leases that
                ran out count, and failures that this client has seen: ``job.fail``, and exceptions
                in a block. A job that a plain loop drops does not count as failed.
            patience_s: Seconds to go on asking a daemon that hands out no work for now (``busy``,
                ``read-only``, ...); None: as ``reconnect`` says.

        Raises:
            LeaseLostError: From the loop: the lease of the last job was lost before its end.
            CannotConnectError: From the loop: the daemon stays away.
            RefusedError: From the loop: it hands out no work, for instance ``forbidden``.
            BadRequestError: An argument that no daemon would take.
        """
        options = WorkerOptions(
            domain=domain,
            count=count,
            lease_us=lease_us,
            wait_us=wait_us,
            retry_delay_us=retry_delay_us,
            retry_delay_us_max=retry_delay_us_max,
            attempts_max=attempts_max,
            patience_s=patience_s,
        )
        return SyncJobLoop(self, options, self._dialer)

    def now_s(self) -> float:
        """Return the seconds of a clock that does not jump."""
        return self._dialer.now_s()

    def _listen_to(self, call: Call[Page[Entry]]) -> SyncListener:
        return SyncListener(self._dialer, self._reply_timeout_s, call)

    # --- many at once ---------------------------------------------------------------------------

    def request(self, request: Request) -> Reply:
        """Send a request as it is; return the reply, which may be a refusal.

        A timestamp of 0 is replaced by this machine's time; the identifier is set.
        """
        return self.request_many([request])[0]

    def request_many(self, requests: Iterable[Request]) -> list[Reply]:
        """Send requests without waiting between them; return their replies in the same order.

        Raises:
            CannotConnectError: The connection was lost; any of them may have been carried out.
        """
        return self._ask([(request, None) for request in requests], replies_of)

    def call(self, call: Call[T]) -> T:
        """Send one of ``fastjournal.client.core.calls``; return its result."""
        return self._ask([(call.request, call.undo)], functools.partial(result_of, call))

    def call_until(self, call: Call[T], stop: StopSignal) -> T:
        """Send a call, and abandon it when ``stop`` is set.

        Raises:
            Stopped: It was set; what the daemon gives is given back.
        """
        read = functools.partial(result_of, call)
        return self._ask([(call.request, call.undo)], read, stop)

    def call_many(self, many: Iterable[Call[T]]) -> list[T | RefusedError]:
        """Pipeline calls, without a wait for single replies; each gives its result or refusal."""
        kept = list(many)
        asked = [(call.request, call.undo) for call in kept]
        return self._ask(asked, functools.partial(outcomes_of, kept))

    def give_back(self, releases: Iterable[Call[None]]) -> None:
        """Send releases within a few seconds, and ignore their replies.

        Raises:
            CannotConnectError: The daemon stayed away.
        """
        requests = [release.request for release in releases]
        if not requests:
            return
        if self._lock.acquire(blocking=False):
            try:
                if not self._busy:
                    with self._turn():
                        self._release(requests)
                    return
            finally:
                self._lock.release()
        # Another thread waits for an answer, perhaps for long.
        self._release_apart(requests)

    def give_back_later(self, releases: Iterable[Call[None]]) -> None:
        """Send releases in a thread of their own.

        For finalizers: they may run in the middle of anything, so they take no lock and wait for
        nothing.
        """
        self._left.extend(release.request for release in releases)
        # While the interpreter ends no thread begins; then this is done at its exit.
        with contextlib.suppress(RuntimeError):
            _thread.start_new_thread(self.settle, ())

    def settle(self) -> None:
        """Send releases that finalizers left behind, within a few seconds."""
        with self._leaving:
            requests: list[Request] = []
            while self._left:
                requests.append(self._left.popleft())
            if requests:
                with contextlib.suppress(FastjournalError):
                    self._release_apart(requests)

    # --- moving bytes ---------------------------------------------------------------------------

    def _ask(
        self,
        requests: list[tuple[Request, Undo | None]],
        read: Callable[[list[Errand]], T],
        stop: StopSignal | None = None,
    ) -> T:
        batch, plan = Batch(requests, self._dialer.plan), self._dialer.plan
        asked_at_s = self._dialer.now_s()
        with self._turn():
            try:
                silence_s = batch.silence_s(self._reply_timeout_s)
                self._carry(batch, plan, silence_s, asked_at_s, stop)
                return read(batch.errands)
            except BaseException as error:
                self._undo(batch)
                if not isinstance(error, FastjournalError | Stopped) or not self._is_idle:
                    # a signal handler's exception comes in the middle of anything
                    self._drop_link()
                raise

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        with self._lock:
            if self._busy:
                raise RuntimeError("a request of this thread is under way: one at a time")
            try:
                self._busy = True
                yield
            finally:
                self._busy = False
                if self._ended:  # by a signal handler or another thread, meanwhile
                    self._drop_link()

    @property
    def _is_idle(self) -> bool:
        return self._link is not None and self._link.is_idle

    def _carry(
        self,
        batch: Batch,
        plan: Reconnect | None,
        silence_s: float | None,
        asked_at_s: float,
        stop: StopSignal | None = None,
    ) -> None:
        while batch.unanswered():
            try:
                link = self._usable_link(plan, asked_at_s, stop)
            except FastjournalError as error:
                raise batch.failed(error) from error.__cause__
            link.carry(batch, silence_s, stop)
            if not link.is_idle:
                self._drop_link()
            if batch.unanswered():
                if self._ended:
                    raise batch.failed(not_connected())
                if plan is None:
                    self._ended = True
                batch.lost(link.multiplexer, self._dialer.now_s())

    def _undo(self, batch: Batch) -> None:
        """Give back what a batch was given that has failed, or that a signal's exception ended."""
        gains, link = batch.gains(), self._link
        if link is not None and not link.multiplexer.failed:
            now_s = self._dialer.now_s
            link.settle(gains, now_s() + CLIENT_LAST_WORDS_S, now_s)
        elif gains:
            with contextlib.suppress(FastjournalError):
                self._release(gains)

    def _release(self, requests: list[Request]) -> None:
        plan, wait_s = self._short_plan()
        batch = Batch([(request, None) for request in requests], plan)
        self._carry(batch, plan, wait_s, self._dialer.now_s())

    def _release_apart(self, requests: list[Request]) -> None:
        """Send releases on a connection of their own."""
        plan, wait_s = self._short_plan()
        link = self._dialer.dial() if plan is None else self._dialer.redial(plan)
        try:
            link.carry(Batch([(request, None) for request in requests], plan), wait_s)
        finally:
            link.close()

    def _short_plan(self) -> tuple[Reconnect | None, float]:
        """Return how to connect for last words, and how long to wait for each answer."""
        plan, wait_s = self._dialer.plan, CLIENT_LAST_WORDS_S
        if plan is not None:
            plan = msgspec.structs.replace(plan, patience_s=min(plan.patience_s, wait_s))
        if self._reply_timeout_s is not None:
            wait_s = min(wait_s, self._reply_timeout_s)
        return plan, wait_s

    def _usable_link(
        self, plan: Reconnect | None, asked_at_s: float, stop: StopSignal | None = None
    ) -> SyncLink:
        """Return the connection, or make one."""

        def ended() -> bool:
            return self._ended or (stop is not None and stop.is_set)

        if self._link is not None and not self._link.is_ours:
            self._drop_link()
        if self._link is not None and plan is not None:
            # One that was lost while nobody looked is replaced before anything is sent on it.
            self._link.look()
            if self._link.multiplexer.failed:
                self._drop_link()
        if self._link is not None:
            return self._link
        if self._ended:
            raise not_connected()
        if self._gave_up is not None and self._gave_up[0] >= asked_at_s:
            # Another thread has tried in vain while this one waited for its turn.
            raise copy_error(self._gave_up[1])
        try:
            self._link = (
                self._dialer.redial(plan, ended=ended)
                if self._was_connected
                else self._dialer.dial_first(ended=ended)
            )
        except FastjournalError as error:
            self._gave_up = self._dialer.now_s(), error
            raise
        self._was_connected = True
        if self._ended:  # by a signal handler, meanwhile
            raise not_connected()
        return self._link

    def _drop_link(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def _renew_locks(self) -> None:
        self._lock, self._leaving, self._busy = threading.RLock(), threading.RLock(), False


def _renew_locks() -> None:
    """In the child of a fork no thread is left that could release what another one held."""
    for client in list(_clients):
        client._renew_locks()


os.register_at_fork(after_in_child=_renew_locks)
