"""The producers' side of a spool: one append to a local file, and the work is not lost.

The path of a record: ``Spool.append`` builds the SET and its key, ``_write`` finds the file of the
current slot, one ``write`` puts the record at its end, one datagram wakes the forwarder.
"""

from __future__ import annotations

import os
import secrets
import threading
import weakref
from types import TracebackType
from typing import Final, Self

import msgspec

from fastjournal.clock import Clock, SystemClock, TimestampSource, unique_timestamp
from fastjournal.errors import BadRequestError
from fastjournal.keys import build_journal_key, default_id, encode_text
from fastjournal.limits import KEY_BYTES_MAX, PRIORITY_DEFAULT, SLOT_SECONDS, SPOOL_BYTES_MAX
from fastjournal.protocol.constants import Flag, Function, ValueType
from fastjournal.protocol.messages import Request
from fastjournal.protocol.requests import encode_request
from fastjournal.protocol.values import encode_value
from fastjournal.spool.appendfile import AppendFile
from fastjournal.spool.format import encode_record
from fastjournal.spool.room import Room
from fastjournal.spool.slots import slot_start, write_directory
from fastjournal.spool.wake import Waker

WRITES: Final = frozenset(
    {
        Function.SET,
        Function.DELETE,
        Function.ADD,
        Function.NOT,
        Function.TRUNCATE,
        Function.RENAME,
        Function.LINK,
        Function.RELEASE,
        Function.TOUCH,
        Function.BURY,
        Function.KICK,
        Function.PAUSE,
    }
)
"""What a spool takes: functions that change something and whose answer nobody needs."""

_PERSIST: Final = int(Flag.PERSIST)
_OVERWRITE: Final = int(Flag.OVERWRITE)
_SET: Final = int(Function.SET)
_BUFFER: Final = int(ValueType.BUFFER)


class Spool:
    """Appends requests to a spool directory. Threads may share it; a fork may go on with it.

    Args:
        directory: Created with mode 0750 if it is not there.
        slot_seconds: Length of a slot: one file for each.
        durable: Each append survives the death of the machine too (fdatasync).
        spool_bytes_max: Where the slots take this many bytes, an append raises SpoolFullError.
        clock: Gives the instants of slots and timestamps.

    Raises:
        SpoolFailedError: The directory cannot be created.
        BadRequestError: A number is out of range.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        slot_seconds: int = SLOT_SECONDS,
        durable: bool = False,
        spool_bytes_max: int = SPOOL_BYTES_MAX,
        clock: Clock | None = None,
    ) -> None:
        if slot_seconds < 1 or spool_bytes_max < 1:
            raise BadRequestError("slot_seconds and spool_bytes_max are at least 1")
        self.directory: Final = os.fspath(directory)
        self._slot_seconds = slot_seconds
        self._durable = durable
        self._clock: Clock = clock or SystemClock()
        self._next_timestamp = TimestampSource(clock).next_us if clock else unique_timestamp
        self._lock = threading.Lock()
        self._file: AppendFile | None = None
        self._room = Room(self.directory, spool_bytes_max)
        self._waker = Waker(self.directory)
        self._writer_id = secrets.token_hex(4)
        self._closed = False
        write_directory(self.directory)
        _spools.add(self)

    def append(
        self,
        *,
        domain: str | bytes,
        uri: str | bytes | None = None,
        priority: int = PRIORITY_DEFAULT,
        not_before: int | None = None,
        value: bytes | str | int | float | bool | None = b"",
        id: str | bytes | None = None,
        timestamp: int | None = None,
        overwrite: bool = False,
        expires: int | None = None,
        ttl: int | None = None,
    ) -> bytes:
        """Append a persistent SET of one journal entry.

        Args:
            domain: The queue; not empty, without ``:``.
            uri: What the work is about: of one URI, one entry waits at a time, the newest.
            priority: 0 (first) to 255 (last).
            not_before: Instant in microseconds before which the work must not start. Without it:
                the timestamp, so that work of one priority is done in the order of its writing.
            value: The payload: bytes, or None, str, int, float, bool.
            id: Last part of the key. Without it: made of the timestamp and the URI, so that it is
                the same again only for the same URI and timestamp; without a URI it is unique. The
                same id is the same key only with the same not_before and priority.
            timestamp: Instant of the write in microseconds; the default is never the same twice
                in a process.
            overwrite: Replace what stands under the key.
            expires: Instant in microseconds at which the entry goes away.
            ttl: Duration in microseconds by which each read moves the expiry.

        Returns:
            The key of the entry.

        Raises:
            BadRequestError: An argument that no daemon would take; nothing was written.
            SpoolFullError: The spool holds spool_bytes_max bytes; nothing was written.
            SpoolFailedError: A call of the operating system failed.
        """
        if timestamp is None:
            timestamp = self._next_timestamp()
        uri = None if uri is None else encode_text("URI", uri)
        if uri is not None and not 0 < len(uri) <= KEY_BYTES_MAX:
            raise BadRequestError(f"URI has {len(uri)} bytes, not 1 to 4,096", code="bad-key")
        if id is None:
            id = default_id(timestamp, uri, self._writer_id)
        if not_before is None:
            not_before = timestamp
        key = build_journal_key(domain, id, not_before_us=not_before, priority=priority)
        if type(value) is bytes:
            value_type, data = _BUFFER, value
        else:
            value_type, data = encode_value(value)
        self._write(
            encode_record(
                encode_request(
                    Request(
                        _SET,
                        0,
                        _PERSIST | _OVERWRITE if overwrite else _PERSIST,
                        timestamp,
                        key,
                        uri,
                        value_type,
                        data,
                        expires,
                        ttl,
                    )
                )
            )
        )
        return key

    def append_request(self, request: Request) -> None:
        """Append any write. A timestamp of 0 is replaced by the time of the call.

        Raises:
            BadRequestError: It is no write, or cannot be encoded; nothing was written.
            SpoolFullError: The spool holds spool_bytes_max bytes; nothing was written.
            SpoolFailedError: A call of the operating system failed.
        """
        if request.function not in WRITES:
            raise BadRequestError(f"function {request.function} is no write: a spool sends writes")
        if request.timestamp == 0:
            request = msgspec.structs.replace(request, timestamp=self._next_timestamp())
        self._write(encode_record(encode_request(request)))

    def close(self) -> None:
        """Close the file; a later append is an error."""
        with self._lock:
            self._closed = True
            self._let_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _write(self, record: bytes) -> None:
        with self._lock:
            if self._closed:
                raise BadRequestError("this Spool is closed")
            start_s = slot_start(self._clock.now_us(), self._slot_seconds)
            file = self._file
            if file is None or file.start_s != start_s:
                self._let_go()
                file = self._file = AppendFile(self.directory, start_s, durable=self._durable)
                self._room.forget()
            self._room.take(len(record), file)
            file.append(record)
            if self._durable:
                file.sync()
            self._waker.wake()

    def _let_go(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self._waker.close()

    def _after_fork(self) -> None:
        """In the child: its own descriptors, name and lock. The parent keeps its flock.

        Closing is safe: the lock belongs to the open file that both share, and ends when both
        have closed it.
        """
        self._lock = threading.Lock()
        self._writer_id = secrets.token_hex(4)
        self._let_go()


_spools: weakref.WeakSet[Spool] = weakref.WeakSet()


def _after_fork() -> None:
    for spool in tuple(_spools):
        spool._after_fork()


os.register_at_fork(after_in_child=_after_fork)
