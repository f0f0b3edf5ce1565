"""Failover: the daemons that a forwarder tries in turn; it stays with one until it fails."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from anyio.abc import ByteStream

from fastjournal.client.aio.streams import open_stream
from fastjournal.client.core.address import Address
from fastjournal.client.core.client_credentials import Credentials
from fastjournal.client.core.failures import advise_of_options
from fastjournal.errors import CannotConnectError, ConfigError, RefusedError

log = logging.getLogger("fj_forwarder")

CONNECT_SECONDS_MAX: Final = 10.0


class Servers:
    """Addresses of daemons, and the one whose turn it is.

    Args:
        addresses: In the order in which they are tried.
        load_credentials: Reads certificates and token, for each connection.
    """

    def __init__(
        self, addresses: tuple[Address, ...], load_credentials: Callable[[], Credentials]
    ) -> None:
        self._addresses = addresses
        self._load_credentials = load_credentials
        self._turn = 0

    def __len__(self) -> int:
        return len(self._addresses)

    @property
    def current(self) -> Address:
        """The address whose turn it is."""
        return self._addresses[self._turn % len(self._addresses)]

    def move_on(self) -> None:
        """Make it the turn of the next one."""
        self._turn += 1

    async def connect(self, *, level: int) -> ByteStream | None:
        """Try each server once, beginning with the last one that was good; None: all in vain.

        Args:
            level: With which success is logged.
        """
        for _ in self._addresses:
            address = self.current
            try:
                stream = await open_stream(address, self._load_credentials(), CONNECT_SECONDS_MAX)
            except (CannotConnectError, ConfigError) as error:
                advise_of_options(error)
                log.warning("%s", error)
            except RefusedError as error:
                advise_of_options(error)
                log.error("%s: %s", address, error)
            else:
                log.log(level, "%s: connected", address)
                return stream
            self.move_on()
        return None
