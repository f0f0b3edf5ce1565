"""Entry: journal entry or plain entry, with its keys, its state and the legal transitions.

All times are microseconds.

A daemon holds millions of these, so the size of an entry is counted in bytes. Fields that each one
has and few readers need are packed into ``facts`` (``cmdlog.format.packed_entry``); fields that
only few have are an object of their own, ``extra``. Properties lead to both.

The facts are the key of an entry in the order of work, and must not change while it stands in a
list that is sorted by them: see ``Scheduler.facts_change``.

States of an entry, and the table of legal transitions between them, by cause.

    absent   not in the store: new, removed, or popped by NEXT
    plain    key/value data that nobody works on
    ready    due: NEXT hands it out
    delayed  waits for its instant, for a lock, or for the end of other work on its URI
    leased   in flight: worked on until its lease ends
    buried   dead letter: set aside until KICK

A state changes in ``Entry.move_to`` and ``Entry.move_all`` only. They assert that the transition is
legal for its cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from struct import Struct
from typing import Final, TypeAlias, cast

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
"""As STATS calls them."""

_STATES = range(len(STATE_NAMES))
_ABSENT, _PLAIN, _READY = EntryState.ABSENT, EntryState.PLAIN, EntryState.READY
_DELAYED, _LEASED, _BURIED = EntryState.DELAYED, EntryState.LEASED, EntryState.BURIED

Cause: TypeAlias = tuple[frozenset[int], ...]
"""Cause of transitions: for each state those that may follow it, for this cause."""


def _cause(*transitions: tuple[set[int], set[int]]) -> Cause:
    """Return a cause by states before, and those that may follow each of them."""
    return tuple(
        frozenset().union(*(after for before, after in transitions if state in before))
        for state in _STATES
    )


_QUEUED = {_READY, _DELAYED}
_WAITING = {_PLAIN, *_QUEUED}

INSERT: Final = _cause(({_ABSENT}, _WAITING))
"""SET, ADD; or an undelivered reply of NEXT, which popped it."""
LOAD: Final = _cause(({_ABSENT}, {*_WAITING, _LEASED, _BURIED}))
"""Recovery."""
REQUEUE: Final = _cause((_QUEUED, _QUEUED))
"""Its instant has come; or a lock, or work on its URI, began or ended."""
LEASE: Final = _cause((_WAITING, {_LEASED}))
"""NEXT takes what is ready, GET whatever waits."""
END_LEASE: Final = _cause(({_LEASED}, _WAITING))
"""The lease was released or ran out, or the attempt failed."""
BURY: Final = _cause(({*_WAITING, _LEASED}, {_BURIED}))
"""BURY, or the last attempt failed."""
KICK: Final = _cause(({_BURIED}, _WAITING))
RENAME: Final = _cause(({_PLAIN}, _QUEUED), (_QUEUED, _WAITING), ({_BURIED}, {_BURIED}))
"""A journal key for a plain one, or the other way round, or of another instant."""
REMOVE: Final = _cause(({*_WAITING, _LEASED, _BURIED}, {_ABSENT}))
"""DELETE, PURGE or the end of its life; newer work took its place; or NEXT popped it."""

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
"""Table of legal transitions, by the names of their causes."""


RUN_KEPT_BYTES = 9
"""Leading bytes of a job id that are kept where the rest of the id is the arrival."""
_ARRIVAL_KEPT_BYTES = JOB_ID_BYTES - RUN_KEPT_BYTES
ARRIVAL_MAX = (1 << 8 * _ARRIVAL_KEPT_BYTES) - 1
"""The largest one that such a job id has room for."""
JOB_ID_REST = slice(ARRIVAL_AT + 8 - _ARRIVAL_KEPT_BYTES, ARRIVAL_AT + 8)
"""Place in the packed facts of the last bytes of such a job id."""


_pack_instant = Struct(">Q").pack
# Each `|` of a Flag is a call of Python.
_PERSISTENT, _LOCKED, _BURIED_BIT, _JOURNAL, _PAUSED = (int(bit) for bit in State)


class Cold(msgspec.Struct, frozen=True, gc=False):
    """Evicted value: it is on disk only."""

    size: int
    """In bytes."""

    def __len__(self) -> int:
        return self.size


class Extra(msgspec.Struct, gc=False):
    """Cold fields: state that few entries have, besides key and value."""

    changed: int = 0
    """When it was modified; 0: not since it was created."""
    seen: int = 0
    """When it was last read or delivered; 0: not since it was created."""
    token: int = 0
    """Lease token: the instant until which it was leased; 0: nobody works on it."""
    leased_until: int = 0
    """When its lease ends: at the token, unless a step of the clock moved that; 0: no lease."""
    token_before: int = 0
    """The token of the lease before, which a lease must not repeat."""
    leased: bytes = b""
    """Facts of its lease so far (``cmdlog.format.endings``); empty: it has none that the log tells
    of. They stay until the end of the lease is logged."""
    starts: int = 0
    """Start-attempt records under its job id: workq takes 255."""
    expires: int = 0
    ttl: int = 0
    attempts: int = 0
    superseded: int = 0
    """Timestamp of the SET that took the URI while this was worked on; 0: none did."""
    links: list[bytes] | None = None
    reason: bytes | None = None
    """Why it is buried."""
    error: bytes | None = None
    """Error of the last failed attempt; None: none failed, or only by a lost lease."""
    first_due: int = 0
    """When the work on its URI was first due that SETs put off since; 0: when it is due itself."""
    due: int = 0
    """Since when it can be leased; 0: since it was set, or since its instant."""
    waits_until: int = 0
    """Where it is delayed beyond its own instant, by a lock or other work: until when; else 0."""
    lease: LeaseOperation | None = None
    """Operation that leased it; None: none has, or one from before the start of the daemon."""
    attempts_max: int = 0
    """Failed attempts after which its lease lets it be buried; 0: the lease has no bound."""


class _Nothing(Extra, frozen=True, gc=False):  # type: ignore[misc] # frozen, its base is not
    """Extra is what it is to whoever reads it; it cannot be written to."""


NOTHING: Final[Extra] = _Nothing()
"""Cold fields of all entries that have none set (null object)."""


class AccessTimes(msgspec.Struct, gc=False):
    """Cold fields of an entry that was modified or read and has no others set.

    Such entries are many where values are read, so they do not take all of ``Extra``, whose other
    fields are attributes of the class here.
    """

    changed: int = 0
    seen: int = 0


for _field, _default in zip(Extra.__struct_fields__, Extra.__struct_defaults__, strict=True):
    if _field not in AccessTimes.__struct_fields__:
        setattr(AccessTimes, _field, _default)


class Entry(Packed, eq=False, gc=False):
    """A value under its keys, and the state of the work on it."""

    value: bytes | Cold
    domain: Domain
    extra: Extra = NOTHING
    """To be read; what is written to is ``own()``, or ``own_times()`` for the times in it."""
    state: int = EntryState.ABSENT
    """See ``entry_states``; assigned by ``move_to`` and ``move_all`` only."""
    run: bytes | None = None
    """Id of the job whose record carries the entry: the whole id, or its bytes before the arrival;
    None: the entry is not persistent."""

    def move_to(self, state: int, cause: Cause) -> None:
        """Assign the state, if it may follow the one so far for this cause."""
        assert state in cause[self.state], (self.key, self.state, state)
        self.state = state

    @staticmethod
    def move_all(entries: Iterable[Entry], state: int, cause: Cause) -> None:
        """Assign the state to entries, as ``move_to`` does.

        Without a call for each: over 1 % of a NEXT (tests.bench.bench_instructions).
        """
        for entry in entries:
            assert state in cause[entry.state], (entry.key, entry.state, state)
            entry.state = state

    def own(self) -> Extra:
        """Return its ``extra``, made if it had none, to be written to."""
        extra = self.extra
        if type(extra) is not Extra:
            extra = self.extra = Extra(extra.changed, extra.seen)
        return extra

    def own_times(self) -> Extra:
        """Return what has its ``changed`` and ``seen``, to be written to."""
        extra = self.extra
        if extra is NOTHING:
            extra = self.extra = cast(Extra, AccessTimes())
        return extra

    # --- facts ----------------------------------------------------------------------------------

    @property
    def journal(self) -> bool:
        """Whether the primary key is a journal key: NEXT hands it out."""
        return self.domain.name != b""

    @property
    def persistent(self) -> bool:
        """Whether a record carries it."""
        return self.run is not None

    @property
    def priority(self) -> int:
        """Priority from the primary key; 0 for a plain key."""
        return self.facts[PRIORITY_AT]

    @property
    def modified(self) -> int:
        """When its value or its primary key changed last."""
        return self.extra.changed or self.created

    @modified.setter
    def modified(self, instant: int) -> None:
        if self.journal:
            self.own().due = self.due
        self.own_times().changed = instant

    @property
    def due(self) -> int:
        """Since when it can be leased, or could until it was."""
        return self.extra.due or max(self.not_before, self.modified)

    @property
    def accessed(self) -> int:
        """When it was last read or delivered."""
        return self.extra.seen or self.created

    @accessed.setter
    def accessed(self, instant: int) -> None:
        self.own_times().seen = instant

    def reorder(self, priority: int, not_before: int) -> None:
        """Give it another place in the order of work, while it is in no list."""
        self.replace_facts(PRIORITY_AT, bytes((priority,)))
        self.not_before = not_before

    @property
    def delayed_until(self) -> int:
        """When it becomes ready, while it is delayed."""
        return self.extra.waits_until or self.not_before

    @property
    def delay_key(self) -> bytes:
        """Its key in the order of delays: that instant, and its arrival."""
        instant = self.extra.waits_until
        if instant:
            return _pack_instant(instant) + self.facts[ARRIVAL_AT:ORDER_BYTES]
        return self.facts[DELAY_KEY]

    # --- its record -----------------------------------------------------------------------------

    @property
    def job_id(self) -> bytes:
        """The id of the job whose record carries it; empty: there is none."""
        run = self.run
        if run is None:
            return b""
        if len(run) == JOB_ID_BYTES:
            return run
        return run + self.facts[JOB_ID_REST]

    # --- what few have --------------------------------------------------------------------------

    @property
    def token(self) -> int:
        """Lease token; 0: nobody works on it."""
        return self.extra.token

    @property
    def leased_until(self) -> int:
        """When its lease ends: at the token, unless a step of the clock moved that; 0: no lease."""
        return self.extra.leased_until

    @property
    def expires(self) -> int:
        """The instant at which it goes; 0: never."""
        return self.extra.expires

    @property
    def superseded(self) -> int:
        """The timestamp of the SET that took the URI while this was worked on; 0: none did."""
        return self.extra.superseded

    @property
    def links(self) -> list[bytes] | None:
        """Further keys, by LINK."""
        return self.extra.links

    @property
    def reason(self) -> bytes | None:
        """Why it is buried; None: it is not."""
        return self.extra.reason

    def is_missing(self, data: int, *, leases: bool) -> bool:
        """Whether a request needs its value (cache miss), which is on disk only.

        It needs it for ``data``, if that is not 0, or as it leases the entry for the 256th time:
        that attempt is of a new job, for workq.
        """
        return isinstance(self.value, Cold) and (
            bool(data) or (leases and self.extra.starts >= workq.ATTEMPTS_MAX)
        )

    # --- together -------------------------------------------------------------------------------

    def all_keys(self) -> list[bytes]:
        """Return the primary key and all further keys, also those that lead elsewhere by now."""
        keys = [self.key]
        if self.uri is not None:
            keys.append(self.uri)
        if self.extra.links:
            keys += self.extra.links
        return keys

    def full_bytes(self) -> int:
        """Return the size of its keys and its value: nearly that of its record."""
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
