"""Dialer of blocking sockets: makes connections, and makes them again where they are lost."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from fastjournal.client.core.address import Address, Servers
from fastjournal.client.core.client_credentials import Credentials
from fastjournal.client.core.failures import (
    ConnectRound,
    ReconnectEffort,
    is_waited_for_at_start,
    not_connected,
)
from fastjournal.client.core.multiplexer import Multiplexer
from fastjournal.client.core.retry_policy import Reconnect
from fastjournal.client.sync.sockets import connect_channel
from fastjournal.client.sync.transport import SyncTransport
from fastjournal.errors import CannotConnectError, RefusedError

if TYPE_CHECKING:
    from random import Random


class Dialer:
    """Makes connections to the addresses of a list.

    Args:
        servers: The list.
        credentials: Access token and TLS files.
        connect_timeout_s: Seconds to establish a connection.
        reply_bytes_max: Bytes of the largest reply to accept.
        plan: Plan of reconnections; None: none.
        rng: Draws the pauses.
        sleep: Pauses for so many seconds.
        monotonic: Seconds of a clock that does not jump.
    """

    def __init__(
        self,
        servers: Servers,
        credentials: Credentials,
        *,
        connect_timeout_s: float,
        reply_bytes_max: int,
        plan: Reconnect | None,
        rng: Random | None,
        sleep: Callable[[float], object] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.servers = servers
        self.plan = None if plan is None else plan.for_servers(len(servers))
        self.now_s = monotonic
        self._credentials = credentials
        self._connect_timeout_s = connect_timeout_s
        self._reply_bytes_max = reply_bytes_max
        self._rng = rng
        self.sleep = sleep
        self.connect = connect_channel
        """Makes a connected channel; a daemon in this process has one of its own."""

    @property
    def address(self) -> Address:
        """The address in use."""
        return self.servers.current

    @cached_property
    def rng(self) -> Random:
        """Draws the pauses; a program that connects once needs none."""
        from random import Random  # noqa: PLC0415 - see above

        return self._rng or Random()

    def dial(self, timeout_s: float | None = None, *, prove: bool = False) -> SyncTransport:
        """Return a new connection: try each address once.

        Args:
            timeout_s: Seconds for all of it; None: as many as ever.
            prove: The daemon has to answer something on it, also without a token.

        Raises:
            CannotConnectError: Nobody listens there, or TLS fails, or the daemon takes no more.
            RefusedError: ``auth-failed``.
        """
        tries = ConnectRound(self.servers, timeout_s or self._connect_timeout_s, prove=prove)
        for address in tries:
            try:
                channel = self.connect(address, self._credentials, tries.try_s, prove=tries.prove)
            except (CannotConnectError, RefusedError) as error:
                tries.failed(address, error)
            else:
                self.servers.use(address)
                multiplexer = Multiplexer(reply_bytes_max=self._reply_bytes_max)
                return SyncTransport(channel, multiplexer, address)
        raise tries.failure

    def dial_first(self, *, ended: Callable[[], bool] = lambda: False) -> SyncTransport:
        """Return the first connection: try once, but wait for a daemon that takes none now.

        Args:
            ended: Whether to stop waiting.

        Raises:
            CannotConnectError: Nobody listens there, or TLS fails, or the daemon takes no more.
            RefusedError: ``auth-failed``.
        """
        try:
            return self.dial()
        except CannotConnectError as error:
            if not is_waited_for_at_start(self.plan, error):
                raise
        return self.redial(ended=ended)

    def dial_again(self, effort: ReconnectEffort, timeout_s: float = math.inf) -> SyncTransport:
        """Return a new connection, on which the daemon has answered something; try once.

        Args:
            effort: Effort that the try is a part of, which bounds the time for it.
            timeout_s: Another bound.

        Raises:
            CannotConnectError: The daemon is away.
            RefusedError: ``auth-failed``.
        """
        return self.dial(
            min(effort.try_s(self._connect_timeout_s, self.now_s()), timeout_s), prove=True
        )

    def redial(
        self, plan: Reconnect | None = None, *, ended: Callable[[], bool] = lambda: False
    ) -> SyncTransport:
        """Return a new connection in place of one that was lost; try for a while.

        Args:
            plan: How; None: as ever.
            ended: Whether to stop, looked at after each pause.

        Raises:
            CannotConnectError: The daemon stayed away, or TLS refuses one of both.
            RefusedError: ``auth-failed``.
        """
        plan = plan or self.plan
        assert plan is not None, "told not to connect again"
        effort = ReconnectEffort(plan, self.rng, self.now_s())
        while (pause_s := effort.pause_s(self.now_s())) is not None:
            self.sleep(pause_s)
            if ended():
                raise not_connected()
            try:
                return self.dial_again(effort)
            except CannotConnectError as error:
                effort.failed(error)
        raise effort.failure
