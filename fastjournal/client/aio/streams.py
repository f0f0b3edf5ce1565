"""Connecting a stream of anyio, with TLS and AUTH where they are asked for."""

from __future__ import annotations

import contextlib
import os
from typing import Final

import anyio
from anyio.abc import ByteStream, SocketAttribute, SocketStream
from anyio.streams.tls import TLSStream

from fastjournal.client.core.address import KEEPALIVE, Address, UnixAddress
from fastjournal.client.core.client_credentials import Credentials, FirstAnswer
from fastjournal.client.core.failures import cannot_connect
from fastjournal.limits import RECEIVE_BYTES_MAX

STREAM_ERRORS: Final = (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)
"""Errors of a stream whose connection is lost; with TLS also that it ends without saying so."""

_GOODBYE_S = 0.5
"""Seconds to send the end of the stream to a peer that does not read."""


async def open_stream(
    address: Address, credentials: Credentials, timeout_s: float, *, prove: bool = False
) -> ByteStream:
    """Return a connected stream, after AUTH if there is a token.

    Args:
        address: The daemon's.
        credentials: Access token and TLS files.
        timeout_s: Seconds for all of it.
        prove: Without a token too, wait until the daemon has answered something.

    Raises:
        CannotConnectError: Nothing listens there, the name or path does not exist, or the daemon
            does not prove its identity.
        ConfigError: A daemon for tests runs in this process; see ``check_found``.
        RefusedError: The daemon does not accept the token; code ``auth-failed``.
    """
    credentials.check_allowed()
    try:
        with anyio.CancelScope(deadline=anyio.current_time() + timeout_s) as patience:
            if isinstance(address, UnixAddress):
                plain: SocketStream = await anyio.connect_unix(address.path)
            else:
                plain = await anyio.connect_tcp(address.host, address.port)
                for option in KEEPALIVE:
                    plain.extra(SocketAttribute.raw_socket).setsockopt(*option)
            return await _enter(plain, address, credentials, prove)
    except (anyio.BrokenResourceError, anyio.EndOfStream) as error:
        cause = error.__cause__
        reason = cause if isinstance(cause, OSError) else OSError("the connection was lost")
        raise cannot_connect(address, reason) from error
    except OSError as error:
        raise cannot_connect(address, _in_words_of_the_system(error)) from error
    assert patience.cancelled_caught, "a scope that was left without a stream was cancelled"
    raise cannot_connect(address, OSError("no answer in time"))


def _in_words_of_the_system(error: OSError) -> OSError:
    """Return an error without the words of an event loop: asyncio has its own for a refusal."""
    cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
    if isinstance(cause, ConnectionError) and cause.errno:
        return OSError(cause.errno, os.strerror(cause.errno))
    return error


async def receive_some(stream: ByteStream) -> bytes:
    """Return the next bytes, ``b""`` where the peer has closed."""
    try:
        return await stream.receive(RECEIVE_BYTES_MAX)
    except anyio.EndOfStream:
        return b""


async def close_stream(stream: ByteStream) -> None:
    """Close a stream, also in a cancelled task; with TLS send the close notification."""
    if isinstance(stream, TLSStream):
        deadline = anyio.current_time() + _GOODBYE_S
        with anyio.CancelScope(shield=True, deadline=deadline):
            with contextlib.suppress(*STREAM_ERRORS, anyio.EndOfStream):
                await stream.aclose()
    else:
        await anyio.aclose_forcefully(stream)


async def _enter(
    plain: SocketStream, address: Address, credentials: Credentials, prove: bool
) -> ByteStream:
    """Do what comes before the first request, or close the stream."""
    stream: ByteStream = plain
    try:
        context = credentials.context_for(address)
        if context is not None:
            assert not isinstance(address, UnixAddress)
            stream = await TLSStream.wrap(
                plain, server_side=False, hostname=address.host, ssl_context=context
            )
        if asked := credentials.first_request(address, prove=prove):
            await stream.send(asked)
            answer = FirstAnswer(address)
            while not answer.receive_data(await receive_some(stream)):
                pass
    except BaseException:  # cancelled too: the socket is closed
        await anyio.aclose_forcefully(plain)
        raise
    return stream
