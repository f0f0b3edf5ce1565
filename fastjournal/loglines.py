"""Log lines of all programs: one event is one line of text or JSON, and harms no terminal.

    text  2026-11-20 12:00:00,000 WARNING event=slow-reader connections=1
    JSON  {"time": "2026-11-20T12:00:00.000Z", "level": "warning", "event": "slow-reader",
           "connections": "1", "message": "event=slow-reader connections=1"}

Where standard error is the journal of systemd, each line begins with its priority (``<4>``), which
journald takes off.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeAlias

from fastjournal.printable import safe_text
from fastjournal.stderr_queue import QueuedStderr

LogFormat: TypeAlias = Literal["text", "json"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]

TEXT_FORM: Final = "%(asctime)s %(levelname)s %(message)s"
"""Form of a line of text, in every program."""

_WORD = re.compile(r"""[^\s'"]+""")

PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3}
"""Level to the priority of syslog; anything above is 2 (critical)."""


class Sentence(str):
    """Text of a field that is quoted in the line, also where it is one word."""

    __slots__ = ()


class LogEvent:
    """Event for ``logging``, instead of a message: its name and its fields.

    The line has ``event=NAME key=value ...``, JSON the fields. A text is quoted where it is not one
    word, a ``Sentence`` always; any other value is written as ``str`` does. A tuple is a field that
    comes several times in the line, or not at all; JSON has the first one.

    Args:
        event: Name of the event.
        fields: Names and values; ``time``, ``level``, ``message`` and ``traceback`` are taken.
    """

    def __init__(self, event: str, /, **fields: object) -> None:
        self.fields: dict[str, object] = {"event": event, **fields}

    def __str__(self) -> str:
        return " ".join(
            f"{name}={_written(value)}"
            for name, several in self.fields.items()
            for value in (several if isinstance(several, tuple) else (several,))
        )

    def texts(self) -> dict[str, str]:
        """Return the fields as texts."""
        firsts = {
            name: value[:1] if isinstance(value, tuple) else (value,)
            for name, value in self.fields.items()
        }
        return {name: str(value) for name, values in firsts.items() for value in values}


def _written(value: object) -> str:
    if not isinstance(value, str):
        return str(value)
    return value if _WORD.fullmatch(value) and not isinstance(value, Sentence) else repr(value)


class LineFormatter(logging.Formatter):
    """One event is one line, with any text in a name or a message."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - its name there
        """Return the line of a record, without the traceback that may follow it."""
        return safe_text(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - its name there
        """Return the lines of a traceback; the text of an exception may be one of a client."""
        return "\n".join(map(safe_text, super().formatException(ei).split("\n")))


class JsonFormatter(logging.Formatter):
    """One event is one JSON object in ASCII: its fields as texts, and the message."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object of a record; a traceback is a field of it."""
        import json  # noqa: PLC0415 - lines of text do not need it, and a start is faster

        event = record.msg
        facts = {
            **json_head(record.created, record.levelno),
            **(event.texts() if isinstance(event, LogEvent) else {}),
            "message": record.getMessage(),
        }
        if record.exc_info:
            facts["traceback"] = self.formatException(record.exc_info)
        return json.dumps({name: _without_surrogates(text) for name, text in facts.items()})


def json_head(seconds: float, level: int) -> dict[str, str]:
    """Return the first fields of a line in JSON: when, in seconds since 1970, and its level."""
    moment = datetime.fromtimestamp(seconds, UTC)
    time = f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03}Z"
    return {"time": time, "level": logging.getLevelName(level).lower()}


def _without_surrogates(text: str) -> str:
    """Return a text that strict parsers of JSON take: a byte of a path that is no UTF-8 escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


class StderrHandler(logging.Handler):
    """Handler that puts each record into the queue of standard error, which never waits.

    A record may have the attribute ``kept_as``: the level as which the queue keeps it, where it is
    full.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the lines of a record; within a program that has no queue, write them."""
        try:
            lines = self.format(record)
            if isinstance(sys.stderr, QueuedStderr):
                sys.stderr.put(lines, getattr(record, "kept_as", record.levelno))
            else:
                sys.stderr.write(f"{lines}\n")
        except Exception:  # noqa: BLE001 - as all handlers: a bad message is shown, and ends nothing
            self.handleError(record)

    def describe(self, dropped: Counter[int]) -> str:
        """Return the line that says how many lines of each level were dropped."""
        levels = sorted(dropped)
        counts = {logging.getLevelName(number).lower(): dropped[number] for number in levels}
        event = LogEvent("log-lines-dropped", lines=dropped.total(), **counts)
        level = max(logging.WARNING, *levels)
        return self.format(logging.LogRecord("stderr", level, "", 0, event, None, None))


class JournalHandler(StderrHandler):
    """Handler for standard error that is the journal: each line begins with its priority."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of a record, those of its traceback too."""
        priority = PRIORITIES.get(record.levelno, 2)
        return "\n".join(f"<{priority}>{line}" for line in super().format(record).split("\n"))


def is_journal(environment: Mapping[str, str]) -> bool:
    """Whether standard error is the journal, by JOURNAL_STREAM of systemd."""
    try:
        status = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError, AttributeError):
        # closed, or replaced by something without a descriptor
        return False
    return environment.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def configure_log(level: LogLevel = "info", log_format: LogFormat = "text") -> None:
    """Log everything from this level on to standard error, an event a line, in the one form.

    Args:
        level: Name of the level, in any case.
        log_format: Text or JSON.
    """
    handler = JournalHandler() if is_journal(os.environ) else StderrHandler()
    if isinstance(sys.stderr, QueuedStderr):
        sys.stderr.describe = handler.describe
    handler.setFormatter(JsonFormatter() if log_format == "json" else LineFormatter(TEXT_FORM))
    logging.basicConfig(level=level.upper(), handlers=[handler])
