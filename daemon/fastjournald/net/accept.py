"""Acceptor: takes connections from a listener, also when descriptors run out for a while."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable

import trio

LOG = logging.getLogger("fastjournald")

PAUSE_SECONDS = 0.1
"""After the system had no room for a connection: clients wait in its queue meanwhile."""

NO_ROOM = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS}


async def accept(
    listener: trio.abc.Listener[trio.SocketStream],
    serve: Callable[[trio.SocketStream], object],
) -> None:
    """Take connections, until cancelled; then close the listener.

    Args:
        listener: Where from.
        serve: Called with each stream; has to see to it that it is closed.

    Raises:
        OSError: The listener is unusable.
    """
    short = False
    async with listener:
        while True:
            try:
                stream = await listener.accept()
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                if not short:
                    LOG.warning(
                        "event=no-room-for-connections error=%r hint='see LimitNOFILE'",
                        error.strerror,
                    )
                short = True
                await trio.sleep(PAUSE_SECONDS)
            else:
                short = False
                serve(stream)
