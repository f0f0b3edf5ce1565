"""The daemon as a whole: listeners, sessions, timers, and an orderly end.

A ``Server`` is given a recovered engine and an open log, and takes it from there.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable

import trio

from fastjournal import limits
from fastjournal.clock import Clock
from fastjournal.cmdlog.snapshot import prune_snapshots, take_snapshot
from fastjournal.cmdlog.writer import LogWriter, SyncPolicy
from fastjournal.disk import Disk
from fastjournal.errors import LogFailedError
from fastjournal.protocol import (
    ErrorCode,
    Function,
    Pair,
    Reply,
    Request,
    ValueType,
    encode_reply,
)
from fastjournald.config.options import Config
from fastjournald.engine.engine import Engine
from fastjournald.engine.settings import Settings
from fastjournald.engine.undelivered import Handout, Handouts
from fastjournald.group_commit import Commit
from fastjournald.net.accept import accept
from fastjournald.net.admission import MADE_ROOM, OVERRUN, Account
from fastjournald.net.connection_limit import Newcomers
from fastjournald.net.credentials import Security
from fastjournald.net.listeners import (
    address_of,
    is_unix,
    keep_alive,
    listening,
    origin_of,
    peer_of,
)
from fastjournald.net.session import Session
from fastjournald.net.tls import Handshakes
from fastjournald.observability.http_routes import pages_of
from fastjournald.observability.http_server import HttpServer
from fastjournald.tasks.backpressure import Backpressure
from fastjournald.tasks.compactor import Cleaner
from fastjournald.tasks.notifier import Notifier
from fastjournald.tasks.scan_runner import Scanning
from fastjournald.tasks.timers import Timers
from fastjournald.tasks.turn_budget import Scheduler
from fastjournald.tasks.value_loader import Fetching

STOP_SECONDS_MAX = 5.0
"""How long clients that do not read their replies can hold up the end."""


class Server:
    """Everything that the sessions share.

    Args:
        config: Options.
        settings: The engine's part of them.
        engine: With what recovery found.
        writer: The log, open for appending.
        disk: Where it is.
        clock: The machine's, or a test's.
        security: TLS and tokens.
    """

    log = logging.getLogger("fastjournald")

    def __init__(
        self,
        config: Config,
        settings: Settings,
        engine: Engine,
        writer: LogWriter,
        disk: Disk,
        clock: Clock,
        security: Security | None = None,
    ) -> None:
        self.config = config
        self.settings = settings
        self.engine = engine
        self.writer = writer
        self.disk = disk
        self.clock = clock
        self.commit = Commit(writer, SyncPolicy(config.cmdlog_sync))
        self.scheduler = Scheduler(engine.store)
        self.timers = Timers(self)
        self.notifier = Notifier(engine, self.rouse, self._cut_overrun)
        self.scanning = Scanning(self)
        self.fetching = Fetching(self)
        self.http_addresses: list[str] = []
        """Where --http is bound, once requests are accepted."""
        self.protocol_errors: Counter[str] = Counter()
        """Error code to the number of connections that were ended with it."""
        self.connections_refused = 0
        self._tls, engine.grants = security or Security()
        self._handshakes = Handshakes()
        self._sessions: set[Session] = set()
        self._newcomers: Newcomers[Session] = Newcomers()
        self.account = Account(config, engine, self._sessions)
        self._nursery: trio.Nursery | None = None
        self._refusing = 0
        self._stopping = False
        self._started_us = clock.now_us()
        self.segments_free = trio.Lock()
        """Held by whoever links, replaces or removes sealed segments."""
        self._pruning = trio.Lock()
        self.backpressure = Backpressure(self)
        self.cleaner = Cleaner(self)
        engine.gauges = self._gauges
        engine.has_hung_up = self._has_hung_up
        self.handouts = engine.handouts = Handouts()
        """Work in replies that are not in an outbox so far."""

    # --- life -----------------------------------------------------------------------------------

    async def run(
        self, ready: Callable[[list[str]], None], stopped: Callable[[], Awaitable[None]]
    ) -> None:
        """Serve until ``stopped``; then answer what is in flight and sync.

        Args:
            ready: Called with the bound addresses once requests are accepted.
            stopped: Ends when the daemon has to.

        Raises:
            ConfigError: An address cannot be listened on.
            LogFailedError: The log failed; nobody was told OK for what it lost.
        """
        config = self.config
        self.check_space()
        async with (
            listening(config.listen, socket_mode=int(config.socket_mode, 8)) as listeners,
            listening([config.http] if config.http else [], "--http") as http_listeners,
            trio.open_nursery() as background,
        ):
            if http_listeners:
                self.http_addresses = [address_of(listener) for listener in http_listeners]
                serve = HttpServer(pages_of(self)).serve
                background.start_soon(trio.serve_listeners, serve, http_listeners)
            background.start_soon(self.scheduler.run)
            background.start_soon(self.timers.run)
            background.start_soon(self.timers.watch_space)
            background.start_soon(self.timers.collect_garbage)
            background.start_soon(self.account.watch)
            background.start_soon(self.notifier.run)
            background.start_soon(self.notifier.pace)
            background.start_soon(self.notifier.match_long)
            background.start_soon(self.scanning.keep_index)
            background.start_soon(self.cleaner.run)
            background.start_soon(self.fetching.serve)
            background.start_soon(self.fetching.keep_limit)
            if config.cmdlog_sync == "interval":
                seconds = config.cmdlog_sync_int / 1000
                background.start_soon(self.commit.sync_every, seconds)
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                accepting = trio.CancelScope()
                nursery.start_soon(self._accept, listeners, accepting)
                ready([address_of(listener) for listener in listeners])
                await stopped()
                self._stopping = True
                self.backpressure.end()
                accepting.cancel()
                self._handshakes.stop()
                self.deliver(self.engine.shut_down(self.clock.now_us()))
                self.scanning.stop()
                for session in self._sessions:
                    session.stop()
                nursery.cancel_scope.deadline = trio.current_time() + STOP_SECONDS_MAX
            background.cancel_scope.cancel()
        self.writer.close()

    async def _accept(
        self, listeners: list[trio.SocketListener], accepting: trio.CancelScope
    ) -> None:
        assert self._nursery is not None
        with accepting:
            async with trio.open_nursery() as each:
                for listener in listeners:
                    each.start_soon(accept, listener, self._serve, self._nursery)

    async def _serve(self, plain: trio.SocketStream) -> None:
        """Let a client in."""
        peer = peer_of(plain)
        origin = origin_of(plain)
        unix = is_unix(plain)
        self.log.log(logging.INFO if unix else logging.DEBUG, "event=connected %s", peer)
        keep_alive(plain)
        if self._tls is None or unix:
            await self._attend(plain, peer, origin)
            return
        let_in = await self._handshakes.let_in(plain, self._tls, origin)
        if isinstance(let_in, str):
            self.log.info("event=tls-failed %s reason=%r", peer, let_in)
        else:
            await self._attend(let_in, peer, origin)

    async def _attend(
        self, stream: trio.abc.HalfCloseableStream, peer: str, origin: str = ""
    ) -> None:
        """Serve a client to its end."""
        session = Session(self, stream, peer)
        if len(self._sessions) >= self.config.max_connections:
            silent = self._newcomers.pop()
            if silent is None:
                await self._refuse(session)
                return
            self.account.closed[MADE_ROOM] += 1
            silent.cut()
        self._sessions.add(session)
        self._newcomers.add(origin, session)
        session.on_first_request = lambda: self._newcomers.discard(origin, session)
        if self._stopping:
            session.stop()
        try:
            await session.run()
        finally:
            self._sessions.discard(session)
            self._newcomers.discard(origin, session)
            session.on_first_request = None

    async def _refuse(self, session: Session) -> None:
        self.connections_refused += 1
        self._refusing += 1
        try:
            await session.refuse(silently=self._refusing > limits.REFUSALS_MAX)
        finally:
            self._refusing -= 1

    def unready(self) -> str:
        """Return why the daemon does not take all requests; empty: it does."""
        if self._nursery is None:
            return "starting"
        if self._stopping:
            return "stopping"
        if self.engine.read_only:
            return "read-only: the disk of the log has less than min-free-bytes left"
        return ""

    # --- between engine and sessions ------------------------------------------------------------

    def after_requests(self, now: int) -> None:
        """Give waiting clients what has become ready, and let the timers know of changes."""
        if self.engine.waiters:
            if self.scheduler.open:
                # else the timers do it in the next turn
                self.deliver(self.engine.serve_waiters(now))
            if self._stopping:
                self.deliver(self.engine.shut_down(now))
        if self.writer.appended >= self.backpressure.look_at:
            self.backpressure.look()
        self.fetching.look()
        self.scanning.after_requests()
        self.timers.look()
        self.notifier.look()

    def forget(self, session: Session) -> None:
        """A connection is gone; others may get what it had locked."""
        self.engine.forget(session)
        self.timers.look()
        self.notifier.look()

    def deliver(self, answers: list[tuple[Hashable, bytes]]) -> None:
        """Hand replies of waiting requests to their sessions, which send them when durable."""
        assert self._nursery is not None
        together: dict[Hashable, list[bytes]] = {}
        for session, data in answers:
            together.setdefault(session, []).append(data)
        for session, replies in together.items():
            assert isinstance(session, Session)
            session.push(b"".join(replies), self._nursery)

    def give_back(self, handouts: list[Handout]) -> None:
        """Let work wait again whose replies were never sent, a part of it at a time."""
        if handouts and not self.writer.failed:
            assert self._nursery is not None
            self._nursery.start_soon(self._give_back, handouts)

    async def _give_back(self, handouts: list[Handout]) -> None:
        # also where the daemon is about to stop: others are to get it after that
        with trio.CancelScope(shield=True):
            while handouts:
                now = self.clock.now_us()
                handouts = self.engine.give_back(handouts, limits.GIVEN_BACK_MAX, now)
                self.after_requests(now)
                await trio.lowlevel.checkpoint()
            await self.commit.wait_settled(self.writer.appended)

    @staticmethod
    def _has_hung_up(session: Hashable) -> bool:
        assert isinstance(session, Session)
        return session.has_hung_up()

    def rouse(self, session: Hashable) -> None:
        """A session may have changes to tell."""
        assert self._nursery is not None
        assert isinstance(session, Session)
        session.rouse(self._nursery)

    def _cut_overrun(self, session: Hashable) -> None:
        """A client reads too slowly for what it listens to, and may not miss it unknowingly."""
        assert isinstance(session, Session)
        self.account.closed[OVERRUN] += 1
        session.cut()

    # --- space, snapshots, figures --------------------------------------------------------------

    def check_space(self) -> None:
        """Compare the free space with min-free-bytes and set or end the read-only mode.

        Raises:
            LogFailedError: The file system cannot be asked.
        """
        free = self.disk.free_bytes(self.config.cmdlog_path)
        short = free < self.config.min_free_bytes
        if short != self.engine.read_only:
            self.engine.read_only = short
            self.log.warning(
                "event=%s free_bytes=%d min_free_bytes=%d",
                "read-only" if short else "writable",
                free,
                self.config.min_free_bytes,
            )
            if not short:
                self.deliver(self.engine.resume(self.clock.now_us()))
                self.notifier.look()

    def secure(self, security: Security) -> None:
        """Let other certificates and tokens count, for clients that connect, and those that are.

        Whoever is connected by a token that counts no more, or gives something else, is let go:
        it may connect and show it again.
        """
        self._tls = security.tls
        if security.grants is not None:
            ended, answers = self.engine.grant_anew(security.grants, self.clock.now_us())
            self.deliver(answers)
            for session in ended:
                assert isinstance(session, Session)
                session.stop()

    async def take_snapshot(self, session: Session, request: Request) -> bytes:
        """Seal the active segment, link all segments into a new snapshot, and tell its path.

        Where the request has a count, only so many snapshots are kept, the newest.

        Raises:
            LogFailedError: The log itself failed.
        """
        refusal = self.engine.may_snapshot(session, request, self.clock.now_us())
        if refusal is not None:
            return refusal
        self.engine.requests[Function.SNAPSHOT] += 1
        reply = Reply(request.identifier)
        async with self.segments_free:
            await self.commit.wait_settled(self.writer.appended)
            segments = await self.commit.roll()
            now = reply.timestamp = self.clock.now_us()
            try:
                path = await trio.to_thread.run_sync(
                    take_snapshot,
                    self.disk,
                    self.config.cmdlog_path,
                    self.config.snapshot_directory,
                    segments,
                    now,
                )
            except LogFailedError as error:
                # the log is whole: only the snapshot failed
                self.log.error("event=snapshot-failed error=%r", str(error))
                reply.error = f"{ErrorCode.NOT_PERSISTED} the snapshot failed: {error}"
                self.engine.count_error(Function.SNAPSHOT, reply.error)
            else:
                self.log.info("event=snapshot path=%s segments=%d", path, len(segments))
                reply.pairs = [Pair(b"", int(ValueType.STRING), os.fsencode(path))]
        if request.count and reply.pairs:
            # may take long, for the space of large files: cleaning goes on
            async with self._pruning:
                await self._prune_snapshots(request.count)
        return encode_reply(reply)

    async def _prune_snapshots(self, keep: int) -> None:
        try:
            removed = await trio.to_thread.run_sync(
                prune_snapshots, self.disk, self.config.snapshot_directory, keep
            )
        except LogFailedError as error:
            # the new one is whole, and that is what was asked for
            self.log.error("event=snapshot-not-removed error=%r", str(error))
        else:
            for path in removed:
                self.log.info("event=snapshot-removed path=%s keep=%d", path, keep)

    def _gauges(self, now: int) -> dict[str, int]:
        segments = self.writer.sealed
        active = self.writer.active
        return {
            "connections": len(self._sessions),
            "log_bytes": self.writer.log_bytes,
            "log_live_bytes": self.engine.journal.records.live_bytes,
            "log_segments": len(segments) + (active is not None),
            "uptime_us": now - self._started_us,
            "read_only": int(self.engine.read_only),
            "clock_behind_us": max(0, self.engine.now - now),
        }
