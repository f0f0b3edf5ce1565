"""Server: composes the parts of the daemon and runs their tasks, to an orderly end.

A ``Server`` is given a recovered engine and an open log, and takes it from there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import TYPE_CHECKING

import trio

from fastjournal import _native
from fastjournal.clock import SteadyClock, WatchedClock
from fastjournal.cmdlog.archive import Archive
from fastjournal.cmdlog.writer import LogWriter, SyncPolicy
from fastjournal.disk import Disk
from fastjournal.protocol import ErrorCode, Function, Request, encode_error
from fastjournal.remote.checkpoints import Retention
from fastjournald.admission.memory_budget import MemoryBudget
from fastjournald.admission.turn_budget import TurnBudget
from fastjournald.compaction.backpressure import Backpressure
from fastjournald.compaction.policy import live_bytes
from fastjournald.config.load import exposed_addresses
from fastjournald.config.options import Config
from fastjournald.config.socket_activation import NO_SOCKETS, ActivatedSockets
from fastjournald.engine.engine import Engine
from fastjournald.engine.undelivered import DeliveredJobs
from fastjournald.group_commit.commit import GroupCommit
from fastjournald.group_commit.remote_commit import RemoteCommit, boottime_us
from fastjournald.net.connections import ClientTimeouts, Connections
from fastjournald.net.credentials import Security
from fastjournald.net.listeners import address_of, listening, origin_of
from fastjournald.net.stream_transport import Services
from fastjournald.runtime import Counters, Runtime
from fastjournald.tables.signals import CHANGES, KEYS, READY, TIMER, VALUES
from fastjournald.tasks.archiver import Archiver
from fastjournald.tasks.checkpoints import CHECKPOINT, Checkpoints
from fastjournald.tasks.compactor import Compactor
from fastjournald.tasks.free_space import FreeSpace
from fastjournald.tasks.notifier import Notifier
from fastjournald.tasks.scan_runner import ScanRunner
from fastjournald.tasks.snapshots import Snapshots
from fastjournald.tasks.timers import Timers
from fastjournald.tasks.turn_scheduler import TurnScheduler

if TYPE_CHECKING:
    from fastjournal.http_server import HttpServer
    from fastjournal.remote.node import Primary
from fastjournald.tasks.value_loader import Evictor, ValueLoader

NO_REMOTE = f"{ErrorCode.UNKNOWN_FUNCTION} this daemon has no --remote-log"

STOP_SECONDS_MAX = 5.0
"""How long clients that do not read their replies can hold up the end."""

SEAL_SECONDS_MAX = 5.0
"""How long a remote log whose store is slow or away can hold it up afterwards."""


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
        remote: The epoch that this node has won, of a remote log; None: there is none.
        boottime_us: Clock of its lease.
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
        remote: Primary | None = None,
        boottime_us: Callable[[], int] = boottime_us,
        handed_over: ActivatedSockets = NO_SOCKETS,
    ) -> None:
        tls, self._http_tls, engine.context.grants = security or Security()
        self._http: HttpServer | None = None
        self._started_us = clock.monotonic_us()
        self._handed_over = handed_over
        commit = GroupCommit(writer, SyncPolicy(config.cmdlog_sync))
        self.remote: RemoteCommit | None = None
        """Remote log; None: there is none."""
        if remote is not None:
            self.remote = RemoteCommit(commit, remote, clock, boottime_us=boottime_us)
        self.runtime = runtime = Runtime(
            config=config,
            engine=engine,
            writer=writer,
            commit=commit,
            disk=disk,
            clock=(watched := WatchedClock(clock)),
            counters=Counters(),
            turns=TurnBudget(engine.store),
            memory=MemoryBudget(config.max_inflight, engine.context.ration),
            backpressure=self._new_backpressure(config, engine, writer),
            archive=archive,
            remote=self.remote,
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
        self.snapshots = Snapshots(runtime, self.free_space, self.archiver.archive_sealed)
        self.checkpoints: Checkpoints | None = None
        """Checkpoints of the remote log; None: there is none."""
        if self.remote is not None:
            retention = Retention(config.remote_keep * 1_000_000)
            self.checkpoints = Checkpoints(runtime, self.remote, self.snapshots, retention)
        services = Services(
            fetch=self.value_loader.fetch,
            evict=self.evictor.evict,
            run_scan=self.scan_runner.run,
            carry_out=self._carry_out,
            wait_turn=self.turn_scheduler.wait,
            queue_up=self.turn_scheduler.queue_up,
            pass_on=self.turn_scheduler.pass_on,
            next_turn=self.turn_scheduler.next_turn,
            is_alone=self.turn_scheduler.is_alone,
            wait_matched=self.notifier.wait_matched,
            wait_notification_turn=self.notifier.wait_notification_turn,
        )
        self.connections = Connections(runtime, services, tls)
        self.timeouts = ClientTimeouts(runtime, self.connections.transports)
        self.http_addresses: list[str] = []
        """Addresses of --http, once requests are accepted."""
        if self.remote is not None:
            self.remote.on_settled = self.connections.poller.send_settled
            if not self.remote.leads:
                self.remote.on_stored = runtime.backpressure.look
        engine.context.gauges = self._gauges
        engine.context.has_hung_up = self.connections.has_hung_up

    def _new_backpressure(self, config: Config, engine: Engine, writer: LogWriter) -> Backpressure:
        compacts, remote = config.cmdlog_clean_int > 0, self.remote
        if remote is None or remote.leads:
            return Backpressure(engine, writer, compacts=compacts)
        return Backpressure(
            engine,
            writer,
            compacts=compacts,
            lag=lambda: remote.lag_bytes,
            lag_bytes_max=remote.primary.lag_bytes_max,
        )

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
            RemoteLogError: Another node has taken over, or the remote log is not this one's.
        """
        try:
            self.runtime.commit.start()
            if self.remote is None:
                await self._serve(ready, stopped)
            else:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self.remote.run)
                    await self._serve(ready, stopped)
                    await self.remote.finish(SEAL_SECONDS_MAX)
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
                HttpAccess,
                routes_of,
            )

            self.http_addresses = [address_of(listener) for listener in listeners]
            config = self.runtime.config
            access = HttpAccess(
                is_local=not exposed_addresses(config, "http"),
                needs_certificate=bool(config.tls_client_ca),
            )
            fetch = self.value_loader.fetch
            routes = routes_of(self.runtime, self.unready, access, fetch, nursery)
            self._http = HttpServer(routes.get, origin_of, tls=self._http_tls)
            nursery.start_soon(self._http.run, listeners)

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
        if self.checkpoints is not None:
            nursery.start_soon(self.checkpoints.run)
        config = self.runtime.config
        if config.cmdlog_sync == "interval":
            nursery.start_soon(self.runtime.commit.sync_every, config.cmdlog_sync_int / 1000)

    def _stop(self) -> None:
        """Answer waiting requests, and let sessions answer requests that are arriving."""
        if self.checkpoints is not None:
            self.checkpoints.stop()
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
        if self.remote is not None:
            self.remote.test_lease()
            if self.remote.withheld:
                return "the remote log takes nothing: another node may be the primary by now"
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

    async def _carry_out(self, session: Hashable, request: Request) -> bytes:
        """Return the reply to a request that the engine does not carry out."""
        if request.function == Function.SNAPSHOT:
            return await self.snapshots.take(session, request)
        engine, now = self.runtime.engine, self.runtime.clock.now_us()
        takes_space = request.key == CHECKPOINT
        refusal = engine.refusal(session, request, now, takes_space=takes_space)
        if refusal is not None:
            return refusal
        if self.checkpoints is None:
            engine.counters.count_refused(Function.REMOTE, NO_REMOTE)
            return encode_error(request.identifier, now, NO_REMOTE)
        engine.counters.requests[Function.REMOTE] += 1
        return await self.checkpoints.carry_out(request)

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
        if self._http is not None and self._http.tls and security.http_tls:
            self._http.tls = security.http_tls
        if security.grants is not None:
            runtime = self.runtime
            ended, answers = runtime.engine.replace_grants(security.grants, runtime.clock.now_us())
            self._deliver(answers)
            self.connections.end(ended)
            self._wake_tasks()

    def _gauges(self, now: int) -> dict[str, int]:
        writer, engine = self.runtime.writer, self.runtime.engine
        sync_us = self.runtime.commit.sync_us
        remote: dict[str, int] = {}
        if self.remote is not None:
            age_us = max(0, now - self.runtime.counters.checkpoint_us)
            remote = {
                "remote_epoch": self.remote.epoch,
                "remote_lag_bytes": self.remote.lag_bytes,
                "remote_lag_us": self.remote.lag_us,
                "remote_checkpoint_age_us": age_us,
            }
        return remote | {
            "connections": len(self.connections.transports),
            "log_bytes": writer.log_bytes,
            "log_live_bytes": live_bytes(engine.store),
            "log_segments": len(writer.sealed) + (writer.active is not None),
            "uptime_us": self.runtime.clock.monotonic_us() - self._started_us,
            "native": int(_native.leaves is not None),
            "read_only": int(engine.context.read_only),
            "clock_behind_us": engine.context.behind_us(now),
            "syncs": sync_us.cumulative()[-1],
            "sync_us": sync_us.total,
        }
