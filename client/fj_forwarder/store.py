"""All slots of a spool: which to read next, which are over and can go."""

from __future__ import annotations

import contextlib
import logging
import os
from bisect import insort
from operator import attrgetter
from typing import Final, NamedTuple

from fastjournal.errors import SpoolFailedError
from fastjournal.limits import OPEN_SLOTS_MAX
from fastjournal.spool.appendfile import TEMPORARY_SUFFIX
from fastjournal.spool.reader import Piece
from fastjournal.spool.slots import SLOT_SUFFIX, Slot, list_slots, spool_failed
from fj_forwarder.slotfile import PutAside, SlotFile

log = logging.getLogger("fj_forwarder")

TEMPORARY_SECONDS_MAX: Final = 3600
"""A file that a killed writer was about to create is removed after this."""

_start = attrgetter("start_s")


class Taken(NamedTuple):
    """A pending record and its slot."""

    slot: SlotFile
    piece: Piece


class SlotStore:
    """The slots of one spool, oldest first.

    Args:
        directory: The spool.
        slot_seconds: How long after its start a slot is over, if no newer one says so earlier.
        put_aside: Where damage goes.
    """

    def __init__(self, directory: str, *, slot_seconds: int, put_aside: PutAside) -> None:
        self._directory = directory
        self._slot_seconds = slot_seconds
        self._put_aside = put_aside
        self._open: list[SlotFile] = []
        """Slots that were begun, oldest first."""
        self._known: dict[str, Slot] = {}
        """Slots that were listed and are not open yet, oldest first."""
        self._refused: set[str] = set()
        """Slots that could not be opened; left out until ``retry_refused``."""
        self._told: set[str] = set()
        """Slots that could not be opened at some time: each is told of once."""
        self._newest_s = 0

    @property
    def can_begin(self) -> bool:
        """Whether there is a slot that was not begun, and room for it."""
        return bool(self._known) and len(self._open) < OPEN_SLOTS_MAX

    def refresh(self) -> None:
        """Look which slots there are.

        Raises:
            SpoolFailedError: The directory cannot be read.
        """
        listed = {slot.name: slot for slot in list_slots(self._directory)}
        for file in self._open:
            listed.pop(file.name, None)
        self._refused &= listed.keys()
        self._told &= listed.keys()
        for name in self._refused:
            del listed[name]
        self._known = listed
        newest = [slot.start_s for slot in listed.values()] + [f.start_s for f in self._open[-1:]]
        self._newest_s = max(newest, default=0)

    def take(self, count_max: int, bytes_max: int) -> list[Taken]:
        """Return the next pending records, oldest slots first.

        Of many slots only so many are open at once: the next are begun when ``finish_old`` has
        deleted some.

        Raises:
            SpoolFailedError: A call of the operating system failed.
        """
        taken: list[Taken] = []

        def take_from(file: SlotFile) -> None:
            nonlocal bytes_max
            for piece in file.take(count_max - len(taken), bytes_max):
                bytes_max -= len(piece.data)
                taken.append(Taken(file, piece))

        for file in self._open:
            if len(taken) < count_max and bytes_max > 0 and file.has_more():
                take_from(file)
        while self.can_begin and len(taken) < count_max and bytes_max > 0:
            name, slot = next(iter(self._known.items()))
            del self._known[name]
            try:
                file = SlotFile(slot, self._put_aside)
            except SpoolFailedError as error:
                if name not in self._told:
                    log.error("this slot is left out until it can be opened: %s", error)
                self._refused.add(name)
                self._told.add(name)
                continue
            insort(self._open, file, key=_start)
            take_from(file)
        return taken

    def retry_refused(self) -> None:
        """Let the next ``refresh`` list the slots again that could not be opened."""
        self._refused.clear()

    def take_behind_torn(self, count_max: int, bytes_max: int) -> list[Taken]:
        """Look behind what has been incomplete since the last read: a write may have been torn.

        Raises:
            SpoolFailedError: A call of the operating system failed.
        """
        taken: list[Taken] = []
        for file in self._open:
            if file.waiting_bytes and len(taken) < count_max and bytes_max > 0:
                file.wait_for_writes()
                for piece in file.take(count_max - len(taken), bytes_max, settled=True):
                    bytes_max -= len(piece.data)
                    taken.append(Taken(file, piece))
        return taken

    def finish_old(self, now_s: float, count_max: int, bytes_max: int) -> list[Taken]:
        """Delete the slots that are over and done; return what came in them at the last moment.

        Args:
            now_s: Instant in seconds, by the clock that names slots.
            count_max: At most so many records.
            bytes_max: Stop after so many bytes.

        Raises:
            SpoolFailedError: A call of the operating system failed.
        """
        taken: list[Taken] = []
        for file in list(self._open):
            over = file.start_s < self._newest_s or file.start_s + self._slot_seconds <= now_s
            if not over or file.outstanding or len(taken) >= count_max or bytes_max <= 0:
                continue
            deleted, pieces = file.finish(count_max - len(taken), bytes_max)
            if deleted:
                log.info("%s: all is sent, deleted", file.path)
                file.close()
                self._open.remove(file)
            taken += [Taken(file, piece) for piece in pieces]
            bytes_max -= sum(len(piece.data) for piece in pieces)
        return taken

    def remove_temporary_files(self, now_s: float) -> None:
        """Remove what writers that were killed while creating a slot left behind.

        Raises:
            SpoolFailedError: The directory cannot be read.
        """
        try:
            with os.scandir(self._directory) as entries:
                for entry in entries:
                    ours = entry.name.startswith(".") and entry.name.endswith(TEMPORARY_SUFFIX)
                    if ours and SLOT_SUFFIX in entry.name:
                        with contextlib.suppress(FileNotFoundError):
                            if entry.stat().st_mtime < now_s - TEMPORARY_SECONDS_MAX:
                                os.unlink(entry.path)
        except OSError as error:
            raise spool_failed("tidy the spool", self._directory, error) from error

    def close(self) -> None:
        """Close all files."""
        for file in self._open:
            file.close()
        self._open.clear()
