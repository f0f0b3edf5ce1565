"""The retry queue: which stretches of which slots wait for their next try. Pure, and bounded.

What is delayed is forgotten: of a record nothing is kept but where it is, when it is due and how
often it was tried, as a *stretch* of its slot. When that is due the record is read again from disk.
Where there are many stretches, those of each slot are folded into one, which is due when the last
of them was, and at most 30 s later than any of them. So any number of delayed records takes bounded
memory.

Suspects, at which connections ended, have a queue of their own: one at a time, so that they cost
the others no more than one connection in ``SUSPECT_GAP_US``.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from fastjournal.limits import RETRY_PAUSE_US_MAX, STRETCHES_MAX, SUSPECT_LOSSES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fj_forwarder.slotfile import SlotFile


class Settled(NamedTuple):
    """What is known of a record already and could not be carried out: it is not sent again."""

    code: str
    """The error code, for dead/; empty: the daemon has it, and it is to be erased."""
    sentence: str


class Stretch(msgspec.Struct, gc=False):
    """The bytes ``start`` to ``end`` of a slot: what is pending there waits until ``due_us``."""

    start: int
    end: int
    due_us: int
    tries: int = 0
    """How often it was put off."""
    losses: int = 0
    """On how many connections it had no reply when they ended."""
    skewed_us: int = 0
    """When it was first refused as clock-skew; 0: never."""
    awaited: bool = False
    """Put off for no reason of its own: ``--once`` waits for it."""
    settled: Settled | None = None
    latest_us: int = 0
    """However many it is folded with, it is due by then."""
    begun: bool = False
    """A part of it was read again already, and the rest comes next: it is not folded."""
    alive: bool = True
    """Not done with, and not in another one."""

    @property
    def is_suspect(self) -> bool:
        """Whether it is tried alone, and rarely."""
        return self.losses >= SUSPECT_LOSSES


class Due(NamedTuple):
    """A stretch and its slot, in the order of their instants."""

    due_us: int
    serial: int
    slot: SlotFile
    stretch: Stretch


class Delays:
    """All stretches of one spool.

    Args:
        stretches_max: Beyond so many the stretches of each slot become one.
    """

    def __init__(self, stretches_max: int = STRETCHES_MAX) -> None:
        self._stretches_max = stretches_max
        self._limit = stretches_max
        self._ordinary: list[Due] = []
        self._suspects: list[Due] = []
        self._serial = 0
        self.suspects_from_us = 0
        """Before this instant no suspect is tried."""

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[Due]:
        """Go through all stretches, in no order."""
        return (due for heap in (self._ordinary, self._suspects) for due in heap if _alive(due))

    @property
    def suspects(self) -> int:
        """Stretches of suspects."""
        return sum(map(_alive, self._suspects))

    @property
    def is_awaited(self) -> bool:
        """Whether ``--once`` has to wait for one of them."""
        return any(due.stretch.awaited for due in self)

    def add(self, slot: SlotFile, stretch: Stretch) -> None:
        """Let a stretch of a slot wait."""
        stretch.latest_us = stretch.latest_us or stretch.due_us + RETRY_PAUSE_US_MAX
        slot.delayed[id(stretch)] = stretch
        self._push(slot, stretch)
        if len(self._ordinary) + len(self._suspects) > self._limit:
            self._fold()

    def first_due(self, now_us: int) -> Due | None:
        """Return an ordinary stretch that is due; it stays here until it is not ``alive``."""
        return self._first(self._ordinary, now_us)

    def first_suspect(self, now_us: int) -> Due | None:
        """Return a suspect that is due."""
        return self._first(self._suspects, now_us) if now_us >= self.suspects_from_us else None

    def next_due_us(self, *, suspects: bool) -> int | None:
        """Return when something is due; None: never.

        Args:
            suspects: Whether suspects count.
        """
        found = [heap[0].due_us for heap in (self._ordinary,) if self._tidy(heap)]
        if suspects and self._tidy(self._suspects):
            found.append(max(self._suspects[0].due_us, self.suspects_from_us))
        return min(found, default=None)

    def _push(self, slot: SlotFile, stretch: Stretch) -> None:
        self._serial += 1
        heap = self._suspects if stretch.is_suspect else self._ordinary
        heapq.heappush(heap, Due(stretch.due_us, self._serial, slot, stretch))

    def _first(self, heap: list[Due], now_us: int) -> Due | None:
        return heap[0] if self._tidy(heap) and heap[0].due_us <= now_us else None

    def _tidy(self, heap: list[Due]) -> bool:
        """Drop what is done with from the front; whether anything is left."""
        while heap and not heap[0].stretch.alive:
            heapq.heappop(heap)
        return bool(heap)

    def _fold(self) -> None:
        """Make one stretch of those of each slot, and one of its suspects.

        The next time comes when as many as the bound were added: so folding costs each record
        a few steps, however many slots there are.
        """
        of_slots: dict[tuple[int, int, bool], list[Due]] = defaultdict(list)
        for due in self:
            stretch = due.stretch
            itself = id(stretch) if stretch.begun else 0
            of_slots[id(due.slot), itself, stretch.is_suspect].append(due)
        self._ordinary.clear()
        self._suspects.clear()
        for dues in of_slots.values():
            slot, stretches = dues[0].slot, [due.stretch for due in dues]
            one = stretches[0] if len(stretches) == 1 else _one_of(stretches)
            if len(stretches) > 1:
                for stretch in stretches:
                    del slot.delayed[id(stretch)]
                slot.delayed[id(one)] = one
            self._push(slot, one)
        self._limit = len(of_slots) + self._stretches_max


def _alive(due: Due) -> bool:
    return due.stretch.alive


def _one_of(stretches: list[Stretch]) -> Stretch:
    for stretch in stretches:
        stretch.alive = False
    latest_us = min(stretch.latest_us for stretch in stretches)
    return Stretch(
        min(stretch.start for stretch in stretches),
        max(stretch.end for stretch in stretches),
        min(max(stretch.due_us for stretch in stretches), latest_us),
        max(stretch.tries for stretch in stretches),
        max(stretch.losses for stretch in stretches),
        max(stretch.skewed_us for stretch in stretches),
        any(stretch.awaited for stretch in stretches),
        latest_us=latest_us,
    )
