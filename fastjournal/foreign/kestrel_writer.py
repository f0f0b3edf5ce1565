"""Writer of Kestrel journals: one file for each domain, in the order of its work."""

from __future__ import annotations

import os
import re
from collections import Counter

from fastjournal.foreign.journal_files import JournalFiles
from fastjournal.foreign.kestrel_records import VALUE_BYTES_MAX, encode_addx
from fastjournal.foreign.names import FittedName, fit_name
from fastjournal.foreign.queue_names import QueueNames
from fastjournal.foreign.snapshot_entries import SnapshotEntry
from fastjournal.limits import PRIORITY_DEFAULT

NAME_BYTES_MAX = 255 - len(".1795168989000.pack")
"""Kestrel makes names of files that are so much longer: those of older files, and of their pack."""
_NOT_ALLOWED = re.compile(rb"[\x00-\x20\x7f/.~]|\A\++\Z")
"""A name of nothing but ``+`` has no master queue, and Kestrel does not start on it."""
_MS_MAX = (2**63 - 1) // 1_000_000
"""Last instant of Kestrel's 64 bits of nanoseconds, in the year 2262. Kestrel does not start on a
later one, but for the largest number, which stands for the end of time."""
_MS_END = 2**63 - 1


def _fit(domain: bytes) -> FittedName:
    return fit_name(domain, _NOT_ALLOWED, NAME_BYTES_MAX, utf8=True)


class KestrelWriter:
    """Writes entries that come sorted by domain.

    A queue is first in, first out: an earlier instant or a smaller priority only means that an item
    comes first. Kestrel has no buried items.
    """

    def __init__(self, files: JournalFiles, now_us: int, not_carried: Counter[str]) -> None:
        self._files = files
        self._now_us = now_us
        self._not_carried = not_carried
        self._names = QueueNames(_fit, not_carried)

    def leaves_out(self, entry: SnapshotEntry) -> str | None:
        """Return the kind of entries that are left out and that this is one of; None: it is not."""
        if entry.reason is not None:
            return "buried"
        return "values_too_large" if len(entry.value) > VALUE_BYTES_MAX else None

    def add(self, entry: SnapshotEntry) -> None:
        """Write an entry."""
        if self._names.enter(entry.domain):
            self._files.begin(os.fsdecode(self._names.name))
        lost = self._not_carried
        lost["priorities"] += entry.priority != PRIORITY_DEFAULT
        lost["delays"] += entry.not_before > self._now_us
        lost["attempts"] += entry.attempts > 0
        added = min(entry.not_before, self._now_us) // 1000
        expiry = max(entry.expires // 1000, 1) if entry.expires else 0
        if expiry > _MS_MAX:
            lost["expiries_after_2262"] += 1
            expiry = _MS_END
        self._files.write(encode_addx(entry.value, added, expiry))

    def finish(self) -> None:
        """End the journal."""
        self._files.end()

    def advice(self) -> str | None:
        """Return an option that the server needs; None: there is none."""
        return None
