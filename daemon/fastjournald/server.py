"""Server: composes the parts of the daemon and runs their tasks, to an orderly end.

A ``Server`` is given a recovered engine and an open log, and takes it from there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable

import trio

from fastjournal.clock import SteadyClock, WatchedClock
from fastjournal.cmdlog.archive import Archive
from fastjournal.cmdlog.writer import LogWriter, SyncPolicy
from fastjournal.disk import Disk
from fastjournald.admission.memory_budget import MemoryBudget
from fastjournald.admission.turn_budget import TurnBudget
from fastjournald.compaction.backpressure import Backpressure
from fastjournald.compaction.policy import live_bytes
from fastjournald.config.options import Config
from fastjournald.config.socket_activation import NO_SOCKETS, ActivatedSockets
from fastjournald.engine.engine import Engine
from fastjournald.engine.undelivered import DeliveredJobs
from fastjournald.group_commit.commit import GroupCommit
from fastjournald.net.connections import ClientTimeouts, Connections
from fastjournald.net.credentials import Security
from fastjournald.net.listeners import address_of, listening, origin_of
from fastjournald.net.stream_transport import Services
from fastjournald.runtime import Counters, Runtime
from fastjournald.tables.signals import CHANGES, KEYS, READY, TIMER, VALUES
from fastjournald.tasks.archiver import Archiver
from fastjournald.tasks.compactor import Compactor
from fastjournald.tasks.free_space import FreeSpace
from fastjournald.tasks.notifier import Notifier
from fastjournald.tasks.scan_runner import ScanRunner
from fastjournald.tasks.snapshots import Snapshots
from fastjournald.tasks.timers import Timers
from fastjournald.tasks.turn_scheduler import TurnScheduler
from fastjournald.tasks.value_loader import Evictor, ValueLoader

STOP_SECONDS_MAX = 5.0
"""How long clients that do not read their replies can hold up the end."""


class Server:
    """The daemon: one runtime, the tasks around it, and the connections.

    Args:
        config: Options.
        engine: With what recovery found.
        writer: The log, open for appending.
        disk: Where it is.
        clock: The machine's, or a test's.
        security: TLS and tokens.
        archive: Archive of sealed segments; None: there is none.
        handed_over: Listening sockets of the service manager.
    """

    def __init__(
        self,
        config: Config,
        engine: Engine,
        writer: LogWriter,
        disk: Disk,
        clock: SteadyClock,
        *,
        security: Security | None = None,
        archive: Archive | None = None,
        handed_over: ActivatedSockets = NO_SOCKETS,
    ) -> None:
        tls, engine.context.grants = security or Security()
        self._started_us = clock.monotonic_us()
        self._handed_over = handed_over
        self.runtime = runtime = Runtime(
            config=config,
            engine=engine,
            writer=writer,
            commit=GroupCommit(writer, SyncPolicy(config.cmdlog_sync)),
            disk=disk,
            clock=(watched := WatchedClock(clock)),
            counters=Counters(),
            turns=TurnBudget(engine.store),
            memory=MemoryBudget(config.max_inflight, engine.context.ration),
            backpressure=Backpressure(engine, writer, compacts=config.cmdlog_clean_int > 0),
            archive=archive,
            segments_free=trio.Lock(),
            after_requests=self._after_requests,
            wake_tasks=self._wake_tasks,
            deliver=self._deliver,
            release_undelivered=self._release_undelivered,
        )
        self.turn_scheduler = TurnScheduler(
            runtime.turns, runtime.counters.turn_us, runtime.counters.latencies, writer
        )
        self.value_loader = ValueLoader(runtime)
        self.evictor = Evictor(runtime)
        self.scan_runner = ScanRunner(runtime, self.value_loader.fetch, self.turn_scheduler.wait)
        self.notifier = Notifier(runtime, self._wake_session, self._disconnect_slow_consumer)
        self.timers = Timers(runtime, watched, self.notifier.wait_matched)
        self.free_space = FreeSpace(runtime)
        self.archiver = Archiver(runtime)
        self.compactor = Compactor(runtime, self.archiver.archive_sealed)
        services = Services(
            fetch=self.value_loader.fetch,
            evict=self.evictor.evict,
            run_scan=self.scan_runner.run,
            take_snapshot=Snapshots(runtime, self.free_space, self.archiver.archive_sealed).take,
            wait_turn=self.turn_scheduler.wait,
            queue_up=self.turn_scheduler.queue_up,
            pass_on=self.turn_scheduler.pass_on,
            wait_matched=self.notifier.wait_matched,
            wait_notification_turn=self.notifier.wait_notification_turn,
        )
        self.connections = Connections(runtime, services, tls)
        self.timeouts = ClientTimeouts(runtime, self.connections.transports)
        self.http_addresses: list[str] = []
        """Addresses of --http, once requests are accepted."""
        engine.context.gauges = self._gauges
        engine.context.has_hung_up = self.connections.has_hung_up

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
            LogFailedError: The log failed; no client got OK for what it lost.
        """
        try:
            self.runtime.commit.start()
            await self._serve(ready, stopped)
        finally:
            self.runtime.commit.close()
        self.runtime.writer.close()

    async def _serve(
        self, ready: Callable[[list[str]], None], stopped: Callable[[], Awaitable[None]]
    ) -> None:
        config = self.runtime.config
        self.free_space.check()
        async with (
            listening(
                config.listen,
                socket_mode=int(config.socket_mode, 8),
                handed_over=self._handed_over.listen,
            ) as listeners,
            listening(
                [config.http] if config.http else [],
                "--http",
                handed_over=self._handed_over.http,
            ) as http_listeners,
            trio.open_nursery() as background,
        ):
            self._serve_http(http_listeners, background)
            self._start_tasks(background)
            async with trio.open_nursery() as nursery:
                self.connections.nursery = nursery
                nursery.start_soon(self.connections.poller.run)
                accepting = trio.CancelScope()
                nursery.start_soon(self.connections.accept, listeners, accepting)
                ready([address_of(listener) for listener in listeners])
                await stopped()
                accepting.cancel()
                self._stop()
                nursery.cancel_scope.deadline = trio.current_time() + STOP_SECONDS_MAX
            background.cancel_scope.cancel()

    def _serve_http(self, listeners: list[trio.SocketListener], nursery: trio.Nursery) -> None:
        if listeners:
            # h11, Jinja2 and prometheus_client take time and memory
            from fastjournal.http_server import HttpServer  # noqa: PLC0415 - slow to load
            from fastjournald.observability.html_pages import (  # noqa: PLC0415 - slow to load
                routes_of,
            )

            self.http_addresses = [address_of(listener) for listener in listeners]
            server = HttpServer(routes_of(self.runtime, self.unready).get, origin_of)
            nursery.start_soon(server.run, listeners)

    def _start_tasks(self, nursery: trio.Nursery) -> None:
        for task in (
            self.turn_scheduler.run,
            self.timers.run,
            self.timers.watch_clock,
            self.timers.collect_garbage,
            self.free_space.run,
            self.timeouts.run,
            self.notifier.run,
            self.notifier.pace,
            self.notifier.match_long,
            self.scan_runner.keep_index,
            self.archiver.run,
            self.compactor.run,
            self.value_loader.serve,
            self.evictor.run,
        ):
            nursery.start_soon(task)
        config = self.runtime.config
        if config.cmdlog_sync == "interval":
            nursery.start_soon(self.runtime.commit.sync_every, config.cmdlog_sync_int / 1000)

    def _stop(self) -> None:
        """Answer waiting requests, and let sessions answer requests that are arriving."""
        self.connections.stop_accepting()
        self.runtime.backpressure.end()
        self._deliver(self.runtime.engine.shut_down(self.runtime.clock.now_us()))
        self.scan_runner.stop()
        self.connections.stop()

    def unready(self) -> str:
        """Return why the daemon does not take all requests; empty: it does."""
        if self.connections.nursery is None:
            return "starting"
        if self.connections.stopping:
            return "stopping"
        if self.runtime.engine.context.read_only:
            return f"read-only: {self.free_space.shortage} on the file system of the log"
        return ""

    # --- calls of the runtime -------------------------------------------------------------------

    def _after_requests(self, now: int) -> None:
        runtime = self.runtime
        engine = runtime.engine
        if engine.signals.bits & READY and runtime.turns.open:
            # else the timers do it in the next turn
            self._deliver(engine.serve_waiters(now))
        self._wake_tasks()

    def _wake_tasks(self) -> None:
        backpressure = self.runtime.backpressure
        if self.runtime.writer.appended >= backpressure.look_at:
            self.free_space.check_growth()
            backpressure.look()
        if self.runtime.engine.signals.bits:
            signals = self.runtime.engine.signals.take()
            if signals & (READY | TIMER):
                self.timers.look()
            if signals & CHANGES:
                self.notifier.look()
            if signals & VALUES:
                self.value_loader.look()
            if signals & KEYS:
                self.scan_runner.relieve_index()

    def _deliver(self, answers: list[tuple[Hashable, bytes]]) -> None:
        self.connections.deliver(answers)

    def _release_undelivered(self, deliveries: list[DeliveredJobs]) -> None:
        self.connections.release_undelivered(deliveries)

    def _wake_session(self, session: Hashable) -> None:
        self.connections.wake(session)

    def _disconnect_slow_consumer(self, session: Hashable) -> None:
        self.connections.disconnect_slow_consumer(session)

    # --- options and figures --------------------------------------------------------------------

    def secure(self, security: Security) -> None:
        """Apply new certificates and tokens, to new and to existing connections.

        A client whose token is no longer valid, or has other rights, is disconnected. It may
        connect and authenticate again.
        """
        self.connections.tls = security.tls
        if security.grants is not None:
            runtime = self.runtime
            ended, answers = runtime.engine.replace_grants(security.grants, runtime.clock.now_us())
            self._deliver(answers)
            self.connections.end(ended)
            self._wake_tasks()

    def _gauges(self, now: int) -> dict[str, int]:
        writer, engine = self.runtime.writer, self.runtime.engine
        sync_us = self.runtime.commit.sync_us
        return {
            "connections": len(self.connections.transports),
            "log_bytes": writer.log_bytes,
            "log_live_bytes": live_bytes(engine.store),
            "log_segments": len(writer.sealed) + (writer.active is not None),
            "uptime_us": self.runtime.clock.monotonic_us() - self._started_us,
            "read_only": int(engine.context.read_only),
            "clock_behind_us": engine.context.behind_us(now),
            "syncs": sync_us.cumulative()[-1],
            "sync_us": sync_us.total,
        }
