"""Daemon in the process of a test: the real engine, without log, sockets and threads.

``with FastjournalDaemon() as daemon`` gives clients of both kinds, spools, and a clock that only
the test moves. docs/testing.md shows how producers and workers are tested with it. The bytes of the
protocol go from client to engine and back in memory; nothing is on disk but spools.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from os import PathLike
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.lowlevel
import msgspec
from anyio.abc import ByteStream

from fastjournal.client.aio.client import Client
from fastjournal.client.aio.event_loop import running_loop
from fastjournal.client.core.address import Address
from fastjournal.client.core.calls import Call, refusal
from fastjournal.client.core.client_credentials import Credentials, forbid_found
from fastjournal.client.core.results import Change, Entry, Page
from fastjournal.client.sync.client import SyncClient
from fastjournal.client.sync.listen import SyncListener
from fastjournal.client.sync.sockets import Channel, StopSignal
from fastjournal.clock import replace_clock
from fastjournal.entry_points import check_extra
from fastjournal.errors import BadRequestError, ConfigError, ProtocolError
from fastjournal.protocol import (
    CONNECTION_CLOSED,
    Flag,
    Function,
    Request,
    ServerConnection,
    decode_reply,
    encode_error,
)
from fastjournal.protocol.functions import BY_SERVER
from fastjournal.spool import Kind, SlotReader, Spool, list_slots
from fastjournal.times import Duration, Instant, duration_us, instant_us

try:
    from fastjournald.config.options import Config
    from fastjournald.engine.engine import Engine, LongMatches, Scan
except ModuleNotFoundError:
    check_extra("test", ["sortedcontainers", "re2"])  # says which extra has it
    raise

if TYPE_CHECKING:
    from fastjournal.client.sync.job_loop import SyncJobLoop

OPTIONS: Final = (
    "max_value",
    "max_reply",
    "default_lease",
    "max_attempts",
    "retry_delay",
    "retry_delay_max",
    "default_interval",
    "default_jobs",
    "tombstone_ttl",
    "tombstones_max",
    "tombstones_bytes_max",
    "max_clock_skew",
    "max_postpone",
)
"""Options of fastjournald that have a meaning without disk and sockets."""

_ADDRESS: Final = "unix:in-process"
_NO_ADDRESS: Final = (
    "a FastjournalDaemon runs in this process, and this client would connect to a real one",
    "use daemon.sync_client(), or for tasks 'with app.using(daemon.sync_client())'; with the"
    " fixture: app.using(fastjournal_daemon.sync_client()). To reach a real one, name its address",
)
"""For clients without an address."""
_PIECES_MAX: Final = 1000
_OF_NO_USE: Final = frozenset({"stale", "not-found"})
"""Errors with which a record of a spool is done: what it asks for is so, or newer."""
_NO_LOG: Final = "unknown-function a FastjournalDaemon has no log: no snapshot, no remote log"

_running: FastjournalDaemon | None = None


class FastjournalDaemon:
    """The daemon, as a block: ``with FastjournalDaemon(max_attempts=3) as daemon``.

    While the block runs, its clock is the clock of the process: clients and spools take their
    timestamps and delays from it. A client without an address raises an error instead of connecting
    to a daemon that it finds. It stands still but for a microsecond at each look, until
    ``advance`` moves it. Threads may share a daemon.

    Args:
        start: Its first instant; None: the present.
        options: As those of fastjournald, with underscores, of those in ``OPTIONS``.

    Raises:
        TypeError: There is no such option.
        ConfigError: An option is out of range.
        BadRequestError: ``start`` is no instant.
    """

    def __init__(self, *, start: Instant | None = None, **options: object) -> None:
        if unknown := sorted(options.keys() - set(OPTIONS)):
            raise TypeError(
                f"FastjournalDaemon has no option {unknown[0]}; it has: {', '.join(OPTIONS)}"
            )
        try:
            config = msgspec.convert(options, Config)
        except msgspec.ValidationError as error:
            raise ConfigError(f"FastjournalDaemon: {error}") from error
        self._engine = Engine(config.settings())
        self._value_bytes_max = config.max_value
        self._now_us = time.time_ns() // 1000 if start is None else instant_us("start", start)
        self._links: set[_Link] = set()
        self._forwarded: dict[str, int] = {}
        """Place up to which a slot was forwarded, by its path."""
        self._lock = threading.RLock()

    def __enter__(self) -> FastjournalDaemon:
        global _running  # noqa: PLW0603 - it stands for the clock of the process
        if _running is not None:
            raise RuntimeError(
                "another FastjournalDaemon runs in this process, and its clock is the process's:"
                " leave its block first"
            )
        _running = self
        replace_clock(lambda: self._tick() * 1000)
        forbid_found(_NO_ADDRESS)
        return self

    def __exit__(self, *_: object) -> None:
        global _running  # noqa: PLW0603 - see above
        _running = None
        replace_clock(None)
        forbid_found(None)
        for link in tuple(self._links):
            link.close()

    # --- clients --------------------------------------------------------------------------------

    def sync_client(self) -> SyncClient:
        """Return a client without an event loop; any number may be used.

        It never waits, since nobody could end its wait: a NEXT with ``wait`` is answered at once, a
        loop over jobs ends when nothing is due, a listener when no change is left, and no thread
        renews leases of jobs. A pause of the client
        moves the clock.
        """
        return _SyncClient(self)

    def client(self) -> Client:
        """Return a client for trio or asyncio: ``async with daemon.client() as client``.

        It waits as ever; other tasks end its waits by new work, or by ``advance``.
        """
        client = Client(_ADDRESS, reconnect=None)
        client.connection.open_stream = self._open_stream
        return client

    async def _open_stream(
        self,
        address: Address,
        credentials: Credentials,
        timeout_s: float,
        *,
        prove: bool = False,
    ) -> ByteStream:
        await anyio.lowlevel.checkpoint()
        return _Stream(self)

    # --- time -----------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        """The present instant of its clock, in UTC."""
        return datetime.fromtimestamp(self._now_us / 1e6, UTC)

    def advance(self, by: Duration) -> None:
        """Move the clock ahead; all that falls due meanwhile happens at its instant.

        Tasks that wait for it run when this task waits next.

        Args:
            by: Seconds, or a timedelta.

        Raises:
            BadRequestError: It is negative: the clock goes forward only.
        """
        backward = by < timedelta(0) if isinstance(by, timedelta) else by < 0
        if backward:
            raise BadRequestError(
                f"the clock of a test goes forward only, not by {by}",
                hint="for an earlier instant begin another daemon: FastjournalDaemon(start=...)",
            )
        by_us = duration_us("advance", by)
        with self._lock:
            end_us = self._now_us + by_us
            while (wake_us := self._engine.next_wake()) is not None and wake_us <= end_us:
                self._now_us = max(self._now_us, wake_us)
                self._work()
            self._now_us = end_us
            self._work()

    def _tick(self) -> int:
        """Return the instant of a look at the clock; each is later than the one before."""
        with self._lock:
            self._now_us += 1
            return self._now_us

    # --- spool ----------------------------------------------------------------------------------

    def spool(self, directory: str | PathLike[str]) -> Spool:
        """Return a spool in a directory, to append to; ``forward`` sends what is there."""
        return Spool(directory)

    def forward(self, spool: Spool) -> int:
        """Have the daemon carry out what is new in a spool, as the forwarder does.

        The slots are left as they are; the next call goes on behind them.

        Returns:
            Number of requests, without those that changed nothing because a newer one stands.

        Raises:
            RefusedError: The daemon refuses one, which the forwarder would put with the dead
                letters. The next call goes on behind it.
        """
        number = 0
        for slot in list_slots(spool.directory):
            with SlotReader(slot.path, start=self._forwarded.get(slot.path, 0)) as reader:
                while pieces := reader.read(_PIECES_MAX):
                    for piece in pieces:
                        self._forwarded[slot.path] = piece.end
                        if piece.kind is Kind.PENDING:
                            number += self._carry_out(piece.data)
        return number

    def _carry_out(self, frame: bytes) -> bool:
        """Carry out a record of a spool; return whether it was of use."""
        link = _Link(self, waits=False)
        self._receive(link, frame)
        data = link.take()
        link.close()
        assert data, "a write is answered at once"
        error = decode_reply(data).error
        if error and error.partition(" ")[0] not in _OF_NO_USE:
            raise refusal(error)
        return not error

    # --- requests -------------------------------------------------------------------------------

    def _receive(self, link: _Link, data: bytes) -> None:
        """Carry out the requests in the bytes of a client."""
        with self._lock:
            connection = link.connection
            try:
                connection.receive_data(data)
                for request in connection.next_events():
                    if not link.waits and request.function == Function.NEXT:
                        request.flags &= ~Flag.LISTEN
                    reply = self._answer(link, request)
                    if reply is not None:
                        link.put(reply)
                over = connection.over and connection.next_event() is CONNECTION_CLOSED
            except ProtocolError as error:
                link.put(encode_error(error.identifier, self._now_us, f"{error.code} {error}"))
                over = True
            self._work()
            if over:
                link.close()

    def _answer(self, session: object, request: Request) -> bytes | None:
        """Return the reply; None: it waits."""
        if request.function in BY_SERVER:
            return encode_error(request.identifier, self._now_us, _NO_LOG)
        outcome = self._engine.handle(session, request, self._tick())
        while isinstance(outcome, Scan):
            finished = self._engine.step(outcome, self._now_us)
            if isinstance(finished, LongMatches):
                finished.run()
            elif isinstance(finished, bytes):
                return finished
        assert outcome is None or isinstance(outcome, bytes), "all values are in memory"
        return outcome

    def _work(self) -> None:
        """Do what is due: end leases and waits, deliver, and notify."""
        engine, now = self._engine, self._now_us
        engine.signals.take()
        engine.advance(now)
        for session, data in engine.serve_waiters(now):
            assert isinstance(session, _Link)
            session.put(data)
        notifications = engine.notifications
        while notifications.unmatched:
            for session in notifications.match()[0]:
                assert isinstance(session, _Link)
                while data := notifications.pop(session, now):
                    session.put(data)


class _Link:
    """A client's connection: the bytes on their way to it, and what wakes it."""

    def __init__(self, daemon: FastjournalDaemon, *, waits: bool) -> None:
        self.daemon = daemon
        self.waits = waits
        """Whether its requests may wait for work."""
        self.connection = ServerConnection(value_bytes_max=daemon._value_bytes_max)
        self.wake: Callable[[], object] = lambda: None
        self.closed = False
        self._unread = bytearray()
        daemon._links.add(self)

    def put(self, data: bytes) -> None:
        """Send to the client."""
        self._unread += data
        self.wake()

    def take(self) -> bytes | None:
        """Return what the client has not read; ``b""`` at the end, None where nothing is there."""
        with self.daemon._lock:
            if not self._unread:
                return b"" if self.closed else None
            data = bytes(self._unread)
            self._unread.clear()
            return data

    def close(self) -> None:
        """End the connection; its leases go on."""
        with self.daemon._lock:
            if not self.closed:
                self.closed = True
                self.daemon._links.discard(self)
                self.daemon._engine.end_session(self)
                self.daemon._work()
            self.wake()


class _Channel(Channel):
    """Connection of a client without an event loop."""

    def __init__(self, daemon: FastjournalDaemon) -> None:
        self._link = _Link(daemon, waits=False)
        self._pipe: tuple[int, int] | None = None
        """Descriptors for who registers them; nothing ever comes there."""

    @property
    def is_ours(self) -> bool:
        return True

    def fileno(self) -> int:
        if self._pipe is None:
            self._pipe = os.pipe()
        return self._pipe[0]

    def interrupt(self) -> None:
        self._link.close()

    def send(self, data: memoryview) -> int:
        if self._link.closed:
            raise BrokenPipeError("the daemon of the test has ended")
        self._link.daemon._receive(self._link, bytes(data))
        return len(data)

    def receive(self) -> bytes | None:
        return self._link.take()

    def wait(
        self, *, to_send: bool, timeout_s: float | None, stop: StopSignal | None = None
    ) -> bool:
        link = self._link
        if to_send or link.closed or link._unread or (stop is not None and stop.is_set):
            return True
        # nothing can come while this thread waits, so that the time passes at once
        link.daemon.advance(timeout_s or 0)
        return bool(link._unread)

    def close(self) -> None:
        self._link.close()
        for descriptor in self._pipe or ():
            os.close(descriptor)
        self._pipe = None


class _SyncListener(SyncListener):
    """Listener that gives what has come, and ends."""

    def wait(self, timeout: Duration | None = None) -> Change | None:
        return super().wait(0)

    def __next__(self) -> Change:
        change = self.wait()
        if change is None:
            raise StopIteration
        return change


class _SyncClient(SyncClient):
    """Client without an event loop, which never waits."""

    def __init__(self, daemon: FastjournalDaemon) -> None:
        super().__init__(
            _ADDRESS,
            reconnect=None,
            sleep=daemon.advance,
            monotonic=lambda: daemon._now_us / 1e6,
        )

        def connect(*_: object, **__: object) -> Channel:
            return _Channel(daemon)

        self.connection.dialer.connect = connect

    def jobs(self, *args: Any, **options: Any) -> SyncJobLoop:
        return super().jobs(*args, **{**options, "renew": False, "wait": 0})

    def _listen_to(self, call: Call[Page[Entry]]) -> SyncListener:
        return _SyncListener(self._dialer, self.connection.reply_timeout_s, call)


class _Stream(ByteStream):
    """Connection of a client for trio or asyncio."""

    def __init__(self, daemon: FastjournalDaemon) -> None:
        self._link = _Link(daemon, waits=True)
        self._loop = running_loop()
        self._thread = threading.get_ident()
        self._event = self._loop.new_event()
        self._link.wake = self._wake

    def _wake(self) -> None:
        if threading.get_ident() == self._thread:
            self._event.set()
        else:
            self._loop.call_soon(self._set)

    def _set(self) -> None:
        self._event.set()  # that of this moment

    async def receive(self, max_bytes: int = 65536) -> bytes:
        await anyio.lowlevel.checkpoint()
        while (data := self._link.take()) is None:
            self._event = self._loop.new_event()
            await self._event.wait()
        if not data:
            raise anyio.EndOfStream
        return data

    async def send(self, item: bytes) -> None:
        await anyio.lowlevel.checkpoint()
        if self._link.closed:
            raise anyio.BrokenResourceError
        self._link.daemon._receive(self._link, bytes(item))

    async def send_eof(self) -> None:
        await self.send(b"")

    async def aclose(self) -> None:
        self._link.close()
        await anyio.lowlevel.checkpoint()
