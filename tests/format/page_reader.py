"""A reader of the command log written from docs/cmdlog.md alone, as somebody with another language
would: nothing of fastjournal is used, and nothing but the page was looked at.

It reads what fastjournald writes, and finds what is live. Tombstones matter to writers only, so
it leaves them out.
"""

from __future__ import annotations

import fcntl
import re
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

HEADER = bytes.fromhex("7771777100000001")
UNIX_SECONDS = 62_135_596_800
OURS = b"FJ\x01"
ADD, SCHEDULE, COMPLETE, FAIL, DELETE, EXPIRE, START, TIMEOUT = range(1, 9)
WAITS = 7
"""How a lease ended: its entry waits again."""
JOURNAL_KEY = re.compile(rb"([^:]+):([0-9]{1,3}):([0-9]{1,20}):.*", re.DOTALL)


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_CRC_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC_TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def parse_key(key: bytes) -> tuple[bytes, int, int] | None:
    """Return domain, priority and instant of a journal key; None: it is a plain one."""
    parts = JOURNAL_KEY.fullmatch(key)
    if parts is None or int(parts[2]) > 255 or int(parts[3]) >= 2**64:
        return None
    return parts[1], int(parts[2]), int(parts[3])


class DamageError(Exception):
    """Bytes that are no records, elsewhere than at the end of the last segment."""


@dataclass
class Record:
    """One record, with what matters to us of it."""

    time: int
    command: int
    job_id: bytes
    name: bytes = b""
    content: bytes = b""
    """The payload of an add or schedule, the result of a complete or fail."""


@dataclass(eq=False)
class Entry:
    """The envelope, field by field."""

    key: bytes
    uri: bytes | None
    links: list[bytes]
    value_type: int
    value: bytes
    timestamp: int
    created: int
    modified: int
    arrival: int
    not_before: int = 0
    expires: int = 0
    ttl: int = 0
    attempts: int = 0
    token: int = 0
    superseded: int = 0
    reason: bytes | None = None
    first_due: int = 0
    taken: list[Any] = field(default_factory=list)
    erases: bool = False
    error: bytes | None = None
    due: int = 0
    origin: int = 0
    lease_end: int = 0
    """End of its lease, where that is not the token."""
    lease_attempts_max: int = 0
    """Bound of the lease; no field of the envelope."""

    @property
    def leased_until(self) -> int:
        return self.lease_end or self.token

    def __post_init__(self) -> None:
        further = [self.uri, *self.links]
        named = (further[key] for key in self.taken)
        self.taken = [key for key in named if key is not None]

    @property
    def keys(self) -> list[bytes]:
        return [self.key, *([] if self.uri is None else [self.uri]), *self.links]


def read_uvarint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7


def read_record(data: bytes, at: int) -> tuple[Record, int] | None:
    """Return the record there and the offset behind it; None: there is no whole, valid one."""
    try:
        size, body = read_uvarint(data, at + 15)
    except IndexError:
        return None
    end = body + size
    if size < 17 or end + 4 > len(data) or data[at] != 1:
        return None
    if crc32c(data[at:end]) != int.from_bytes(data[end : end + 4]):
        return None
    seconds, nanoseconds = struct.unpack_from(">qi", data, at + 1)
    time = (seconds - UNIX_SECONDS) * 1_000_000 + nanoseconds // 1000
    record = Record(time, data[body], data[body + 1 : body + 17])
    field_at = body + 17
    if record.command in (ADD, SCHEDULE):
        length, field_at = read_uvarint(data, field_at)
        record.name = data[field_at : field_at + length]
        field_at += length
        for _ in range(5):  # ttr, ttl, priority, max attempts, max fails
            _, field_at = read_uvarint(data, field_at)
    if record.command in (ADD, SCHEDULE, COMPLETE, FAIL):
        length, field_at = read_uvarint(data, field_at)
        record.content = data[field_at : field_at + length]
    return record, end + 4


def unpack(content: bytes) -> list[Any]:
    assert content.startswith(OURS), "a record of workq's own"
    array: list[Any] = msgspec.msgpack.decode(content[3:])
    return array


RETRY_DELAY_US, RETRY_DELAY_US_MAX = 1_000_000, 3 * 86400 * 1_000_000
"""The daemon's default back-off, also of a lost lease."""


class Log:
    """State that the records of a log leave.

    Args:
        attempts_max: The daemon's ``--max-attempts``.
    """

    def __init__(self, attempts_max: int = 0) -> None:
        self.attempts_max = attempts_max
        self.jobs: dict[bytes, Entry] = {}
        self.keys: dict[bytes, Entry] = {}
        self.pauses: dict[bytes, int] = {}
        self.limits: dict[bytes, list[int]] = {}
        self.deliveries: dict[bytes, int] = {}
        """Domain to its last delivery."""
        self.met: set[str | int] = set()
        """Commands of records, and tags of operations."""
        self._ids: dict[int, bytes] = {}

    # --- files ----------------------------------------------------------------------------------

    def read(self, directory: Path) -> None:
        """Read a whole log."""
        lock = directory / "read.lock"
        if not lock.exists():
            self._read(directory)
            return
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            self._read(directory)

    def _read(self, directory: Path) -> None:
        paths = [path for path in directory.iterdir() if re.fullmatch(r"\d{9}\.log", path.name)]
        self.replay({int(path.stem): path.read_bytes() for path in paths})

    def replay(self, segments: dict[int, bytes]) -> None:
        """Replay all segments, by number."""
        named: dict[int, list[tuple[int, int]]] = {}
        last = max(segments, default=0)
        for number, data in sorted(segments.items()):
            records, whole = self._records(data)
            if not whole and number != last:
                raise DamageError(f"segment {number}")
            for record in records:
                if record.name == b"fj.op":
                    tag, *fields = unpack(record.content)
                    self._name(named, tag, fields)
            self._apply_all(records)
        for number, seals in named.items():
            if number not in segments:
                raise DamageError(f"segment {number} is missing")
            data = segments[number]
            if seals and (len(data), crc32c(data)) not in seals:
                raise DamageError(f"segment {number} is not what it was")

    @staticmethod
    def _name(named: dict[int, list[tuple[int, int]]], tag: str, fields: list[Any]) -> None:
        """Note which segments must be there, and what they may be."""
        if tag == "segment" and fields[0]:
            size, crc = [*fields[2:4], 0, 0][:2]
            named[fields[0]] = [(size, crc)] if size else []
        elif tag == "removed":
            named.pop(fields[0], None)
        elif tag == "rewritten":
            number, size, crc, done = [*fields, False][:4]
            before = [] if done else named.get(number, [])
            named[number] = [*before, (size, crc)]

    @staticmethod
    def _records(data: bytes) -> tuple[list[Record], bool]:
        """Return the records of a segment, without a torn tail, and whether that is all of it."""
        records = []
        at = len(HEADER)
        if not data.startswith(HEADER):
            return [], False
        while at < len(data):
            found = read_record(data, at)
            if found is None:
                break
            record, at = found
            records.append(record)
        return records, at == len(data)

    # --- records --------------------------------------------------------------------------------

    def _apply_all(self, records: list[Record]) -> None:
        index = 0
        while index < len(records):
            record = records[index]
            if record.name == b"fj.op":
                tag, *fields = unpack(record.content)
                if tag in ("lease", "batch", "end") and index + fields[0] >= len(records):
                    return  # a group whose last records are missing
                self.met.add(tag)
                if tag == "lease":
                    for start in records[index + 1 : index + 1 + fields[0]]:
                        self.met.add(start.command)
                        job = self.jobs.get(start.job_id)
                        parts = None if job is None else parse_key(job.key)
                        if parts is not None and not any(fields[2:3]):
                            self.deliveries[parts[0]] = record.time
                        if job is not None:
                            job.token, job.lease_end = fields[1], 0
                            job.lease_attempts_max = fields[3] if fields[3:] else 0
                    index += fields[0]
                elif tag == "end":
                    self._end(fields, record.time)
                elif tag == "pause":
                    self.pauses[fields[0]] = fields[1]
                elif tag == "limit":
                    self.limits[fields[0]] = fields[1:5]
                elif tag == "delivered":
                    self.deliveries[fields[0]] = fields[1]
                elif tag not in ("segment", "rewritten", "removed", "batch", "tombstone", "forget"):
                    self._change(tag, fields, record.time)
            else:
                self.met.add(record.command)
                self._apply(record)
            index += 1

    def _apply(self, record: Record) -> None:
        if record.command in (ADD, SCHEDULE):
            self._place(record.job_id, Entry(*unpack(record.content)[:22]))
            return
        job = self.jobs.get(record.job_id)
        if job is None:
            return
        if record.command in (COMPLETE, DELETE, EXPIRE):
            self._gone(job)
        elif record.command == TIMEOUT:
            self._end_lease(job, record.time)
        elif record.command == FAIL:
            if job.superseded:
                self._gone(job)
                return
            job.attempts += 0 < job.leased_until <= record.time
            job.token = job.lease_end = job.lease_attempts_max = 0
            (job.reason,) = unpack(record.content)[:1]

    def _end(self, fields: list[Any], time: int) -> None:
        job = self.jobs.get(fields[1])
        if job is not None and fields[4][-1] & 0x3F != WAITS:
            self._gone(job)
        elif job is not None:
            self._end_lease(job, time)

    def _end_lease(self, job: Entry, time: int) -> None:
        if not job.token:
            return
        if job.superseded:
            self._gone(job)
            return
        job.attempts += time >= job.leased_until
        job.first_due = max(job.not_before, min(time, job.leased_until))
        job.token = job.lease_end = job.lease_attempts_max = 0

    def _place(self, job_id: bytes, new: Entry) -> None:
        standing = self.keys.get(new.key)
        uri = None if new.uri in new.taken else new.uri
        other = None if uri is None else self.keys.get(uri)
        if any(entry and entry.timestamp > new.timestamp for entry in (standing, other)):
            return
        for entry in (standing, self.jobs.get(job_id)):
            if entry is not None:
                self._gone(entry)
        other = None if uri is None else self.keys.get(uri)
        if other is not None:
            if other.token and other.key != uri:
                other.superseded = other.superseded or max(new.timestamp, 1)
            else:
                self._gone(other)
        self.jobs[job_id] = new
        self._ids[id(new)] = job_id
        self.keys[new.key] = new
        if uri is not None:
            self.keys[uri] = new
        for link in new.links:
            if link not in new.taken:
                self.keys.setdefault(link, new)

    def _gone(self, entry: Entry) -> None:
        self.jobs.pop(self._ids[id(entry)], None)
        for key in entry.keys:
            if self.keys.get(key) is entry:
                del self.keys[key]

    def _change(self, tag: str, fields: list[Any], time: int) -> None:
        job = self.jobs.get(fields[0])
        if job is None:
            return
        if tag == "extend":
            job.token, job.lease_end = [*fields[1:], 0][:2]
        elif tag == "touch":
            job.expires = fields[1]
        elif tag == "delay":
            job.not_before = fields[1]
        elif tag == "failed":
            job.attempts, job.error = fields[1:3]
        elif tag == "value":
            job.value, job.timestamp, job.modified = fields[1], fields[2], time
        elif tag == "resize":
            job.value = job.value[: fields[1]].ljust(fields[1], b"\0")
            job.timestamp, job.modified = fields[2], time
        elif tag == "link":
            key = fields[1]
            if key not in self.keys:
                self.keys[key] = job
                if key != job.uri and key not in job.links:
                    job.links.append(key)
        else:
            assert tag == "rename", tag
            self._rename(job, fields[1], fields[2], time)

    def _rename(self, job: Entry, key: bytes, timestamp: int, time: int) -> None:
        target = self.keys.get(key)
        if target is not None:
            self._gone(target)
        if self.keys.get(job.key) is job:
            del self.keys[job.key]
        before, after = parse_key(job.key), parse_key(key)
        if after is None:
            job.not_before = 0
        elif before is not None and job.not_before > before[2]:
            job.not_before = max(job.not_before, after[2])
        else:
            job.not_before = after[2]
        job.key, job.timestamp, job.modified = key, timestamp, time
        self.keys[key] = job

    # --- what is live ---------------------------------------------------------------------------

    def advance(self, now: int) -> None:
        """Apply what time brings until an instant behind the last record."""
        for entry in list(self.jobs.values()):
            if 0 < entry.leased_until <= now:
                if entry.superseded:
                    self._gone(entry)
                    continue
                ended, earlier = entry.leased_until, entry.attempts
                entry.attempts += 1
                bounds = (self._attempts_max_of(entry), entry.lease_attempts_max)
                entry.token = entry.lease_end = entry.lease_attempts_max = 0
                if parse_key(entry.key) and any(0 < most <= entry.attempts for most in bounds):
                    entry.reason = b"attempts reached max-attempts"
                elif parse_key(entry.key) and earlier:
                    delay = min(RETRY_DELAY_US << earlier, RETRY_DELAY_US_MAX)
                    entry.not_before = max(entry.not_before, ended + delay)
                entry.first_due = max(entry.not_before, ended)
            if not entry.token and 0 < entry.expires <= now:
                self._gone(entry)

    def _attempts_max_of(self, entry: Entry) -> int:
        parts = parse_key(entry.key)
        limits = self.limits.get(parts[0]) if parts else None
        return (limits[3] if limits else 0) or self.attempts_max

    def waiting(self) -> list[Entry]:
        """Return the entries that wait in a queue, in the order of work in each domain."""
        found = [
            (parts[0], parts[1], entry.not_before, entry.arrival, entry)
            for entry in self.jobs.values()
            if (parts := parse_key(entry.key)) and not entry.token and entry.reason is None
        ]
        return [entry for *_, entry in sorted(found, key=lambda item: item[:4])]

    def due_at(self, waiting: Entry) -> int:
        """Return when a waiting entry may be delivered."""
        ends = [
            entry.leased_until
            for entry in self.jobs.values()
            if entry.superseded
            and waiting.uri in entry.keys[1:]
            and self.keys.get(waiting.uri) is waiting
        ]
        return max(waiting.not_before, *ends) if ends else waiting.not_before
