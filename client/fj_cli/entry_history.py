"""History of one entry in a command log: its records, found by its keys and its job ids.

A segment is searched for these bytes, and only the records with a match are decoded, so the search
reads a log about as fast as its disk does. Compaction removes dead records, so the history of a
deleted entry ends when its records are removed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress

import msgspec

from fastjournal.cmdlog.format import endings
from fastjournal.cmdlog.format.endings import unpack_ending
from fastjournal.cmdlog.format.envelope import (
    ORIGIN_AGAIN,
    ORIGIN_KICK,
    ORIGIN_UNDELIVERED,
    Completion,
    Envelope,
    Failure,
)
from fastjournal.cmdlog.format.layout import CRC_BYTES, Command, segment_name
from fastjournal.cmdlog.format.operation_records import (
    Change,
    Content,
    Delay,
    End,
    Erasure,
    Extend,
    Failed,
    Lease,
    Limit,
    Link,
    Operation,
    Pause,
    Rename,
    Resize,
    Tombstone,
    Touch,
    Value,
    unpack_content,
)
from fastjournal.cmdlog.format.records import Record, decode_body
from fastjournal.cmdlog.recovery.scan import scan_segment
from fastjournal.cmdlog.recovery.segment_reader import read_segment
from fastjournal.disk import Disk
from fastjournal.errors import LogCorruptError
from fastjournal.keys import parse_journal_key
from fastjournal.limits import INSTANT_US_MAX
from fj_cli.output import show_bytes

_GROUP_LOOKS_MAX = 500
"""Records before the start of an attempt among which the head of its lease is: those of a NEXT."""

_ENDINGS = {
    endings.COMPLETED: "completed",
    endings.POPPED: "delivered and deleted",
    endings.DELETED: "deleted",
    endings.PURGED: "purged",
    endings.EXPIRED: "expired",
    endings.REPLACED_BY_URI: "replaced",
    endings.REPLACED_UNLOGGED: "replaced",
}
_LEASE_ENDS = {endings.LEASE_LOST: "lease lost", endings.LEASE_RETURNED: "lease released"}


class HistoryEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of an entry, or of its domain."""

    time_us: int | None
    what: str
    """``set``, ``leased``, ``failed``, ``completed`` and so on."""
    key: bytes = b""
    """Key of the entry, where that is known; empty for an event of the domain."""
    until_us: int | None = None
    """End of a lease, a delay or a pause."""
    text: str = ""
    """A reason, an error or a count."""
    segment: str
    offset: int


def entry_history(
    disk: Disk, directory: str, numbers: list[int], key: bytes, domain: bytes | None
) -> Iterator[HistoryEvent]:
    """Yield the events of the entries under a key, or with it as URI or link, oldest first.

    Args:
        disk: Where the log is.
        directory: Directory of a log or a snapshot, locked for reading.
        numbers: Its segments.
        key: Any key.
        domain: Pauses and limits of this domain are events too, as are pauses of everything; None:
            those of the key's domain.

    Raises:
        LogFailedError: A segment cannot be read.
    """
    parts = parse_journal_key(key)
    if domain is None and parts is not None:
        domain = parts.domain
    search = _HistorySearch(key, domain)
    for number in numbers:
        data, _ = read_segment(disk, f"{directory}/{segment_name(number)}")
        yield from search.events_of(data, segment_name(number))


class _HistorySearch:
    """Keys and job ids that lead to records of the entry, as they become known."""

    def __init__(self, key: bytes, domain: bytes | None) -> None:
        self._key = key
        self._domain = domain
        self._jobs: dict[bytes, Envelope] = {}
        """By job id, the entry that a record with it carries."""

    def events_of(self, data: bytes, segment: str) -> Iterator[HistoryEvent]:
        spans = list(scan_segment(data).spans())
        starts = [offset for offset, _, _ in spans]
        for place in self._matches(data, spans, starts):
            offset, body, end = spans[place]
            record = _decoded(data, offset, body, end)
            if record is not None:
                token = _token_before(data, spans, place, record)
                taken = _uri_taken(data, spans, place, record)
                for event in self._events_of(record, token):
                    text = event.text
                    if event.what in ("set", "replaced"):
                        text = "; ".join(filter(None, (text, taken)))
                    yield msgspec.structs.replace(event, text=text, segment=segment, offset=offset)

    def _matches(
        self, data: bytes, spans: list[tuple[int, int, int]], starts: list[int]
    ) -> list[int]:
        """Return the places of records that name the entry, in order."""
        wanted = [self._key, *self._jobs]
        if self._domain is not None:
            wanted += _names_of_domain(self._domain)
        found: set[int] = set()
        while wanted:
            places = set(_places(data, wanted.pop(), starts, len(data))) - found
            found |= places
            for place in sorted(places):
                record = _decoded(data, *spans[place])
                if record is not None and record.job_id not in self._jobs:
                    envelope = self._envelope_of(record)
                    if envelope is not None:
                        self._jobs[record.job_id] = envelope
                        wanted.append(record.job_id)
        return sorted(found)

    def _envelope_of(self, record: Record) -> Envelope | None:
        """Return the entry that a record carries, if it is the one that is searched for."""
        envelope = _content_of(record)
        if not isinstance(envelope, Envelope):
            return None
        keys = (envelope.key, envelope.uri, *envelope.links)
        return envelope if self._key in keys else None

    def _events_of(self, record: Record, token: int | None) -> Iterator[HistoryEvent]:
        envelope = self._envelope_of(record)
        if envelope is not None:
            yield self._written(record, envelope)
            return
        content = _content_of(record)
        if record.command <= Command.SCHEDULE:
            if content is not None and not isinstance(content, Envelope | Completion | Failure):
                yield from self._of_operation(record, content)
            return
        known = self._jobs.get(record.job_id)
        if known is None:
            return
        key = known.key
        match content:
            case None if record.command is Command.START_ATTEMPT:
                yield _event(record, "leased", key=key, until_us=token)
            case Failure(reason=reason, facts=facts):
                yield from _ended(record, facts, key)
                if not endings.is_rewrite(facts):
                    yield _event(record, "buried", key=key, text=show_bytes(reason))
            case Completion(facts=facts):
                yield from _ended(record, facts, key)

    def _written(self, record: Record, entry: Envelope) -> HistoryEvent:
        due = entry.not_before if entry.not_before > (record.time_us or 0) else None
        what, text = "set", ""
        if entry.origin == ORIGIN_KICK:
            what = "kicked"
        elif entry.origin == ORIGIN_UNDELIVERED:
            what = "came back undelivered"
        elif entry.origin == ORIGIN_AGAIN:
            what = "written again"
            text = f"buried: {show_bytes(entry.reason)}" if entry.reason is not None else ""
        elif 0 < entry.first_due < entry.not_before:
            text = "put off: newer work of the same URI"
        return _event(record, what, key=entry.key, until_us=due, text=text)

    def _of_operation(self, record: Record, operation: Operation) -> Iterator[HistoryEvent]:
        if isinstance(operation, Tombstone | Erasure):
            if operation.key == self._key:
                what = "tombstone" if isinstance(operation, Tombstone) else "tombstone erased"
                yield _event(record, what, key=operation.key)
        elif isinstance(operation, Pause | Limit):
            event = self._of_domain(record, operation)
            if event is not None:
                yield event
        elif isinstance(operation, Change) and operation.job_id in self._jobs:
            key = self._jobs[operation.job_id].key
            if isinstance(operation, End):
                yield from _ended(record, operation.facts, key)
            else:
                yield _change(record, operation, key)

    def _of_domain(self, record: Record, operation: Pause | Limit) -> HistoryEvent | None:
        of_all = not operation.domain and self._domain is not None
        if operation.domain != self._domain and not of_all:
            return None
        if isinstance(operation, Pause):
            what = "all domains" if of_all else "domain"
            if not operation.until:
                return _event(record, f"{what} resumed")
            until = operation.until if operation.until <= INSTANT_US_MAX else None
            return _event(record, f"{what} paused", until_us=until)
        text = f"interval {operation.interval_us / 1e6:g} s, jobs {operation.jobs}"
        return _event(record, "domain limited", text=text)


def _ended(record: Record, packed: bytes, key: bytes) -> Iterator[HistoryEvent]:
    """Yield the end of a lease, and that of an entry, as the facts of a record say."""
    facts = unpack_ending(packed, record.time_us or 0)
    if facts.lease_end in _LEASE_ENDS:
        yield _event(record, _LEASE_ENDS[facts.lease_end], key=key)
    what = _ENDINGS.get(facts.how)
    if endings.REPLACED <= facts.how < endings.REWRITTEN:
        what = "replaced"
    if what is not None:
        yield _event(record, what, key=key)


def _change(
    record: Record,
    operation: Extend | Touch | Delay | Failed | Value | Resize | Link | Rename,
    key: bytes,
) -> HistoryEvent:
    match operation:
        case Extend(end=end) if end:
            return _event(record, "lease moved with the clock", key=key, until_us=end)
        case Extend():
            return _event(record, "lease renewed", key=key, until_us=operation.token)
        case Touch():
            return _event(record, "expiry moved", key=key, until_us=operation.expires or None)
        case Delay():
            return _event(record, "delayed", key=key, until_us=operation.not_before)
        case Failed():
            text = f"attempt {operation.attempts}: {show_bytes(operation.error)}"
            return _event(record, "failed", key=key, text=text)
        case Value():
            return _event(record, "value changed", key=key)
        case Resize():
            return _event(record, "value resized", key=key, text=f"{operation.size} bytes")
        case Link():
            return _event(record, "linked", key=key, text=show_bytes(operation.key))
        case Rename():
            return _event(record, "renamed", key=key, text=show_bytes(operation.key))


def _event(
    record: Record, what: str, *, key: bytes = b"", until_us: int | None = None, text: str = ""
) -> HistoryEvent:
    return HistoryEvent(
        time_us=record.time_us,
        what=what,
        key=key,
        until_us=until_us,
        text=text,
        segment="",
        offset=0,
    )


def _names_of_domain(domain: bytes) -> list[bytes]:
    """Return the bytes that a Pause or Limit of a domain begins with, as msgpack has them.

    And a Pause of everything, which has no name.
    """
    named = ("pause", domain), ("limit", domain), ("pause", b"")
    return [msgspec.msgpack.encode(tag) + msgspec.msgpack.encode(name) for tag, name in named]


def _places(data: bytes, wanted: bytes, starts: list[int], end: int) -> Iterator[int]:
    """Yield the places of the records in which bytes occur."""
    at = data.find(wanted)
    while at >= 0:
        place = bisect_right(starts, at) - 1
        if place >= 0:
            yield place
        following = starts[place + 1] if place + 1 < len(starts) else end
        at = data.find(wanted, max(following, at + 1))


def _decoded(data: bytes, offset: int, body: int, end: int) -> Record | None:
    try:
        return decode_body(data, offset, body, end - CRC_BYTES)
    except LogCorruptError:
        return None  # 'log verify' names it


def _token_before(
    data: bytes, spans: list[tuple[int, int, int]], place: int, record: Record
) -> int | None:
    """Return the token of the lease that starts an attempt; None: it is none, or not found."""
    if record.command is not Command.START_ATTEMPT:
        return None
    for before in range(place - 1, max(-1, place - 1 - _GROUP_LOOKS_MAX), -1):
        head = _decoded(data, *spans[before])
        if head is None:
            return None
        if head.command is not Command.START_ATTEMPT:
            content = _content_of(head)
            return content.token if isinstance(content, Lease) else None
    return None


_REPLACED_MAX = 2
"""Removals of replaced entries that may follow the record of a SET: under its key, and its URI."""


def _uri_taken(data: bytes, spans: list[tuple[int, int, int]], place: int, record: Record) -> str:
    """Return which job of another domain took, or lost, the URI by this record; empty: none."""
    content = _content_of(record)
    if isinstance(content, Envelope) and content.uri:
        for distance in range(1, _REPLACED_MAX + 1):
            if place + distance < len(spans):
                removal = _decoded(data, *spans[place + distance])
                lost = None if removal is None else _content_of(removal)
                if _gives_way(lost, content.key, distance):
                    assert isinstance(lost, Completion)
                    return f"took its URI from {show_bytes(lost.key)}"
    elif isinstance(content, Completion):
        distance = unpack_ending(content.facts, record.time_us or 0).how - endings.REPLACED
        if 0 < distance <= min(_REPLACED_MAX, place):
            setting = _decoded(data, *spans[place - distance])
            entry = None if setting is None else _content_of(setting)
            if isinstance(entry, Envelope) and _gives_way(content, entry.key, distance):
                return f"{show_bytes(entry.key)} took its URI"
    return ""


def _gives_way(removal: Content | None, key: bytes, distance: int) -> bool:
    """Whether a removal is that of a job of another domain, by the SET so many records before."""
    if not isinstance(removal, Completion) or removal.timestamp is None:
        return False
    how = unpack_ending(removal.facts, 0).how
    old, new = parse_journal_key(removal.key), parse_journal_key(key)
    if how != endings.REPLACED + distance or old is None or new is None:
        return False
    return old.domain != new.domain


def _content_of(record: Record) -> Content | None:
    """Return what fastjournald wrote into a record; None: nothing that can be understood."""
    with suppress(LogCorruptError):
        return unpack_content(record)
    return None
