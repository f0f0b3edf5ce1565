"""Names, limits and priorities of workq, and the mapping of those of fastjournal to them.

A real workq-server refuses to start on a log with one value outside these bounds, so all records
are written with these functions. The envelope has the exact value of each field that is cut
(``cmdlog.format.envelope``).

Names. A domain that workq accepts as a name is used as is, unless it starts with ``fj.``; any other
becomes ``fj.d.<sanitised>.<crc>``: its bytes with ``_`` for each one that workq does not accept, at
most 200 of them, and 8 hex digits of the CRC-32C of the whole domain. Names are for people and for
workq's queues; the domain itself is in the envelope's key.
"""

from __future__ import annotations

import re

import google_crc32c

from fastjournal.limits import PRIORITY_DEFAULT

NAME_BYTES_MAX = 255
TTR_MS_MAX = 86_400_000
"""Longest time to run: a day."""
TTL_MS_MAX = 2_592_000_000
"""Longest time to live: 30 days."""
SCHEDULED_US_BACK = 86_400_000_000
"""A job is scheduled at most a day back, else at the time of its record: workq counts its time to
live from there, 30 days at most, and would take it for expired."""
ATTEMPTS_MAX = 255
"""A 256th attempt of a job is refused."""

RESERVED_PREFIX = b"fj."
_SANITISED_BYTES_MAX = 200
_NAME = re.compile(rb"[A-Za-z0-9_.-]{1,255}")
_NOT_ALLOWED = re.compile(rb"[^A-Za-z0-9_.-]")


def is_workq_name(name: bytes) -> bool:
    """Whether workq takes this as the name of a job."""
    return _NAME.fullmatch(name) is not None


def workq_name(domain: bytes) -> bytes:
    """Return the name of the jobs of a domain; never one that ``fj.op`` or ``fj.kv`` could be."""
    if is_workq_name(domain) and not domain.startswith(RESERVED_PREFIX):
        return domain
    sanitised = _NOT_ALLOWED.sub(b"_", domain[:_SANITISED_BYTES_MAX])
    return b"fj.d.%b.%08x" % (sanitised, google_crc32c.value(domain))


def workq_priority(priority: int) -> int:
    """Return workq's priority, larger first, for ours, 0 first to 255 last."""
    return PRIORITY_DEFAULT - priority


def workq_ttr_ms(lease_us: int) -> int:
    """Return the time to run for a lease of so many microseconds, cut to 1 ms to a day."""
    return min(max(lease_us // 1000, 1), TTR_MS_MAX)


def workq_ttl_ms(expires_us: int, begins_us: int) -> int:
    """Return the time to live of an entry, cut to 1 ms to 30 days.

    Args:
        expires_us: Instant at which it expires; 0: never.
        begins_us: From which workq counts: that of the schedule record, or the time of the add.
    """
    if expires_us == 0:
        return TTL_MS_MAX
    return min(max((expires_us - begins_us) // 1000, 1), TTL_MS_MAX)


def make_job_id(random_bytes: bytes) -> bytes:
    """Return the UUIDv4 made of 16 random bytes: workq refuses any other id."""
    number = bytearray(random_bytes)
    number[6] = number[6] & 0x0F | 0x40
    number[8] = number[8] & 0x3F | 0x80
    return bytes(number)


def is_job_id(job_id: bytes) -> bool:
    """Whether these 16 bytes are a UUIDv4."""
    return len(job_id) == 16 and job_id[6] >> 4 == 4 and job_id[8] >> 6 == 2
