"""Segment chain: checks that each sealed segment exists and is whole, by the records of the log.

The first record of a segment names the one before it, with its size and CRC-32C when it was sealed.
Compaction and repair record new ones of a segment *before* they replace it, and again afterwards:
between the two a crash leaves either content. The removal of a segment is also recorded before it.
So a segment that is missing, that was cut, even at a record boundary, or that is an older copy, is
detected. No later segment has the size of the last one.

The first record also shows that a file is a copy of another segment, even for the last one: a new
segment names the last one that exists. So that has a lower number, and there is none between the
two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from fastjournal.cmdlog.format.layout import Command, segment_name
from fastjournal.cmdlog.format.operation_records import (
    SegmentRemoved,
    SegmentRewritten,
    SegmentStart,
    unpack_content,
)
from fastjournal.cmdlog.format.records import decode_record, is_operation
from fastjournal.cmdlog.recovery.scan import SegmentScan
from fastjournal.errors import LogCorruptError

ChainRecord: TypeAlias = SegmentStart | SegmentRewritten | SegmentRemoved


class Seal(NamedTuple):
    """Size and checksum of a sealed segment."""

    bytes: int
    crc32c: int
    """CRC-32C of the whole file."""


class Break(NamedTuple):
    """A segment that is not as the records say."""

    number: int
    missing: bool
    """Whether it is not there at all."""
    message: str


def segment_start(data: bytes, scan: SegmentScan) -> SegmentStart | None:
    """Return the first valid record of a segment; None: it is another, or cannot be decoded.

    Damage may be before it: a repair removes that.

    Args:
        data: The segment.
        scan: Scan of it.
    """
    if not scan.runs:
        return None
    first = scan.runs[0]
    body = first.bodies[0]
    if data[body] != Command.ADD or not is_operation(data, body):
        return None
    try:
        operation = unpack_content(decode_record(data, first.start)[0])
    except LogCorruptError:
        return None
    return operation if isinstance(operation, SegmentStart) else None


class Chain:
    """Statements of records about the segments of a log, taken in the order of the log."""

    def __init__(self) -> None:
        self.previous: dict[int, int] = {}
        """Segment number to the number of the segment before it, as its first record says."""
        self.removed: set[int] = set()
        """Numbers of segments that compaction unlinked."""
        self.seals: dict[int, list[Seal]] = {}
        """Segment number to its valid seals, of which it must have one."""
        self.told_in: dict[int, set[int]] = {}
        """Segment number to the segments with records ``rewritten`` about it."""
        self.sealed_as: dict[int, tuple[int, int]] = {}
        """Segment number to size and CRC-32C when it was sealed, by the next segment."""

    def take(self, segment: int, record: ChainRecord) -> None:
        """Take a record of a segment."""
        if isinstance(record, SegmentStart):
            if segment in self.previous:
                # only the first record of a segment has this: damage has put another one there
                return
            self.previous[segment] = record.previous
            if record.bytes:
                self.seals[record.previous] = [Seal(record.bytes, record.crc32c)]
                self.sealed_as[record.previous] = (record.bytes, record.crc32c)
        elif isinstance(record, SegmentRemoved):
            self.removed.add(record.number)
            self.seals.pop(record.number, None)
        else:
            # a crash came after the record of its removal and before the removal
            self.removed.discard(record.number)
            self.told_in.setdefault(record.number, set()).add(segment)
            before = [] if record.done else self.seals.get(record.number, [])
            self.seals[record.number] = [*before, Seal(record.bytes, record.crc32c)]

    def copies(self, present: Mapping[int, Seal]) -> Iterator[Break]:
        """Yield the segments that are copies of others, for who has not asked ``segment_start``.

        Args:
            present: Segments that are there, by number.
        """
        for number, previous in sorted(self.previous.items()):
            why = why_misplaced(number, previous, present)
            if why:
                yield Break(number, missing=False, message=why)

    def breaks(self, present: Mapping[int, Seal]) -> Iterator[Break]:
        """Yield the segments that are missing or differ, ascending.

        Args:
            present: Segments that are there, by number.
        """
        there = {0, *present} | self.removed
        missing = {number for number in self.previous.values() if number not in there}
        missing |= {number for number in self.seals if number not in there}
        for number in sorted(missing | {*self.seals} & {*present}):
            if number in missing:
                yield Break(number, missing=True, message=self._missing(number))
                continue
            seals, found = self.seals[number], present[number]
            if found not in seals:
                yield Break(number, missing=False, message=_differs(found, seals[-1]))

    def namer(self, number: int) -> int | None:
        """Return the segment that names this one as the one before it; None: there is none."""
        return next((other for other, named in self.previous.items() if named == number), None)

    def _missing(self, number: int) -> str:
        namer = self.namer(number)
        if namer is None:
            return "the segment is missing: it was there when the one behind it was removed"
        return f"the segment is missing: {segment_name(namer)} names it as the one before"


def why_misplaced(number: int, previous: int, present: Iterable[int]) -> str:
    """Return why a file must be a copy of another segment; empty: nothing says so.

    Args:
        number: In its name.
        previous: Number of the segment that its first record names as the one before; 0: none.
        present: Numbers of all segments.
    """
    if previous < number and not any(previous < other < number for other in present):
        return ""
    names = f"names {segment_name(previous)} as the one before" if previous else "names none before"
    return f"this is a copy of another segment: its first record {names} it"


def _differs(found: Seal, sealed: Seal) -> str:
    if found.bytes < sealed.bytes:
        return f"the segment has {found.bytes} bytes, it had {sealed.bytes}: its end is missing"
    return (
        f"this is not the segment that was sealed, but perhaps an older copy: {found.bytes} bytes"
        f" with checksum {found.crc32c:08x}, not {sealed.bytes} with {sealed.crc32c:08x}"
    )
