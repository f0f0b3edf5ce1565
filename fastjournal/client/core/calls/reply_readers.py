"""Replies of the calls as results."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from fastjournal.client.core.calls.base import OVERWRITE, UPDATE_TIMEOUT, WORKED_ON
from fastjournal.client.core.results import (
    Entry,
    Jobs,
    Page,
    RenewedLease,
    WriteOutcome,
    Written,
)
from fastjournal.errors import ProtocolError
from fastjournal.protocol import Function, Pair, Reply, Request
from fastjournal.times import to_datetime

S = TypeVar("S", bound=msgspec.Struct)


def nothing(_request: Request, _reply: Reply) -> None:
    """Read plain success."""
    return


def daemon_clock(_request: Request, reply: Reply) -> datetime:
    """Read the instant at which the daemon answered."""
    return to_datetime(reply.timestamp)


def written(request: Request, _reply: Reply) -> Written:
    """Read the success of a write."""
    return Written(request.timestamp, request.key)


def set_outcome(request: Request, reply: Reply) -> Written:
    """Read the success of a SET: its ttl is the number of entries that it replaced.

    A pair has the key of one that was a job of another queue.
    """
    outcome = WriteOutcome.NEW
    if reply.ttl is not None:
        outcome = WriteOutcome.REPLACED if reply.ttl else WriteOutcome.KEPT
    taken = reply.pairs[0].key if reply.pairs else b""
    return Written(request.timestamp, request.key, outcome, taken)


def token(_request: Request, reply: Reply) -> int:
    """Read a lease token that must be there."""
    if reply.timeout is None:
        raise ProtocolError("the daemon extended a lease without naming the token")
    return reply.timeout


def renewed_lease(request: Request, reply: Reply) -> RenewedLease:
    """Read a lease token, and how much later it is than the reply: both by the daemon's clock."""
    renewed = token(request, reply)
    return RenewedLease(renewed, max(renewed - reply.timestamp, 0))


def how_many(_request: Request, reply: Reply) -> int:
    """Read the ttl field as a number of entries."""
    if reply.ttl is None:
        raise ProtocolError("the daemon does not say how many entries it changed")
    return reply.ttl


def only_pair(reply: Reply) -> Pair:
    """Return the one pair that a reply must have."""
    if reply.pairs is None or len(reply.pairs) != 1:
        raise ProtocolError("the daemon's reply does not carry exactly one pair")
    return reply.pairs[0]


def to_entry(pair: Pair, token: int | None = None) -> Entry:
    """Return a pair as what the clients return."""
    return Entry(pair.key, pair.second_key, pair.value_type, pair.value, pair.meta, token)


def entry(request: Request, reply: Reply) -> Entry:
    """Read one pair."""
    return to_entry(only_pair(reply), _token_of(request, reply))


def page(request: Request, reply: Reply) -> Page[Entry]:
    """Read a page of a scan."""
    token = _token_of(request, reply)
    return Page([to_entry(pair, token) for pair in reply.pairs or ()], reply.cursor or None)


def jobs(request: Request, reply: Reply) -> Jobs:
    """Read what a NEXT gave."""
    pairs = reply.pairs or []
    if not pairs:
        return Jobs(None, reply.timeout, [])
    leased = not request.flags & OVERWRITE
    if leased and reply.timeout is None:
        raise ProtocolError("the daemon leased entries without naming the token")
    token = reply.timeout if leased else None
    return Jobs(token, None, [to_entry(pair, token) for pair in pairs])


def text(_request: Request, reply: Reply) -> str:
    """Read the one value as text."""
    return only_pair(reply).value.decode("utf-8", "surrogateescape")


def json_object(_request: Request, reply: Reply) -> dict[str, Any]:
    """Read the one value as a JSON object."""
    try:
        return msgspec.json.decode(only_pair(reply).value, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ProtocolError(f"the daemon's statistics are not a JSON object: {error}") from error


def json_of(kind: type[S]) -> Callable[[Request, Reply], S]:
    """Return what reads the one value as JSON of this form; names that it lacks are left out."""

    return lambda _request, reply: json_value(only_pair(reply), kind)


def json_value(pair: Pair, kind: type[S]) -> S:
    """Read a value as JSON of this form; names that it lacks are left out."""
    try:
        return msgspec.json.decode(pair.value, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ProtocolError(f"the daemon's statistics are malformed: {error}") from error


def release_all(_request: Request, reply: Reply) -> list[Request]:
    """Return the requests that release the leases of a reply."""
    token = reply.timeout
    if token is None:
        return []
    return [
        Request(Function.RELEASE, flags=WORKED_ON, key=pair.key, timeout=token)
        for pair in reply.pairs or ()
    ]


def _token_of(request: Request, reply: Reply) -> int | None:
    leased = request.timeout is not None and not request.flags & UPDATE_TIMEOUT
    return reply.timeout if leased else None
