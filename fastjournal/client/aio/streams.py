"""Connecting a trio stream, with TLS and AUTH where they are asked for."""

from __future__ import annotations

import socket

import trio

from fastjournal.client.core.access import Access, FirstAnswer
from fastjournal.client.core.address import Address, UnixAddress
from fastjournal.client.core.failures import cannot_connect
from fastjournal.limits import RECEIVE_BYTES_MAX

_GOODBYE_S = 0.5
"""To tell a peer that takes nothing that this is the end."""


async def open_stream(
    address: Address, access: Access, timeout_s: float, *, prove: bool = False
) -> trio.abc.Stream:
    """Return a connected stream, on which AUTH has succeeded where there is a token.

    Args:
        address: The daemon's.
        access: How to be let in.
        timeout_s: Seconds for all of it.
        prove: Without a token too, wait until the daemon has answered something.

    With TLS, a connection that ends without TLS saying so is a trio.BrokenResourceError.

    Raises:
        CannotConnectError: Nobody listens there, the name or path leads nowhere, or the daemon does
            not prove who it is.
        RefusedError: The daemon does not take the token; code ``auth-failed``.
    """
    try:
        with trio.fail_after(timeout_s):
            if isinstance(address, UnixAddress):
                plain = await trio.open_unix_socket(address.path)
                return await _enter(plain, address, access, prove)
            plain = await trio.open_tcp_stream(address.host, address.port)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            return await _enter(plain, address, access, prove)
    except trio.TooSlowError as error:
        raise cannot_connect(address, OSError("no answer in time")) from error
    except trio.BrokenResourceError as error:
        cause = error.__cause__
        reason = cause if isinstance(cause, OSError) else OSError("the connection was lost")
        raise cannot_connect(address, reason) from error
    except OSError as error:
        raise cannot_connect(address, error) from error


async def close_stream(stream: trio.abc.Stream) -> None:
    """Close a stream, also in a cancelled task; with TLS tell the peer that nothing was cut off."""
    if isinstance(stream, trio.SSLStream):
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _GOODBYE_S):
            await stream.aclose()
            return
    await trio.aclose_forcefully(stream)


async def _enter(
    plain: trio.SocketStream, address: Address, access: Access, prove: bool
) -> trio.SocketStream | trio.SSLStream[trio.SocketStream]:
    """Do what comes before the first request, or close the stream."""
    stream: trio.SocketStream | trio.SSLStream[trio.SocketStream] = plain
    try:
        context = access.context_for(address)
        if context is not None:
            assert not isinstance(address, UnixAddress)
            stream = trio.SSLStream(plain, context, server_hostname=address.host)
            await stream.do_handshake()
        if asked := access.first_request(address, prove=prove):
            await stream.send_all(asked)
            answer = FirstAnswer(address)
            while not answer.receive_data(await stream.receive_some(RECEIVE_BYTES_MAX)):
                pass
    except BaseException:  # cancelled too: the socket is closed
        await trio.aclose_forcefully(plain)
        raise
    return stream
