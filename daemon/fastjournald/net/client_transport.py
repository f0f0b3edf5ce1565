"""Client transport: calls of a client's connection, whatever moves its bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from fastjournald.net.session import Session


def do_nothing() -> None:
    """Do nothing: the callback of a connection that has ended."""


class ClientTransport(Protocol):
    """Connection of one client."""

    session: Session
    on_end: Callable[[], object]
    """Called when the connection has ended."""

    def __hash__(self) -> int:
        """By identity."""

    def begin(self) -> None:
        """Serve the client, from the first byte on."""

    def wake(self) -> None:
        """Send, beside everything else, what the client did not ask for just now."""

    def stop(self) -> None:
        """The daemon stops: answer what is on its way, then close."""

    def abandon(self, sentence: str, code: str) -> None:
        """Wait no longer for the rest of a request: tell the client, and close."""

    def refuse_request(self) -> None:
        """Tell the client that there is no room for the rest of its request, and close."""

    def cut(self) -> None:
        """Close without a word, whatever the client has not taken."""

    def has_hung_up(self) -> bool:
        """Whether the client has gone, or at least sends nothing more."""
