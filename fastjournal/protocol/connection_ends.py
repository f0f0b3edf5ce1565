"""Both ends of a connection, without IO: bytes in, messages out.

Each has ``receive_data`` and ``next_event`` (and ``next_events``, which is cheaper for many).
Sockets and clocks are the caller's, who also decides how long to wait for the rest of a message and
how much of one to hold (``receive_data`` returns that, ``abandon`` ends it). The cost is linear in
the bytes received, however they are cut: a message that is cut short is looked at again only when
as much has arrived as the fields seen so far ask for.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Final, Generic, Literal, Protocol, TypeAlias, TypeVar

from fastjournal.errors import ProtocolError
from fastjournal.limits import CLIENT_REPLY_BYTES_MAX, VALUE_BYTES_MAX
from fastjournal.protocol.messages import Reply, Request
from fastjournal.protocol.replies import ReplyReader
from fastjournal.protocol.requests import RequestReader, encode_request


class Signal(Enum):
    """Result of ``next_event`` where there is no message."""

    NEED_DATA = "need-data"
    """Nothing whole is there: receive more."""
    CONNECTION_CLOSED = "connection-closed"
    """The peer ended the stream between two messages."""


NEED_DATA: Final = Signal.NEED_DATA
CONNECTION_CLOSED: Final = Signal.CONNECTION_CLOSED
NoMessage: TypeAlias = Literal[Signal.NEED_DATA, Signal.CONNECTION_CLOSED]

MessageT = TypeVar("MessageT")


class _Reader(Protocol[MessageT]):
    """``RequestReader`` or ``ReplyReader``."""

    def read(self, data: bytes, ready: deque[MessageT]) -> tuple[int, int]: ...

    def unfinished(self, rest: bytes | bytearray) -> int | None: ...


class _Receiver(Generic[MessageT]):
    """The receiving half, the same on both sides."""

    def __init__(self, reader: _Reader[MessageT]) -> None:
        self._reader = reader
        self._ready: deque[MessageT] = deque()
        self._rest = bytearray()
        """Bytes received of a message that is not whole yet."""
        self._needed = 0
        """Bytes that ``_rest`` must have before it is worth another look."""
        self._error: ProtocolError | None = None
        self._ended = False
        self.over = False
        """Whether an error or the end of the stream follows the messages that are whole."""

    def receive_data(self, data: bytes | bytearray | memoryview) -> int:
        """Take bytes that arrived; ``b""`` is the end of the stream.

        Bytes after a malformed message are ignored.

        Returns:
            How many bytes are held of a message that is cut short.

        Raises:
            ValueError: Data after the end of the stream.
        """
        rest = self._rest
        if not data:
            self._end()
            return len(self._rest)
        if self._ended:
            raise ValueError("data after the end of the stream")
        if self._error is not None:
            return len(rest)
        if rest:
            if len(rest) + len(data) < self._needed:
                rest += data
                return len(rest)
            data = b"".join((rest, data))
        else:
            data = bytes(data)
        try:
            used, self._needed = self._reader.read(data, self._ready)
        except ProtocolError as error:
            # a traceback would keep the data for as long as the connection
            self._error = error.with_traceback(None)
            self.over = True
            self._rest = rest = bytearray()
        else:
            if used < len(data) or rest:
                self._rest = rest = bytearray(data[used:])
        return len(rest)

    def next_event(self) -> MessageT | NoMessage:
        """Return the next message that is whole, in the order of arrival.

        Returns:
            It, or NEED_DATA, or CONNECTION_CLOSED after the end of the stream.

        Raises:
            ProtocolError: All messages before a malformed one were taken, or the stream ended
                inside one. Every further call raises it again.
        """
        if self._ready:
            return self._ready.popleft()
        if self._error is not None:
            raise self._error
        return CONNECTION_CLOSED if self._ended else NEED_DATA

    def next_events(self) -> list[MessageT]:
        """Return all complete messages, in the order of arrival; may be empty.

        If it is empty, ``next_event`` distinguishes NEED_DATA from CONNECTION_CLOSED.

        Raises:
            ProtocolError: As ``next_event``.
        """
        if not self._ready and self._error is not None:
            raise self._error
        events = list(self._ready)
        self._ready.clear()
        return events

    def only_event(self) -> MessageT | None:
        """Take the one message that is whole; None: there is none, or more, or something is wrong.

        It is cheaper than ``next_events``.
        """
        if len(self._ready) != 1 or self._error is not None:
            return None
        return self._ready.popleft()

    def abandon(self, sentence: str, code: str) -> None:
        """End with this error after a message that is cut short."""
        identifier = self._reader.unfinished(self._rest) or 0
        self._error = ProtocolError(sentence, code=code, identifier=identifier)
        self.over = True
        self._rest = bytearray()

    def _end(self) -> None:
        if self._ended or self._error is not None:
            return
        self._ended = self.over = True
        identifier = self._reader.unfinished(self._rest)
        if identifier is not None:
            self._error = ProtocolError(
                "the stream ended in the middle of a message", identifier=identifier
            )
            self._rest = bytearray()


class ServerConnection(_Receiver[Request]):
    """The daemon's end: requests in; ``encode_reply`` and others make the replies.

    Args:
        value_bytes_max: The largest value of a request, in bytes, without its type byte.
    """

    def __init__(self, *, value_bytes_max: int = VALUE_BYTES_MAX) -> None:
        super().__init__(RequestReader(value_bytes_max))


class ClientConnection(_Receiver[Reply]):
    """A client's end: replies in, requests out.

    Args:
        reply_bytes_max: The largest reply taken, in bytes.
    """

    def __init__(self, *, reply_bytes_max: int = CLIENT_REPLY_BYTES_MAX) -> None:
        super().__init__(ReplyReader(reply_bytes_max))

    def send(self, request: Request) -> bytes:
        """Return the bytes to send for a request.

        Raises:
            BadRequestError: It cannot be framed.
        """
        return encode_request(request)
