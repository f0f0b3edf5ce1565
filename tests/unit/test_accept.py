from __future__ import annotations

import errno
from typing import cast

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from fastjournald.net.listeners import accept


class Listener(trio.abc.Listener[trio.SocketStream]):
    """Has a client whenever the system has a descriptor."""

    def __init__(self, *failures: int) -> None:
        self.failures = list(failures)
        self.calls = 0
        self.closed = False
        self.waiting = trio.Event()

    async def accept(self) -> trio.SocketStream:
        self.calls += 1
        await trio.lowlevel.checkpoint()
        if self.failures:
            number = self.failures.pop(0)
            raise OSError(number, "no room")
        if self.waiting.is_set():
            await trio.sleep_forever()
        self.waiting.set()
        return cast(trio.SocketStream, trio.testing.memory_stream_pair()[0])

    async def aclose(self) -> None:
        self.closed = True
        await trio.lowlevel.checkpoint()


async def serve(listener: Listener, seconds: float) -> int:
    """Return how many clients came in so long."""
    served = 0

    def count(_stream: trio.SocketStream) -> None:
        nonlocal served
        served += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept, listener, count)
        await trio.sleep(seconds)
        nursery.cancel_scope.cancel()
    assert listener.closed
    return served


async def test_accept_without_descriptors_waits_says_so_once_and_goes_on(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    listener = Listener(*[errno.EMFILE, errno.ENFILE] * 20)
    assert await serve(listener, 3.95) == 0
    assert listener.calls <= 40, "it does not spin"
    assert caplog.text.count("event=no-room-for-connections") == 1
    assert await serve(listener, 1.0) == 1


async def test_listener_that_is_unusable_ends_the_daemon(autojump_clock: MockClock) -> None:
    listener = Listener(errno.EINVAL)
    with pytest.raises(ExceptionGroup):
        await serve(listener, 1.0)
    assert listener.closed
