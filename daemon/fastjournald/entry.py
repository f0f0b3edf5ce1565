"""One entry, as it stands in memory. All times are microseconds.

A daemon holds millions of these, so what an entry takes is counted in bytes. What each one has and
what few look at is packed into ``facts``, where a number takes 8 bytes and not 40; what only few
have is an object of its own, ``extra``. Properties lead to both.

``facts``, big endian: priority u8, not before u64, arrival u64, timestamp u64, created u64, value
type u8; and of an entry that a record carries: its position u72, its length u32.

So the facts of entries sort in the order of work, and are their keys there: the first three say
which is next, and change only while an entry is in no list.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import msgspec

from fastjournal.cmdlog.records import JOB_ID_BYTES
from fastjournal.protocol.constants import State
from fastjournal.protocol.messages import Meta
from fastjournald.indexes import Domain
from fastjournald.values import Cold

_FACTS = Struct(">BQQQQB")
_RECORD = Struct(">QBI")
ORDER_BYTES = 17
"""The part of them that says which entry is next."""
FACTS_BYTES = _FACTS.size
"""Without what is told of its record."""
RUN_KEPT_BYTES = 9
"""Of a job id, where the rest of it is the arrival."""
ARRIVAL_MAX = (1 << 8 * (JOB_ID_BYTES - RUN_KEPT_BYTES)) - 1
"""The largest one that such a job id has room for."""

pack_facts = _FACTS.pack
"""Takes priority, not before, arrival, timestamp, created and value type."""
unpack_facts = _FACTS.unpack_from
pack_record = _RECORD.pack
"""Takes the position of the record without its last byte, that byte, and its length."""
unpack_record = _RECORD.unpack_from
"""Returns these, at ``FACTS_BYTES``."""
_pack_u64 = Struct(">Q").pack
_u64_at = Struct(">Q").unpack_from

_NOT_BEFORE, _ARRIVAL, _TIMESTAMP, _CREATED, _VALUE_TYPE = 1, 9, 17, 25, 33
_JOB_ID_REST = _TIMESTAMP - (JOB_ID_BYTES - RUN_KEPT_BYTES)


class Place:
    """Which index of its domain an entry stands in (plain integers: they are compared often)."""

    PLAIN: Final = 0
    """In none: plain key/value data that nobody works on."""
    READY: Final = 1
    DELAYED: Final = 2
    """It waits for its instant, or for the end of other work on its URI."""
    LEASED: Final = 3
    BURIED: Final = 4


PLACE_NAMES = ("plain", "ready", "delayed", "worked on", "buried")


class Extra(msgspec.Struct, gc=False):
    """What an entry has that has more to tell than its value."""

    token: int = 0
    """Worked on until this instant, which is the lease token; 0: nobody works on it."""
    token_before: int = 0
    """The token of the lease before, which a lease must not repeat."""
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
    first_due: int = 0
    """When the work on its URI was first due that SETs put off since; 0: when it is due itself."""
    waits_until: int = 0
    """Where it is delayed beyond its own instant, by a lock or other work: until when; else 0."""


class _Nothing(Extra, frozen=True, gc=False):  # type: ignore[misc]
    """Extra is what it is to whoever reads it; it cannot be written to."""


NOTHING: Final[Extra] = _Nothing()
"""That of all entries that have nothing more to tell."""


class Entry(msgspec.Struct, eq=False, gc=False):
    """A value under its keys, and the state of the work on it."""

    facts: bytes
    key: bytes
    uri: bytes | None
    value: bytes | Cold
    domain: Domain
    changed: int = 0
    """When it was modified; 0: not since it was created."""
    seen: int = 0
    """When it was last read or handed out; 0: not since it was created."""
    extra: Extra = NOTHING
    """To be read; what is written to is ``own()``."""
    place: int = Place.PLAIN
    run: bytes | None = None
    """Of the id of the job whose record carries it: all, or what is before the arrival; None: the
    entry is not persistent."""

    def own(self) -> Extra:
        """Return its ``extra``, made if it had none, to be written to."""
        if self.extra is NOTHING:
            self.extra = Extra()
        return self.extra

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
        """That of its key; 0 of a plain key."""
        return self.facts[0]

    @property
    def not_before(self) -> int:
        """The instant before which it must not start; 0 of a plain key."""
        instant: int = _u64_at(self.facts, _NOT_BEFORE)[0]
        return instant

    @not_before.setter
    def not_before(self, instant: int) -> None:
        self._replace(_NOT_BEFORE, _pack_u64(instant))

    @property
    def arrival(self) -> int:
        """The serial number that orders entries of one priority and instant."""
        serial: int = _u64_at(self.facts, _ARRIVAL)[0]
        return serial

    @property
    def timestamp(self) -> int:
        """The instant of the last write, by the writer's clock."""
        instant: int = _u64_at(self.facts, _TIMESTAMP)[0]
        return instant

    @timestamp.setter
    def timestamp(self, instant: int) -> None:
        self._replace(_TIMESTAMP, _pack_u64(instant))

    @property
    def created(self) -> int:
        """When it was created, or the first one that it is the work of now."""
        instant: int = _u64_at(self.facts, _CREATED)[0]
        return instant

    @property
    def modified(self) -> int:
        """When its value or its primary key changed last."""
        return self.changed or self.created

    @modified.setter
    def modified(self, instant: int) -> None:
        self.changed = instant

    @property
    def accessed(self) -> int:
        """When it was last read or handed out."""
        return self.seen or self.created

    @accessed.setter
    def accessed(self, instant: int) -> None:
        self.seen = instant

    @property
    def value_type(self) -> int:
        """The protocol's number of its type."""
        return self.facts[_VALUE_TYPE]

    def reorder(self, priority: int, not_before: int) -> None:
        """Give it another place in the order of work, while it is in no list."""
        self._replace(0, bytes((priority,)) + _pack_u64(not_before))

    def _replace(self, at: int, data: bytes) -> None:
        facts = self.facts
        self.facts = facts[:at] + data + facts[at + len(data) :]

    # --- its record -----------------------------------------------------------------------------

    @property
    def job_id(self) -> bytes:
        """The id of the job whose record carries it; empty: there is none."""
        run = self.run
        if run is None:
            return b""
        if len(run) == JOB_ID_BYTES:
            return run
        return run + self.facts[_JOB_ID_REST:_TIMESTAMP]

    @property
    def position(self) -> int:
        """Where that record is in the log; 0: there is none."""
        return int.from_bytes(self.facts[FACTS_BYTES:-4], "big")

    @property
    def record_bytes(self) -> int:
        """The length of that record; 0: there is none."""
        return int.from_bytes(self.facts[FACTS_BYTES:][-4:], "big")

    def move_record(self, position: int) -> None:
        """The record is at another position by now."""
        record = pack_record(position >> 8, position & 0xFF, self.record_bytes)
        self.facts = self.facts[:FACTS_BYTES] + record

    # --- what few have --------------------------------------------------------------------------

    @property
    def token(self) -> int:
        """Worked on until this instant, which is the lease token; 0: nobody works on it."""
        return self.extra.token

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

    # --- together -------------------------------------------------------------------------------

    def all_keys(self) -> list[bytes]:
        """Return the primary key and all further keys, also those that lead elsewhere by now."""
        keys = [self.key]
        if self.uri is not None:
            keys.append(self.uri)
        if self.extra.links:
            keys += self.extra.links
        return keys

    def meta(self, *, locked: bool) -> Meta:
        """Return the metadata block."""
        state = State.LOCKED if locked else State(0)
        if self.persistent:
            state |= State.PERSISTENT
        if self.place == Place.BURIED:
            state |= State.BURIED
        if self.journal:
            state |= State.JOURNAL
        if self.domain.paused_until:
            state |= State.PAUSED
        priority, not_before, _, timestamp, created, _ = unpack_facts(self.facts)
        extra = self.extra
        return Meta(
            timestamp=timestamp,
            created=created,
            modified=self.changed or created,
            accessed=self.seen or created,
            expires=extra.expires,
            ttl=extra.ttl,
            worked_on_until=extra.token,
            not_before=not_before,
            priority=priority,
            state=int(state),
            attempts=min(extra.attempts, 0xFFFF),
        )
