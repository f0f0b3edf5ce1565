"""Log lines of the programs: one event is one line, and harms no terminal."""

from __future__ import annotations

import logging
import sys

from fastjournal.printable import safe_text


class LineFormatter(logging.Formatter):
    """One event is one line, whatever a name or a message in it holds."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - its name there
        """Return the line of a record, without the traceback that may follow it."""
        return safe_text(super().formatMessage(record))


def configure_log(level: str, form: str) -> None:
    """Have everything from this level on told on standard error, an event a line.

    Args:
        level: Name of the level, in any case.
        form: A format of ``logging``.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(form))
    logging.basicConfig(level=level.upper(), handlers=[handler])
