"""Connections of blocking sockets: how they are made, made again, and moved bytes through."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from random import Random

from fastjournal.client.core.access import Access
from fastjournal.client.core.address import Address
from fastjournal.client.core.backoff import Reconnect
from fastjournal.client.core.batch import Batch
from fastjournal.client.core.failures import (
    connection_broken,
    connection_lost,
    is_waited_for_at_start,
    not_connected,
    timed_out,
)
from fastjournal.client.core.multiplexer import Multiplexer
from fastjournal.client.core.reconnect_effort import ReconnectEffort
from fastjournal.client.sync.sockets import Channel, connect_channel
from fastjournal.client.sync.stop_signal import Stopped, StopSignal
from fastjournal.errors import CannotConnectError
from fastjournal.protocol import Request


class SyncLink:
    """One connection: a channel, and the multiplexer whose bytes go through it."""

    def __init__(self, channel: Channel, multiplexer: Multiplexer, address: Address) -> None:
        self.multiplexer = multiplexer
        self._channel = channel
        self._address = address
        self._unsent = memoryview(b"")

    @property
    def is_idle(self) -> bool:
        """Whether it can be used on: nothing is on its way, and it has not failed."""
        # A request that was answered before it was sent whole was refused: the daemon does not go
        # on reading this connection.
        multiplexer = self.multiplexer
        busy = multiplexer.in_flight or multiplexer.wants_to_send or self._unsent
        return not (busy or multiplexer.failed)

    @property
    def is_ours(self) -> bool:
        """Whether this process made it; else the other side of a fork uses it."""
        return self._channel.is_ours

    def interrupt(self) -> None:
        """Let whoever waits for it see its end; for signal handlers."""
        self._channel.interrupt()

    def carry(self, batch: Batch, silence_s: float | None, stop: StopSignal | None = None) -> None:
        """Send what has no reply yet and take the replies, until all are there or it has failed.

        Raises:
            Stopped: ``stop`` was set meanwhile.
        """
        multiplexer = self.multiplexer
        waiting, started = batch.unanswered(), 0
        while not multiplexer.failed:
            while started < len(waiting) and multiplexer.has_room:
                waiting[started].start(multiplexer)
                started += 1
            if started == len(waiting) and not multiplexer.in_flight:
                return
            if stop is not None and stop.is_set:
                raise Stopped
            if not self.turn(silence_s, stop):
                multiplexer.fail(timed_out(self._address, silence_s))

    def look(self) -> None:
        """Take what has come without waiting, for instance that the daemon has gone."""
        try:
            if self._channel.wait(to_send=False, timeout_s=0):
                self._receive()
        except OSError as error:
            self.multiplexer.fail(connection_broken(error))

    def turn(self, silence_s: float | None, stop: StopSignal | None = None) -> bool:
        """Send what can be sent and take what has come; wait for either, but not too long.

        ``stop`` ends the wait too.

        Returns:
            Whether either could be done in time.
        """
        try:
            self._send()
            to_send = bool(self._unsent)
            if not self._channel.wait(to_send=to_send, timeout_s=silence_s, stop=stop):
                return False
            self._receive()
        except OSError as error:
            self.multiplexer.fail(connection_broken(error))
        return True

    def settle(self, gains: Iterable[Request], end_s: float, now_s: Callable[[], float]) -> None:
        """Abandon what is in flight, and give back what it and earlier requests were given.

        Args:
            gains: What gives back the latter.
            end_s: Until when to try.
            now_s: The clock of that.
        """
        multiplexer = self.multiplexer
        multiplexer.abandon_all()
        multiplexer.owe(gains)
        while not (multiplexer.settled or multiplexer.failed):
            left_s = end_s - now_s()
            if left_s <= 0 or not self.turn(left_s):
                return

    def close(self) -> None:
        """Close the connection."""
        self.multiplexer.fail(connection_lost("the client closed it"))
        self._channel.close()

    def _receive(self) -> None:
        try:
            data = self._channel.receive()
            if data is not None:
                self.multiplexer.receive_data(data)
        except OSError:
            raise
        except BaseException:
            self._break()
            raise

    def _break(self) -> None:
        """End the connection: an exception of a signal handler has ended a step of it.

        A part of the stream may be gone with it, or be sent a second time.
        """
        self.multiplexer.fail(connection_lost("the client was interrupted"))

    def _send(self) -> None:
        try:
            if not self._unsent:
                self._unsent = memoryview(self.multiplexer.data_to_send())
            if self._unsent:
                self._unsent = self._unsent[self._channel.send(self._unsent) :]
        except OSError as failure:
            # What the daemon said before it closed explains this better than the error does.
            error = failure
            try:
                while data := self._channel.receive():
                    self.multiplexer.receive_data(data)
            except OSError as last_words:
                error = last_words
            if self.multiplexer.in_flight:
                raise error from None
            self._unsent = memoryview(b"")
        except BaseException:
            self._break()
            raise


class Dialer:
    """Makes connections to one address.

    Args:
        address: The daemon's.
        access: How to be let in.
        connect_timeout_s: Seconds to establish a connection.
        reply_bytes_max: Bytes of the largest reply to accept.
        plan: How to make one again; None: not.
        rng: Draws the pauses.
        sleep: Pauses for so many seconds.
        monotonic: Seconds of a clock that does not jump.
    """

    def __init__(
        self,
        address: Address,
        access: Access,
        *,
        connect_timeout_s: float,
        reply_bytes_max: int,
        plan: Reconnect | None,
        rng: Random | None,
        sleep: Callable[[float], object] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.address = address
        self.plan = plan
        self.now_s = monotonic
        self._access = access
        self._connect_timeout_s = connect_timeout_s
        self._reply_bytes_max = reply_bytes_max
        self.rng = rng or Random()
        self.sleep = sleep

    def dial(self, timeout_s: float | None = None, *, prove: bool = False) -> SyncLink:
        """Return a new connection.

        Args:
            timeout_s: Seconds for all of it; None: as many as ever.
            prove: The daemon has to answer something on it.

        Raises:
            CannotConnectError: Nobody listens there, or TLS fails, or the daemon takes no more.
            RefusedError: ``auth-failed``.
        """
        timeout_s = timeout_s or self._connect_timeout_s
        channel = connect_channel(self.address, self._access, timeout_s, prove=prove)
        multiplexer = Multiplexer(reply_bytes_max=self._reply_bytes_max)
        return SyncLink(channel, multiplexer, self.address)

    def dial_first(self, *, ended: Callable[[], bool] = lambda: False) -> SyncLink:
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

    def dial_again(self, effort: ReconnectEffort, timeout_s: float = math.inf) -> SyncLink:
        """Return a new connection, on which the daemon has answered something; try once.

        Args:
            effort: What the try is a part of, which bounds the time for it.
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
    ) -> SyncLink:
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
