"""Connecting a socket of the standard library, with TLS and AUTH where they are asked for.

A ``Channel`` is a connected, non-blocking socket, whether bytes go through it as they are or by
TLS.
"""

from __future__ import annotations

import contextlib
import select
import socket
from typing import TYPE_CHECKING

from fastjournal.client.access import Access, AuthAnswer
from fastjournal.client.address import Address, UnixAddress
from fastjournal.client.failures import cannot_connect
from fastjournal.limits import RECEIVE_BYTES_MAX

if TYPE_CHECKING:
    import ssl


class Channel:
    """Sends and receives what it can, without waiting. The methods raise OSError."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def send(self, data: memoryview) -> int:
        """Send the beginning of ``data``; return how many bytes, 0 where none can be sent now."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    def receive(self) -> bytes | None:
        """Return what has come, ``b""`` where the peer has closed, None where nothing has."""
        try:
            return self._socket.recv(RECEIVE_BYTES_MAX)
        except BlockingIOError:
            return None

    def wait(self, *, to_send: bool, timeout_s: float | None) -> bool:
        """Return whether something can be received, or with ``to_send`` sent, in time."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN | (select.POLLOUT if to_send else 0))
        return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))

    def close(self) -> None:
        """Close it."""
        self._socket.close()


class TlsChannel(Channel):
    """The same by TLS. A connection that ends without TLS saying so is an error."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        import ssl  # noqa: PLC0415 - loads OpenSSL, which few short programs need

        super().__init__(sock)
        self._tls = sock
        self._not_now = ssl.SSLWantReadError, ssl.SSLWantWriteError

    def send(self, data: memoryview) -> int:
        """Send the beginning of ``data``, as ``Channel.send``."""
        try:
            return self._tls.send(data)
        except self._not_now:
            return 0

    def receive(self) -> bytes | None:
        """Return what has come, as ``Channel.receive``."""
        try:
            return self._tls.recv(RECEIVE_BYTES_MAX)
        except self._not_now:
            return None

    def wait(self, *, to_send: bool, timeout_s: float | None) -> bool:
        """Wait as ``Channel.wait``: what is decrypted already needs none."""
        return self._tls.pending() > 0 or super().wait(to_send=to_send, timeout_s=timeout_s)

    def close(self) -> None:
        """Tell the peer that nothing was cut off, and close it."""
        with contextlib.suppress(OSError, ValueError):
            self._tls.unwrap()
        super().close()


def connect_channel(address: Address, access: Access, timeout_s: float) -> Channel:
    """Return a connected channel, on which AUTH has succeeded where there is a token.

    Raises:
        CannotConnectError: Nobody listens there, the name or path leads nowhere, or the daemon does
            not prove who it is.
        RefusedError: The daemon does not take the token; code ``auth-failed``.
    """
    context = access.context_for(address)
    try:
        sock = _connect(address, timeout_s)
        try:
            if context is not None:
                sock = context.wrap_socket(
                    sock,
                    server_hostname=None if isinstance(address, UnixAddress) else address.host,
                    suppress_ragged_eofs=False,
                )
            _authenticate(sock, address, access)
            sock.setblocking(False)
        except BaseException:
            sock.close()
            raise
    except OSError as error:
        raise cannot_connect(address, error) from error
    return Channel(sock) if context is None else TlsChannel(sock)  # type: ignore[arg-type]


def _connect(address: Address, timeout_s: float) -> socket.socket:
    if isinstance(address, UnixAddress):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(timeout_s)
            sock.connect(address.path)
        except BaseException:
            sock.close()
            raise
        return sock
    sock = socket.create_connection(address[:2], timeout_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return sock


def _authenticate(sock: socket.socket, address: Address, access: Access) -> None:
    """Send AUTH and wait for its reply. The socket blocks, with a timeout."""
    if asked := access.auth_request():
        sock.sendall(asked)
        answer = AuthAnswer(address)
        while not answer.receive_data(sock.recv(RECEIVE_BYTES_MAX)):
            pass
