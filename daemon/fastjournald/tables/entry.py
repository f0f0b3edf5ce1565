"""Entry: journal entry or plain entry, with its keys, its state and the legal transitions.

All times are microseconds.

A daemon holds millions of entries, so the size of one is counted in bytes. Fields that all entries
have and few functions read are packed into ``facts`` (``cmdlog.format.packed_entry``). Fields that
few entries have are in the object ``extra``. Properties read both.

The facts are the sort key of an entry in its queue. They must not change while the entry is in a
list sorted by them: see ``Scheduler.facts_change``.

States of an entry:

    absent   not in the store: new, removed, or popped by NEXT
    plain    key/value data, not leased
    ready    due: NEXT delivers it
    delayed  waits for its due time, for a lock, or for the lease of another entry of its URI
    leased   in flight, until its lease ends
    buried   dead letter: not delivered until KICK

``CAUSES`` has the legal transitions by cause. Only ``Entry.move_to`` and ``Entry.move_all``
change a state, and they assert that the transition is legal for its cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from struct import Struct
from typing import Final, TypeAlias, cast, final

import msgspec

from fastjournal.cmdlog.format import workq
from fastjournal.cmdlog.format.layout import JOB_ID_BYTES
from fastjournal.cmdlog.format.packed_entry import (
    ARRIVAL_AT,
    DELAY_KEY,
    ORDER_BYTES,
    PRIORITY_AT,
    Packed,
    unpack_facts,
)
from fastjournal.protocol.constants import State
from fastjournal.protocol.messages import Meta
from fastjournald.tables.domain import Domain
from fastjournald.tables.lease_holders import LeaseOperation


class EntryState:
    """Numbers of the states (plain integers: they are compared often)."""

    ABSENT: Final = 0
    PLAIN: Final = 1
    READY: Final = 2
    DELAYED: Final = 3
    LEASED: Final = 4
    BURIED: Final = 5


STATE_NAMES: Final = ("absent", "plain", "ready", "delayed", "worked on", "buried")
"""Names of the states in STATS."""

_STATES = range(len(STATE_NAMES))
_ABSENT, _PLAIN, _READY = EntryState.ABSENT, EntryState.PLAIN, EntryState.READY
_DELAYED, _LEASED, _BURIED = EntryState.DELAYED, EntryState.LEASED, EntryState.BURIED

Cause: TypeAlias = tuple[frozenset[int], ...]
"""Cause of transitions: the states that may follow each state."""


def _cause(*transitions: tuple[set[int], set[int]]) -> Cause:
    """Return a cause from pairs of states and the states that may follow them."""
    return tuple(
        frozenset().union(*(after for before, after in transitions if state in before))
        for state in _STATES
    )


_QUEUED = {_READY, _DELAYED}
_WAITING = {_PLAIN, *_QUEUED}

INSERT: Final = _cause(({_ABSENT}, _WAITING))
"""SET, ADD; or a popped entry is restored because the reply of NEXT was not delivered."""
LOAD: Final = _cause(({_ABSENT}, {*_WAITING, _LEASED, _BURIED}))
"""Recovery."""
REQUEUE: Final = _cause((_QUEUED, _QUEUED))
"""Its due time has come; or a lock, or a lease on its URI, began or ended."""
LEASE: Final = _cause((_WAITING, {_LEASED}))
"""NEXT leases ready entries, GET any waiting one."""
END_LEASE: Final = _cause(({_LEASED}, _WAITING))
"""The lease was released or expired, or the attempt failed."""
BURY: Final = _cause(({*_WAITING, _LEASED}, {_BURIED}))
"""BURY, or the last attempt failed."""
KICK: Final = _cause(({_BURIED}, _WAITING))
RENAME: Final = _cause(({_PLAIN}, _QUEUED), (_QUEUED, _WAITING), ({_BURIED}, {_BURIED}))
"""The new primary key is a journal key, a plain key, or one with another due time."""
REMOVE: Final = _cause(({*_WAITING, _LEASED, _BURIED}, {_ABSENT}))
"""DELETE, PURGE or expiry; a newer entry replaced it; or NEXT popped it."""

CAUSES: Final[Mapping[str, Cause]] = {
    "INSERT": INSERT,
    "LOAD": LOAD,
    "REQUEUE": REQUEUE,
    "LEASE": LEASE,
    "END_LEASE": END_LEASE,
    "BURY": BURY,
    "KICK": KICK,
    "RENAME": RENAME,
    "REMOVE": REMOVE,
}
"""Legal transitions by the name of their cause."""


RUN_KEPT_BYTES = 9
"""Leading bytes of a job id that are stored if the rest is the arrival number."""
_ARRIVAL_KEPT_BYTES = JOB_ID_BYTES - RUN_KEPT_BYTES
ARRIVAL_MAX = (1 << 8 * _ARRIVAL_KEPT_BYTES) - 1
"""Largest arrival number that fits into such a job id."""
JOB_ID_REST = slice(ARRIVAL_AT + 8 - _ARRIVAL_KEPT_BYTES, ARRIVAL_AT + 8)
"""Position of the last bytes of such a job id in the packed facts."""


_pack_instant = Struct(">Q").pack
# plain integers: `|` of two Flags is a call in Python
_PERSISTENT, _LOCKED, _BURIED_BIT, _JOURNAL, _PAUSED = (int(bit) for bit in State)


@final
class Cold(msgspec.Struct, frozen=True, gc=False):
    """Evicted value: it is only on disk."""

    size: int
    """In bytes."""

    def __len__(self) -> int:
        return self.size


class Extra(msgspec.Struct, gc=False):
    """Rarely set fields: state that few entries have, besides key and value."""

    changed: int = 0
    """Instant of the last change; 0: not changed since it was created."""
    seen: int = 0
    """Instant of the last read or delivery; 0: none since it was created."""
    token: int = 0
    """Lease token: the end of the lease when it was issued; 0: not leased."""
    leased_until: int = 0
    """End of the lease: the token, unless a clock step moved it; 0: not leased."""
    token_before: int = 0
    """Token of the previous lease; a new lease must not repeat it."""
    leased: bytes = b""
    """Facts of its lease so far (``cmdlog.format.endings``); empty: no lease in the log. They stay
    until the end of the lease is logged."""
    starts: int = 0
    """Start-attempt records under its job id; workq accepts 255."""
    expires: int = 0
    ttl: int = 0
    attempts: int = 0
    superseded: int = 0
    """Timestamp of the SET that took its URI while it was leased; 0: none."""
    links: list[bytes] | None = None
    reason: bytes | None = None
    """Reason of the burial."""
    error: bytes | None = None
    """Error of the last failed attempt; None: none, or only lost leases."""
    first_due: int = 0
    """First due time of the work on its URI, if SETs postponed it; 0: its own."""
    due: int = 0
    """Instant since which it can be leased; 0: since it was set, or since its due time."""
    waits_until: int = 0
    """End of a delay beyond its own due time, by a lock or a lease on its URI; else 0."""
    lease: LeaseOperation | None = None
    """Operation that leased it; None: none, or one before the start of the daemon."""
    attempts_max: int = 0
    """Failed attempts after which this lease buries it; 0: no bound of the lease."""


class _Nothing(Extra, frozen=True, gc=False):  # type: ignore[misc] # frozen, its base is not
    """An Extra with defaults that cannot be written to."""


NOTHING: Final[Extra] = _Nothing()
"""Shared Extra of all entries that have none of these fields set (null object)."""


class AccessTimes(msgspec.Struct, gc=False):
    """Access times of an entry that has no other field of ``Extra`` set.

    Many entries are only read or changed, so they do not get a whole ``Extra``. Its other fields
    are class attributes here.
    """

    changed: int = 0
    seen: int = 0


for _field, _default in zip(Extra.__struct_fields__, Extra.__struct_defaults__, strict=True):
    if _field not in AccessTimes.__struct_fields__:
        setattr(AccessTimes, _field, _default)


class Entry(Packed, eq=False, gc=False):
    """A value, its keys, and its state in the queue."""

    value: bytes | Cold
    domain: Domain
    extra: Extra = NOTHING
    """Read only. Write to ``own()``, or to ``own_times()`` for ``changed`` and ``seen``."""
    state: int = EntryState.ABSENT
    """A state of ``EntryState``; only ``move_to`` and ``move_all`` assign it."""
    run: bytes | None = None
    """Id of the job whose record carries the entry: the whole id, or its bytes before the arrival;
    None: the entry is not persistent."""

    def move_to(self, state: int, cause: Cause) -> None:
        """Assign a state, and assert that the cause allows it."""
        assert state in cause[self.state], (self.key, self.state, state)
        self.state = state

    @staticmethod
    def move_all(entries: Iterable[Entry], state: int, cause: Cause) -> None:
        """Assign a state to entries, as ``move_to`` does.

        Without a call for each: over 1 % of a NEXT (tests.bench.bench_instructions).
        """
        for entry in entries:
            assert state in cause[entry.state], (entry.key, entry.state, state)
            entry.state = state

    def own(self) -> Extra:
        """Return a writable ``extra``; create it if there is none."""
        extra = self.extra
        if type(extra) is not Extra:
            extra = self.extra = Extra(extra.changed, extra.seen)
        return extra

    def own_times(self) -> Extra:
        """Return the writable object with ``changed`` and ``seen``."""
        extra = self.extra
        if extra is NOTHING:
            extra = self.extra = cast(Extra, AccessTimes())
        return extra

    # --- facts ----------------------------------------------------------------------------------

    @property
    def journal(self) -> bool:
        """Whether the primary key is a journal key: NEXT delivers the entry."""
        return self.domain.name != b""

    @property
    def persistent(self) -> bool:
        """Whether a log record carries it."""
        return self.run is not None

    @property
    def priority(self) -> int:
        """Priority from the primary key; 0 for a plain key."""
        return self.facts[PRIORITY_AT]

    @property
    def modified(self) -> int:
        """Instant of the last change of its value or its primary key."""
        return self.extra.changed or self.created

    @modified.setter
    def modified(self, instant: int) -> None:
        if self.journal:
            self.own().due = self.due
        self.own_times().changed = instant

    @property
    def due(self) -> int:
        """Instant since which it can be leased, or could before it was leased."""
        return self.extra.due or max(self.not_before, self.modified)

    @property
    def accessed(self) -> int:
        """Instant of the last read or delivery."""
        return self.extra.seen or self.created

    @accessed.setter
    def accessed(self, instant: int) -> None:
        self.own_times().seen = instant

    def reorder(self, priority: int, not_before: int) -> None:
        """Change the sort key of an entry that is in no list."""
        self.replace_facts(PRIORITY_AT, bytes((priority,)))
        self.not_before = not_before

    @property
    def delayed_until(self) -> int:
        """Instant at which a delayed entry becomes ready."""
        return self.extra.waits_until or self.not_before

    @property
    def delay_key(self) -> bytes:
        """Sort key of a delayed entry: that instant, and its arrival."""
        instant = self.extra.waits_until
        if instant:
            return _pack_instant(instant) + self.facts[ARRIVAL_AT:ORDER_BYTES]
        return self.facts[DELAY_KEY]

    # --- log record -----------------------------------------------------------------------------

    @property
    def job_id(self) -> bytes:
        """Id of the job whose record carries it; empty: there is none."""
        run = self.run
        if run is None:
            return b""
        if len(run) == JOB_ID_BYTES:
            return run
        return run + self.facts[JOB_ID_REST]

    # --- rarely set fields ----------------------------------------------------------------------

    @property
    def token(self) -> int:
        """Lease token; 0: not leased."""
        return self.extra.token

    @property
    def leased_until(self) -> int:
        """End of the lease: the token, unless a clock step moved it; 0: not leased."""
        return self.extra.leased_until

    @property
    def expires(self) -> int:
        """Instant at which it expires; 0: never."""
        return self.extra.expires

    @property
    def superseded(self) -> int:
        """Timestamp of the SET that took its URI while it was leased; 0: none."""
        return self.extra.superseded

    @property
    def links(self) -> list[bytes] | None:
        """Further keys, added by LINK."""
        return self.extra.links

    @property
    def reason(self) -> bytes | None:
        """Reason of the burial; None: not buried."""
        return self.extra.reason

    def is_missing(self, data: int, *, leases: bool) -> bool:
        """Cache miss: whether a request needs the value and it is only on disk.

        A request needs the value if ``data`` is not 0, or if it leases the entry for the 256th
        time: that attempt is of a new job in the workq log.
        """
        return type(self.value) is Cold and (
            bool(data) or (leases and self.extra.starts >= workq.ATTEMPTS_MAX)
        )

    # --- all fields -----------------------------------------------------------------------------

    def all_keys(self) -> list[bytes]:
        """Return the primary key and all further keys, also those that other entries took."""
        keys = [self.key]
        if self.uri is not None:
            keys.append(self.uri)
        if self.extra.links:
            keys += self.extra.links
        return keys

    def full_bytes(self) -> int:
        """Return the size of its keys and its value, about that of its record."""
        return len(self.value) + sum(map(len, self.all_keys()))

    def meta(self, *, locked: bool) -> Meta:
        """Return the metadata block."""
        state = _LOCKED if locked else 0
        if self.persistent:
            state |= _PERSISTENT
        if self.state == EntryState.BURIED:
            state |= _BURIED_BIT
        if self.journal:
            state |= _JOURNAL
        if self.domain.paused_until:
            state |= _PAUSED
        priority, not_before, _, timestamp, created, _ = unpack_facts(self.facts)
        extra = self.extra
        return Meta(
            timestamp_us=timestamp,
            created_us=created,
            modified_us=extra.changed or created,
            accessed_us=extra.seen or created,
            expires_us=extra.expires,
            ttl_us=extra.ttl,
            worked_on_until_us=extra.token,
            not_before_us=not_before,
            priority=priority,
            state=state,
            attempts=min(extra.attempts, 0xFFFF),
        )
