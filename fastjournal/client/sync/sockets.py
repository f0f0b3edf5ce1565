"""Sockets of the blocking client: connect, with TLS and AUTH if requested; stop signal.

A ``Channel`` is a connected, non-blocking socket, plain or with TLS. A stop signal ends a wait for
the daemon from a signal handler or another thread.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from typing import TYPE_CHECKING, Any

from fastjournal.client.core.address import KEEPALIVE, Address, UnixAddress
from fastjournal.client.core.client_credentials import Credentials, FirstAnswer
from fastjournal.client.core.failures import cannot_connect
from fastjournal.limits import RECEIVE_BYTES_MAX, SOCKET_WAIT_S_MAX

if TYPE_CHECKING:
    import ssl


class Stopped(Exception):  # noqa: N818 - no error: its caller asked for it
    """The wait was ended by its stop signal; nothing is leased by it."""


class StopSignal:
    """A flag that a blocking wait looks at, and a pipe that wakes it.

    The pipe is made at the first wait, so that a loop that is never waited with costs nothing.
    """

    def __init__(self) -> None:
        self.is_set = False
        self._pipe: tuple[int, int] | None = None
        self._process = os.getpid()

    def set(self) -> None:
        """End the wait, and all that come."""
        was_set, self.is_set = self.is_set, True
        # The child of a fork does not wake its parent.
        if self._pipe is not None and not was_set and self._process == os.getpid():
            os.write(self._pipe[1], b"\0")

    def fileno(self) -> int:
        """Return a descriptor that is readable, or will be, once the signal is set."""
        if self._pipe is None:
            self._pipe = os.pipe()
            if self.is_set:  # by another thread, which found no pipe
                os.write(self._pipe[1], b"\0")
        return self._pipe[0]

    def __del__(self) -> None:
        if self._pipe is not None:
            for descriptor in self._pipe:
                os.close(descriptor)


class Channel:
    """Sends and receives what it can, without waiting. The methods raise OSError."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._process = os.getpid()

    @property
    def is_ours(self) -> bool:
        """Whether this process made it; else the other side of a fork uses it."""
        return self._process == os.getpid()

    def fileno(self) -> int:
        """Return its descriptor."""
        return self._socket.fileno()

    def interrupt(self) -> None:
        """Wake the waiter with the end of the connection; for signal handlers."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

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

    def wait(
        self, *, to_send: bool, timeout_s: float | None, stop: StopSignal | None = None
    ) -> bool:
        """Return whether something can be received, or with ``to_send`` sent, in time.

        It can also be that ``stop`` was set.
        """
        poll = select.poll()
        poll.register(self._socket, select.POLLIN | (select.POLLOUT if to_send else 0))
        if stop is not None:
            poll.register(stop, select.POLLIN)
        if timeout_s is None:
            return bool(poll.poll())
        while timeout_s > SOCKET_WAIT_S_MAX:
            if poll.poll(SOCKET_WAIT_S_MAX * 1000):
                return True
            timeout_s -= SOCKET_WAIT_S_MAX
        return bool(poll.poll(timeout_s * 1000))

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

    def wait(
        self, *, to_send: bool, timeout_s: float | None, stop: StopSignal | None = None
    ) -> bool:
        """Wait as ``Channel.wait``: what is decrypted already needs none."""
        if self._tls.pending():
            return True
        return super().wait(to_send=to_send, timeout_s=timeout_s, stop=stop)

    def close(self) -> None:
        """Send the close notification to the peer, and close the socket."""
        if self.is_ours:
            with contextlib.suppress(OSError, ValueError):
                self._tls.unwrap()
        super().close()


def connect_channel(
    address: Address, credentials: Credentials, timeout_s: float, *, prove: bool = False
) -> Channel:
    """Return a connected channel, after AUTH if there is a token.

    Args:
        address: The daemon's.
        credentials: Access token and TLS files.
        timeout_s: Seconds for all of it, without the look-up of the name.
        prove: Without a token too, wait until the daemon has answered something.

    Raises:
        CannotConnectError: Nothing listens there, the name or path does not exist, or the daemon
            does not prove its identity, or takes no connection now.
        ConfigError: A daemon for tests runs in this process; see ``check_found``.
        RefusedError: The daemon does not accept the token; code ``auth-failed``.
    """
    credentials.check_allowed()
    context = credentials.context_for(address)
    deadline = _Deadline(timeout_s)
    try:
        sock = _connect(address, deadline)
        try:
            if context is not None:
                sock.settimeout(deadline.left_s())
                sock = context.wrap_socket(
                    sock,
                    server_hostname=None if isinstance(address, UnixAddress) else address.host,
                    suppress_ragged_eofs=False,
                )
            _ask_first(sock, address, credentials.first_request(address, prove=prove), deadline)
            sock.setblocking(False)
        except BaseException:  # a signal handler may raise anything
            sock.close()
            raise
    except OSError as error:
        raise cannot_connect(address, error) from error
    return Channel(sock) if context is None else TlsChannel(sock)  # type: ignore[arg-type] # see above


class _Deadline:
    """Deadline of connecting, for any number of system calls."""

    def __init__(self, timeout_s: float) -> None:
        self._end_s = time.monotonic() + timeout_s

    def left_s(self) -> float:
        """Return the seconds that are left; raise TimeoutError where none are."""
        left_s = self._end_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("no answer in time")
        return min(left_s, SOCKET_WAIT_S_MAX)


def _connect(address: Address, deadline: _Deadline) -> socket.socket:
    if isinstance(address, UnixAddress):
        return _try_to_connect(socket.AF_UNIX, address.path, deadline.left_s())
    # as bytes: for text the codec idna is loaded, with tables of Unicode
    host = address.host.encode("ascii") if address.host.isascii() else address.host
    found = socket.getaddrinfo(host, address.port, type=socket.SOCK_STREAM)
    failure = OSError("the name has no address")
    for untried, (family, _, _, _, where) in zip(range(len(found), 0, -1), found, strict=True):
        try:
            sock = _try_to_connect(family, where, deadline.left_s() / untried)
        except OSError as error:
            failure = error
            continue
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for option in KEEPALIVE:
            sock.setsockopt(*option)
        return sock
    raise failure


def _try_to_connect(family: int, where: Any, timeout_s: float) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        sock.connect(where)
    except BaseException:  # a signal handler may raise anything
        sock.close()
        raise
    return sock


def _ask_first(sock: socket.socket, address: Address, asked: bytes, deadline: _Deadline) -> None:
    """Send the first request, if there is one, and wait for its reply."""
    if asked:
        sock.settimeout(deadline.left_s())
        sock.sendall(asked)
        answer, data = FirstAnswer(address), None
        while data is None or not answer.receive_data(data):
            sock.settimeout(deadline.left_s())
            data = sock.recv(RECEIVE_BYTES_MAX)
