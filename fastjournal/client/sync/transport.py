"""Transport of blocking sockets: a channel, and the multiplexer whose bytes go through it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fastjournal.client.core.address import Address
from fastjournal.client.core.failures import connection_broken, connection_lost, timed_out
from fastjournal.client.core.multiplexer import Multiplexer
from fastjournal.client.core.pipeline import Pipeline
from fastjournal.client.sync.sockets import Channel, Stopped, StopSignal
from fastjournal.protocol import Request


class SyncTransport:
    """One transport: a channel, and the multiplexer whose bytes go through it."""

    def __init__(self, channel: Channel, multiplexer: Multiplexer, address: Address) -> None:
        self.multiplexer = multiplexer
        self._channel = channel
        self.address = address
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

    def fileno(self) -> int:
        """Return the descriptor of the connection."""
        return self._channel.fileno()

    def interrupt(self) -> None:
        """Wake the waiter with the end of the connection; for signal handlers."""
        self._channel.interrupt()

    def carry(
        self, pipeline: Pipeline, silence_s: float | None, stop: StopSignal | None = None
    ) -> None:
        """Send what has no reply yet and take the replies, until all are there or it has failed.

        Raises:
            Stopped: ``stop`` was set meanwhile.
        """
        multiplexer = self.multiplexer
        waiting, started = pipeline.unanswered(), 0
        while not multiplexer.failed:
            while started < len(waiting) and multiplexer.has_room:
                waiting[started].start(multiplexer)
                started += 1
            if started == len(waiting) and not multiplexer.in_flight:
                return
            if stop is not None and stop.is_set:
                raise Stopped
            if not self.turn(silence_s, stop):
                multiplexer.fail(timed_out(self.address, silence_s))

    def look(self) -> None:
        """Take received bytes without waiting, for instance the end of the connection."""
        try:
            if self._channel.wait(to_send=False, timeout_s=0):
                self._receive()
        except OSError as error:
            self.multiplexer.fail(connection_broken(error))

    def send(self) -> bool:
        """Send what can be sent now, and take nothing; return whether all is sent."""
        try:
            self._send()
        except OSError as error:
            self.multiplexer.fail(connection_broken(error))
        return not self._unsent

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
        """Abandon requests in flight, and release leases and locks of these and of earlier ones.

        Args:
            gains: Requests that release those of earlier ones.
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
        except BaseException:  # see _break
            self._break()
            raise

    def _break(self) -> None:
        """End the connection: an exception of a signal handler has ended a step of it.

        A part of the stream may be lost with it, or be sent a second time.
        """
        self.multiplexer.fail(connection_lost("the client was interrupted"))

    def _send(self) -> None:
        try:
            if not self._unsent:
                self._unsent = memoryview(self.multiplexer.data_to_send())
            if self._unsent:
                self._unsent = self._unsent[self._channel.send(self._unsent) :]
        except OSError as failure:
            # The daemon's last messages explain the end of the connection better than the error.
            error = failure
            try:
                while data := self._channel.receive():
                    self.multiplexer.receive_data(data)
            except OSError as last_words:
                error = last_words
            if self.multiplexer.in_flight:
                raise error from None
            self._unsent = memoryview(b"")
        except BaseException:  # see _break
            self._break()
            raise
