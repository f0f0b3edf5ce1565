"""Pipeline: requests on their way to their replies, over several connections. Without IO."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias, TypeVar

from fastjournal.client.core.address import Servers
from fastjournal.client.core.calls import Call, silence_allowed_s
from fastjournal.client.core.failures import IN_VAIN
from fastjournal.client.core.multiplexer import InFlightRequest, Multiplexer, Undo
from fastjournal.client.core.retry_policy import Reconnect, rule_of
from fastjournal.clock import unique_timestamp
from fastjournal.errors import CannotConnectError, FastjournalError, RefusedError
from fastjournal.limits import CLIENT_REPEATS_MAX
from fastjournal.protocol import Reply, Request, encode_request

T = TypeVar("T")

Undoable: TypeAlias = tuple[Request, Undo | None]
"""A request, and the builder of requests that release leases and locks of its reply."""


class PipelinedRequest:
    """One request, and how far it has come."""

    __slots__ = ("pending", "repeated", "request", "undo")

    def __init__(self, request: Request, undo: Undo | None) -> None:
        self.request = request
        self.undo = undo
        self.pending: InFlightRequest | None = None
        self.repeated = False
        """It was sent on a connection that was lost before the reply."""

    def start(self, multiplexer: Multiplexer) -> InFlightRequest:
        """Queue it; every time with the same timestamp."""
        self.request.timestamp = self.request.timestamp or unique_timestamp()
        self.pending = pending = multiplexer.start(self.request, self.undo)
        return pending

    @property
    def reply(self) -> Reply | None:
        """The reply, where it has come."""
        return None if self.pending is None else self.pending.reply

    def answer(self) -> Reply:
        """Return the reply, which may be a refusal."""
        assert self.pending is not None, "asked for an answer before it was sent"
        return self.pending.answer()


class Pipeline:
    """Requests of one use of a client, in flight together.

    Args:
        requests: With what undoes each.
        plan: Plan for lost connections; None: they are not made again.

    Raises:
        BadRequestError: One of several cannot be encoded; nothing was sent.
    """

    def __init__(self, requests: Iterable[Undoable], plan: Reconnect | None) -> None:
        self.requests = [PipelinedRequest(request, undo) for request, undo in requests]
        if len(self.requests) > 1:
            # All before the first is sent; one alone is encoded before it is sent anyway.
            for one in self.requests:
                encode_request(one.request)
        self._plan = plan
        self._losses = 0
        self._lost_at_s = 0.0

    def unanswered(self) -> list[PipelinedRequest]:
        """Return what has no reply."""
        return [one for one in self.requests if one.reply is None]

    def gains(self) -> list[Request]:
        """Return requests that release leases and locks of replies that the caller never gets."""
        return [
            request
            for one in self.requests
            if one.undo is not None and one.reply is not None and not one.reply.error
            for request in one.undo(one.request, one.reply)
        ]

    def silence_s(self, reply_timeout_s: float | None) -> float | None:
        """Return after how many silent seconds a daemon counts as lost; None: never."""
        return silence_allowed_s(reply_timeout_s, (one.request for one in self.requests))

    def lost(self, multiplexer: Multiplexer, now_s: float) -> None:
        """The connection has failed; return where the rest is to be sent on another.

        Raises:
            FastjournalError: The error, where something must not be sent again, or was often
                enough. Its ``maybe_done`` is set where a change may have been carried out.
        """
        error = multiplexer.failure
        assert error is not None, "a connection without failure answers everything"
        sent = [one for one in self.unanswered() if one.pending is not None]
        if multiplexer.nothing_done:
            for one in sent:
                one.pending = None
            sent = []
        rules = [rule_of(one.request) for one in sent]
        self._lost_at_s = self._lost_at_s or now_s
        self._losses += 1
        if (
            self._plan is None
            or not isinstance(error, CannotConnectError)
            or error.code in IN_VAIN
            or not all(rule.repeat for rule in rules)
            or self._losses > CLIENT_REPEATS_MAX
            or now_s - self._lost_at_s > self._plan.patience_s
        ):
            raise self.failed(error)
        for one in sent:
            one.repeated = True
            one.pending = None

    def failed(self, error: FastjournalError) -> FastjournalError:
        """Return an error with ``maybe_done`` set as it is for what has no reply."""
        error.maybe_done = any(
            rule_of(one.request).changes
            for one in self.unanswered()
            if one.repeated or one.pending is not None
        )
        return error


Read: TypeAlias = Callable[[Sequence[PipelinedRequest]], T]
"""Makes the result of answered requests."""


def raw(requests: Iterable[Request]) -> tuple[list[Undoable], Read[list[Reply]]]:
    """Return requests as they are, and what gives their replies, which may be refusals."""
    return [(request, None) for request in requests], _replies


def single(call: Call[T]) -> tuple[list[Undoable], Read[T]]:
    """Return the request of a call, and what gives its result or raises its refusal."""
    return [(call.request, call.undo)], functools.partial(_result, call)


def several(
    many: Iterable[Call[T]], servers: Servers
) -> tuple[list[Undoable], Read[list[T | RefusedError]]]:
    """Return the requests of calls, and what gives a result or a refusal for each.

    Args:
        many: The calls.
        servers: Addresses of the daemon; the refusals name the one in use.
    """
    kept = list(many)
    read = functools.partial(_outcomes, kept, servers)
    return [(call.request, call.undo) for call in kept], read


def _replies(requests: Sequence[PipelinedRequest]) -> list[Reply]:
    return [request.answer() for request in requests]


def _result(call: Call[T], requests: Sequence[PipelinedRequest]) -> T:
    (request,) = requests
    return call.result(request.answer(), repeated=request.repeated)


def _outcomes(
    many: Sequence[Call[T]], servers: Servers, requests: Sequence[PipelinedRequest]
) -> list[T | RefusedError]:
    """Return what the replies mean; raise ProtocolError where one lacks what it must have."""
    outcomes = [
        call.outcome(request.answer(), repeated=request.repeated)
        for call, request in zip(many, requests, strict=True)
    ]
    for outcome in outcomes:
        if isinstance(outcome, RefusedError):
            outcome.address = str(servers.current)
    return outcomes
