"""Headers of workq jobs, cached: name, times and priority, before the payload. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastjournal.cmdlog.format import envelope, workq
from fastjournal.cmdlog.format.operation_records import operation_head
from fastjournal.cmdlog.format.packed_entry import PRIORITY_AT
from fastjournal.cmdlog.format.records import encode_head

if TYPE_CHECKING:
    from fastjournald.tables.entry import Entry

HEADERS_MAX = 4096
"""Size of the cache: one header for each domain and priority in use."""


class WorkqHeaders:
    """Encodes headers of jobs; those of entries that do not expire are cached.

    Args:
        lease_us: Default lease, which workq gets as time to run.
    """

    def __init__(self, lease_us: int) -> None:
        self._ttr_ms = workq.workq_ttr_ms(lease_us)
        self.known: dict[tuple[bytes, int], bytes] = {}
        """Domain and priority to the header of a job that does not expire."""
        self.operation = operation_head(self._ttr_ms)
        """The header of every operation."""

    def of(self, entry: Entry, begins: int) -> bytes:
        """Return the header of an entry's job; ``begins``: from when workq counts its life."""
        if entry.extra.expires:
            return self._encode(
                _name(entry),
                workq.workq_ttl_ms(entry.extra.expires, begins),
                _priority(entry),
            )
        if len(self.known) >= HEADERS_MAX:
            self.known.clear()
        header = self._encode(_name(entry), workq.TTL_MS_MAX, _priority(entry))
        self.known[entry.domain.name, entry.facts[PRIORITY_AT]] = header
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
