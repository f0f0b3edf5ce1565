"""Reports of a worker about its entries, on standard error.

A worker renews leases and completes jobs, whether its reports are read or not: nothing here waits.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from enum import StrEnum
from typing import Any

import msgspec

from fastjournal.client.core.results import Entry
from fastjournal.stderr_queue import QueuedStderr, lines_dropped
from fastjournal.time_texts import format_duration
from fj_cli.output import bytes_field, note, show_bytes
from fj_cli.text import json_text, safe_text


class Ended(StrEnum):
    """End of the work on an entry."""

    DONE = "done"
    FAILED = "failed"
    """Given back, to be tried again."""
    BURIED = "buried"
    LOST = "lost"
    """The lease ended before the work: another worker may have the job."""
    STOPPED = "stopped"
    """The worker had to end at once, or could not start the command; the lease is released."""


class CommandOutcome(msgspec.Struct, frozen=True):
    """Outcome of the work on an entry, and why."""

    ended: Ended
    exit_code: int | None = None
    """Exit status of the command; negative for a signal; None if it did not end by itself."""
    delay_us: int | None = None
    """Given back for that long."""
    remark: str = ""


class Reports:
    """Writes a line for each entry, and one with the sums.

    Args:
        as_json: They are JSON objects.
    """

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._counts: Counter[Ended] = Counter()
        if as_json and isinstance(sys.stderr, QueuedStderr):
            sys.stderr.describe = _describe_dropped

    def note(self, text: str, level: int = logging.WARNING) -> None:
        """Write a line for people; what could disturb a terminal is escaped."""
        if isinstance(sys.stderr, QueuedStderr):
            sys.stderr.put(safe_text(text), level)
        else:
            note(text)

    def add(self, entry: Entry, outcome: CommandOutcome, seconds: float) -> None:
        """Report an entry."""
        self._counts[outcome.ended] += 1
        if self._as_json:
            fields: dict[str, Any] = {"result": outcome.ended}
            fields |= bytes_field("key", entry.key)
            fields |= {
                "exit_code": outcome.exit_code,
                "delay_us": outcome.delay_us,
                "elapsed_us": round(seconds * 1e6),
                "remark": outcome.remark or None,
            }
            self._report(json_text(fields))
            return
        text = f"{outcome.ended:7} {show_bytes(entry.key)} after {seconds:.1f}s"
        if outcome.exit_code:
            text += f", exit {outcome.exit_code}"
        if outcome.delay_us is not None:
            text += f", due again in {format_duration(outcome.delay_us)}"
        self._report(f"{text}: {outcome.remark}" if outcome.remark else text)

    def summary(self) -> None:
        """Write the sums, and the number of lines that could not be written."""
        counts = {ended.value: self._counts[ended] for ended in Ended}
        dropped = lines_dropped()
        if self._as_json:
            untold = {"untold": dropped} if dropped else {}
            self.note(json_text({"result": "summary", **counts, **untold}))
            return
        text = ", ".join(f"{count} {ended}" for ended, count in counts.items())
        if dropped:
            text += f"; {dropped} lines could not be written"
        self.note(text)

    def _report(self, text: str) -> None:
        """Write the report of an entry: it does not crowd out what is rarer."""
        self.note(text, logging.INFO)


def _describe_dropped(dropped: Counter[int]) -> str:
    return json_text({"result": "untold", "untold": dropped.total()})
