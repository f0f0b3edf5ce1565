"""Multiplexer: many requests in flight on one connection, without IO, matched by identifier.

A shell starts requests, sends the bytes of ``data_to_send``, and passes received bytes to
``receive_data``. Replies are matched by identifier, so they may come in any order. Identifier 0 is
never used: an error with it is about the connection, not about a request. A request in flight has
its identifier, its reply or error, and its undo.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from fastjournal.client.core.calls import cancellation, refusal
from fastjournal.client.core.failures import (
    HTTP_ANSWERED,
    OTHER_PORT_HINT,
    TLS_FAILED,
    closed_by_peer,
    copy_error,
    is_http,
    turned_away,
)
from fastjournal.errors import FastjournalError, ProtocolError
from fastjournal.limits import CLIENT_IN_FLIGHT_MAX, CLIENT_UNSENT_BYTES_MAX, IDENTIFIER_MAX
from fastjournal.protocol import CONNECTION_CLOSED, ClientConnection, Flag, Function, Reply, Request
from fastjournal.protocol.functions import BY_SERVER_FIRST

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
        """Store the reply or the error, and wake its waiter."""
        self.reply, self.error = reply, error
        if self.notify is not None:
            self.notify()


# A plain integer: the operators of IntFlag cost more than the rest of taking a reply.
_LISTEN = int(Flag.LISTEN)
_NEXT = int(Function.NEXT)
_CANCEL = int(Function.CANCEL)

_NO_REQUEST = 0
"""Identifier of an error that is about the connection."""

Tell = Callable[[Reply | None], object]
"""Takes the notifications of a subscription; None: the connection is over."""


class Multiplexer:
    """The client's side of one connection; of no more use after ``fail``.

    Args:
        reply_bytes_max: A reply that claims more bytes is a ProtocolError.
    """

    def __init__(self, *, reply_bytes_max: int) -> None:
        self._connection = ClientConnection(reply_bytes_max=reply_bytes_max)
        self._in_flight: dict[int, InFlightRequest] = {}
        self._last_identifier = 0
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._last_bytes = 0
        self._held_up_by = 0
        self._failure: FastjournalError | None = None
        self._heard = False
        self.answered = 0
        """Replies that have come."""
        self.nothing_done = False
        """The daemon refused the connection before it carried out anything on it."""
        self._owed: deque[tuple[Request, InFlightRequest | None]] = deque()
        """Requests of its own, started as there is room: they release leases and locks of
        abandoned requests, cancel their waits (with that) and subscriptions."""
        self._last_words: set[int] = set()
        """Identifiers in flight of abandoned requests, and of those that release their gain."""
        self._subscriptions: dict[int, Tell] = {}
        """By identifier, which nothing else uses meanwhile."""

    @property
    def in_flight(self) -> int:
        """Number of requests whose reply has not come."""
        return len(self._in_flight)

    @property
    def has_room(self) -> bool:
        """Whether another request may be started now; else wait for replies or for the sender."""
        return (
            len(self._in_flight) < CLIENT_IN_FLIGHT_MAX
            and self._unsent_bytes < CLIENT_UNSENT_BYTES_MAX
        )

    @property
    def is_held_up(self) -> bool:
        """Whether a SNAPSHOT or REMOTE is in flight, whose reply delays the later ones."""
        return self._held_up_by > 0

    @property
    def room(self) -> int:
        """How many requests of the size of the last one may be started now."""
        if not self.has_room:
            return 0
        by_bytes = (CLIENT_UNSENT_BYTES_MAX - self._unsent_bytes) // (self._last_bytes or 1) + 1
        return min(CLIENT_IN_FLIGHT_MAX - len(self._in_flight), by_bytes)

    @property
    def wants_to_send(self) -> bool:
        """Whether ``data_to_send`` has something."""
        return bool(self._unsent) or (bool(self._owed) and self.has_room)

    @property
    def settled(self) -> bool:
        """Whether abandoned requests have released all leases and locks that they got."""
        return not (self._last_words or self._owed)

    @property
    def failure(self) -> FastjournalError | None:
        """Why the connection is over; each time another object, None while it is not."""
        return None if self._failure is None else copy_error(self._failure)

    @property
    def failed(self) -> bool:
        """Whether the connection is over."""
        return self._failure is not None

    def start(self, request: Request, undo: Undo | None = None) -> InFlightRequest:
        """Give the request an identifier and queue its bytes.

        Args:
            request: Its ``identifier`` is set here.
            undo: Builds requests that release leases and locks of the reply, for ``abandon``.

        Raises:
            CannotConnectError, ProtocolError: The connection is over.
            BadRequestError: The request cannot be encoded.
        """
        if self._failure is not None:
            raise copy_error(self._failure)
        request.identifier = self._last_identifier = self._free_identifier()
        data = self._connection.send(request)
        pending = self._in_flight[request.identifier] = InFlightRequest(request, undo)
        self._unsent.append(data)
        self._last_bytes = len(data)
        if request.function >= BY_SERVER_FIRST:
            self._held_up_by += 1
        self._unsent_bytes += len(data)
        return pending

    def subscribe(self, request: Request, tell: Tell) -> InFlightRequest:
        """Start a request that asks for notifications; each of them is passed to ``tell``.

        Notifications may come before the reply is read; they end with ``unsubscribe`` or the
        connection.
        """
        pending = self.start(request)
        self._subscriptions[request.identifier] = tell
        return pending

    def unsubscribe(self, identifier: int) -> None:
        """End a subscription; its later notifications are dropped."""
        if self._subscriptions.get(identifier, _tell_nobody) is _tell_nobody:
            return
        self._subscriptions[identifier] = _tell_nobody
        asked = self._in_flight.get(identifier)
        if asked is None:
            self._end_subscription(identifier)
        else:
            asked.notify = lambda: self._end_subscription(identifier)

    def data_to_send(self) -> bytes:
        """Remove and return the bytes that wait to be sent."""
        while self._owed and self.has_room and self._failure is None:
            request, waiting = self._owed.popleft()
            if waiting is not None and waiting.done:
                continue  # its identifier may be that of another by now
            pending = self.start(request)
            if request.function != _CANCEL:
                self._last_words.add(pending.identifier)
            elif waiting is None:
                self._free_when_done(pending)
        data = b"".join(self._unsent)
        self._unsent.clear()
        self._unsent_bytes = 0
        return data

    def receive_data(self, data: bytes | bytearray) -> int:
        """Take what was received (``b""``: the peer closed); return how many requests are done.

        After a reply to an abandoned request, ``data_to_send`` has what gives its gain back.
        """
        if self._failure is not None:
            return 0
        done = 0
        try:
            self._connection.receive_data(data)
            self._heard = self._heard or bool(data)
            while replies := self._connection.next_events():
                for reply in replies:
                    done += self._take(reply)
            if self._connection.next_event() is CONNECTION_CLOSED:
                self.fail(closed_by_peer(silent=not self._heard))
        except ProtocolError as error:
            if not data:
                self.fail(closed_by_peer(silent=False))  # inside a reply
                return done
            if not done and is_http(data):
                error.message = HTTP_ANSWERED
            error.hint = error.hint or OTHER_PORT_HINT
            self.fail(error)
        return done

    def abandon(self, pending: InFlightRequest) -> None:
        """Drop the reply to a request, and undo it where due; a NEXT that waits is cancelled."""
        if pending.done:
            return
        pending.notify = None
        if pending.undo is not None:
            self._last_words.add(pending.identifier)
            pending.notify = lambda: self._undo(pending)
        if pending.request.function == _NEXT and pending.request.flags & _LISTEN:
            self._owed.append((cancellation(pending.identifier), pending))

    def abandon_all(self) -> None:
        """Abandon everything that is in flight."""
        for pending in self._in_flight.values():
            self.abandon(pending)

    def owe(self, requests: Iterable[Request]) -> None:
        """Send releases, and see to their replies."""
        if self._failure is None:
            self._owed.extend((request, None) for request in requests)

    def fail(self, error: FastjournalError) -> None:
        """End the connection: everything in flight gets this error."""
        if self._failure is not None:
            return
        self._failure = error
        if error.code == TLS_FAILED and not self.answered:
            self.nothing_done = True
        self.data_to_send()
        self._owed.clear()
        self._last_words.clear()
        pendings, self._in_flight = list(self._in_flight.values()), {}
        for pending in pendings:
            pending.finish(None, copy_error(error))
        subscriptions, self._subscriptions = list(self._subscriptions.values()), {}
        for tell in subscriptions:
            tell(None)

    def _take(self, reply: Reply) -> int:
        if reply.flags & _LISTEN:
            # A notification of a subscription that has ended meanwhile is dropped.
            self._subscriptions.get(reply.identifier, _tell_nobody)(reply)
            return 0
        pending = self._in_flight.pop(reply.identifier, None)
        if pending is None:
            if reply.error and reply.identifier == _NO_REQUEST:
                self.nothing_done = not self.answered
                self.fail(turned_away(refusal(reply.error)))
                return 0
            raise ProtocolError(f"reply to a request {reply.identifier} that was never sent")
        if reply.error and self._subscriptions:
            self._subscriptions.pop(reply.identifier, None)
        if self._last_words:
            self._last_words.discard(reply.identifier)
        if self._held_up_by and pending.request.function >= BY_SERVER_FIRST:
            self._held_up_by -= 1
        self.answered += 1
        pending.finish(reply, None)
        return 1

    def _undo(self, pending: InFlightRequest) -> None:
        if pending.undo is None or pending.reply is None or pending.reply.error:
            return
        self.owe(pending.undo(pending.request, pending.reply))

    def _end_subscription(self, identifier: int) -> None:
        if identifier in self._subscriptions and self._failure is None:
            self._owed.append((cancellation(identifier), None))

    def _free_when_done(self, cancelling: InFlightRequest) -> None:
        """Free the identifier of the subscription that this CANCEL ends."""
        identifier = cancelling.request.count
        assert identifier is not None, "a CANCEL names what it ends"
        cancelling.notify = lambda: self._subscriptions.pop(identifier, None)

    def _free_identifier(self) -> int:
        taken = len(self._in_flight) + len(self._subscriptions)
        assert taken < IDENTIFIER_MAX, "no identifier is free: see has_room"
        identifier = self._last_identifier
        while True:
            identifier = identifier % IDENTIFIER_MAX + 1
            if identifier not in self._in_flight and identifier not in self._subscriptions:
                return identifier


def _tell_nobody(_reply: Reply | None) -> None:
    return None
