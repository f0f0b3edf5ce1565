"""``SyncClient``: blocking sockets, the standard library only."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable
from types import TracebackType
from typing import TypeVar

from fastjournal.client.access import Tls, make_access
from fastjournal.client.address import DEFAULT_ADDRESS, parse_address
from fastjournal.client.calls import Call, results_or_refusals, silence_allowed_s
from fastjournal.client.failures import (
    connection_lost,
    not_connected,
    reason_of,
    timed_out,
)
from fastjournal.client.multiplexer import Multiplexer, Pending
from fastjournal.client.sockets import Channel, connect_channel
from fastjournal.client.sync_methods import SyncMethods
from fastjournal.clock import unique_timestamp
from fastjournal.errors import RefusedError
from fastjournal.limits import CLIENT_REPLY_BYTES_MAX
from fastjournal.protocol import Reply, Request

T = TypeVar("T")


class SyncClient(SyncMethods):
    """A connection to a daemon for programs without an event loop.

    It connects at the first use and stays connected until ``close`` or a failure; from then on
    every request raises CannotConnectError (code ``not-connected``) until ``connect`` is called.
    Threads may share it: they take turns, so one that waits for work holds up the others. Do not
    use it on both sides of a fork.

    Args:
        address: ``HOST:PORT``, ``[::1]:PORT``, ``tls://HOST:PORT`` or ``unix:PATH``.
        tls: For TCP addresses. An ``ssl.SSLContext``; or the path of a PEM file of authorities to
            trust; or True: trust those of the system. None: TLS only where the address says so.
        auth: The token that AUTH sends before all else, at every connect. None: none is sent.
        connect_timeout_s: Seconds to establish the connection.
        reply_timeout_s: Seconds of silence, while an answer is due, after which the connection
            counts as lost. The time that a NEXT may wait is added. None: no limit.
        reply_bytes_max: Bytes of the largest reply to accept.

    Raises:
        BadRequestError: The address or the token is none.
        ConfigError: The file of authorities cannot be used.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        tls: Tls = None,
        auth: str | bytes | None = None,
        connect_timeout_s: float = 10.0,
        reply_timeout_s: float | None = 60.0,
        reply_bytes_max: int = CLIENT_REPLY_BYTES_MAX,
    ) -> None:
        self.address = parse_address(address)
        self._access = make_access(tls, auth)
        self._connect_timeout_s = connect_timeout_s
        self._reply_timeout_s = reply_timeout_s
        self._reply_bytes_max = reply_bytes_max
        self._channel: Channel | None = None
        self._multiplexer: Multiplexer | None = None
        self._ended = False
        self._unsent = memoryview(b"")
        self._lock = threading.Lock()

    # --- connection -----------------------------------------------------------------------------

    def connect(self) -> None:
        """Connect, unless it is connected.

        Raises:
            CannotConnectError: Nobody listens there, or TLS fails.
            RefusedError: ``auth-failed``.
        """
        with self._lock:
            self._connect()

    def close(self) -> None:
        """Close the connection; a lease goes on until it ends or is released."""
        with self._lock:
            self._disconnect()

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

    # --- many at once ---------------------------------------------------------------------------

    def request(self, request: Request) -> Reply:
        """Send a request as it is, and return the reply, which may be a refusal.

        A timestamp of 0 is replaced by this machine's time; the identifier is set.
        """
        return self._exchange([request])[0]

    def request_many(self, requests: Iterable[Request]) -> list[Reply]:
        """Send requests without waiting between them; return their replies in the same order.

        Raises:
            CannotConnectError: The connection was lost; any of them may have been carried out.
        """
        return self._exchange(list(requests))

    def call(self, call: Call[T]) -> T:
        """Send one of ``fastjournal.client.calls``; return its result."""
        return call.result(self._exchange([call.request])[0])

    def call_many(self, many: Iterable[Call[T]]) -> list[T | RefusedError]:
        """Send many without waiting between them; each gives its result, or its refusal."""
        kept = list(many)
        return results_or_refusals(kept, self._exchange([call.request for call in kept]))

    # --- moving bytes ---------------------------------------------------------------------------

    def _exchange(self, requests: list[Request]) -> list[Reply]:
        silence_s = silence_allowed_s(self._reply_timeout_s, requests)
        with self._lock:
            if self._ended:
                raise not_connected()
            multiplexer = self._connect()
            try:
                return self._pump(multiplexer, requests, silence_s)
            except OSError as error:
                raise connection_lost(reason_of(error)) from error
            finally:
                # A request that was answered before it was sent whole was refused: the daemon
                # does not go on reading this connection.
                if multiplexer.in_flight or multiplexer.failed or self._unsent:
                    self._disconnect()

    def _pump(
        self, multiplexer: Multiplexer, requests: list[Request], silence_s: float | None
    ) -> list[Reply]:
        pendings: list[Pending] = []
        while True:
            while len(pendings) < len(requests) and multiplexer.has_room:
                request = requests[len(pendings)]
                request.timestamp = request.timestamp or unique_timestamp()
                pendings.append(multiplexer.start(request))
            if len(pendings) == len(requests) and not multiplexer.in_flight:
                return [pending.answer() for pending in pendings]
            self._turn(multiplexer, silence_s)

    def _turn(self, multiplexer: Multiplexer, silence_s: float | None) -> None:
        """Send what can be sent and take what has come; wait for either, but not too long."""
        channel = self._channel
        assert channel is not None, "a multiplexer without a channel"
        if not self._unsent:
            self._unsent = memoryview(multiplexer.data_to_send())
        if self._unsent:
            self._send(multiplexer, channel)
        if not channel.wait(to_send=bool(self._unsent), timeout_s=silence_s):
            raise timed_out(self.address, silence_s)
        data = channel.receive()
        if data is not None:
            multiplexer.receive_data(data)

    def _send(self, multiplexer: Multiplexer, channel: Channel) -> None:
        try:
            self._unsent = self._unsent[channel.send(self._unsent) :]
        except OSError:
            # What the daemon said before it closed explains this better than the error does.
            with contextlib.suppress(OSError):
                while data := channel.receive():
                    multiplexer.receive_data(data)
            if multiplexer.in_flight:
                raise
            self._unsent = memoryview(b"")

    def _connect(self) -> Multiplexer:
        if self._multiplexer is not None:
            return self._multiplexer
        self._channel = connect_channel(self.address, self._access, self._connect_timeout_s)
        self._unsent = memoryview(b"")
        self._multiplexer = Multiplexer(reply_bytes_max=self._reply_bytes_max)
        self._ended = False
        return self._multiplexer

    def _disconnect(self) -> None:
        if self._channel is not None:
            self._channel.close()
        self._channel = self._multiplexer = None
        self._ended = True
