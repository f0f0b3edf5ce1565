"""Listing of a spool's directory: the slots that were not begun, and files that are none of it.

A listing costs as much as there are names, so it is repeated the later the more there are.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from fastjournal.limits import RESCAN_US
from fastjournal.printable import safe_text
from fastjournal.spool.slots import SlotName, Survey, is_drop_in, survey
from fj_forwarder.once_log import OnceLog

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet

LISTING_US_PER_NAME: Final = 20
"""So long no listing follows another one, for each name in the directory: some ten times of what
listing it costs. A backlog of 100,000 slots is so listed each 2 s, and not each time."""

LISTING_PAUSE: Final = 4
"""No listing follows another one for this many times of what that took: on a machine with much to
do each name may take a hundred times as long."""


def _monotonic_us() -> int:
    return time.monotonic_ns() // 1000


class SlotListing:
    """Last listing of one spool.

    Args:
        directory: The spool.
        clock_us: Measures how long a listing takes.
    """

    def __init__(self, directory: str, *, clock_us: Callable[[], int] = _monotonic_us) -> None:
        self._directory: Final = directory
        self._clock_us = clock_us
        self._unread: list[SlotName] = []
        self._rewritten: set[str] = set()
        """Slots of ``_unread`` that a program was seen to write under their names."""
        self.newest_s = 0
        """Start of the newest slot that is no drop-in, in seconds; 0: there is none."""
        self.ignored = 0
        """Files in the directory that are nothing of a spool."""
        self.ignored_names: list[str] = []
        """The first of them."""
        self._ignored_log = OnceLog(
            "files are nothing of a spool, and left alone: `fj-cli spool status --json DIR` lists"
            " them, ignored in status.json is the number of all"
        )
        self._listed_us = self._list_from_us = 0
        self._is_owed = False
        """A listing came too soon, and is to be made when its time has come."""

    @property
    def unread(self) -> list[SlotName]:
        """Slots that were listed and are not begun yet, newest first."""
        return self._unread

    def next_us(self) -> int | None:
        """Return when the directory is to be listed, where that came too soon; None: it did not."""
        return self._list_from_us if self._is_owed else None

    def refresh(self, now_us: int, prune: Callable[[set[str]], AbstractSet[str]]) -> bool:
        """List the directory, unless that was done just now or there are slots to begin.

        Args:
            now_us: The time, by a clock that does not jump.
            prune: Takes the names of all slots, and returns those that are not to be begun.

        Returns:
            Whether it was listed.

        Raises:
            SpoolFailedError: The directory cannot be read.
        """
        if now_us < max(self._list_from_us, self._listed_us + RESCAN_US if self._unread else 0):
            self._is_owed = not self._unread
            return False
        started_us = self._clock_us()
        found = survey(self._directory)
        self._log_ignored(found)
        names = {slot.name for slot in found.slots}
        begun = prune(names)
        self._unread = [slot for slot in reversed(found.slots) if slot.name not in begun]
        # A drop-in may have any instant: it says nothing of the slots of writers.
        starts = (slot.start_s for slot in reversed(found.slots) if not is_drop_in(slot.name))
        self.newest_s = next(starts, 0)
        took_us = self._clock_us() - started_us
        self._listed_us, self._is_owed = now_us + took_us, False
        count = len(names) + found.ignored_count
        pause_us = max(LISTING_US_PER_NAME * count, LISTING_PAUSE * took_us)
        self._list_from_us = self._listed_us + pause_us
        return True

    def pop_oldest(self) -> SlotName:
        """Return the oldest slot that was not begun, and remove it."""
        return self._unread.pop()

    def add_rewritten(self, slot: SlotName) -> None:
        """Add a slot again that was begun, and that a program has overwritten."""
        self._rewritten.add(slot.name)
        self._unread.append(slot)

    def is_rewritten(self, name: str) -> bool:
        """Whether a program was seen to write a slot under its name, and it was not begun since."""
        return name in self._rewritten

    def note_begun(self, name: str) -> None:
        """Note that a slot was begun."""
        self._rewritten.discard(name)

    def _log_ignored(self, found: Survey) -> None:
        """Name each file that is nothing of a spool once."""
        self.ignored, self.ignored_names = found.ignored_count, found.ignored
        if found.ignored_count == len(found.ignored):  # else some names are not known
            self._ignored_log.prune(found.ignored)
        for name in found.ignored:
            path = f"{self._directory}/{safe_text(name)}"
            self._ignored_log.error(name, f"{path}: nothing of a spool; it is left alone")
        self._ignored_log.summarize(found.ignored_count - len(self._ignored_log))
