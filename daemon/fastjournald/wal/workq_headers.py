"""Headers of workq jobs, cached: name, times and priority, before the payload. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastjournal.cmdlog.format import envelope, workq
from fastjournal.cmdlog.format.records import encode_head

if TYPE_CHECKING:
    from fastjournald.tables.entry import Entry

HEADERS_MAX = 4096
"""Size of the cache: one header for each domain and priority in use."""

OPERATION_TTL_MS = 1
"""An operation is a job that workq finds expired, and so skips, as soon as it replays."""


class WorkqHeaders:
    """Encodes headers of jobs; those of entries that do not expire are cached.

    Args:
        lease_us: Default lease, which workq is told as time to run.
    """

    def __init__(self, lease_us: int) -> None:
        self._ttr_ms = workq.workq_ttr_ms(lease_us)
        self._headers: dict[tuple[bytes, int], bytes] = {}
        self.operation = self._encode(envelope.OPERATION_NAME.encode(), OPERATION_TTL_MS, 0)
        """The header of every operation."""

    def of(self, entry: Entry, begins: int) -> bytes:
        """Return the header of an entry's job; ``begins``: from when workq counts its life."""
        if entry.extra.expires:
            return self._encode(
                _name(entry),
                workq.workq_ttl_ms(entry.extra.expires, begins),
                _priority(entry),
            )
        about = (entry.domain.name, entry.facts[0])
        header = self._headers.get(about)
        if header is None:
            if len(self._headers) >= HEADERS_MAX:
                self._headers.clear()
            header = self._encode(_name(entry), workq.TTL_MS_MAX, _priority(entry))
            self._headers[about] = header
        return header

    def _encode(self, name: bytes, ttl_ms: int, priority: int) -> bytes:
        # max attempts 0: workq counts releases too, and would fail a job that waits here
        return encode_head(name, self._ttr_ms, ttl_ms, priority, 0, 0)


def _name(entry: Entry) -> bytes:
    if entry.journal:
        return workq.workq_name(entry.domain.name)
    return envelope.PLAIN_NAME.encode()


def _priority(entry: Entry) -> int:
    return workq.workq_priority(entry.priority) if entry.journal else 0
