"""Spool writer, the producers' side: one append to a local file, and the work is not lost.

The path of a record: ``encode_set`` builds the SET and its key, ``SlotFiles`` finds the file of the
current slot, one ``write`` of ``AppendFile`` puts the record at its end, one datagram of ``Waker``
wakes the forwarder.
"""

from __future__ import annotations

import os
import secrets
import threading
import weakref
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from itertools import accumulate
from typing import Final, Self

import msgspec

from fastjournal.clock import Clock, SystemClock, TimestampSource, unique_timestamp
from fastjournal.errors import BadRequestError, SpoolFailedError
from fastjournal.keys import (
    KEY_EXCLUDES,
    build_journal_key,
    deduplication_key,
    default_id,
    domain_of,
    job_key,
    journal_key_of,
    queue_of,
)
from fastjournal.limits import (
    INSTANT_MAX,
    PRIORITY_DEFAULT,
    SLOT_SECONDS,
    SPOOL_BYTES_MAX,
)
from fastjournal.numeric import check_integer
from fastjournal.protocol.constants import Flag, Function, ValueType
from fastjournal.protocol.messages import Request
from fastjournal.protocol.requests import encode_request
from fastjournal.protocol.values import Storable, encode_value
from fastjournal.spool.appending.appendfile import AppendFile, ShortWriteError
from fastjournal.spool.appending.slot_files import SlotFiles
from fastjournal.spool.format import encode_record
from fastjournal.spool.slots import group_id, write_directory
from fastjournal.spool.wake import Waker
from fastjournal.times import Duration, Instant, check_instant_us, duration_us, expiry_us

_PERSIST: Final = int(Flag.PERSIST)
_OVERWRITE: Final = int(Flag.OVERWRITE)
_WORKED_ON: Final = int(Flag.WORKED_ON)
_SET: Final = int(Function.SET)
_BUFFER: Final = int(ValueType.BUFFER)


def encode_set(
    timestamp_us: int,
    writer_id: str,
    uri: str | bytes | None,
    domain: str | bytes | None,
    priority: int | None,
    not_before: Instant | None,
    not_before_us: int | None,
    value: Storable,
    id: str | bytes | None,
    overwrite: bool,
    expires_us: int | None = None,
    ttl_us: int | None = None,
    unique: str | bytes | None = None,
    delay_us: int | None = None,
    key: str | bytes | None = None,
) -> tuple[bytes, bytes]:
    """Return the key of an entry, and the pending record of the persistent SET that makes it.

    Args:
        timestamp_us: Instant of the write, in microseconds.
        writer_id: Used instead of the URI in the default id of an entry without one.
        uri: As ``Spool.append`` describes it, and so are all others.
        domain: None: that of the URI, or of the key.
        priority: 0 to 255; None: 128.
        not_before: None, with ``not_before_us``: the timestamp.
        not_before_us: The same in microseconds.
        value: The payload.
        id: None: made of timestamp and URI.
        overwrite: Replace an entry with the same key.
        expires_us: Instant of the expiry, in microseconds.
        ttl_us: Duration by which each read moves it, in microseconds.
        unique: Value that is unique within the domain.
        delay_us: Microseconds from the timestamp until it may start.
        key: The whole key.

    Raises:
        BadRequestError: A field that no daemon accepts.
        TypeError: A field of another type.
    """
    flags = _PERSIST | _OVERWRITE if overwrite else _PERSIST
    if key is not None:
        if (domain, priority, not_before, not_before_us, delay_us, id) != _NO_PARTS:
            raise BadRequestError(KEY_EXCLUDES)
        if overwrite:
            raise BadRequestError("key excludes overwrite: it replaces a waiting job in any case")
        name, domain = job_key(key)
        second_key = deduplication_key(domain, uri, unique)
        flags |= _OVERWRITE | _WORKED_ON
    else:
        if domain is None:
            domain = domain_of(uri or b"")
        second_key = deduplication_key(domain, uri, unique)
        name = _built_key(
            domain,
            default_id(timestamp_us, second_key, writer_id) if id is None else id,
            timestamp_us,
            PRIORITY_DEFAULT if priority is None else priority,
            not_before,
            not_before_us,
            delay_us,
        )
    if type(value) is bytes:
        value_type, data = _BUFFER, value
    else:
        value_type, data = encode_value(value)
    request = Request(
        _SET, 0, flags, timestamp_us, name, second_key, value_type, data, expires_us, ttl_us
    )
    return name, encode_record(encode_request(request))


_NO_PARTS: Final = (None,) * 6


def _built_key(
    domain: str | bytes,
    id: str | bytes,
    timestamp_us: int,
    priority: int,
    not_before: Instant | None,
    not_before_us: int | None,
    delay_us: int | None,
) -> bytes:
    """Return the key of these parts."""
    if delay_us is not None:
        if not_before is not None or not_before_us is not None:
            raise BadRequestError("delay and not_before exclude each other")
        not_before_us = timestamp_us + delay_us
    if not_before is None and not_before_us is None:
        return journal_key_of(domain, id, timestamp_us, priority)
    return build_journal_key(
        domain, id, not_before=not_before, not_before_us=not_before_us, priority=priority
    )


WRITES: Final = frozenset(function for function in Function if function.declared.spoolable)
"""Functions that a spool accepts: they change something, and no caller needs the reply."""

_SLOT_SECONDS_MAX: Final = 366 * 86_400
_DELETIONS_MAX: Final = 100
"""How often a slot that is deleted during an append is created again; then the append fails."""

_BATCH_BYTES: Final = 256 * 1024
"""One write of many records; what is torn of it is taken back as one erased record."""


class Spool:
    """Spool that a program appends requests to. Threads may share it; so may the child of a fork.

    Args:
        directory: Created with mode 0750 if it is not there.
        slot_seconds: Length of a slot: one file for each.
        durable: Each append survives the death of the machine too (fdatasync).
        spool_bytes_max: Where the slots take this many bytes, an append raises SpoolFullError.
        clock: Gives the instants of slots and timestamps.
        group: Name or number of a group that shares the spool: a directory that is created has mode
            2770, files 0660. In a directory with the setgid bit files are shared in any case.

    Raises:
        SpoolFailedError: The directory cannot be created.
        BadRequestError: A number is out of range, or there is no such group.
        TypeError: An argument of another type.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        slot_seconds: int = SLOT_SECONDS,
        durable: bool = False,
        spool_bytes_max: int = SPOOL_BYTES_MAX,
        clock: Clock | None = None,
        *,
        group: str | int | None = None,
    ) -> None:
        self.directory: Final = os.fspath(directory)
        slot_seconds = check_integer("slot_seconds", slot_seconds, 1, _SLOT_SECONDS_MAX)
        spool_bytes_max = check_integer("spool_bytes_max", spool_bytes_max, 1, INSTANT_MAX)
        self._durable = _check_bool("durable", durable)
        group_number = group_id(group)
        self._clock: Clock = clock or SystemClock()
        self._timestamps = TimestampSource(clock) if clock else None
        self._next_timestamp = self._timestamps.next_us if self._timestamps else unique_timestamp
        self._lock = threading.RLock()
        """Held while a record is written. A signal handler that interrupts this goes through: at
        each step another append may come in between, so each step takes what it finds."""
        self._files = SlotFiles(
            self.directory,
            slot_seconds=slot_seconds,
            durable=self._durable,
            group=group_number,
            bytes_max=spool_bytes_max,
        )
        self._waker = Waker(self.directory)
        self._writer_id = secrets.token_hex(4)
        self._closed = False
        write_directory(self.directory, group_number)
        _spools.add(self)

    def append(
        self,
        *,
        queue: str | bytes | None = None,
        domain: str | bytes | None = None,
        uri: str | bytes | None = None,
        unique: str | bytes | None = None,
        key: str | bytes | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        not_before: Instant | None = None,
        not_before_us: int | None = None,
        value: Storable = b"",
        id: str | bytes | None = None,
        timestamp_us: int | None = None,
        overwrite: bool = False,
        expires: Instant | None = None,
        ttl: Duration | None = None,
    ) -> bytes:
        """Append a persistent SET of one journal entry.

        Args:
            queue: Not empty, without ``:``. None: the host of the URI (``fastjournal.domain_of``).
            domain: The same by its other name.
            uri: Resource that the work is about, over all queues: one entry of a URI waits at a
                time, the newest.
            unique: Deduplication key within the queue, instead of a URI.
            key: The whole journal key (``build_journal_key``), for a job that has a name of its
                own; it names queue, priority and instant. The job replaces a waiting one with the
                same key. While that is worked on, the forwarder keeps the record and sends it again
                until the daemon takes it.
            priority: 0 (first) to 255 (last); None: 128.
            delay: Duration from now before which the work must not start.
            not_before: Instant before which the work must not start. Without it: the timestamp, so
                that work of one priority is done in the order of its writing.
            not_before_us: The same in microseconds since 1970; 0: before all that names an instant.
            value: The payload: bytes, or None, str, int, float, bool. A dict or a list is written
                as JSON.
            id: Last part of the key. Without it: made of the timestamp and the URI, so that it is
                the same again only for the same URI and timestamp; without a URI it is unique. The
                same id is the same key only with the same not_before and priority.
            timestamp_us: Instant of the write in microseconds since 1970; the default is never the
                same twice in a process.
            overwrite: Replace an entry with the same key.
            expires: Instant at which the entry is removed, in the future; ``math.inf``: never.
            ttl: Duration by which each read moves the expiry.

        Returns:
            The key of the entry.

        Raises:
            BadRequestError: An argument that no daemon accepts; nothing was written.
            TypeError: An argument of another type, such as a float for an int; nothing was written.
            SpoolFullError: The spool holds spool_bytes_max bytes; nothing was written.
            SpoolFailedError: A call of the operating system failed.
        """
        if timestamp_us is None:
            timestamp_us = self._next_timestamp()
        else:
            timestamp_us = check_instant_us("timestamp_us", timestamp_us, least_us=0)
        expires_us = None
        if expires is not None:
            expires_us = expiry_us("expires", expires, self._clock.now_us())
        ttl_us = None if ttl is None else duration_us("ttl", ttl)
        if overwrite is not False:
            _check_bool("overwrite", overwrite)
        name, record = encode_set(
            timestamp_us,
            self._writer_id,
            uri,
            queue_of(queue, domain),
            priority,
            not_before,
            not_before_us,
            value,
            id,
            overwrite,
            expires_us,
            ttl_us,
            unique,
            None if delay is None else duration_us("delay", delay),
            key,
        )
        self._write(record)
        return name

    def append_request(self, request: Request) -> None:
        """Append any write. A timestamp of 0 is replaced by the time of the call.

        Raises:
            BadRequestError: It is no write, or cannot be encoded; nothing was written.
            SpoolFullError: The spool holds spool_bytes_max bytes; nothing was written.
            SpoolFailedError: A call of the operating system failed.
        """
        if not isinstance(request, Request):
            raise TypeError(f"request is a Request, not {type(request).__name__}")
        if request.function not in WRITES:
            raise BadRequestError(f"function {request.function} is no write: a spool sends writes")
        if request.timestamp == 0:
            request = msgspec.structs.replace(request, timestamp=self._next_timestamp())
        self._write(encode_record(encode_request(request)))

    def append_records(
        self, records: Iterable[bytes], appended: Callable[[int], None] = lambda _: None
    ) -> None:
        """Append encoded records (``fastjournal.spool.bulk``), many of them with one write.

        Where a write fails, the records before the one that could not be written whole are there.

        Args:
            records: Records to append, in this order.
            appended: Called after each write with the number of its records that are there, also
                after one that fails.

        Raises:
            SpoolFullError: The spool holds spool_bytes_max bytes.
            SpoolFailedError: A call of the operating system failed.
        """
        batch: list[bytes] = []
        size = 0
        for record in records:
            batch.append(record)
            size += len(record)
            if size >= _BATCH_BYTES:
                self._write_batch(batch, appended)
                batch.clear()
                size = 0
        if batch:
            self._write_batch(batch, appended)

    def _write_batch(self, batch: list[bytes], appended: Callable[[int], None]) -> None:
        try:
            self._write(b"".join(batch))
        except ShortWriteError as error:
            ends = accumulate(map(len, batch))
            appended(sum(end <= error.whole_bytes for end in ends))
            raise
        appended(len(batch))

    def close(self) -> None:
        """Close the file; a later append is an error."""
        with self._lock:
            self._closed = True
            self._close_descriptors()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, record: bytes) -> None:
        files = self._files
        with self._lock:
            files.owner = threading.get_ident()
            files.depth += 1
            try:
                file, number = self._append(record)
                self._waker.wake()
                if self._durable:
                    file.users.append(files.owner)
            finally:
                files.depth -= 1
                if files.retired or files.is_shared:
                    files.close_retired()
        if self._durable:
            try:
                file.sync(number)
            finally:
                with self._lock:
                    file.users.remove(threading.get_ident())
                    files.close_retired()

    def _append(self, record: bytes) -> tuple[AppendFile, int]:
        """Append to the file of this moment; return it, and the number of the append."""
        files, deletions = self._files, 0
        while deletions < _DELETIONS_MAX:
            if self._closed:
                raise BadRequestError("this Spool is closed")
            now_us = self._clock.now_us()
            file = files.current
            if file is None or not file.good_from_us <= now_us < file.good_until_us:
                file = files.find(now_us)
            files.quota.take(len(record), file)
            if number := file.append(record):
                return file, number
            files.drop_taken_away(file)
            deletions += 1
        raise SpoolFailedError(
            "the slots of this spool are deleted as soon as they are created",
            path=self.directory,
            hint="stop the program that deletes them: only fj-forwarder may",
        )

    def _close_descriptors(self) -> None:
        try:
            self._files.close()
        finally:
            self._waker.close()

    def _after_fork(self) -> None:
        """In the child: its own name and lock; ``_close_descriptors`` is to follow, and may fail.

        Where the thread forked within an append (in a signal handler), that keeps the lock.
        """
        if not self._files.after_fork(threading.get_ident()):
            self._lock = threading.RLock()
        if self._timestamps is not None:
            self._timestamps.forget_lock()
        self._writer_id = secrets.token_hex(4)


def _check_bool(name: str, value: bool) -> bool:
    if value is not True and value is not False:
        raise TypeError(f"{name} is True or False, not {type(value).__name__}")
    return value


_spools: weakref.WeakSet[Spool] = weakref.WeakSet()


def _after_fork() -> None:
    """In the child: renew all spools, then close what they share with the parent.

    A descriptor that the program has closed fails here. Python writes that error to stderr and goes
    on, so each spool is renewed before, and each other descriptor is closed all the same.
    """
    with ExitStack() as closing:
        for spool in tuple(_spools):
            closing.callback(spool._close_descriptors)
            spool._after_fork()


os.register_at_fork(after_in_child=_after_fork)
