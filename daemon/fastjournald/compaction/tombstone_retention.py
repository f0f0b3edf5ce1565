"""Retention of tombstones: when a record that laid or erased one still matters. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastjournald.engine.store import Store


class TombstoneRetention:
    """Tells which records about tombstones matter, of those in one segment.

    Args:
        store: Entries, leases and tombstones of the daemon.
        overrides: Whether a record in the segment may undo one that is on the disk before it.
    """

    def __init__(self, store: Store, *, overrides: bool) -> None:
        self._store = store
        self._overrides = overrides

    def lasts_until(self, key: bytes, laid: int, time: int | None, now: int) -> int | None:
        """Return until when the tombstone lasts that a record laid; None: it stands no more.

        Args:
            key: Key of the tombstone.
            laid: Timestamp of the tombstone, as the record says.
            time: When the record was written.
            now: The present.
        """
        tombstones = self._store.tombstones
        tombstone = tombstones.find(key, now)
        if tombstone is None:
            return None
        timestamp, deleted_us = tombstone
        # where two were laid, the timestamp may be the earlier's and the instant the later's; a
        # clock that was set back moves that instant, and not the record
        if laid != timestamp and (time or 0) < deleted_us:
            return None
        return tombstones.lasts_until(deleted_us, now)

    def may_undo(self, time: int | None, now: int) -> bool:
        """Whether a tombstone from before ``time`` may be on the disk, and not over."""
        return self._overrides and (time or 0) + self._store.tombstones.ttl_us > now

    def repeats_erasure(self, key: bytes, erased_by: int, now: int) -> bool:
        """Whether what stands under a key tells of a tombstone erased by a write of this time."""
        entry = self._store.find(key)
        if entry is not None and entry.persistent and entry.key == key:
            # or it came when the tombstone was gone from memory
            return entry.job_id in self._store.journal.records.erasers
        tombstone = self._store.tombstones.find(key, now)
        # an earlier one is what superseded work leaves: of two, replay takes the later timestamp
        return tombstone is not None and tombstone[0] >= erased_by
