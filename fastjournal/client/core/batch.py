"""Requests on their way to their replies, over as many connections as that takes. Without IO."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from fastjournal.client.core.backoff import Reconnect
from fastjournal.client.core.calls import Call, silence_allowed_s
from fastjournal.client.core.failures import IN_VAIN
from fastjournal.client.core.multiplexer import Multiplexer, Pending, Undo
from fastjournal.client.core.retry_policy import rule_of
from fastjournal.clock import unique_timestamp
from fastjournal.errors import CannotConnectError, FastjournalError, RefusedError
from fastjournal.limits import CLIENT_REPEATS_MAX
from fastjournal.protocol import Reply, Request, encode_request

T = TypeVar("T")


class Errand:
    """One request, and how far it has come."""

    __slots__ = ("pending", "repeated", "request", "undo")

    def __init__(self, request: Request, undo: Undo | None) -> None:
        self.request = request
        self.undo = undo
        self.pending: Pending | None = None
        self.repeated = False
        """It was sent on a connection that was lost before the reply came."""

    def start(self, multiplexer: Multiplexer) -> Pending:
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


class Batch:
    """The errands of one use of a client.

    Args:
        requests: With what undoes each.
        plan: What to do about a lost connection; None: nothing.

    Raises:
        BadRequestError: One of several cannot be encoded; nothing was sent.
    """

    def __init__(
        self, requests: Iterable[tuple[Request, Undo | None]], plan: Reconnect | None
    ) -> None:
        self.errands = [Errand(request, undo) for request, undo in requests]
        if len(self.errands) > 1:
            # All before the first is sent; one alone is encoded before it is sent anyway.
            for errand in self.errands:
                encode_request(errand.request)
        self._plan = plan
        self._losses = 0
        self._lost_at_s = 0.0

    def unanswered(self) -> list[Errand]:
        """Return what has no reply."""
        return [errand for errand in self.errands if errand.reply is None]

    def gains(self) -> list[Request]:
        """Return what gives back what the replies gave, for a caller that gets none of them."""
        return [
            request
            for errand in self.errands
            if errand.undo is not None and errand.reply is not None and not errand.reply.error
            for request in errand.undo(errand.request, errand.reply)
        ]

    def silence_s(self, reply_timeout_s: float | None) -> float | None:
        """Return after how many silent seconds a daemon counts as lost; None: never."""
        return silence_allowed_s(reply_timeout_s, (errand.request for errand in self.errands))

    def lost(self, multiplexer: Multiplexer, now_s: float) -> None:
        """The connection has failed; return where the rest is to be sent on another.

        Raises:
            FastjournalError: The error, where something must not be sent again, or was often
                enough. Its ``maybe_done`` is set where a change may have been carried out.
        """
        error = multiplexer.failure
        assert error is not None, "a connection without failure answers everything"
        sent = [errand for errand in self.unanswered() if errand.pending is not None]
        if multiplexer.nothing_done:
            for errand in sent:
                errand.pending = None
            sent = []
        rules = [rule_of(errand.request) for errand in sent]
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
        for errand in sent:
            errand.repeated = True
            errand.pending = None

    def failed(self, error: FastjournalError) -> FastjournalError:
        """Return an error with ``maybe_done`` set as it is for what has no reply."""
        error.maybe_done = any(
            rule_of(errand.request).changes
            for errand in self.unanswered()
            if errand.repeated or errand.pending is not None
        )
        return error


def replies_of(errands: Sequence[Errand]) -> list[Reply]:
    """Return the replies, which may be refusals."""
    return [errand.answer() for errand in errands]


def result_of(call: Call[T], errands: Sequence[Errand]) -> T:
    """Return what the one reply means; raise what it refuses."""
    (errand,) = errands
    return call.result(errand.answer(), repeated=errand.repeated)


def outcomes_of(many: Sequence[Call[T]], errands: Sequence[Errand]) -> list[T | RefusedError]:
    """Return what the replies mean: results, and refusals.

    Raises:
        ProtocolError: A reply lacks what it must have.
    """
    return [
        call.outcome(errand.answer(), repeated=errand.repeated)
        for call, errand in zip(many, errands, strict=True)
    ]
