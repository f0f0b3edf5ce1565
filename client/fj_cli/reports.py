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
from fastjournal.clock import SystemClock
from fastjournal.loglines import configure_log, json_head
from fastjournal.stderr_queue import QueuedStderr, lines_dropped
from fastjournal.time_texts import format_duration
from fj_cli.output import bytes_field, note, show_bytes
from fj_cli.text import json_text

LOG = logging.getLogger("fj_cli")


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


_LEVELS = {Ended.DONE: logging.INFO, Ended.STOPPED: logging.INFO}
"""Levels of reports; of all others it is a warning. Where the queue of standard error is full, they
are kept as ``info``: reports of entries do not crowd out what is rarer."""


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

    They have the form of log lines, as those of the library that come between them.

    Args:
        as_json: They are JSON objects.
    """

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._counts: Counter[Ended] = Counter()
        configure_log("info", "json" if as_json else "text")
        if as_json and isinstance(sys.stderr, QueuedStderr):
            sys.stderr.describe = _describe_dropped

    def note(self, text: str) -> None:
        """Write a warning; what could disturb a terminal is escaped."""
        LOG.warning("%s", text)

    def add(self, entry: Entry, outcome: CommandOutcome, seconds: float) -> None:
        """Report an entry."""
        self._counts[outcome.ended] += 1
        level = _LEVELS.get(outcome.ended, logging.WARNING)
        if self._as_json:
            fields: dict[str, Any] = {"result": outcome.ended}
            fields |= bytes_field("key", entry.key)
            fields |= {
                "exit_code": outcome.exit_code,
                "delay_us": outcome.delay_us,
                "elapsed_us": round(seconds * 1e6),
                "remark": outcome.remark or None,
            }
            self._write(fields, level, logging.INFO)
            return
        text = f"{outcome.ended:7} {show_bytes(entry.key)} after {seconds:.1f}s"
        if outcome.exit_code:
            text += f", exit {outcome.exit_code}"
        if outcome.delay_us is not None:
            text += f", due again in {format_duration(outcome.delay_us)}"
        text = f"{text}: {outcome.remark}" if outcome.remark else text
        LOG.log(level, "%s", text, extra={"kept_as": logging.INFO})

    def summary(self) -> None:
        """Write the sums, and the number of lines that could not be written."""
        counts = {ended.value: self._counts[ended] for ended in Ended}
        dropped = lines_dropped()
        if self._as_json:
            untold = {"untold": dropped} if dropped else {}
            self._write({"result": "summary", **counts, **untold}, logging.INFO, logging.WARNING)
            return
        text = ", ".join(f"{count} {ended}" for ended, count in counts.items())
        if dropped:
            text += f"; {dropped} lines could not be written"
        LOG.info("%s", text, extra={"kept_as": logging.WARNING})

    def _write(self, fields: dict[str, Any], level: int, kept_as: int) -> None:
        """Write a report as JSON, with its numbers as such."""
        text = _json_line(fields, level)
        if isinstance(sys.stderr, QueuedStderr):
            sys.stderr.put(text, kept_as)
        else:
            note(text)


def _json_line(fields: dict[str, Any], level: int) -> str:
    return json_text(json_head(SystemClock().now_us() / 1e6, level) | fields)


def _describe_dropped(dropped: Counter[int]) -> str:
    return _json_line({"result": "untold", "untold": dropped.total()}, logging.WARNING)
