"""The ways in which a connection fails, each with its code, its sentence and what to do.

An effort to replace a lost connection says when to try again, and when to give up. Without IO.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fastjournal.client.core.address import Address, Servers
from fastjournal.client.core.retry_policy import Backoff, Reconnect
from fastjournal.errors import CannotConnectError, FastjournalError, ProtocolError, RefusedError
from fastjournal.protocol.constants import Effect, ErrorCode

if TYPE_CHECKING:
    from random import Random


NOT_NOW: frozenset[str] = frozenset(code for code in ErrorCode if code.passes)
"""Refusals of a request of a worker that the same request may not get in a while."""

LATER = frozenset(code for code in ErrorCode if code.passes and code.closes)
"""Refusals of a connection that another try may not get."""

TLS_FAILED = "tls-failed"

STALLED = "stalled"

CERTIFICATE_HINT = "trust its authority (tls), connect by a name in it, and check its dates"
OWN_CERTIFICATE_HINT = (
    "give a certificate that is valid, of an authority that the daemon trusts, in the context tls"
)
TOKEN_HINT = (
    "give the token (auth, or FASTJOURNAL_AUTH_FILE where no address is given) that is in the"
    " daemon's file --auth-tokens"
)

_FOR_OPTIONS = {
    CERTIFICATE_HINT: "trust its authority (--tls-ca), use a name that is in it, check its dates",
    OWN_CERTIFICATE_HINT: "give a valid one of an authority that the daemon trusts: --tls-cert,"
    " --tls-key",
    TOKEN_HINT: "give the token that the daemon knows: --auth-file",
}

IN_VAIN = frozenset(
    {TLS_FAILED, ErrorCode.UNSUPPORTED_VERSION}
    | {code for code in ErrorCode if code.closes and code.effect is Effect.DEAD}
)
"""Codes of a connection that failed for what another one would fail for too."""

_TLS_REFUSALS = (
    "CERTIFICATE",
    "UNKNOWN_CA",
    "ACCESS_DENIED",
    "UNRECOGNIZED_NAME",
    "HANDSHAKE_FAILURE",
    "INSUFFICIENT_SECURITY",
    "PROTOCOL_VERSION",
    "UNSUPPORTED_PROTOCOL",
    "WRONG_VERSION_NUMBER",
)
"""Parts of OpenSSL's reasons for which every handshake fails until somebody changes something. All
others, such as an end of the stream or an internal error of the peer, count as a lost connection.
"""

_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST")
"""Reasons of OpenSSL where the peer does not speak TLS at all."""

_RUNS_THERE = "check that fastjournald is running there, and the address"

_MAY_NOT = "join the group of the socket; --socket-mode of the daemon sets its permissions"

_NO_TLS_THERE = "where fastjournald takes no TLS, connect without tls:// and without TLS options"

OTHER_PORT_HINT = (
    "check that this is the port of fastjournald and not that of --http; if it takes TLS only,"
    " write tls://HOST:PORT"
)

_SEND_AGAIN = "connect and send again; with the same timestamp a repeated write is harmless"


def cannot_connect(address: Address, error: OSError) -> CannotConnectError:
    """Nobody listens at the address, or it leads nowhere; code ``cannot-connect``.

    Where TLS refuses the daemon or the client, the code is ``tls-failed``.
    """
    code, hint = None, _RUNS_THERE
    if isinstance(_cause_of(error), PermissionError):
        hint = _MAY_NOT
    if tls_hint := _tls_hint(error):
        code, hint = TLS_FAILED, tls_hint
    message = f"cannot connect to {address}: {reason_of(error)}"
    return CannotConnectError(message, code=code, hint=hint)


def connection_lost(reason: str, hint: str = _SEND_AGAIN) -> CannotConnectError:
    """Return the error of a connection that ended before the answers; code ``connection-lost``."""
    return CannotConnectError(
        f"the connection was lost: {reason}", code="connection-lost", hint=hint
    )


def connection_broken(error: OSError) -> CannotConnectError:
    """The system or TLS ended the connection; code ``connection-lost``, or ``tls-failed``.

    The latter is how a client learns by TLS 1.3 that its certificate is refused: the handshake has
    succeeded on its side by then.
    """
    if hint := _tls_hint(error):
        message = f"the daemon ended the connection: {reason_of(error)}"
        return CannotConnectError(message, code=TLS_FAILED, hint=hint)
    return connection_lost(reason_of(error))


_CLOSED_HINT = f"{OTHER_PORT_HINT}; a standby closes, too: name all nodes, with commas between them"


def closed_by_peer(*, silent: bool) -> CannotConnectError:
    """The daemon closed the connection; ``silent``: and never sent anything on it."""
    reason = "the daemon closed the connection"
    if silent:
        return connection_lost(f"{reason} without a reply", _CLOSED_HINT)
    return connection_lost(reason)


def is_http(data: bytes | bytearray) -> bool:
    """Whether this is the begin of an answer of HTTP."""
    return data[:5] == b"HTTP/"


HTTP_ANSWERED = "something answered that is no fastjournald: it speaks HTTP"
"""Sentence of the error where ``is_http``."""


def turned_away(reason: RefusedError) -> CannotConnectError:
    """The daemon refused the connection, and not one request on it; with the code that it gave."""
    return CannotConnectError(
        f"the daemon ended the connection: {reason.message}",
        code=reason.code,
        hint="try again later" if reason.code in LATER else reason.hint,
    )


def timed_out(address: Address, silence_s: float | None) -> CannotConnectError:
    """The daemon owes an answer and sends nothing; code ``timed-out``."""
    return CannotConnectError(
        f"{address} has not answered for {silence_s:g} s",
        code="timed-out",
        hint=_SEND_AGAIN,
    )


def no_answer_before_lease_end(address: Address) -> CannotConnectError:
    """The daemon answered no renewal of a lease until that was over; code ``timed-out``."""
    return CannotConnectError(
        f"{address} did not answer before the lease ended", code="timed-out", hint=_RUNS_THERE
    )


def no_turn_before_lock_end() -> FastjournalError:
    """Requests of other threads took until the lock was over; code ``timed-out``."""
    return FastjournalError(
        "requests of other threads of this client took until the lock ended",
        code="timed-out",
        hint="have requests that wait in another client, or a longer lock",
    )


def program_stalled(stalled_s: float, kind: str) -> FastjournalError:
    """The program itself did not run, so it renewed no lease or lock; code ``stalled``."""
    return FastjournalError(
        f"this program did not run for {stalled_s:.1f} s or more, so its {kind} was not renewed",
        code=STALLED,
        hint="a body that blocks the event loop does so in a thread; one that was stopped needs a"
        f" longer {kind}",
    )


def not_connected() -> CannotConnectError:
    """The client was closed, or lost its connection earlier; code ``not-connected``."""
    return CannotConnectError(
        "the client is not connected", code="not-connected", hint="call connect() first"
    )


def mirror_left() -> CannotConnectError:
    """The block of a mirror, or of its client, was left; code ``not-connected``."""
    return CannotConnectError(
        "the mirror is kept current no more",
        code="not-connected",
        hint="use it inside 'async with client.mirror(...)'",
    )


def reason_of(error: OSError) -> str:
    """Return the operating system's reason, or that of TLS, in words."""
    cause = _cause_of(error)
    verification: str = getattr(cause, "verify_message", "")
    if verification:
        return f"the daemon's certificate is refused: {verification}"
    if reason := _tls_reason(cause):
        return f"TLS: {reason.lower().replace('_', ' ')}"
    return cause.strerror or str(cause) or type(cause).__name__


def _cause_of(error: OSError) -> OSError:
    return error.__cause__ if isinstance(error.__cause__, OSError) else error


def _tls_reason(error: OSError) -> str:
    """Return OpenSSL's reason; empty: it is none of its errors."""
    # by attributes: ssl itself is loaded only where it is used
    reason = getattr(error, "reason", None)
    return reason if getattr(error, "library", None) == "SSL" and isinstance(reason, str) else ""


def _tls_hint(error: OSError) -> str:
    """Return what to do where TLS refuses one of both; empty: another try may succeed."""
    reason = _tls_reason(_cause_of(error))
    if not any(part in reason for part in _TLS_REFUSALS):
        return ""
    if reason == "CERTIFICATE_VERIFY_FAILED":
        return CERTIFICATE_HINT
    if "ALERT" in reason:
        return OWN_CERTIFICATE_HINT
    if reason in _NO_TLS:
        return _NO_TLS_THERE
    return "check that the daemon speaks TLS, in a version that this client speaks"


def advise_of_options(error: FastjournalError) -> None:
    """Give an error the hint of a program, which has options in the place of arguments."""
    error.hint = _FOR_OPTIONS.get(error.hint or "", error.hint)


def is_waited_for_at_start(plan: Reconnect | None, error: CannotConnectError) -> bool:
    """Whether a first connection that failed is tried again."""
    if plan is None or error.code in IN_VAIN:
        return False
    return plan.at_start or error.code in LATER


def copy_error(error: FastjournalError) -> FastjournalError:
    """Return an error of the same kind: one exception object must not be raised by several."""
    if isinstance(error, ProtocolError):
        copy: FastjournalError = ProtocolError(error.message, code=error.code)
        copy.hint = error.hint
    else:
        copy = type(error)(error.message, code=error.code, hint=error.hint)
    copy.address = error.address
    return copy


def name_daemon(error: BaseException | None, address: Address) -> None:
    """Have an error name the daemon that was asked, unless it names one."""
    if isinstance(error, FastjournalError) and error.address is None:
        error.address = str(address)


class ConnectRound:
    """One try at each address of a list, from the one in use on. Iterating gives them.

    There is no pause between them. Where all fail, the error says why each did. Its code is that of
    a daemon which answered, if there was one: a standby answers nothing.

    Args:
        servers: The list.
        timeout_s: Seconds for the round, of which each address has an equal part.
        prove: A daemon has to answer something. With several addresses it always has to: a standby
            closes what a socket unit has accepted for it.
    """

    def __init__(self, servers: Servers, timeout_s: float, *, prove: bool) -> None:
        self._servers = servers
        self._failures: list[tuple[Address, CannotConnectError | RefusedError]] = []
        self.try_s = timeout_s / len(servers)
        self.prove = prove or len(servers) > 1

    def __iter__(self) -> Iterator[Address]:
        return iter(self._servers.in_turn())

    def failed(self, address: Address, error: CannotConnectError | RefusedError) -> None:
        """Note that a try failed."""
        self._failures.append((address, error))

    @property
    def failure(self) -> FastjournalError:
        """Why no address gave a connection."""
        errors = [error for _, error in self._failures]
        error = min(errors, key=_weight)
        if len(errors) == 1:
            return error
        reasons = [f"{address}: {_reason_at(address, one)}" for address, one in self._failures]
        whole = copy_error(error)
        whole.message = "; ".join(reasons)
        if isinstance(error, CannotConnectError):
            whole.message = f"cannot connect to {whole.message}"
        whole.address = str(self._servers)
        return whole


def _weight(error: FastjournalError) -> int:
    """Return the rank of a failure among those of a round, the one that says most first."""
    if isinstance(error, RefusedError):
        return 0
    return 1 if error.code in IN_VAIN else 2 if error.code in LATER else 3


def _reason_at(address: Address, error: FastjournalError) -> str:
    """Return why a try failed, without its address."""
    reason = error.message
    for prefix in (f"cannot connect to {address}: ", f"{address} "):
        reason = reason.removeprefix(prefix)
    return reason


class ReconnectEffort:
    """Tries of one effort, which ends with a connection, a final failure or its patience.

    Args:
        plan: The pauses and the patience.
        rng: Draws the pauses.
        now_s: When the effort begins, by any clock that does not jump.
    """

    def __init__(self, plan: Reconnect, rng: Random, now_s: float) -> None:
        self._backoff = Backoff(plan, rng, now_s)
        self.failure: FastjournalError = not_connected()
        """Why the last try failed."""

    def pause_s(self, now_s: float) -> float | None:
        """Return the seconds before the next try; None: the effort has failed."""
        return None if self.failure.code in IN_VAIN else self._backoff.pause_s(now_s)

    def try_s(self, connect_timeout_s: float, now_s: float) -> float:
        """Return the seconds that the try after the pause may take."""
        return self._backoff.try_s(connect_timeout_s, now_s)

    def failed(self, error: FastjournalError) -> None:
        """Note that a try failed."""
        self.failure = error
