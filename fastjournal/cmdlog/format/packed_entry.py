"""Packed header of an entry: its numbers in one bytes object, as replay and the daemon keep them.

There are millions of entries, and a number of its own takes 40 bytes in an object, 8 here. Big
endian: priority u8, not before u64, arrival u64, timestamp u64, created u64, value type u8; and of
an entry that a record carries: its position u72 (``cmdlog.format.layout``), its length u32. Times
are microseconds.

So the facts of entries of one domain sort in the order of work. These are 47 bytes: with one more,
the object takes 96 bytes instead of 80.
"""

from __future__ import annotations

from struct import Struct

import msgspec

_FACTS = Struct(">BQQQQB")
_RECORD = Struct(">QBI")
_FACTS_AND_RECORD = Struct(">BQQQQBQBI")
ORDER_BYTES = 17
"""The part of them that says which entry is next."""
FACTS_BYTES = _FACTS.size
"""Without the facts of its record."""
SEGMENT = slice(FACTS_BYTES, FACTS_BYTES + 4)
"""Place of the segment of its record."""
PRIORITY_AT = 0
ARRIVAL_AT = 9
SERIAL = slice(ARRIVAL_AT + 2, ARRIVAL_AT + 8)
"""Place of the last 6 bytes of arrival."""
DELAY_KEY = slice(1, ORDER_BYTES)
"""Not before and arrival: what entries are sorted by that wait for their instant."""

pack_facts = _FACTS.pack
"""Takes priority, not before, arrival, timestamp, created and value type."""
unpack_facts = _FACTS.unpack_from
pack_record = _RECORD.pack
"""Takes the position of the record without its last byte, that byte, and its length."""
unpack_record = _RECORD.unpack_from
"""Returns these, at ``FACTS_BYTES``."""
pack_facts_and_record = _FACTS_AND_RECORD.pack
not_before_of = Struct(">xQ").unpack_from
"""Takes facts; returns only not before, in a tuple."""
timestamp_of = Struct(">17xQ").unpack_from
"""Takes facts; returns only the timestamp, in a tuple."""
unpack_due = Struct(">BQ2x6s8xQ").unpack_from
"""Takes facts; returns priority, not before, the last 6 bytes of arrival, and created."""
_pack_u64 = Struct(">Q").pack
_u64_at = Struct(">Q").unpack_from

_NOT_BEFORE, _TIMESTAMP, _CREATED, VALUE_TYPE_AT = 1, 17, 25, 33
_LENGTH_BYTES = 4


class Packed(msgspec.Struct, gc=False):
    """An entry as its facts and its keys."""

    facts: bytes
    key: bytes
    uri: bytes | None

    @property
    def not_before(self) -> int:
        """The instant before which it must not start; 0 of a plain key."""
        instant: int = _u64_at(self.facts, _NOT_BEFORE)[0]
        return instant

    @not_before.setter
    def not_before(self, instant: int) -> None:
        self.replace_facts(_NOT_BEFORE, _pack_u64(instant))

    @property
    def arrival(self) -> int:
        """The serial number that orders entries of one priority and instant."""
        serial: int = _u64_at(self.facts, ARRIVAL_AT)[0]
        return serial

    @arrival.setter
    def arrival(self, serial: int) -> None:
        self.replace_facts(ARRIVAL_AT, _pack_u64(serial))

    @property
    def timestamp(self) -> int:
        """The instant of the last write, by the writer's clock."""
        instant: int = _u64_at(self.facts, _TIMESTAMP)[0]
        return instant

    @timestamp.setter
    def timestamp(self, instant: int) -> None:
        self.replace_facts(_TIMESTAMP, _pack_u64(instant))

    @property
    def created(self) -> int:
        """When it was created, or the first one that it is the work of now."""
        instant: int = _u64_at(self.facts, _CREATED)[0]
        return instant

    @property
    def value_type(self) -> int:
        """The protocol's number of its type."""
        return self.facts[VALUE_TYPE_AT]

    @property
    def position(self) -> int:
        """Where the record is in the log that carries it; 0: there is none."""
        return int.from_bytes(self.facts[FACTS_BYTES:-_LENGTH_BYTES], "big")

    @property
    def record_bytes(self) -> int:
        """The length of that record; 0: there is none."""
        return int.from_bytes(self.facts[FACTS_BYTES:][-_LENGTH_BYTES:], "big")

    def move_record(self, position: int) -> None:
        """Set the new position of the record."""
        record = pack_record(position >> 8, position & 0xFF, self.record_bytes)
        self.facts = self.facts[:FACTS_BYTES] + record

    def replace_facts(self, at: int, data: bytes) -> None:
        """Put other bytes into the facts."""
        facts = self.facts
        self.facts = facts[:at] + data + facts[at + len(data) :]
