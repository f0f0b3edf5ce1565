"""Directory of a spool: slots that are not open yet, slots that fail, and other files.

A listing costs as much as there are names, so the pause after it grows with their number.
"""

from __future__ import annotations

import logging
import os
import secrets
import stat
import time
from typing import TYPE_CHECKING, Final

from fastjournal.errors import SpoolFailedError
from fastjournal.limits import RESCAN_US
from fastjournal.printable import safe_text
from fastjournal.spool.slots import (
    FILE_MODE,
    SLOT_SUFFIX,
    TEMPORARY_SUFFIX,
    SlotName,
    Survey,
    is_drop_in,
    link_slot,
    spool_failed,
    survey,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from collections.abc import Set as AbstractSet

    from fj_forwarder.storage.slot_file import SlotFile

log = logging.getLogger("fj_forwarder")

LISTING_US_PER_NAME: Final = 20
"""Pause between two listings, for each name in the directory: about ten times the cost of listing
it. So a backlog of 100,000 slots is listed each 2 s, and not each time."""

LISTING_PAUSE: Final = 4
"""Pause between two listings, in durations of the last one: on a busy machine each name may take a
hundred times as long."""


NAMED_MAX: Final = 1000
"""So many names are logged one by one. The log stays readable, and the memory is bounded."""


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
        """Number of files in the directory that do not belong to a spool."""
        self.ignored_names: list[str] = []
        """The first of them."""
        self._ignored_log = OnceLog(
            "files are nothing of a spool, and left alone: `fj-cli spool status --json DIR` lists"
            " them, ignored in status.json is the number of all"
        )
        self._listed_us = self._list_from_us = 0
        self._is_owed = False
        """A listing was asked for too early, and is made when its pause is over."""

    @property
    def unread(self) -> list[SlotName]:
        """Slots that were listed and are not begun yet, newest first."""
        return self._unread

    def next_us(self) -> int | None:
        """Return the instant of the next listing; None: no listing was too early."""
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


class OnceLog:
    """Log of names, each once; those over the bound are counted.

    Args:
        summary: Sentence after "N further", for the names over the bound.
    """

    def __init__(self, summary: str) -> None:
        self._summary = summary
        self._logged: set[str] = set()
        self._further: set[str] = set()
        """Names over the bound."""
        self._summarized = 0
        """The number in the last summary."""

    def __len__(self) -> int:
        """Return how many names were logged."""
        return len(self._logged)

    def error(self, name: str, sentence: str) -> None:
        """Log a sentence about a name, unless that was done."""
        if name in self._logged:
            return
        if len(self._logged) >= NAMED_MAX:
            self._further.add(name)
            return
        self._logged.add(name)
        self._further.discard(name)
        log.error("%s", sentence)

    def prune(self, present: Collection[str]) -> None:
        """Drop the names that are not there any more: they are logged again when they come back."""
        self._logged.intersection_update(present)
        self._further.intersection_update(present)

    def summarize(self, further: int | None = None) -> None:
        """Log how many further names there are, each time that their number has doubled.

        Args:
            further: The number; None: the names over the bound.
        """
        if further is None:
            further = len(self._further)
        if further > 2 * self._summarized:
            log.error("%d further %s", further, self._summary)
            self._summarized = further
        elif not self._logged:
            self._summarized = 0


class LeftOutSlots:
    """Slots that cannot be opened, read or erased for now; each is logged once."""

    def __init__(self) -> None:
        self.unopened: set[str] = set()
        """Slots that could not be opened; left out until this is cleared."""
        self._failures: dict[str, SpoolFailedError] = {}
        """The last error of each slot in which no record was read since."""
        self.log = OnceLog(
            "slots are left out until they can be opened: `fj-cli spool status DIR` lists them,"
            " left_out in status.json is the number of all"
        )

    def failures(self) -> list[SpoolFailedError]:
        """Return why slots are left out, oldest slot first."""
        failures = sorted(self._failures.items())
        return [e for _, e in failures if not isinstance(e.__cause__, FileNotFoundError)]

    def prune(self, listed: set[str], begun: Collection[str]) -> None:
        """Drop what is known of slots that are deleted.

        Args:
            listed: The slots in the directory.
            begun: Slots that are open or suspended: the log has them.
        """
        self.unopened &= listed
        self._failures = {name: e for name, e in self._failures.items() if name in listed}
        self.log.prune(listed.union(begun))

    def add(self, name: str, error: SpoolFailedError, how: str = "until it can be opened") -> None:
        """Leave out a slot; the caller knows when to try again."""
        # without tracebacks, whose frames would keep the objects of the slot
        for known in (error, error.__cause__, error.__context__):
            if known is not None:
                known.__traceback__ = None
        self._failures[name] = error
        self.log.error(name, f"this slot is left out {how}: {error}")

    def note_read(self, file: SlotFile) -> None:
        """Note that the records of a slot can be read."""
        if self._failures and not file.refuses_erasure:
            self._failures.pop(file.name, None)


TEMPORARY_SECONDS_MAX: Final = 3600
"""A file that a killed writer was about to create is removed when it is so old; the directory is
searched for such files as often."""

_TRIAL: Final = "link-trial"
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class TemporaryFiles:
    """Hidden files of killed writers in one spool, removed when they are old.

    Args:
        directory: The spool.
    """

    def __init__(self, directory: str) -> None:
        self._directory: Final = directory
        self._from_us = 0

    def try_link(self) -> None:
        """Log that no writer can create a slot, where the file system allows no hard links.

        The forwarder itself makes none, and drop-ins may be renamed.
        """
        trial = os.path.join(self._directory, f".{_TRIAL}.{secrets.token_hex(8)}{SLOT_SUFFIX}")
        first, second = f"{trial}.1{TEMPORARY_SUFFIX}", f"{trial}.2{TEMPORARY_SUFFIX}"
        try:
            os.close(os.open(first, _NEW_FILE, FILE_MODE))
            try:
                link_slot(first, second)
                os.unlink(second)
            finally:
                os.unlink(first)
        except SpoolFailedError as error:
            log.error(
                "%s; no program but one that renames a drop-in can write to this spool", error
            )
        except OSError as error:
            log.warning("%s", spool_failed("try a hard link", first, error))

    def tidy(self, now_us: int, wall_us: int) -> None:
        """Remove the old ones, unless that was done in the last hour.

        Args:
            now_us: The time, by a clock that does not jump.
            wall_us: The time, by the clock of the file system.

        Raises:
            SpoolFailedError: The directory cannot be read.
        """
        if now_us >= self._from_us:
            self._from_us = now_us + TEMPORARY_SECONDS_MAX * 1_000_000
            self.remove_old(wall_us)

    def remove_old(self, wall_us: int) -> None:
        """Remove the files of writers that were killed while they created a slot.

        A file that cannot be removed stays, and is named in the log.

        Raises:
            SpoolFailedError: The directory cannot be read.
        """
        oldest_s = wall_us / 1_000_000 - TEMPORARY_SECONDS_MAX
        try:
            with os.scandir(self._directory) as entries:
                for entry in entries:
                    ours = entry.name.startswith(".") and entry.name.endswith(TEMPORARY_SUFFIX)
                    if ours and SLOT_SUFFIX in entry.name:
                        _remove(entry, oldest_s)
        except OSError as error:
            raise spool_failed("tidy the spool", self._directory, error) from error


def _remove(entry: os.DirEntry[str], oldest_s: float) -> None:
    """Remove a file that is old enough; other kinds of names are not of the spool."""
    try:
        status = entry.stat(follow_symlinks=False)
        if stat.S_ISREG(status.st_mode) and status.st_mtime < oldest_s:
            os.unlink(entry.path)
    except (FileNotFoundError, PermissionError):
        pass  # others removed it, or may do so
    except OSError as error:
        log.warning("%s", spool_failed("remove an old file", entry.path, error))
