"""Dead letters of a forwarder: records and damage that go to ``dead/``, which may be unwritable."""

from __future__ import annotations

import logging
from typing import Final

from fastjournal.errors import SpoolFailedError
from fastjournal.limits import RESCAN_US
from fastjournal.spool.dead import DeadDirectory, DeadReason
from fastjournal.spool.reading.slot_window import WorkBudget
from fj_forwarder.storage.slot_listing import OnceLog

LETTER_UNITS: Final = 128 * 1024
"""Work of a dead letter: two files and a directory are synced."""

log = logging.getLogger("fj_forwarder")


class DeadLetters:
    """``dead/`` of a spool. Where it takes nothing it is left alone for a while.

    Where it takes others, and only not a certain piece (the disk has no room for a large one, a
    directory has its name), the others go there.

    Args:
        spool: The directory.
        budget: Bounds the work of one turn: each letter is synced by itself.
    """

    def __init__(self, spool: str, budget: WorkBudget) -> None:
        self._budget = budget
        self._directory = DeadDirectory(spool)
        self._from_us = 0
        """Before this instant it is not tried again: it took nothing."""
        self._is_shut = False
        """It took nothing at the last try."""
        self._log = OnceLog("pieces are not taken by dead/, which takes others")
        self.error: SpoolFailedError | None = None
        """Why the piece of the last try is not there; None: it is."""
        self.count = 0
        """Records and pieces of damage that it took."""

    def tidy(self) -> None:
        """Remove what a forwarder that was killed left half written."""
        try:
            self._directory.tidy()
        except SpoolFailedError as error:
            log.warning("%s", error)

    def put(self, raw: bytes, reason: DeadReason, now_us: int) -> bool:
        """Keep bytes durably; False: that cannot be done now."""
        if now_us < self._from_us:
            return False
        self._budget.spend(LETTER_UNITS)
        try:
            name = self._directory.put(raw, reason)
        except SpoolFailedError as error:
            self._note(error, now_us)
            return False
        self._is_shut = False
        self.error = None
        self.count += 1
        log.warning("dead/%s: %d bytes: %s %s", name, reason.bytes, reason.code, reason.reason)
        return True

    def retry_now(self) -> None:
        """Have the next ``put`` tried, however short ago the last one failed."""
        self._from_us = 0

    def _note(self, error: SpoolFailedError, now_us: int) -> None:
        """Note that a piece was not taken, and whether another one would be."""
        self.error = error
        try:
            self._directory.probe()
        except SpoolFailedError:
            if not self._is_shut:
                log.error("%s; it stays in the spool, and is tried again", error)
            self._is_shut = True
            self._from_us = now_us + RESCAN_US
        else:
            self._is_shut = False
            self._log.error(
                error.path or "", f"{error}; it alone stays in the spool, and is tried again"
            )
