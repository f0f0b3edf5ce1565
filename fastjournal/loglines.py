"""Log lines of the programs: one event is one line of text or JSON, and harms no terminal.

    text  2026-11-20 12:00:00,000 WARNING event=slow-reader connections=1
    JSON  {"time": "2026-11-20T12:00:00.000Z", "level": "warning", "event": "slow-reader",
           "connections": "1", "message": "event=slow-reader connections=1"}

Where standard error is the journal of systemd, each line begins with its priority (``<4>``), which
journald takes off.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from ast import literal_eval
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal, TypeAlias

from fastjournal.printable import safe_text
from fastjournal.stderr_queue import QueuedStderr

LogFormat: TypeAlias = Literal["text", "json"]

FIELD = re.compile(r"""(?:^|(?<= ))([a-z_-]+)=('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\S*)""")
"""Field of a message: a name, and a word or a quoted text."""

_WORD = re.compile(r"""[^\s'"]+""")

OWN_FIELDS = ("time", "level", "message", "traceback")
"""Names that no field of a message takes."""

PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3}
"""Level to the priority of syslog; anything above is 2 (critical)."""


class LineFormatter(logging.Formatter):
    """One event is one line, whatever a name or a message in it holds."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - its name there
        """Return the line of a record, without the traceback that may follow it."""
        return safe_text(super().formatMessage(record))


class JsonFormatter(logging.Formatter):
    """One event is one JSON object in ASCII: its fields as texts, and the message."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object of a record; a traceback is a field of it."""
        message = record.getMessage()
        moment = datetime.fromtimestamp(record.created, UTC)
        facts = {
            "time": f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03}Z",
            "level": record.levelname.lower(),
            **fields_of(message),
            "message": message,
        }
        if record.exc_info:
            facts["traceback"] = self.formatException(record.exc_info)
        return json.dumps({name: _without_surrogates(text) for name, text in facts.items()})


def fields_of(message: str) -> dict[str, str]:
    """Return the fields of a message, ``event=NAME key=value ...``; the first of a name counts."""
    fields: dict[str, str] = {}
    for name, text in FIELD.findall(message):
        if name not in OWN_FIELDS:
            fields.setdefault(name, _unquoted(text))
    return fields


def field_text(text: str) -> str:
    """Return a text as the value of a field, quoted where it is not one word."""
    return text if _WORD.fullmatch(text) else repr(text)


def _without_surrogates(text: str) -> str:
    """Return a text that strict parsers of JSON take: a byte of a path that is no UTF-8 escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


def _unquoted(text: str) -> str:
    if text[:1] in {"'", '"'} and len(text) > 1:
        try:
            return str(literal_eval(text))
        except (ValueError, SyntaxError):
            # a path may hold quotes that do not match
            return text
    return text


class StderrHandler(logging.Handler):
    """Handler that puts each record into the queue of standard error, which never waits."""

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the lines of a record; within a program that has no queue, write them."""
        try:
            lines = self.format(record)
            if isinstance(sys.stderr, QueuedStderr):
                sys.stderr.put(lines, record.levelno)
            else:
                sys.stderr.write(f"{lines}\n")
        except Exception:  # noqa: BLE001 - as all handlers: a bad message is shown, and ends nothing
            self.handleError(record)

    def describe(self, dropped: Counter[int]) -> str:
        """Return the line that says how many lines of each level were dropped."""
        levels = sorted(dropped)
        counts = " ".join(f"{logging.getLevelName(n).lower()}={dropped[n]}" for n in levels)
        message = f"event=log-lines-dropped lines={dropped.total()} {counts}"
        level = max(logging.WARNING, *levels)
        return self.format(logging.LogRecord("stderr", level, "", 0, message, None, None))


class JournalHandler(StderrHandler):
    """Handler for standard error that is the journal: each line begins with its priority."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of a record, those of its traceback too."""
        priority = PRIORITIES.get(record.levelno, 2)
        return "\n".join(f"<{priority}>{line}" for line in super().format(record).split("\n"))


def is_journal(environment: Mapping[str, str]) -> bool:
    """Whether standard error is the journal, as systemd tells in JOURNAL_STREAM."""
    try:
        status = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError, AttributeError):
        # closed, or replaced by something without a descriptor
        return False
    return environment.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def configure_log(level: str, form: str, log_format: LogFormat = "text") -> None:
    """Have everything from this level on told on standard error, an event a line.

    Args:
        level: Name of the level, in any case.
        form: A format of ``logging``, for text.
        log_format: Text or JSON.
    """
    handler = JournalHandler() if is_journal(os.environ) else StderrHandler()
    if isinstance(sys.stderr, QueuedStderr):
        sys.stderr.describe = handler.describe
    handler.setFormatter(JsonFormatter() if log_format == "json" else LineFormatter(form))
    logging.basicConfig(level=level.upper(), handlers=[handler])
