"""Retry queue: delayed records of a spool, in a heap by the instant of their next attempt.

There is one rule for a delayed record, for each cause (refused for now, suspect, ``dead/`` cannot
be written, cannot be erased): the record is dropped from memory, a ``Retry`` has its range of the
slot and the instant at which it is due, and the record is then read again from disk. Memory is
bounded: beyond its bound of entries those of each slot are merged into one, which is due when the
last of them was, and at most 30 s later than any of them.

Suspects (records at which connections ended) have a heap and a bound of their own: one is tried at
a time, so they cost the others at most one connection in ``SUSPECT_GAP_US``. A merged range that is
read again skips the suspects that have entries of their own: otherwise they would be tried again as
new records, in the same order, before the same good records.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from fastjournal.limits import RETRY_PAUSE_US_MAX, RETRY_RANGES_MAX
from fj_forwarder.storage.slot_file import Retry, SlotFile

if TYPE_CHECKING:
    from collections.abc import Iterator


class RetryQueue:
    """Retry queue of one spool.

    Args:
        ranges_max: Bound on the entries that are no suspects; the same one holds for suspects.
    """

    def __init__(self, ranges_max: int = RETRY_RANGES_MAX) -> None:
        self.ordinary = RetryHeap(self, ranges_max)
        self.suspects = RetryHeap(self, ranges_max)
        self.suspects_from_us = 0
        """Before this instant no suspect is tried."""
        self.unerased = 0
        """Delivered records that are to be erased."""

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[Retry]:
        """Iterate over all entries, in no order."""
        return chain(self.ordinary, self.suspects)

    @property
    def is_awaited(self) -> bool:
        """Whether ``--once`` waits for an entry: not in a slot that is left out."""
        return any(retry.awaited and not retry.slot.is_barred for retry in self)

    def add(self, retry: Retry) -> None:
        """Add an entry."""
        retry.latest_us = retry.latest_us or retry.due_us + RETRY_PAUSE_US_MAX
        retry.slot.delayed.add(retry)
        self.unerased += retry.is_erasure
        (self.suspects if retry.is_suspect else self.ordinary).add(retry)

    def remove(self, retry: Retry) -> None:
        """Remove an entry; it may have become a part of another one meanwhile."""
        if retry.alive:
            retry.alive = False
            retry.slot.undelay(retry)
            self.unerased -= retry.is_erasure

    def postpone(self, retry: Retry, due_us: int) -> None:
        """Give an entry another instant."""
        later = msgspec.structs.replace(retry, due_us=due_us)
        self.remove(retry)
        self.add(later)

    def first_suspect(self, now_us: int) -> Retry | None:
        """Return a suspect that is due."""
        return self.suspects.first(now_us) if now_us >= self.suspects_from_us else None

    def next_due_us(self, *, suspects: bool) -> int | None:
        """Return when an entry is due; None: there is none.

        Args:
            suspects: Whether suspects count.
        """
        found = [self.ordinary.due_us]
        if suspects and (due_us := self.suspects.due_us) is not None:
            found.append(max(due_us, self.suspects_from_us))
        return min(filter(None, found), default=None)


class RetryHeap:
    """Heap of retry entries; beyond a bound those of each slot are merged."""

    def __init__(self, queue: RetryQueue, ranges_max: int) -> None:
        self._queue = queue
        self._ranges_max = self._limit = ranges_max
        self._heap: list[tuple[int, int, Retry]] = []
        self._serial = 0

    def __iter__(self) -> Iterator[Retry]:
        """Iterate over the entries, in no order."""
        return (retry for _, _, retry in self._heap if retry.alive)

    @property
    def due_us(self) -> int | None:
        """When the first entry is due; None: there is none."""
        while self._heap and not self._heap[0][2].alive:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def first(self, now_us: int) -> Retry | None:
        """Return the first entry if it is due; it stays in the heap until it is removed."""
        due_us = self.due_us
        return self._heap[0][2] if due_us is not None and due_us <= now_us else None

    def smallest(self, count_max: int) -> list[Retry]:
        """Return the entries that are due first."""
        alive = (item for item in self._heap if item[2].alive)
        return [retry for _, _, retry in heapq.nsmallest(count_max, alive)]

    def add(self, retry: Retry) -> None:
        """Add an entry."""
        self._serial += 1
        heapq.heappush(self._heap, (retry.due_us, self._serial, retry))
        if len(self._heap) > self._limit:
            self._merge()

    def _merge(self) -> None:
        """Merge the entries of each slot into one.

        The next merge comes after as many additions as the bound: so merging costs each record a
        few steps, however many slots there are. A delivered record that is to be erased is never
        merged: it would be sent again.
        """
        groups: dict[tuple[SlotFile, Retry | None], list[Retry]] = defaultdict(list)
        for retry in self:
            alone = retry.begun or retry.is_erasure
            groups[retry.slot, retry if alone else None].append(retry)
        self._heap.clear()
        self._limit = len(groups) + self._ranges_max
        for retries in groups.values():
            one = retries[0]
            if len(retries) > 1:
                for retry in retries:
                    self._queue.remove(retry)
                one = _merged(retries)
                one.slot.delayed.add(one)
            self.add(one)


def _merged(retries: list[Retry]) -> Retry:
    latest_us = min(retry.latest_us for retry in retries)
    codes = {retry.code for retry in retries}
    return Retry(
        retries[0].slot,
        min(retry.start for retry in retries),
        max(retry.end for retry in retries),
        min(max(retry.due_us for retry in retries), latest_us),
        max(retry.tries for retry in retries),
        max(retry.losses for retry in retries),
        max(retry.skewed_us for retry in retries),
        any(retry.awaited for retry in retries),
        code=codes.pop() if len(codes) == 1 else "",
        latest_us=latest_us,
        merged=True,
    )
