"""Results of the clients.

Names that end in ``_us`` are integers of microseconds, instants since 1970. The same names without
it are aware datetimes in UTC, made when they are read; one after the year 9999 is its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Protocol, TypeVar, overload

import msgspec

from fastjournal.errors import BadRequestError
from fastjournal.keys import JournalKey, parse_journal_key, unique_of
from fastjournal.protocol import Meta, State
from fastjournal.protocol.values import Value, decode_value
from fastjournal.times import to_datetime, to_datetime_or_none

T = TypeVar("T")
V = TypeVar("V", bytes, str, int, float, bool)
"""Type of a value that a program expects."""


class _Typed(Protocol):
    """Value with its type."""

    @property
    def value_type(self) -> int: ...

    @property
    def value(self) -> bytes: ...


class Decodable:
    """Decoding of a result's value by its type."""

    __slots__ = ()

    @overload
    def decoded(self: _Typed) -> Value: ...

    @overload
    def decoded(self: _Typed, kind: type[V]) -> V: ...

    def decoded(self: _Typed, kind: type[V] | None = None) -> Value:
        """Return the value as the Python object that its type says.

        Args:
            kind: Type that it must have (``str``, ``int``, ...), also for type checkers; None: any.

        Raises:
            BadRequestError: It is of another type, or its bytes are not of the type that it has;
                code ``bad-value``.
        """
        value = decode_value(self.value_type, self.value)
        if kind is not None and type(value) is not kind:
            raise BadRequestError(
                f"the value is {type(value).__name__}, not {kind.__name__}",
                code="bad-value",
                hint="decoded() without a type takes any",
            )
        return value


class WriteOutcome(StrEnum):
    """Effect of a SET."""

    NEW = "new"
    """There is a new entry."""
    REPLACED = "replaced"
    """It replaced an entry under its key, or a waiting one of its URI."""
    KEPT = "kept"
    """Nothing changed: it was carried out before, or a newer one stands there."""


class Written(msgspec.Struct, frozen=True, gc=False):
    """Result of a write that is as durable as requested."""

    timestamp_us: int
    """Instant that the write carries; sent again with it, the write changes nothing."""
    key: bytes = b""
    """The key that the request named, or that was built for it."""
    outcome: WriteOutcome | None = None
    """Effect of a SET; None: another write."""
    took_uri_from: bytes = b""
    """Key of the waiting job of another queue that it replaced, because that had its URI."""

    @property
    def timestamp(self) -> datetime:
        """Instant that the write carries."""
        return to_datetime(self.timestamp_us)


class Entry(Decodable, msgspec.Struct, gc=False):
    """One entry of the daemon."""

    key: bytes
    second_key: bytes = b""
    """Its other key as the wire has it, for a journal entry the URI or ``unique:<queue>:<value>``;
    empty where it has none or none was asked."""
    value_type: int = 0
    value: bytes = b""
    """The value's bytes as they are stored; empty where the data was not asked for."""
    meta: Meta | None = None
    token: int | None = None
    """The lease token, where this reply leased the entry: the instant at which the lease ends."""

    @property
    def uri(self) -> bytes:
        """URI of its resource: the second key, unless that is for a unique value."""
        return self.second_key if self.unique is None else b""

    @property
    def unique(self) -> bytes | None:
        """Value that is unique within its queue; None: it has none."""
        return unique_of(self.key, self.second_key)

    @property
    def created(self) -> datetime | None:
        """Instant at which it was created; None: the metadata was not asked for."""
        return None if self.meta is None else to_datetime(self.meta.created_us)

    @property
    def expires(self) -> datetime | None:
        """Instant at which it vanishes; None: never, or the metadata was not asked for."""
        return None if self.meta is None else to_datetime_or_none(self.meta.expires_us)

    @property
    def locked(self) -> bool | None:
        """Whether it is locked by a client; None: the metadata was not asked for."""
        return None if self.meta is None else bool(self.meta.state & State.LOCKED)

    @property
    def journal_key(self) -> JournalKey | None:
        """The parts of a journal key; None for a plain key."""
        return parse_journal_key(self.key)


class RenewedLease(msgspec.Struct, frozen=True, gc=False):
    """Lease after a renewal, by what the daemon says."""

    token: int
    left_us: int
    """How long it lasts from the daemon's answer on."""


class _Results(Sequence[T]):
    """Sequence of the results of one reply; its classes add what the reply says besides.

    Args:
        results: Entries and the like, in the order of the reply.
    """

    __slots__ = ("_results",)

    def __init__(self, results: list[T]) -> None:
        self._results = results

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: int | slice) -> T | list[T]:
        return self._results[index]

    def __len__(self) -> int:
        return len(self._results)

    def __iter__(self) -> Iterator[T]:
        return iter(self._results)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and all(
            getattr(self, name) == getattr(other, name) for name in ("_results", *self.__slots__)
        )

    __hash__ = None  # type: ignore[assignment] # as for every mutable sequence


class Page(_Results[T]):
    """Page of a scan: a sequence of some of its entries, and the continuation token."""

    __slots__ = ("cursor",)

    def __init__(self, entries: list[T], cursor: bytes | None) -> None:
        super().__init__(entries)
        self.cursor = cursor
        """Where the next page begins (``PagedCall.following``); None: this is the last one."""

    @property
    def entries(self) -> list[T]:
        """The entries as a list."""
        return self._results

    def __repr__(self) -> str:
        return f"Page(entries={self.entries!r}, cursor={self.cursor!r})"


class ChangeKind(StrEnum):
    """Kind of a change."""

    SET = "set"
    """The key has a value: it was written, or is set again."""
    GONE = "gone"
    """The key has none any more: deleted, replaced, expired or renamed."""
    NOT_READABLE = "not-readable"
    """The key has a value that the daemon cannot read from its disk; there is metadata only."""
    MISSED = "missed"
    """Changes may be missing here, because the connection was lost or they came too fast: a program
    that keeps a copy reads it again."""


class Change(Decodable, msgspec.Struct, gc=False):
    """Notification of a change of one key."""

    kind: ChangeKind
    key: bytes = b""
    """Empty for MISSED."""
    value_type: int = 0
    value: bytes = b""
    """For SET: the value's bytes as they are stored."""
    meta: Meta | None = None


class Jobs(_Results[Entry]):
    """Result of a NEXT: a sequence of entries under one lease, or the instant to ask again."""

    __slots__ = ("next_at_us", "token")

    def __init__(self, token: int | None, next_at_us: int | None, pairs: list[Entry]) -> None:
        super().__init__(pairs)
        self.token = token
        """The lease token of all these entries; None where nothing was due or they were deleted."""
        self.next_at_us = next_at_us
        """Instant at which the next entry is due; None if nothing waits, or entries were
        delivered."""

    @property
    def pairs(self) -> list[Entry]:
        """The entries as a list."""
        return self._results

    @property
    def next_at(self) -> datetime | None:
        """Instant at which something will be due; None as for ``next_at_us``."""
        return to_datetime_or_none(self.next_at_us)

    def __repr__(self) -> str:
        return f"Jobs(token={self.token!r}, next_at_us={self.next_at_us!r}, pairs={self.pairs!r})"
