"""Retry queue: which stretches of which slots wait for their next try. Pure, and bounded.

A delayed record leaves memory: only its place, the instant when it is due and the number of tries
are kept, as a *stretch* of its slot. When that is due the record is read again from disk.
Where there are many stretches, those of each slot are folded into one, which is due when the last
of them was, and at most 30 s later than any of them. So any number of delayed records takes bounded
memory.

Suspects, at which connections ended, have a queue and a bound of their own: one at a time, so that
they cost the others no more than one connection in ``SUSPECT_GAP_US``. A folded stretch that is
read again leaves out the suspects inside it that are kept one by one: else they would be
tried as if nothing were known of them, each time in the same order, before the same good records.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from fastjournal.limits import RETRY_PAUSE_US_MAX, STRETCHES_MAX
from fj_forwarder.storage.stretches import Stretch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fj_forwarder.storage.slot_file import SlotFile


class Due(NamedTuple):
    """Due stretch and its slot, in the order of the instants."""

    due_us: int
    serial: int
    slot: SlotFile
    stretch: Stretch


class RetryQueue:
    """Retry queue: all stretches of one spool.

    Args:
        stretches_max: Beyond so many ordinary ones those of each slot become one; so do suspects,
            which are counted by themselves.
    """

    def __init__(self, stretches_max: int = STRETCHES_MAX) -> None:
        self._ordinary = _StretchHeap(stretches_max)
        self._suspects = _StretchHeap(stretches_max)
        self.suspects_from_us = 0
        """Before this instant no suspect is tried."""

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[Due]:
        """Go through all stretches, in no order."""
        return chain(self._ordinary, self._suspects)

    @property
    def suspects(self) -> int:
        """Stretches of suspects."""
        return sum(1 for _ in self._suspects)

    @property
    def is_awaited(self) -> bool:
        """Whether ``--once`` has to wait for one of them: not in a slot that is left out."""
        return any(due.stretch.awaited and not due.slot.is_barred for due in self)

    def first_suspects(self, count_max: int) -> list[Due]:
        """Return some of the suspects, those that are due first."""
        return heapq.nsmallest(count_max, self._suspects)

    def first_delayed(self, count_max: int) -> list[Due]:
        """Return some of the others, those that are due first."""
        return heapq.nsmallest(count_max, self._ordinary)

    def add(self, slot: SlotFile, stretch: Stretch) -> None:
        """Let a stretch of a slot wait."""
        stretch.latest_us = stretch.latest_us or stretch.due_us + RETRY_PAUSE_US_MAX
        (self._suspects if stretch.is_suspect else self._ordinary).add(slot, stretch)

    def first_due(self, now_us: int) -> Due | None:
        """Return an ordinary stretch that is due; it stays here until it is not ``alive``."""
        return self._ordinary.first(now_us)

    def first_suspect(self, now_us: int) -> Due | None:
        """Return a suspect that is due."""
        return self._suspects.first(now_us) if now_us >= self.suspects_from_us else None

    def next_due_us(self, *, suspects: bool) -> int | None:
        """Return when something is due; None: never.

        Args:
            suspects: Whether suspects count.
        """
        due_us = self._ordinary.due_us
        suspect_due_us = self._suspects.due_us if suspects else None
        if suspect_due_us is not None:
            suspect_due_us = max(suspect_due_us, self.suspects_from_us)
        return min(filter(None, (due_us, suspect_due_us)), default=None)


class _StretchHeap:
    """Heap of stretches by their instants; beyond a bound those of each slot are folded."""

    def __init__(self, stretches_max: int) -> None:
        self._stretches_max = self._limit = stretches_max
        self._heap: list[Due] = []
        self._serial = 0

    def __iter__(self) -> Iterator[Due]:
        """Go through those that are alive, in no order."""
        return (due for due in self._heap if due.stretch.alive)

    @property
    def due_us(self) -> int | None:
        """When the first is due; None: there is none."""
        self._tidy()
        return self._heap[0].due_us if self._heap else None

    def add(self, slot: SlotFile, stretch: Stretch) -> None:
        """Let a stretch wait."""
        slot.delayed.add(stretch)
        self._push(slot, stretch)
        if len(self._heap) > self._limit:
            self._fold()

    def first(self, now_us: int) -> Due | None:
        """Return the first that is due."""
        self._tidy()
        return self._heap[0] if self._heap and self._heap[0].due_us <= now_us else None

    def _push(self, slot: SlotFile, stretch: Stretch) -> None:
        self._serial += 1
        heapq.heappush(self._heap, Due(stretch.due_us, self._serial, slot, stretch))

    def _tidy(self) -> None:
        """Drop what is done with from the front."""
        while self._heap and not self._heap[0].stretch.alive:
            heapq.heappop(self._heap)

    def _fold(self) -> None:
        """Make one stretch of those of each slot.

        The next time comes when as many as the bound were added: so folding costs each record
        a few steps, however many slots there are.
        """
        of_slots: dict[tuple[int, int], list[Due]] = defaultdict(list)
        for due in self:
            itself = 0 if due.stretch.can_be_folded else id(due.stretch)
            of_slots[id(due.slot), itself].append(due)
        self._heap.clear()
        for dues in of_slots.values():
            slot, stretches = dues[0].slot, [due.stretch for due in dues]
            one = stretches[0]
            if len(stretches) > 1:
                for stretch in stretches:
                    slot.drop(stretch)
                one = _one_of(stretches)
                slot.delayed.add(one)
            self._push(slot, one)
        self._limit = len(of_slots) + self._stretches_max


def _one_of(stretches: list[Stretch]) -> Stretch:
    latest_us = min(stretch.latest_us for stretch in stretches)
    codes = {stretch.code for stretch in stretches}
    return Stretch(
        min(stretch.start for stretch in stretches),
        max(stretch.end for stretch in stretches),
        min(max(stretch.due_us for stretch in stretches), latest_us),
        max(stretch.tries for stretch in stretches),
        max(stretch.losses for stretch in stretches),
        max(stretch.skewed_us for stretch in stretches),
        any(stretch.awaited for stretch in stretches),
        latest_us=latest_us,
        folded=True,
        code=codes.pop() if len(codes) == 1 else "",
    )
