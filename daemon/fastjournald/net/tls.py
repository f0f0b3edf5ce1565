"""TLS under a session: the handshake, and a stream that ends as a socket does."""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import Any, cast

import trio

from fastjournal import limits
from fastjournal.eviction_queue import EvictionQueue
from fastjournal.protocol import encode_error

GOODBYE_SECONDS = 1.0
"""How long closing waits for a peer that takes no bytes."""


_TLS_ONLY = encode_error(
    0, 0, "bad-request this address takes TLS only: write it as tls://HOST:PORT, and trust its CA"
)

_NO_TLS = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST"}
"""Reasons of OpenSSL for which it sends no alert, as the client does not speak TLS at all."""


class _AlertingContext:
    """TLS context that keeps unsent bytes: trio does not send the alert of a failed handshake."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self.unsent = ssl.MemoryBIO()

    def wrap_bio(
        self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, **options: Any
    ) -> ssl.SSLObject:
        self.unsent = outgoing
        return self._context.wrap_bio(incoming, outgoing, **options)


class _Ciphertext(trio.abc.Stream):
    """The socket below TLS. When TLS closes it, it is only shut down for sending.

    Args:
        stream: The socket.
        steps: Steps of handshakes that may be done in one turn of the event loop.
    """

    def __init__(self, stream: trio.SocketStream, steps: trio.Semaphore) -> None:
        self._stream = stream
        self.steps: trio.Semaphore | None = steps
        """None: the handshake is done."""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        data = await self._stream.receive_some(max_bytes)
        if self.steps is not None:
            # TLS does a step with the received bytes, before any other task continues
            async with self.steps:
                await trio.lowlevel.checkpoint()
        return data

    async def aclose(self) -> None:
        await self._stream.send_eof()


class TlsStream(trio.abc.HalfCloseableStream):
    """A socket that speaks TLS, for a session, which ends it as it ends a plain one.

    A peer that ends without saying so by TLS raises BrokenResourceError: what it sent may have been
    cut off.

    Args:
        stream: The accepted socket.
        context: Context of the listeners.
        steps: Steps of handshakes that may be done in one turn of the event loop.
    """

    def __init__(
        self, stream: trio.SocketStream, context: ssl.SSLContext, steps: trio.Semaphore
    ) -> None:
        self._socket = stream
        self._context = _AlertingContext(context)
        self._ciphertext = _Ciphertext(stream, steps)
        self._tls = trio.SSLStream(
            self._ciphertext, cast(ssl.SSLContext, self._context), server_side=True
        )
        self._ended = False

    @property
    def socket(self) -> trio.socket.SocketType:
        """The socket below."""
        return self._socket.socket

    async def shake_hands(self) -> None:
        """Do the handshake; raise BrokenResourceError if it fails."""
        await self._tls.do_handshake()
        self._ciphertext.steps = None

    def last_words(self, error: BaseException | None) -> bytes:
        """Return the alert or message for the client after the handshake failed with this error."""
        if isinstance(error, ssl.SSLError) and error.reason in _NO_TLS:
            return _TLS_ONLY
        return self._context.unsent.read()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send it."""
        await self._tls.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """Return when it may be worth trying."""
        await self._tls.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Receive; after ``send_eof`` bytes are dropped, and are not decrypted any more."""
        return await (self._socket if self._ended else self._tls).receive_some(max_bytes)

    async def send_eof(self) -> None:
        """Send the TLS close notification, so that the client sees the end; receiving goes on."""
        if not self._ended:
            self._ended = True
            with trio.move_on_after(GOODBYE_SECONDS):
                await self._tls.aclose()

    async def aclose(self) -> None:
        """Close it."""
        await self._socket.aclose()


class Handshakes:
    """Handshakes in progress. Where these are too many, the oldest that are not done make room.

    Each step of a handshake computes for up to a millisecond, so a turn has only some of them.
    """

    def __init__(self) -> None:
        self._begun: EvictionQueue[trio.CancelScope] = EvictionQueue()
        self._why_cut = "made room for another one"
        self._steps = trio.Semaphore(limits.HANDSHAKE_STEPS_A_TURN)

    async def let_in(
        self, stream: trio.SocketStream, context: ssl.SSLContext, origin: str
    ) -> TlsStream | str:
        """Return the stream to go on with, or why there is none; then the socket is closed.

        Args:
            stream: The accepted socket.
            context: Context of the listeners.
            origin: Address of the client, for the bound of each address.
        """
        if self._begun.number_of(origin) >= limits.HANDSHAKES_PER_ORIGIN_MAX:
            self._begun.pop_oldest_of(origin).cancel()
        elif len(self._begun) >= limits.HANDSHAKES_MAX and (oldest := self._begun.pop()):
            oldest.cancel()
        tls = TlsStream(stream, context, self._steps)
        scope = trio.CancelScope(deadline=trio.current_time() + limits.HANDSHAKE_SECONDS_MAX)
        self._begun.add(origin, scope)
        why_not = ""
        cut = False
        try:
            with scope:
                try:
                    await tls.shake_hands()
                except trio.BrokenResourceError as error:
                    why_not = _reason_of(error.__cause__)
                    await _part(stream, tls.last_words(error.__cause__))
        finally:
            cut = not self._begun.discard(origin, scope)
        if cut:
            why_not = why_not or self._why_cut
        elif scope.cancelled_caught:
            why_not = why_not or "not done in time"
        if not why_not:
            return tls
        await trio.aclose_forcefully(stream)
        return why_not

    def stop(self) -> None:
        """End all handshakes: the daemon stops."""
        self._why_cut = "the daemon stops"
        while (scope := self._begun.pop()) is not None:
            scope.cancel()


async def _part(stream: trio.SocketStream, last_words: bytes) -> None:
    """Send the alert of a failed handshake, and linger: else the socket is reset."""
    with trio.move_on_after(GOODBYE_SECONDS), suppress(trio.BrokenResourceError):
        await stream.send_all(last_words)
        await stream.send_eof()
        while await stream.receive_some(limits.RECEIVE_BYTES_MAX):
            pass


def _reason_of(error: BaseException | None) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return "the connection was lost"
