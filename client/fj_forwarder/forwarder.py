"""Forwarder process: files on one side, a connection on the other, the engine between them.

One task sends the requests of the engine, one receives and erases. The others wake them: the
datagram socket, inotify, a timer. If the first two fail, the timer finds the records.

The forwarder tries daemons in turn, and stays with one until that fails. A writer wakes it by the
wake socket; inotify wakes it for writers that send nothing there.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final, NamedTuple, Self

import trio
from anyio.abc import ByteStream

from fastjournal.client.aio.streams import STREAM_ERRORS, close_stream, open_stream, receive_some
from fastjournal.client.core.address import Servers
from fastjournal.client.core.client_credentials import Credentials
from fastjournal.client.core.failures import ConnectRound, advise_of_options
from fastjournal.errors import (
    CannotConnectError,
    ConfigError,
    ProtocolError,
    RefusedError,
    SpoolFailedError,
)
from fastjournal.limits import RESCAN_US, SLOT_SECONDS
from fastjournal.program import STOP_SIGNALS, notify, raise_noted
from fastjournal.protocol import ClientConnection, Reply
from fastjournal.spool.inotify import Inotify, Mask
from fastjournal.spool.slots import STATUS_NAME, STATUS_TEMPORARY_NAME, WAKE_NAME
from fastjournal.spool.wake import GATHER_S, bind_wake_socket
from fj_forwarder.delivery import Delivery
from fj_forwarder.reporting import Connection, Reporter
from fj_forwarder.sending.delivery_engine import DeliveryEngine

log = logging.getLogger("fj_forwarder")

CONNECT_SECONDS_MAX: Final = 10.0


class Connector:
    """Makes connections to daemons, and logs what comes of each try.

    Args:
        servers: Their addresses.
        load_credentials: Reads certificates and token, for each connection.
    """

    def __init__(self, servers: Servers, load_credentials: Callable[[], Credentials]) -> None:
        self._servers = servers
        self._load_credentials = load_credentials

    async def connect(self, *, level: int) -> ByteStream | None:
        """Try each server once, beginning with the one in use; None: all in vain.

        Args:
            level: With which success is logged.
        """
        tries = ConnectRound(self._servers, CONNECT_SECONDS_MAX * len(self._servers), prove=False)
        for address in tries:
            try:
                stream = await open_stream(
                    address, self._load_credentials(), tries.try_s, prove=tries.prove
                )
            except (CannotConnectError, ConfigError) as error:
                advise_of_options(error)
                log.warning("%s", error)
            except RefusedError as error:
                advise_of_options(error)
                log.error("%s: %s", address, error)
            else:
                log.log(level, "%s: connected", address)
                self._servers.use(address)
                return stream
        return None


_DATAGRAMS_MAX = 1024
"""At most so many are taken at once; the rest wakes again."""


_OWN_FILES = frozenset({STATUS_NAME, STATUS_TEMPORARY_NAME})


class WakeSource(NamedTuple):
    """Wake source: a descriptor that becomes readable."""

    descriptor: int
    drain: Callable[[], bool]
    """Takes off what made it readable, without waiting; whether there may be records."""
    looks_again: bool = False
    """Whether a byte announces the records of the next ``GATHER_S``, too: none comes for these."""


class WakeSources:
    """Wake sources of one spool, as far as they can be had; the rest is named in the log.

    Only the holder of forwarder.lock may have one.
    """

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, WAKE_NAME)
        self.sources: list[WakeSource] = []
        self._socket: socket.socket | None = None
        self._bound: os.stat_result | None = None
        try:
            self._socket = bind_wake_socket(directory)
        except SpoolFailedError as error:
            log.warning("no wake socket, inotify and the rescan find the records: %s", error)
        self._inotify: Inotify | None = None
        try:
            self._inotify = Inotify()
            self._inotify.add_watch(
                directory, Mask.MODIFY | Mask.CREATE | Mask.MOVED_TO | Mask.CLOSE_WRITE
            )
        except OSError as error:
            log.warning("no inotify, records without a ping wait for the rescan: %s", error)
            if self._inotify is not None:
                self._inotify.close()
                self._inotify = None
        if self._socket is not None:
            self._bound = _status(self._path)
            looks_again = self._inotify is None
            self.sources.append(WakeSource(self._socket.fileno(), self._drain_socket, looks_again))
        if self._inotify is not None:
            self.sources.append(WakeSource(self._inotify.fileno(), self._drain_inotify))

    def close(self) -> None:
        """Close both; writers find no socket then, unless another forwarder bound its own."""
        status = _status(self._path)
        if self._bound and status and os.path.samestat(status, self._bound):
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        if self._socket is not None:
            self._socket.close()
        if self._inotify is not None:
            self._inotify.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _drain_socket(self) -> bool:
        assert self._socket is not None
        with contextlib.suppress(BlockingIOError):
            for _ in range(_DATAGRAMS_MAX):
                self._socket.recv(1)
        return True

    def _drain_inotify(self) -> bool:
        """Take the events; the status file, which the forwarder writes each second, is no news."""
        assert self._inotify is not None
        return any(event.name not in _OWN_FILES for event in self._inotify.read())


def _status(path: str) -> os.stat_result | None:
    """Return the status of what has this name; None: nothing has, or it is not known."""
    try:
        return os.lstat(path)
    except OSError:
        return None


LATE_SECONDS: Final = 1.0
"""Delay of a progress check that shows that this process itself was stopped (SIGSTOP, a frozen
machine): replies may wait to be read. They get as much time."""
STOP_SECONDS_MAX: Final = 5.0
"""How long SIGTERM waits for replies. A request without reply by then is sent again later."""
IN_FLIGHT_MAX: Final = 1024

GATHER_SECONDS: Final = 0.001
"""So long after a look at the spool wake-ups are gathered: a look costs as much as some ten
records, and one append wakes twice (datagram and inotify)."""


@dataclass(frozen=True, kw_only=True)
class ForwarderSettings:
    """Settings of a forwarder, from the command line."""

    spool: str
    servers: Servers
    in_flight_max: int = IN_FLIGHT_MAX
    slot_seconds: int = SLOT_SECONDS
    once: bool = False
    seed: int | None = None
    load_credentials: Callable[[], Credentials] = Credentials
    """Reads certificates and token, for each connection: they may be renewed meanwhile."""


class Forwarder:
    """Forwarder of one spool. The caller holds forwarder.lock.

    Args:
        settings: Options of the forwarder.
        holds_spool: Whether the lock is still that of the directory, which may be deleted.
        early_stops: Stop signals from before it receives them, see ``stop_signals``.
    """

    def __init__(
        self,
        settings: ForwarderSettings,
        holds_spool: Callable[[], bool] = lambda: True,
        early_stops: list[int] | None = None,
    ) -> None:
        self._settings = settings
        self._holds_spool = holds_spool
        self._early_stops = [] if early_stops is None else early_stops
        self._is_taken_away = False
        self._engine = DeliveryEngine(
            in_flight_max=settings.in_flight_max, random=Random(settings.seed)
        )
        self._start_us = time.time_ns() // 1000
        self._start = time.monotonic()
        self._delivery = Delivery(
            settings.spool,
            slot_seconds=settings.slot_seconds,
            engine=self._engine,
            now_us=self._start_us,
        )
        self._connection = Connection(settings.servers.in_turn())
        self.reporter = Reporter(settings.spool, self._delivery, self._engine, self._connection)
        self._servers = settings.servers
        self._connector = Connector(settings.servers, settings.load_credentials)
        self._woken = trio.Event()
        self._stopping = False
        self._last_look = 0.0
        self._is_reconnecting = False
        """The last connection was lost, and the daemon is well: the next one is no news."""
        self._is_overdue = False
        """The session was ended because the daemon made no progress."""
        self._scope = trio.CancelScope()

    @property
    def done(self) -> int:
        """Records that were answered and erased."""
        return self._delivery.done

    @property
    def dead(self) -> int:
        """Records and pieces of damage that were put into dead/."""
        return self._delivery.dead_letters.count

    async def run(self) -> bool:
        """Forward until SIGTERM or SIGINT, or, with ``once``, until all that is there is sent.

        Returns:
            Whether it is done. False: somebody deleted or moved the directory, which is to be made,
            locked and sent again.

        Raises:
            SpoolFailedError: A call of the operating system on the spool failed; or, with ``once``,
                a slot was left out.
        """
        with WakeSources(self._settings.spool) as watch:
            try:
                await self._run(watch)
                if self._is_taken_away and not self._stopping:
                    log.error(
                        "%s: it was deleted or moved away; it is made anew", self._settings.spool
                    )
                    return False
                self._delivery.finish(is_stopped=self._stopping)
                if not self._stopping:
                    self._delivery.check_all_was_read()
            finally:
                self._delivery.close()
        log.info(
            "stopped: %d records done, %d waiting jobs replaced (%d of another queue), %d to dead/",
            self.done,
            self._delivery.replaced,
            self._delivery.replaced_elsewhere,
            self.dead,
        )
        return True

    async def _run(self, watch: WakeSources) -> None:
        """Work until all is done, or the spool was deleted."""
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(self._stop_on_signal)
                nursery.start_soon(self._watch_lock)
                nursery.start_soon(self.reporter.run)
                for source in watch.sources:
                    nursery.start_soon(self._wake_on, source)
                with self._scope:
                    notify("READY=1")
                    await self._work()
                nursery.cancel_scope.cancel()
        except* SpoolFailedError:
            if self._holds_spool():
                raise
            self._is_taken_away = True

    # --- the connection ---------------------------------------------------------------------

    async def _work(self) -> None:
        """Connect whenever there is something to send, and send it."""
        while await self._wait_for_work():
            if self._seconds_left() <= 0:
                self._leave()
            stream = await self._connector.connect(
                level=logging.DEBUG if self._is_reconnecting else logging.INFO
            )
            if stream is None:
                self._delivery.lost(self._now_us())
                continue
            self._connection.opened(self._servers.current)
            self._is_overdue = False
            try:
                lost = await self._session(stream)
            finally:
                self._connection.closed()
                await close_stream(stream)
            if self._is_overdue:
                self._leave()
            elif lost:
                self._is_reconnecting = self._delivery.lost(self._now_us())
                if self._is_reconnecting:
                    log.debug("%s: connection lost: %s", self._servers.current, lost)
                else:
                    log.warning("%s: connection lost: %s", self._servers.current, lost)
                    self._servers.move_on()

    async def _wait_for_work(self) -> bool:
        """Return True when something may be sent now, False when there is nothing to wait for."""
        while True:
            now_us = self._now_us()
            if not self._stopping:
                self._delivery.fill(now_us, _wall_us())
            due_us = self._engine.next_due(now_us)
            if due_us is not None and due_us <= now_us and not self._stopping:
                return True
            if self._is_finished():
                return False
            await self._wait(now_us)

    async def _session(self, stream: ByteStream) -> str:
        """Send and receive until the connection is lost (return why), no progress, or done ("")."""
        lost = ""

        async def receive() -> None:
            nonlocal lost
            lost = await self._receive(stream)
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            nursery.start_soon(self._watch_progress, nursery.cancel_scope)
            try:
                await self._send(stream)
                nursery.cancel_scope.cancel()
            except STREAM_ERRORS as error:
                # The daemon's last messages are still to be read, and give the reason.
                with trio.move_on_after(STOP_SECONDS_MAX):
                    await trio.sleep_forever()
                lost = lost or _reason(error)
                nursery.cancel_scope.cancel()
        return lost

    async def _send(self, stream: ByteStream) -> None:
        """Send what the engine gives; return when all is done."""
        while True:
            now_us = self._now_us()
            if not self._stopping:
                self._delivery.fill(now_us, _wall_us())
                self._last_look = trio.current_time()
                frames = self._engine.take(now_us)
                if frames:
                    await stream.send(frames)
                    continue
            if self._is_finished():
                return
            await self._wait(now_us)

    async def _watch_progress(self, session: trio.CancelScope) -> None:
        """End the session when the daemon has made no progress for too long."""
        while True:
            left_s = self._seconds_left()
            if left_s <= -LATE_SECONDS:
                await trio.sleep(LATE_SECONDS)
                left_s = self._seconds_left()
            if left_s <= 0:
                break
            await trio.sleep(left_s)
        self._is_overdue = True
        session.cancel()

    def _seconds_left(self) -> float:
        """Return after which time without progress the daemon is left; 0 and less: now."""
        now_us = self._now_us()
        has_others = len(self._servers) > 1
        return (self._engine.overdue_us(now_us, has_others=has_others) - now_us) / 1e6

    def _leave(self) -> None:
        """Move on to the next server; where there is one only, connect to it again."""
        self._is_reconnecting = False
        log.warning(
            "%s: it has answered no record for too long, %s",
            self._servers.current,
            "the next server is tried" if len(self._servers) > 1 else "connecting again",
        )
        self._delivery.leave(self._now_us())
        self._servers.move_on()

    async def _receive(self, stream: ByteStream) -> str:
        """Take replies until the connection is lost; return why."""
        connection, why = ClientConnection(), ""
        try:
            while True:
                data = await receive_some(stream)
                connection.receive_data(data)
                now_us = self._now_us()
                for reply in connection.next_events():
                    is_turn_over = self._delivery.handle(reply, now_us)
                    if isinstance(reply, Reply) and not reply.identifier and reply.error:
                        why = f": {reply.error}"  # about the connection
                    if is_turn_over:
                        self._wake()
                        # not cancelled: what the daemon has answered would be sent again
                        await trio.lowlevel.cancel_shielded_checkpoint()
                        self._delivery.begin_turn()
                        now_us = self._now_us()
                if not data:
                    return f"closed by the daemon{why}"
                self._wake()
        except ProtocolError as error:
            return str(error)
        except STREAM_ERRORS as error:
            return _reason(error)

    # --- waking and stopping ----------------------------------------------------------------

    def _is_finished(self) -> bool:
        """Whether there is nothing to wait for, neither replies nor new records."""
        engine = self._engine
        if engine.in_flight:
            return False
        if self._stopping:
            return True
        exhausted = self._delivery.exhausted and not engine.waiting
        return self._settings.once and exhausted and not self._delivery.store.retries.is_awaited

    async def _wait(self, now_us: int) -> None:
        """Wait for an event, or until a record or a rescan is due.

        Args:
            now_us: Instant at which there was nothing to do: anything due after it is waited for,
                even if it is due already.
        """
        due_us = self._delivery.next_due(now_us)
        if not self._stopping and (engine_due_us := self._engine.next_due(now_us)) is not None:
            due_us = min(due_us, engine_due_us)
        timeout = RESCAN_US / 1e6 if self._stopping else (due_us - now_us) / 1e6
        with trio.move_on_after(timeout):
            await self._woken.wait()
        self._woken = trio.Event()

    def _wake(self) -> None:
        self._woken.set()

    async def _wake_on(self, source: WakeSource) -> None:
        while True:
            await trio.lowlevel.wait_readable(source.descriptor)
            await trio.sleep_until(self._last_look + GATHER_SECONDS)
            if source.drain():
                self._wake()
                if source.looks_again:
                    await trio.sleep(GATHER_S)
                    self._wake()

    async def _watch_lock(self) -> None:
        """End the work when the spool was removed, with its lock, socket and inotify watch."""
        while True:
            await trio.sleep(RESCAN_US / 1e6)
            if not self._holds_spool():
                self._is_taken_away = True
                self._scope.cancel()

    async def _stop_on_signal(self, task_status: trio.TaskStatus[None]) -> None:
        with trio.open_signal_receiver(*STOP_SIGNALS) as signals:
            raise_noted(self._early_stops)
            task_status.started()
            async for number in signals:
                log.info("%s: stopping", signal.Signals(number).name)
                notify("STOPPING=1")
                self._stopping = True
                patience = STOP_SECONDS_MAX if self._engine.in_flight else 0
                self._scope.deadline = trio.current_time() + patience
                self._wake()

    def _now_us(self) -> int:
        """Return the instant by a clock that never jumps: the machine's at the start, going on."""
        return self._start_us + int((time.monotonic() - self._start) * 1_000_000)


def _wall_us() -> int:
    """Return the time by the machine's clock, which names slots."""
    return time.time_ns() // 1000


def _reason(error: Exception) -> str:
    """Return why a stream broke: anyio has the error of the system as the cause of its own."""
    cause = error if isinstance(error, OSError) else error.__cause__
    return str(cause or error) or "the connection is broken"
