"""TLS under a session: the handshake, and a stream that ends as a socket does."""

from __future__ import annotations

import ssl
from contextlib import suppress

import trio

from fastjournal import limits

GOODBYE_SECONDS = 1.0
"""To tell a peer that takes nothing that this is the end."""


class _Ciphertext(trio.abc.Stream):
    """The socket below TLS. When TLS closes it, it is only shut down for sending."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(max_bytes)

    async def aclose(self) -> None:
        await self._stream.send_eof()


class TlsStream(trio.abc.HalfCloseableStream):
    """A socket that speaks TLS, for a session, which ends it as it ends a plain one.

    A peer that ends without saying so by TLS raises BrokenResourceError: what it sent may have been
    cut off.

    Args:
        stream: The accepted socket.
        context: Of the listeners.
    """

    def __init__(self, stream: trio.SocketStream, context: ssl.SSLContext) -> None:
        self._socket = stream
        self._tls = trio.SSLStream(_Ciphertext(stream), context, server_side=True)
        self._ended = False

    @property
    def socket(self) -> trio.socket.SocketType:
        """The socket below."""
        return self._socket.socket

    async def shake_hands(self) -> None:
        """Raise BrokenResourceError where the client does not speak TLS, or is not let in."""
        await self._tls.do_handshake()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send it."""
        await self._tls.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """Return when it may be worth trying."""
        await self._tls.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Receive; after ``send_eof`` what comes is for nobody, and is not decrypted any more."""
        return await (self._socket if self._ended else self._tls).receive_some(max_bytes)

    async def send_eof(self) -> None:
        """Tell the client, by TLS, that it has all; go on receiving."""
        if not self._ended:
            self._ended = True
            with trio.move_on_after(GOODBYE_SECONDS):
                await self._tls.aclose()

    async def aclose(self) -> None:
        """Close it."""
        await self._socket.aclose()


class Handshakes:
    """Lets clients in, as long as there are not too many at it."""

    def __init__(self) -> None:
        self._scopes: set[trio.CancelScope] = set()

    async def let_in(self, stream: trio.SocketStream, context: ssl.SSLContext) -> TlsStream | str:
        """Return the stream to go on with, or why there is none; then the socket is closed."""
        if len(self._scopes) >= limits.HANDSHAKES_MAX:
            await trio.aclose_forcefully(stream)
            return "too many handshakes at a time"
        tls = TlsStream(stream, context)
        scope = trio.CancelScope(deadline=trio.current_time() + limits.HANDSHAKE_SECONDS_MAX)
        self._scopes.add(scope)
        why_not = "not done in time"
        try:
            with scope:
                await tls.shake_hands()
                return tls
        except trio.BrokenResourceError as error:
            why_not = _reason_of(error.__cause__)
            await _part(stream)
        finally:
            self._scopes.discard(scope)
        await trio.aclose_forcefully(stream)
        return why_not

    def stop(self) -> None:
        """The daemon stops: nobody who is not in comes in any more."""
        for scope in self._scopes:
            scope.cancel()


async def _part(stream: trio.SocketStream) -> None:
    """Let a client that was not let in read why: a socket closed with unread data is reset."""
    with trio.move_on_after(GOODBYE_SECONDS), suppress(trio.BrokenResourceError):
        await stream.send_eof()
        while await stream.receive_some(limits.RECEIVE_BYTES_MAX):
            pass


def _reason_of(error: BaseException | None) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return "the connection was lost"
