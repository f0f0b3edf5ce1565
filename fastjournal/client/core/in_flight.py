"""In-flight request of one connection: its identifier, its reply or error, its undo."""

from __future__ import annotations

from collections.abc import Callable

from fastjournal.errors import FastjournalError
from fastjournal.protocol import Reply, Request

Undo = Callable[[Request, Reply], list[Request]]


class InFlightRequest:
    """One request in flight. Once ``done`` it has a reply or an error."""

    __slots__ = ("error", "identifier", "notify", "reply", "request", "undo")

    def __init__(self, request: Request, undo: Undo | None) -> None:
        self.request = request
        self.identifier = request.identifier
        self.undo = undo
        self.reply: Reply | None = None
        self.error: FastjournalError | None = None
        self.notify: Callable[[], object] | None = None
        """Called once, when it is done."""

    @property
    def done(self) -> bool:
        """Whether the answer, or the reason why none will come, is there."""
        return self.reply is not None or self.error is not None

    def answer(self) -> Reply:
        """Return the reply, which may be a refusal.

        Raises:
            CannotConnectError: The connection was lost before the reply came, or refused.
            ProtocolError: The daemon sent what is no reply.
        """
        if self.error is not None:
            raise self.error
        assert self.reply is not None, "asked for an answer before it was there"
        return self.reply

    def finish(self, reply: Reply | None, error: FastjournalError | None) -> None:
        """Note the reply or the error, and tell whoever waits for it."""
        self.reply, self.error = reply, error
        if self.notify is not None:
            self.notify()
