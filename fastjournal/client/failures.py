"""The ways in which a connection fails, each with its code, its sentence and what to do."""

from __future__ import annotations

from fastjournal.client.address import Address
from fastjournal.errors import CannotConnectError


def cannot_connect(address: Address, error: OSError) -> CannotConnectError:
    """Nobody listens at the address, or it leads nowhere; code ``cannot-connect``."""
    return CannotConnectError(
        f"cannot connect to {address}: {reason_of(error)}",
        hint="is fastjournald running there, and is the address right?",
    )


def connection_lost(reason: str) -> CannotConnectError:
    """The connection ended before the answers came; code ``connection-lost``."""
    return CannotConnectError(
        f"the connection was lost: {reason}",
        code="connection-lost",
        hint="connect and send again; with the same timestamp a repeated write is harmless",
    )


def timed_out(address: Address, silence_s: float | None) -> CannotConnectError:
    """The daemon owes an answer and sends nothing; code ``timed-out``."""
    return CannotConnectError(
        f"{address} has not answered for {silence_s:g} s",
        code="timed-out",
        hint="connect and send again; with the same timestamp a repeated write is harmless",
    )


def not_connected() -> CannotConnectError:
    """The client was closed, or lost its connection earlier; code ``not-connected``."""
    return CannotConnectError(
        "the client is not connected", code="not-connected", hint="call connect() first"
    )


def reason_of(error: OSError) -> str:
    """Return the operating system's reason in words."""
    cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
    return cause.strerror or str(cause) or type(cause).__name__
