"""Standby: the daemon while another node of its remote log is the primary.

``fastjournal.remote.node`` follows the primary in a thread. Beside it this module takes signals,
tells the service manager what the node does, and serves health and metrics over ``--http``. It does
not listen for clients; a connection that the service manager's socket takes is closed at once, so
that the client tries another address.
"""

from __future__ import annotations

import logging
import signal
import socket
from functools import partial

import trio

from fastjournal import limits, program
from fastjournal.build_info import build_info
from fastjournal.clock import Clock, SystemClock
from fastjournal.disk import Disk
from fastjournal.loglines import LogEvent, Sentence
from fastjournal.program import STOP_SIGNALS
from fastjournal.remote.node import Node, NodeOptions, Primary
from fastjournal.remote.open_store import open_store
from fastjournal.remote.writer import RemoteAck
from fastjournald.config.load import exposed_addresses
from fastjournald.config.options import Config
from fastjournald.config.socket_activation import ActivatedSockets
from fastjournald.engine.context import Settings
from fastjournald.group_commit.remote_commit import boottime_us
from fastjournald.net.credentials import Security
from fastjournald.net.listeners import accept, address_of, listening, origin_of
from fastjournald.process import START_STEP_US_MAX, ping_watchdog
from fastjournald.recovery.recover import make_whole

LOG = logging.getLogger("fastjournald")


class Standby:
    """What the daemon does while its node is not the primary.

    Args:
        node: The node.
        config: Options.
        clock: Clock of the metrics.
        security: TLS and tokens of ``--http``.
        handed_over: Listening sockets of the service manager, which stay open.
    """

    def __init__(
        self,
        node: Node,
        config: Config,
        clock: Clock,
        security: Security,
        handed_over: ActivatedSockets,
    ) -> None:
        self._node = node
        self._config = config
        self._clock = clock
        self._security = security
        self._handed_over = handed_over
        self._is_ready = False
        self._is_over = False
        """Whether the node has ended, or is the primary: its signs of life and requests go on."""

    async def run(self, hangups: set[int], watchdog_s: float | None) -> Primary | None:
        """Follow until the node is the primary, and return its epoch; None: SIGTERM or SIGINT.

        A signal that meets the takeover is in ``Node.stops``: who replays the log looks at it.

        Args:
            hangups: Gets SIGHUP: a later server reloads.
            watchdog_s: Time in which the service manager waits for a sign of life.

        Raises:
            FastjournalError: As ``Node.run``; or an address cannot be listened on.
        """
        node, token = self._node, trio.lowlevel.current_trio_token()
        node.on_standby = lambda: token.run_sync_soon(self._tell)
        try:
            with trio.open_signal_receiver(*STOP_SIGNALS, signal.SIGHUP) as signals:
                async with trio.open_nursery() as nursery:

                    async def watch_signals() -> None:
                        async for number in signals:
                            if number == signal.SIGHUP:
                                hangups.add(number)
                                program.notify_reloading()
                                program.notify(self._state())
                                continue
                            LOG.info(LogEvent("stopping", signal=signal.Signals(number).name))
                            program.notify("STOPPING=1")
                            node.stops.append(number)
                            node.stop()

                    nursery.start_soon(watch_signals)
                    nursery.start_soon(self._stop_on_cancel)
                    nursery.start_soon(self._ask_for_time)
                    nursery.start_soon(self._serve_http)
                    for plain in self._handed_over.listen.values():
                        nursery.start_soon(_close_clients, plain)
                    if watchdog_s is not None:
                        nursery.start_soon(ping_watchdog, watchdog_s)
                    primary = await trio.to_thread.run_sync(node.run)
                    self._is_over = True
                    nursery.cancel_scope.cancel()
        finally:
            node.on_standby = lambda: None
        return primary

    async def _stop_on_cancel(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            if not self._is_over:
                self._node.stop()

    def _tell(self) -> None:
        LOG.info(LogEvent("standby", status=Sentence(self._node.status)))
        self._is_ready = True
        program.notify(self._state())

    def _state(self) -> str:
        return f"READY=1\nSTATUS={self._node.status}"

    async def _ask_for_time(self) -> None:
        """Ask the service manager for time while the directory is compared with the store."""
        while not self._is_ready:
            program.notify(f"EXTEND_TIMEOUT_USEC={START_STEP_US_MAX}\nSTATUS={self._node.status}")
            await trio.sleep(START_STEP_US_MAX / 4_000_000)

    async def _serve_http(self) -> None:
        if not self._config.http:
            return
        # h11, Jinja2 and prometheus_client take time and memory
        from fastjournal.http_server import HttpServer  # noqa: PLC0415 - slow to load
        from fastjournald.observability.html_pages import HttpAccess  # noqa: PLC0415
        from fastjournald.observability.standby_pages import standby_routes  # noqa: PLC0415

        config = self._config
        access = HttpAccess(
            is_local=not exposed_addresses(config, "http"),
            needs_certificate=bool(config.tls_client_ca),
        )
        routes = standby_routes(self._node, self._clock, self._security.grants, access)
        # the server listens on the same sockets later
        http = {place: plain.dup() for place, plain in self._handed_over.http.items()}
        async with listening([config.http], "--http", handed_over=http) as listeners:
            LOG.info(LogEvent("standby-http", http=tuple(map(address_of, listeners))))
            server = HttpServer(routes.get, origin_of, tls=self._security.http_tls)
            await server.run(listeners)


def new_node(disk: Disk, config: Config, settings: Settings, clock: SystemClock) -> Node:
    """Return the node of a remote log; nothing is asked of the store yet.

    Raises:
        StoreRefusedError: The store of the URL cannot be used.
    """
    build = str(build_info())
    takeover_after_us = config.takeover_after * 1_000_000
    options = NodeOptions(
        name=config.node_name,
        addresses=tuple(config.listen),
        build=build,
        ack=RemoteAck(config.remote_ack),
        takeover_after_us=takeover_after_us,
        beat_us=min(limits.BEAT_US_MAX, takeover_after_us // 3),
        poll_us=config.remote_poll * 1000,
        interval_us=config.remote_interval * 1000,
        lag_bytes_max=config.remote_lag_bytes_max,
    )
    return Node(
        open_store(config.remote_log),
        disk,
        config.cmdlog_path,
        options,
        clock=clock,
        boottime_us=boottime_us,
        recover=partial(make_whole, disk, config, settings, clock),
    )


async def _close_clients(plain: socket.socket) -> None:
    listener = trio.SocketListener(trio.socket.from_stdlib_socket(plain.dup()))
    await accept(listener, lambda stream: stream.socket.close())
