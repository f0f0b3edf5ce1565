"""The ways in which a connection fails, each with its code, its sentence and what to do."""

from __future__ import annotations

from fastjournal.client.address import Address
from fastjournal.errors import CannotConnectError, RefusedError

LATER = frozenset({"busy", "shutting-down"})
"""Refusals that another try may not get."""

IN_VAIN = frozenset({"bad-request", "too-large", "unsupported-version"})
"""Refusals of a connection for bytes that would be sent on another one too."""

_SEND_AGAIN = "connect and send again; with the same timestamp a repeated write is harmless"


def cannot_connect(address: Address, error: OSError) -> CannotConnectError:
    """Nobody listens at the address, or it leads nowhere; code ``cannot-connect``."""
    reason, hint = reason_of(error), "is fastjournald running there, and is the address right?"
    if getattr(error, "library", None) == "SSL":
        # an ssl.SSLError; ssl itself is loaded only where it is used
        hint = "does the daemon speak TLS, and is it trusted: the right authority, name and time?"
    return CannotConnectError(f"cannot connect to {address}: {reason}", hint=hint)


def connection_lost(reason: str, hint: str = _SEND_AGAIN) -> CannotConnectError:
    """The connection ended before the answers came; code ``connection-lost``."""
    return CannotConnectError(
        f"the connection was lost: {reason}", code="connection-lost", hint=hint
    )


def closed_by_peer(*, silent: bool) -> CannotConnectError:
    """The daemon closed the connection; ``silent``: and never sent anything on it."""
    reason = "the daemon closed the connection"
    if silent:
        return connection_lost(
            f"{reason} without a word", f"does it ask for TLS? else {_SEND_AGAIN}"
        )
    return connection_lost(reason)


def turned_away(reason: RefusedError) -> CannotConnectError:
    """The daemon refused the connection, and not one request on it; with the code that it gave."""
    return CannotConnectError(
        f"the daemon ended the connection: {reason.message}",
        code=reason.code,
        hint="try again later" if reason.code in LATER else None,
    )


def timed_out(address: Address, silence_s: float | None) -> CannotConnectError:
    """The daemon owes an answer and sends nothing; code ``timed-out``."""
    return CannotConnectError(
        f"{address} has not answered for {silence_s:g} s",
        code="timed-out",
        hint=_SEND_AGAIN,
    )


def not_connected() -> CannotConnectError:
    """The client was closed, or lost its connection earlier; code ``not-connected``."""
    return CannotConnectError(
        "the client is not connected", code="not-connected", hint="call connect() first"
    )


def reason_of(error: OSError) -> str:
    """Return the operating system's reason, or that of TLS, in words."""
    cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
    verification: str = getattr(cause, "verify_message", "")
    if verification:
        return f"the daemon's certificate is refused: {verification}"
    reason = getattr(cause, "reason", None)
    if getattr(cause, "library", None) is not None and isinstance(reason, str):
        return f"TLS: {reason.lower().replace('_', ' ')}"
    return cause.strerror or str(cause) or type(cause).__name__
