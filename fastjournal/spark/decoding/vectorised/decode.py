"""Vectorised decoder: the fields of many log records at once, as arrays of numbers and offsets.

A ``RecordArrays`` holds neighbouring records of one segment. It finds the fields of jobs, results,
envelopes and of the operations that lead a group (lease, batch) or give a job one more key (link)
when a column asks for them. It decodes envelopes field by field, each of all envelopes. A record of
any other form, such as a job of workq's own or another operation, is in ``irregular``: the decoder
of single records decodes it.

Layouts: ``cmdlog.format.layout``, ``cmdlog.format.envelope``, ``cmdlog.format.operation_records``.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np

from fastjournal.cmdlog.format.endings import SERIAL_MAX
from fastjournal.cmdlog.format.envelope import MAGIC, MAGIC_BYTES, Envelope
from fastjournal.cmdlog.format.layout import (
    CRC_BYTES,
    FIELDS_AT,
    JOB_ID_AT,
    JOB_ID_BYTES,
    SHORT_FIELD_AT,
    SHORT_MAX,
    SIMPLE_BODY_BYTES,
    TIME_BYTES,
    Command,
)
from fastjournal.cmdlog.format.operation_records import Lease
from fastjournal.limits import PRIORITY_MAX
from fastjournal.spark.decoding.byte_arrays import (
    END_BYTES,
    NIL,
    ByteStrings,
    Instants,
    Integers,
    Mask,
    Numbers,
    Offsets,
    SegmentBytes,
    Unsigned,
)


class JobFields(NamedTuple):
    """Fields of the add and schedule records, an item each."""

    rows: Offsets
    """Their indices among the records."""
    name: ByteStrings
    ttr_ms: Integers
    ttl_ms: Integers
    priority: Integers
    """Zig-zag."""
    max_attempts: Integers
    max_fails: Integers
    payload: ByteStrings
    not_before: Instants
    created: Instants
    valid: Mask
    """Whether all fields have the usual form and fill the record."""


class ResultFields(NamedTuple):
    """Results of the complete and fail records."""

    rows: Offsets
    result: ByteStrings
    ours: Mask
    content: ByteStrings
    """Key of a completion, or its domain where it leaves no tombstone; reason of a failure."""
    timestamp: Unsigned
    """Timestamp of a completion."""
    tombstone: Mask
    """It is a completion that leaves a tombstone."""
    priority: Unsigned
    """Priority of a completion that leaves none."""
    valid: Mask


class EntryFields(NamedTuple):
    """Fields of the envelopes, an item each."""

    rows: Offsets
    fields: dict[str, Integers | ByteStrings]
    """Where an envelope is shorter: 0, nil or empty. No envelope has a field that is not here."""
    links: Links
    """Further keys in the envelopes."""
    valid: Mask


class Links(NamedTuple):
    """Byte strings that some records have several of, in the order of records and of each list."""

    of: Offsets
    """Number of the item that each one belongs to."""
    start: Offsets
    end: Offsets


class LinkOperations(NamedTuple):
    """Operations that give a job one more key."""

    rows: Offsets
    job_id: Offsets
    """Offset of the id of that job."""
    key: ByteStrings


class Heads(NamedTuple):
    """Operations that lead a group: lease and batch."""

    rows: Offsets
    lease: Mask
    following: Numbers
    token: Unsigned


INT32_MAX = 2**31 - 1
_EMPTY_ARRAY = 0x90
_SHORT_ARRAY_MAX = 15
_FALSE, _TRUE = 0xC2, 0xC3

ENVELOPE_FIELDS = Envelope.__struct_fields__
_FIELDS_MIN = len(ENVELOPE_FIELDS) - len(Envelope.__struct_defaults__)
"""Fields of the shortest envelope: those without a default."""
_BYTES, _OPTIONAL, _NONE_YET, _LIST, _BYTE, _NUMBER, _FLAG = range(7)
_KINDS = {
    "key": _BYTES, "uri": _OPTIONAL, "links": _LIST, "value_type": _BYTE, "value": _BYTES,
    "reason": _OPTIONAL, "taken": _NONE_YET, "erases": _FLAG, "error": _OPTIONAL,
}  # fmt: skip
"""Forms of the fields of an envelope; the others are numbers. ``_NONE_YET``: an empty array.
``_LIST``: an array of up to 15 byte strings."""


def decode_envelopes(
    segment: SegmentBytes, rows: Offsets, at: Offsets, stop: Offsets, last_field: int
) -> EntryFields:
    """Return the fields of envelopes.

    Args:
        segment: Bytes of the segment.
        rows: Indices of their records among the records.
        at: Where their arrays begin.
        stop: Offsets after them.
        last_field: Number of the last requested field; all: the length is checked, too.
    """
    first = segment.byte(at)
    is_long = first == 0xDC
    count = np.where(is_long, segment.byte(at + 2), first.astype(np.int64) - _EMPTY_ARRAY)
    valid = np.where(is_long, segment.byte(at + 1) == 0, count <= _SHORT_ARRAY_MAX)
    valid &= (count >= _FIELDS_MIN) & (count <= len(ENVELOPE_FIELDS))
    at = at + np.where(is_long, 3, 1)
    fields: dict[str, Integers | ByteStrings] = {}
    links = _NO_LINKS
    for index, name in enumerate(ENVELOPE_FIELDS[: last_field + 1]):
        there = count > index
        if index >= _FIELDS_MIN and not there.any():
            break
        field: Integers | ByteStrings
        if _KINDS.get(name) == _LIST:
            # those of all envelopes, one after the other
            links, field = _decode_lists(segment, at)
            right = field.valid
        else:
            field, right = _decode_field(segment, name, at)
        if not there.all():
            right = right | ~there
            field = _defaulted(field, there, at)
        valid &= right
        at = field.end
        fields[name] = field
    valid &= at == stop if last_field >= len(ENVELOPE_FIELDS) else at <= stop
    return EntryFields(rows, fields, links, valid)


_NO_LINKS = Links(*(np.zeros(0, np.int64) for _ in range(3)))


def _decode_lists(segment: SegmentBytes, at: Offsets) -> tuple[Links, ByteStrings]:
    """Return the byte strings in the lists of all envelopes, and the places of these lists."""
    count = segment.byte(at).astype(np.int64) - _EMPTY_ARRAY
    right = (count >= 0) & (count <= _SHORT_ARRAY_MAX)
    end = at + 1
    found = []
    for index in range(int(count[right].max(initial=0))):
        rows = np.flatnonzero(right & (count > index))
        one = segment.msgpack_bytes(end[rows])
        right[rows] &= one.valid & ~one.nils
        found.append((rows, one.start, one.end))
        end[rows] = one.end
    place = ByteStrings(at, end, right)
    if not found:
        return _NO_LINKS, place
    of, start, behind = (np.concatenate(column) for column in zip(*found, strict=True))
    order = np.lexsort((start, of))
    # without those of lists that turned out to have another form
    order = order[right[of[order]]]
    return Links(of[order], start[order], behind[order]), place


def _decode_field(
    segment: SegmentBytes, name: str, at: Offsets
) -> tuple[Integers | ByteStrings, Mask]:
    """Return a field of all envelopes, and where it has the usual form."""
    kind = _KINDS.get(name, _NUMBER)
    first = segment.byte(at)
    if kind in (_BYTES, _OPTIONAL):
        found = segment.msgpack_bytes(at)
        return found, found.valid if kind == _OPTIONAL else found.valid & (first != NIL)
    if kind == _NONE_YET:
        return ByteStrings(at + 1, at + 1, first == _EMPTY_ARRAY), first == _EMPTY_ARRAY
    if kind == _FLAG:
        return ByteStrings(at + 1, at + 1, first <= _TRUE), (first == _FALSE) | (first == _TRUE)
    number = segment.msgpack_integers(at)
    bounds = {"value_type": 255, "arrival": SERIAL_MAX, "attempts": INT32_MAX, "origin": 255}
    right = number.valid
    if name in bounds:
        right = right & (number.numbers <= bounds[name])
    return number, right


def _defaulted(field: Integers | ByteStrings, there: Mask, at: Offsets) -> Integers | ByteStrings:
    """Return a field with its default, which is 0, empty or none, where it is not there."""
    if isinstance(field, Integers):
        return Integers(
            np.where(there, field.numbers, 0).astype(np.uint64),
            np.where(there, field.end, at),
            field.valid | ~there,
        )
    return ByteStrings(
        np.where(there, field.start, at),
        np.where(there, field.end, at),
        field.valid | ~there,
        ~there if field.none is None else field.none | ~there,
    )


_MAGIC = np.uint32(int.from_bytes(MAGIC, "big"))
_TAG_BYTES = 7
"""The head of an operation's array, and its tag of five letters with its length."""
_TAG_MASK = np.uint64((1 << 8 * (_TAG_BYTES - 1)) - 1)
LEASE = np.uint64(int.from_bytes(b"\xa5lease", "big"))
END = np.uint32(int.from_bytes(b"\xa3end", "big"))
BATCH = np.uint64(int.from_bytes(b"\xa5batch", "big"))
_LINK_HEAD = b"\x93\xa4link\xc4" + bytes((JOB_ID_BYTES,))
"""How the array of a link operation begins, up to the id of its job: 8 bytes."""
_LINK = np.uint64(int.from_bytes(_LINK_HEAD, "big"))
_LEASE_ITEMS = 1 + len(Lease.__struct_fields__)


class RecordArrays:
    """Neighbouring valid records of a segment.

    Args:
        segment: Its bytes.
        start: Offsets of the records.
        body: Offsets of their bodies.
        end: Offsets after their bodies, so of their checksums.
        last_field: Number of the last requested field of an envelope: later ones are not decoded.
            All: the length of each envelope is checked, too.
    """

    def __init__(
        self,
        segment: SegmentBytes,
        start: Offsets,
        body: Offsets,
        end: Offsets,
        last_field: int = len(ENVELOPE_FIELDS),
    ) -> None:
        self.segment = segment
        self.start = start
        self.body = body
        self.end = end
        self.behind = end + CRC_BYTES
        self.last_field = last_field
        self.command = segment.byte(body)
        bad = (self.command < Command.ADD) | (self.command > Command.TIMEOUT_ATTEMPT)
        bad |= (self.command >= Command.DELETE) & (end - body != SIMPLE_BODY_BYTES)
        self.is_start = (self.command == Command.START_ATTEMPT) & ~bad
        """Start-attempts."""
        self.irregular = bad | (self.behind > segment.size - END_BYTES)
        """Records that have to be decoded one by one; grows with the decoded fields."""

    def __len__(self) -> int:
        return len(self.start)

    def decode(self, *, contents: bool, operations: bool) -> None:
        """Decode as much as columns need, so that ``irregular`` is complete.

        Args:
            contents: Fields of jobs and results; and of envelopes, if ``last_field`` is not -1.
            operations: Operations that lead a group.
        """
        parts = ["times"]
        if contents:
            parts += ["jobs", "results"]
        if operations:
            parts.append("heads")
        if self.last_field >= 0:
            parts.append("entries")
        for part in parts:
            getattr(self, part)

    @cached_property
    def times(self) -> Instants:
        """Times of the records."""
        times = self.segment.times(self.start)
        self.irregular |= ~times.valid
        return times

    @cached_property
    def jobs(self) -> JobFields:
        """Fields of the add and schedule records."""
        segment = self.segment
        is_job = (self.command == Command.ADD) | (self.command == Command.SCHEDULE)
        rows = np.flatnonzero(is_job)
        body, end = self.body[rows], self.end[rows]
        name_bytes = segment.byte(body + FIELDS_AT).astype(np.int64)
        valid = name_bytes <= SHORT_MAX
        at = body + SHORT_FIELD_AT
        name = ByteStrings(at, at + name_bytes, valid)
        numbers: list[Integers] = []
        at = name.end
        for _ in range(6):
            number = segment.uvarints(at)
            valid = valid & number.valid
            at = number.end
            numbers.append(number)
        ttr_ms, ttl_ms, priority, max_attempts, max_fails, length = numbers
        small = (max_attempts.numbers <= INT32_MAX) & (max_fails.numbers <= INT32_MAX)
        small &= length.numbers <= segment.size
        stop = at + np.where(small, length.numbers, 0).astype(np.int64)
        valid &= small & (stop + 2 * TIME_BYTES == end)
        not_before = segment.times(stop)
        created = segment.times(stop + TIME_BYTES)
        valid &= not_before.valid & created.valid
        self.irregular[rows[~valid]] = True
        payload = ByteStrings(at, stop, valid)
        return JobFields(
            rows,
            name,
            ttr_ms,
            ttl_ms,
            priority,
            max_attempts,
            max_fails,
            payload,
            not_before,
            created,
            valid,
        )

    def _is_ours(self, slices: ByteStrings) -> Mask:
        at = slices.start
        starts: Mask = (self.segment.unsigned32(at) >> np.uint32(8)) == _MAGIC
        return starts & (slices.end - slices.start >= MAGIC_BYTES) & slices.valid

    @cached_property
    def _operations(self) -> Mask:
        """Which of the jobs are operations."""
        jobs = self.jobs
        is_named = self.segment.are_operations(self.body[jobs.rows] + FIELDS_AT)
        return is_named & self._is_ours(jobs.payload)

    @cached_property
    def link_operations(self) -> LinkOperations:
        """Operations that give a job one more key."""
        segment, jobs = self.segment, self.jobs
        chosen = np.flatnonzero(self._operations)
        at = jobs.payload.start[chosen] + MAGIC_BYTES
        is_link = segment.unsigned64(at) == _LINK
        chosen, job_id = chosen[is_link], at[is_link] + len(_LINK_HEAD)
        key = segment.msgpack_bytes(job_id + JOB_ID_BYTES)
        regular = key.valid & ~key.nils & (key.end == jobs.payload.end[chosen])
        place = ByteStrings(key.start[regular], key.end[regular], regular[regular])
        return LinkOperations(jobs.rows[chosen[regular]], job_id[regular], place)

    @cached_property
    def target(self) -> Offsets:
        """Offset of the id of the job that a record is about."""
        at: Offsets = self.body + JOB_ID_AT
        at[self.link_operations.rows] = self.link_operations.job_id
        return at

    @cached_property
    def heads(self) -> Heads:
        """Operations that lead a group; except links, all other operations are irregular."""
        segment, jobs = self.segment, self.jobs
        chosen = np.flatnonzero(self._operations)
        rows = jobs.rows[chosen]
        at = jobs.payload.start[chosen] + MAGIC_BYTES
        end = jobs.payload.end[chosen]
        count = segment.byte(at)
        tag = tags_at(segment, at + 1)
        is_lease = (tag == LEASE) & (count == _EMPTY_ARRAY + _LEASE_ITEMS)
        is_batch = (tag == BATCH) & (count == _EMPTY_ARRAY + 2)
        following = segment.msgpack_integers(at + _TAG_BYTES)
        token = segment.msgpack_integers(following.end)
        flags = segment.byte(token.end)
        bound = segment.msgpack_integers(token.end + 1)
        facts = segment.msgpack_bytes(bound.end)
        is_lease &= token.valid & ((flags == _FALSE) | (flags == _TRUE)) & bound.valid
        is_lease &= facts.valid & ~facts.nils
        priorities = segment.msgpack_bytes(facts.end)
        attempts = segment.msgpack_bytes(priorities.end)
        is_lease &= priorities.valid & ~priorities.nils & attempts.valid & ~attempts.nils
        # a lease in one domain, as most are, or a copy
        domains = segment.byte(attempts.end)
        name = segment.msgpack_bytes(attempts.end + 1)
        number = segment.msgpack_integers(name.end)
        has_one = (domains == _EMPTY_ARRAY + 2) & name.valid & ~name.nils & number.valid
        is_lease &= has_one | (domains == _EMPTY_ARRAY)
        since = segment.msgpack_integers(np.where(has_one, number.end, attempts.end + 1))
        behind = np.where(is_lease, since.end, following.end)
        regular = (is_lease & since.valid) | is_batch
        regular &= following.valid & (following.numbers <= INT32_MAX) & (behind == end)
        regular_links = np.isin(rows, self.link_operations.rows, assume_unique=True)
        self.irregular[rows[~regular & ~regular_links]] = True
        return Heads(
            rows[regular],
            is_lease[regular],
            following.numbers[regular].astype(np.int64),
            token.numbers[regular],
        )

    @cached_property
    def results(self) -> ResultFields:
        """Results of the complete and fail records, with what fastjournald wrote into them."""
        segment = self.segment
        rows = np.flatnonzero((self.command == Command.COMPLETE) | (self.command == Command.FAIL))
        length = segment.uvarints(self.body[rows] + FIELDS_AT)
        small = length.numbers <= segment.size
        stop = length.end + np.where(small, length.numbers, 0).astype(np.int64)
        valid = length.valid & small & (stop == self.end[rows])
        result = ByteStrings(length.end, stop, valid)
        ours = self._is_ours(result)
        is_completion = self.command[rows] == Command.COMPLETE
        at = result.start + MAGIC_BYTES
        count = segment.byte(at)
        lays = is_completion & (segment.byte(at + 1) != NIL)
        timestamp = segment.msgpack_integers(at + 1)
        content = segment.msgpack_bytes(
            np.where(lays, timestamp.end, at + 1 + (is_completion & ~lays))
        )
        # a completion continues with facts and priority, a failure with domain, priority and facts
        third = segment.msgpack_bytes(content.end)
        priority = segment.msgpack_integers(third.end)
        fourth = segment.msgpack_bytes(priority.end)
        is_short = is_completion & (count == _EMPTY_ARRAY + 3)
        behind = np.where(is_short, third.end, np.where(is_completion, priority.end, fourth.end))
        regular = is_short | (count == _EMPTY_ARRAY + 4)
        for field, there in ((content, True), (third, True), (fourth, ~is_completion)):
            regular &= (field.valid & ~field.nils) | ~np.asarray(there)
        regular &= is_short | (priority.valid & (priority.numbers <= PRIORITY_MAX))
        regular &= (timestamp.valid | ~lays) & (behind == result.end)
        valid = valid & (regular | ~ours)
        self.irregular[rows[~valid]] = True
        ours = ours & valid
        zeros = np.zeros(len(rows), np.uint64)
        return ResultFields(
            rows,
            result,
            ours,
            content,
            timestamp.numbers,
            ours & lays,
            np.where(is_short, zeros, priority.numbers),
            valid,
        )

    @cached_property
    def entries(self) -> EntryFields:
        """Fields of the envelopes, up to the last one that is asked for."""
        jobs = self.jobs
        ours = self._is_ours(jobs.payload)
        self.irregular[jobs.rows[~ours]] = True
        chosen = ours & ~self._operations
        at = jobs.payload.start[chosen] + MAGIC_BYTES
        found = decode_envelopes(
            self.segment, jobs.rows[chosen], at, jobs.payload.end[chosen], self.last_field
        )
        self.irregular[found.rows[~found.valid]] = True
        return found


def tags_at(segment: SegmentBytes, at: Offsets) -> Unsigned:
    """Return the tags of operations, of five letters with their length; see ``LEASE``."""
    return segment.unsigned64(at - 2) & _TAG_MASK
