"""Plain socket: a task that comes to it too late learns that the connection has ended."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable

import pytest
import trio

from fastjournald.net.plain_socket import PlainSocket

USES: dict[str, Callable[[PlainSocket], Awaitable[object]]] = {
    "send": lambda plain: plain.send_all(b"x"),
    "wait to send": lambda plain: plain.wait_send_all_might_not_block(),
    "receive": lambda plain: plain.receive_some(10),
    "end": lambda plain: plain.send_eof(),
}
LOST = (trio.ClosedResourceError, trio.BrokenResourceError)


@pytest.mark.parametrize("use", USES.values(), ids=USES)
async def test_use_of_a_closed_socket_says_so(
    use: Callable[[PlainSocket], Awaitable[object]],
) -> None:
    accepted, client = socket.socketpair()
    with client:
        plain = PlainSocket(accepted)
        plain.close()
        for _ in range(2):
            with pytest.raises(LOST):
                await use(plain)
