"""Left-out slots: they cannot be opened or read for now; each is logged once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastjournal.errors import SpoolFailedError
from fastjournal.limits import RESCAN_US
from fj_forwarder.once_log import OnceLog
from fj_forwarder.storage.slot_content import SlotOverwrittenError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from types import TracebackType

    from fj_forwarder.storage.slot_file import SlotFile


class SlotFailureHandler:
    """Context manager around work on a slot: where that fails, the slot is left out; others go on.

    A slot that another program has overwritten is read again instead.

    Args:
        left_out: Takes the slot that fails.
        reread: Begins anew with a slot that was overwritten.
        file: The slot.
        now_us: The time, where the block reads its records; None: it does something else.
    """

    __slots__ = ("_file", "_left_out", "_now_us", "_reread")

    def __init__(
        self,
        left_out: LeftOutSlots,
        reread: Callable[[SlotFile, SlotOverwrittenError], None],
        file: SlotFile,
        now_us: int | None = None,
    ) -> None:
        self._left_out = left_out
        self._reread = reread
        self._file = file
        self._now_us = now_us

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if isinstance(error, SlotOverwrittenError):
            try:
                self._reread(self._file, error)
                error = None
            except SpoolFailedError as failure:
                error = failure
        if error is None:
            if self._now_us is not None:
                self._left_out.note_read(self._file)
        elif isinstance(error, SpoolFailedError):
            self._left_out.leave_out(self._file, error, self._now_us)
        else:
            return False
        return True


class LeftOutSlots:
    """Left-out slots of one spool: their failures, and what the log has of them."""

    def __init__(self) -> None:
        self.unopened: set[str] = set()
        """Slots that could not be opened; left out until ``retry_unopened``."""
        self._failures: dict[str, SpoolFailedError] = {}
        """The last error of each slot that could not be opened or read since."""
        self._log = OnceLog(
            "slots are left out until they can be opened: `fj-cli spool status DIR` lists them,"
            " left_out in status.json is the number of all"
        )
        self._unnamed: set[str] = set()
        """Slots beyond the bound of names in the log."""

    def failures(self) -> list[SpoolFailedError]:
        """Return why slots were left out that could not be opened or read since, oldest first."""
        failures = sorted(self._failures.items())
        return [e for _, e in failures if not isinstance(e.__cause__, FileNotFoundError)]

    def prune(self, listed: set[str], begun: Collection[str]) -> None:
        """Drop what is known of slots that are gone.

        Args:
            listed: The slots in the directory.
            begun: Slots that were opened: they stay known, though somebody deleted them.
        """
        self.unopened &= listed
        self._failures = {name: e for name, e in self._failures.items() if name in listed}
        present = listed.union(begun)
        self._log.prune(present)
        self._unnamed &= present

    def retry_unopened(self) -> None:
        """Let slots that could not be opened be tried again."""
        self.unopened.clear()

    def add_unopened(self, name: str, error: SpoolFailedError) -> None:
        """Leave out a slot that cannot be opened."""
        self.unopened.add(name)
        self.add(name, error)

    def add(self, name: str, error: SpoolFailedError) -> None:
        """Note that a slot cannot be opened; its caller knows when to try again."""
        self._keep(name, error)
        self.log_once(name, f"this slot is left out until it can be opened: {error}")

    def add_unerased(self, name: str, error: SpoolFailedError) -> None:
        """Leave out a slot in which a delivered record cannot be erased."""
        self._keep(name, error)
        self.log_once(name, f"this slot is left out until what is delivered can be erased: {error}")

    def note_read(self, file: SlotFile) -> None:
        """Note that the records of a slot can be read."""
        if file.name in self._failures and not file.delayed.unerased:
            del self._failures[file.name]

    def leave_out(self, file: SlotFile, error: SpoolFailedError, now_us: int | None) -> None:
        """Leave out a slot that cannot be read or written now for a while.

        Args:
            file: The slot.
            error: Why.
            now_us: The time, where its records were read; None: something else was done.
        """
        if now_us is not None:
            file.retry_us = now_us + RESCAN_US
            self._keep(file.name, error)
        self.log_once(file.name, f"this slot is left out for now: {error}")

    def _keep(self, name: str, error: SpoolFailedError) -> None:
        """Keep an error without its tracebacks, whose frames would keep the objects of its slot."""
        for known in (error, error.__cause__, error.__context__):
            if known is not None:
                known.__traceback__ = None
        self._failures[name] = error

    def summarize(self) -> None:
        """Log how many slots were left out that the log does not name."""
        self._log.summarize(len(self._unnamed))

    def log_once(self, name: str, sentence: str) -> None:
        """Log a sentence about a slot, once for each name."""
        if self._log.error(name, sentence):
            self._unnamed.discard(name)
        else:
            self._unnamed.add(name)
