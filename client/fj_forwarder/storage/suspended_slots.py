"""Suspended slots of a spool: they were read and closed, and wait for retries or their writers.

There may be any number of them: a hundred thousand drop-ins, each with a record that is delayed or
torn. So a look at all of them is done in parts.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from fastjournal.limits import RESCAN_US

if TYPE_CHECKING:
    from collections.abc import Iterator, KeysView

    from fj_forwarder.storage.slot_file import SlotFile

RESUMED_MAX: Final = 4
"""So many of them are opened in one part of a look: a turn puts aside the torn tails of more, so
that they are not closed before they were read."""

_LOOKS_MAX: Final = 1024
"""So many of them are looked at in one part: a call of the system for each."""


class SuspendedSlots:
    """Suspended slots of one spool, by their names."""

    def __init__(self) -> None:
        self._by_name: dict[str, SlotFile] = {}
        self._to_look_at: list[SlotFile] = []
        """Those that the look under way has not come to, the next one last."""
        self._look_from_us = 0
        """Before this instant no other look begins."""

    def __iter__(self) -> Iterator[SlotFile]:
        return iter(self._by_name.values())

    def __contains__(self, file: SlotFile) -> bool:
        """Whether it is suspended; of its name may be another one, where somebody deleted one."""
        return self._by_name.get(file.name) is file

    def names(self) -> KeysView[str]:
        """Return the names of all."""
        return self._by_name.keys()

    def add(self, file: SlotFile) -> bool:
        """Suspend a slot; False: by its name another one is to be opened again."""
        if file.name in self._by_name:
            return False
        file.suspend()
        self._by_name[file.name] = file
        return True

    def remove(self, file: SlotFile) -> None:
        """Drop a slot that is open again, or gone."""
        del self._by_name[file.name]

    @property
    def is_looked_at(self) -> bool:
        """Whether a look at all of them is under way."""
        return bool(self._to_look_at)

    def go_on(self, now_us: int) -> None:
        """Go on with a look at all of them, or begin one, ``RESCAN_US`` after the last one."""
        if not self._to_look_at:
            if now_us < self._look_from_us:
                return
            self._to_look_at = list(reversed(self._by_name.values()))
        self._look_from_us = now_us + RESCAN_US

    def end_look(self) -> None:
        """Leave the rest to the next look: no slot more may be open now."""
        self._to_look_at.clear()

    def next_changed(self, now_us: int) -> SlotFile | None:
        """Return the next one in which there may be something to do.

        None: this part of the look is over.
        """
        for _ in range(min(len(self._to_look_at), _LOOKS_MAX)):
            file = self._to_look_at.pop()
            if file not in self:
                continue
            try:
                size = os.stat(file.path, follow_symlinks=False).st_size
            except FileNotFoundError:
                if not file.delayed:
                    self.remove(file)
                continue
            except OSError:
                continue
            if _has_changed(file, size, now_us):
                return file
        return None


def _has_changed(file: SlotFile, size: int, now_us: int) -> bool:
    """Whether there may be something to do in a suspended slot of ``size`` bytes.

    A drop-in that may grow is looked at for that, and is opened when it grew or grows no more.
    """
    has_more = size != file.position
    if file.delayed and (file.is_barred or not has_more):
        return False
    file.note_growth(now_us, size)
    return not file.is_drop_in or file.is_over or size != file.growth.read_bytes
