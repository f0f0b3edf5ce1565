"""Results of the clients.

Names that end in ``_us`` are integers of microseconds, instants since 1970. The same names without
it are aware datetimes in UTC, made when they are read; one after the year 9999 is its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum
from typing import Generic, Protocol, TypeVar, overload

import msgspec

from fastjournal.errors import BadRequestError
from fastjournal.keys import JournalKey, parse_journal_key
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


class Written(msgspec.Struct, frozen=True, gc=False):
    """Result of a write that is as durable as requested."""

    timestamp_us: int
    """Instant that the write carries; sent again with it, the write changes nothing."""
    key: bytes = b""
    """The key that the request named, or that was built for it."""

    @property
    def timestamp(self) -> datetime:
        """Instant that the write carries."""
        return to_datetime(self.timestamp_us)


class Entry(Decodable, msgspec.Struct, gc=False):
    """One entry of the daemon."""

    key: bytes
    second_key: bytes = b""
    """Its other key, for a journal entry the URI; empty where it has none or none was asked."""
    value_type: int = 0
    value: bytes = b""
    """The value's bytes as they are stored; empty where the data was not asked for."""
    meta: Meta | None = None
    token: int | None = None
    """The lease token, where this reply leased the entry: the instant at which the lease ends."""

    @property
    def uri(self) -> bytes:
        """The second key under its usual name."""
        return self.second_key

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
        """Whether somebody has locked it; None: the metadata was not asked for."""
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


class Page(msgspec.Struct, Generic[T], gc=False):
    """Page of a scan: some of its entries, and the continuation token."""

    entries: list[T]
    cursor: bytes | None
    """Where the next page begins (``PagedCall.following``); None: this is the last one."""

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[T]:
        return iter(self.entries)


class ChangeKind(StrEnum):
    """Kind of a change."""

    SET = "set"
    """The key has a value: it was written, or stands here anew."""
    GONE = "gone"
    """The key has none any more: deleted, replaced, expired or renamed."""
    NOT_READABLE = "not-readable"
    """The key has a value that the daemon cannot read from its disk; there is metadata only."""
    MISSED = "missed"
    """Changes may be missing here, for the connection was lost or they came too fast: whoever keeps
    a copy reads it anew."""


class Change(Decodable, msgspec.Struct, gc=False):
    """Notification of a change of one key."""

    kind: ChangeKind
    key: bytes = b""
    """Empty for MISSED."""
    value_type: int = 0
    value: bytes = b""
    """For SET: the value's bytes as they are stored."""
    meta: Meta | None = None


class Jobs(msgspec.Struct, gc=False):
    """Result of a NEXT: entries under one lease, or the instant at which to ask again."""

    token: int | None
    """The lease token of all these entries; None where nothing was due or they were deleted."""
    next_at_us: int | None
    """Instant at which something will be due; None where nothing waits, or where entries came."""
    pairs: list[Entry]

    @property
    def next_at(self) -> datetime | None:
        """Instant at which something will be due; None as for ``next_at_us``."""
        return to_datetime_or_none(self.next_at_us)

    def __len__(self) -> int:
        return len(self.pairs)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.pairs)


class DomainStats(msgspec.Struct, frozen=True):
    """Counts of a domain."""

    entries: int = 0
    waiting: int = 0
    """Neither worked on nor buried: due or delayed."""
    due: int = 0
    """Ready: NEXT may deliver it now."""
    delayed: int = 0
    """May not be yet: its instant, or work on its URI, lies ahead, or it is locked."""
    worked_on: int = 0
    buried: int = 0
    oldest_due_us: int = 0
    """Microseconds for which the oldest due entry has been due; 0: none is."""
    paused_until_us: int = msgspec.field(default=0, name="paused_until")
    """Instant; 0: it is not paused."""
    interval_us: int = 0
    """Least microseconds between two deliveries; 0: no limit."""
    jobs_max: int = 0
    """Most entries that are leased at once; 0: no limit."""
    lease_us: int = 0
    """Microseconds of a lease where the request names none."""
    attempts_max: int = 0
    """Failed attempts after which an entry is buried; 0: no limit."""
    name: bytes = b""
    """In a list of domains; empty where one was asked for by its name."""

    @property
    def paused_until(self) -> datetime | None:
        """Instant at which the pause ends; None: it is not paused."""
        return to_datetime_or_none(self.paused_until_us)


class WorkerStats(msgspec.Struct, frozen=True):
    """Connection that works on entries, or waits for work."""

    name: str
    """Address, or process and user; with the name of its access token."""
    connected: int = 1
    """0: the connection has ended, and its leases go on."""
    worked_on: int = 0
    """Entries that it has leased."""
    since_us: int = 0
    """Begin of the first of these leases; 0: it has none, or one from before the start."""
    domain: str = ""
    """Domain of entries that it works on; there may be others."""
    waiting: int = 0
    """NEXTs of it that wait for work."""


class DaemonStats(msgspec.Struct, frozen=True):
    """Counts of the whole daemon."""

    entries: int = 0
    waiting: int = 0
    due: int = 0
    delayed: int = 0
    worked_on: int = 0
    buried: int = 0
    oldest_due_us: int = 0
    """Microseconds for which the oldest due entry has been due; 0: none is."""
    domains: int = 0
    connections: int = 0
    subscriptions: int = 0
    """Queries that connections listen to."""
    log_bytes: int = 0
    log_live_bytes: int = 0
    """Bytes of the command log that are still needed."""
    log_segments: int = 0
    """Files of the command log."""
    uptime_us: int = 0
    read_only: int = 0
    """1 while the disk is nearly full and nothing new is taken."""
    clock_behind_us: int = 0
    """Microseconds by which the daemon's clock was set back; its time stops until that is over."""
    requests: int = 0
    """Since the start of the daemon, as all that follow."""
    set_requests: int = 0
    next_requests: int = 0
    delete_requests: int = 0
    leases_lost: int = 0
    syncs: int = 0
    """Syncs of the command log."""
    sync_us: int = 0
    """Microseconds that these took together."""
    workers: list[WorkerStats] = []
    """At most 100, where they were asked for. Leases from before the start are nobody's."""
    workers_cut: int = 0
    """1: there are more workers than ``workers`` has."""


class EntryStats(msgspec.Struct, frozen=True):
    """State of an entry without its value."""

    keys: list[str]
    """The primary key, the URI if it has one, and links; what is not UTF-8 is escaped."""
    state: str
    """``plain``, ``ready``, ``delayed``, ``worked on`` or ``buried``."""
    persistent: bool = False
    priority: int = 0
    attempts: int = 0
    buried_reason: str | None = None
    last_error: str | None = None
    """Error of the last attempt that was released as failed; None: there was none."""
    superseded: bool = False
    """It is worked on, and its URI leads to a newer entry already."""
    timestamp_us: int = msgspec.field(default=0, name="timestamp")
    created_us: int = msgspec.field(default=0, name="created")
    not_before_us: int = msgspec.field(default=0, name="not_before")
    first_due_us: int = msgspec.field(default=0, name="first_due")
    """When the work was due first, before later writes of its URI put it off; 0: they did not."""
    expires_us: int = msgspec.field(default=0, name="expires")
    """0: never."""
    worked_on_until_us: int = msgspec.field(default=0, name="worked_on_until")
    """0: nobody works on it; else the lease token."""
    locked_until_us: int = msgspec.field(default=0, name="locked_until")
    """0: nobody has locked it."""
    value_bytes: int = 0
    job_id: str = ""
    """Job id of its record in the command log, in hexadecimal digits."""
    log_segment: int = 0
    log_offset: int = 0
    """Bytes from the start of that segment."""

    @property
    def timestamp(self) -> datetime | None:
        """Instant that the last write carries."""
        return to_datetime_or_none(self.timestamp_us)

    @property
    def created(self) -> datetime | None:
        """Instant at which it was created."""
        return to_datetime_or_none(self.created_us)

    @property
    def not_before(self) -> datetime | None:
        """Instant before which the work must not start; None: no journal key, or none."""
        return to_datetime_or_none(self.not_before_us)

    @property
    def first_due(self) -> datetime | None:
        """Instant at which the work was due first; None: later writes did not put it off."""
        return to_datetime_or_none(self.first_due_us)

    @property
    def expires(self) -> datetime | None:
        """Instant at which it vanishes; None: never."""
        return to_datetime_or_none(self.expires_us)

    @property
    def worked_on_until(self) -> datetime | None:
        """Instant at which the lease ends; None: nobody works on it."""
        return to_datetime_or_none(self.worked_on_until_us)

    @property
    def locked_until(self) -> datetime | None:
        """Instant at which the lock ends; None: nobody has locked it."""
        return to_datetime_or_none(self.locked_until_us)


class EntryExplanation(EntryStats, frozen=True):
    """State of an entry, and what keeps it from being delivered; 0 for instants that are not.

    Names that end in ``_us`` are microseconds: instants, but for ``domain_interval_us`` and
    ``postpone_us_max``.
    """

    now_us: int = 0
    """The daemon's clock."""
    modified_us: int = 0
    accessed_us: int = 0
    """When it was last read or delivered."""
    worked_on_since_us: int = 0
    """Begin of its lease, before it was renewed; not known from before the daemon's start."""
    worked_on_by: str = ""
    """Name of the connection that leased or renewed it last, as in ``WorkerStats``."""
    worker_connected: int = 0
    """0: that connection has ended, or is not known."""
    locked_since_us: int = 0
    delayed_until_us: int = 0
    """When it becomes due, while its state is ``delayed``."""
    ready_before: int = 0
    """Due entries of its domain that are before it, while its state is ``ready``."""
    attempts_max: int = 0
    """Failed attempts after which it is buried; 0: no limit."""
    postpone_us_max: int = 0
    """How far newer writes of its URI may put it off; 0: no limit."""
    read_only: int = 0
    """1 while the disk is nearly full and the daemon delivers nothing."""
    uri_leased_by: str | None = None
    """Key of another entry that is leased for its URI; empty: your token does not cover it."""
    uri_leased_since_us: int = 0
    """When that entry was last read or delivered."""
    uri_leased_until_us: int = 0
    superseded_by: str | None = None
    """Key of the newer entry that its URI leads to, while it is superseded; empty: as above."""
    domain: str | None = None
    """None: it is a plain entry, which nobody is delivered."""
    domain_due: int = 0
    domain_worked_on: int = 0
    domain_paused_until_us: int = 0
    domain_delivered_us: int = 0
    """The last delivery of its domain that is known."""
    domain_interval_us: int = 0
    domain_waits_until_us: int = 0
    """End of the interval after that delivery, while it runs."""
    domain_jobs_max: int = 0
    domain_is_full: bool = False
    """As many entries of its domain are leased as the limit allows."""
    domain_held_until_us: int = 0
    """When its domain may be delivered again, if no lease ends before its time."""
    deleted_us: int = 0
    """State ``deleted``: when the daemon received that; ``timestamp`` is that of the deletion."""
    tombstone_until_us: int = 0
    """Until when a repeat of an older SET is recognised."""
