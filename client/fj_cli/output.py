"""Output of fj-cli and its errors: JSON, an object a line; tables, lists and questions for people.

Everything passes through here or through ``fj_cli.text``, which escapes what came from elsewhere.
Bytes in JSON: a field ``value`` holds text where the bytes are UTF-8; else the field is named
``value_b64`` and holds base64. So it is with ``key`` and ``uri``.
"""

from __future__ import annotations

import base64
import errno
import fcntl
import json
import os
import select
import stat
import struct
import sys
import termios
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fastjournal.clock import SystemClock
from fastjournal.errors import BadRequestError, FastjournalError
from fastjournal.keys import parse_journal_key, shown_domain, unique_of
from fastjournal.limits import INSTANT_US_MAX
from fastjournal.program import drop, holds_unicode
from fastjournal.protocol.constants import State, ValueType
from fastjournal.time_texts import format_duration, format_when
from fj_cli.text import json_text, lay_out, safe_text

if TYPE_CHECKING:
    from fastjournal.client import SyncClient
    from fastjournal.client.core.results import Entry

T = TypeVar("T")
Decorated = TypeVar("Decorated", bound=Callable[..., Any])

_CELL_CHARACTERS = 72
_READER_S = 1.0
"""Seconds to wait for the reader of a pipe; a reader that works longer continues alone."""
_LOOK_MS = 20
_TEXTUAL = (ValueType.BUFFER, ValueType.STRING)


def wants_json(as_json: bool | None) -> bool:
    """Whether to write JSON: as the option says, else where standard output is no terminal."""
    return not sys.stdout.isatty() if as_json is None else as_json


def write_json(fields: Mapping[str, Any]) -> None:
    """Write one object on a line of its own."""
    _write(json_line(fields))


def json_line(fields: Mapping[str, Any]) -> str:
    """Return one object as a line, in a form that standard output can hold."""
    return json_text(fields, ascii_only=not holds_unicode(sys.stdout))


def write_line(text: str) -> None:
    """Write a line for people; what could disturb a terminal is escaped."""
    _write(safe_text(text))


def write_result(
    as_json: bool | None,
    fields: Mapping[str, Any],
    text: str,
    write_text: Callable[[str], None] | None = None,
) -> None:
    """Write a result: as JSON, or as a line for people.

    Args:
        as_json: JSON or a line, as the option says.
        fields: The JSON object.
        text: The line.
        write_text: Writes the line; None: ``write_line``.
    """
    if wants_json(as_json):
        write_json(fields)
    else:
        (write_text or write_line)(text)


def write_each(
    found: Iterable[T],
    as_json: bool | None,
    *,
    fields: Callable[[T], Mapping[str, Any]],
    columns: Sequence[str],
    row: Callable[[T], Sequence[str]],
    title: str | None = None,
) -> None:
    """Write things as JSON, an object a line, or as one table.

    Args:
        found: The things.
        as_json: JSON or a table, as the option says.
        fields: Makes the JSON object of one.
        columns: Names of the columns of the table.
        row: Makes the row of one.
        title: Title of the table.
    """
    if wants_json(as_json):
        for one in found:
            write_json(fields(one))
    else:
        write_table(title, columns, map(row, found))


def finding_fields(kind: str, file: str, offset: int, size: int, message: str) -> dict[str, Any]:
    """Return a finding about a file as a JSON object."""
    return {"kind": kind, "file": file, "offset": offset, "bytes": size, "message": message}


def write_findings(found: list[dict[str, Any]], as_json: bool | None, *columns: str) -> None:
    """Write findings, each with fields for these columns behind its own; nothing if none is."""
    if found:
        write_each(
            found,
            as_json,
            fields=dict,
            columns=("what", "file", "offset", "bytes", "finding", *columns),
            row=lambda fields: ["" if cell is None else str(cell) for cell in fields.values()],
        )


def write_table(title: str | None, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write a table; numbers are right-aligned, characters that can disturb a terminal are escaped.

    If it is wider than the terminal, columns without any value are left out. A row that still does
    not fit is a block of lines at its place, and so are all if most do not fit. So no key is broken
    in the middle, and every line can be copied.
    """
    from rich.console import Console  # noqa: PLC0415 - rich is slow to load

    kept = [[safe_text(cell) for cell in row] for row in rows]
    rule = "─" if holds_unicode(sys.stdout) else "-"
    table = lay_out(list(map(safe_text, columns)), kept, Console().width, rule=rule)
    if title is not None:
        write_line(title)
    ends = [""] if table is not None else []
    lines = [] if table is None else [*ends, f" {table.head} ", f" {table.rule} "]
    for row, line in zip(kept, [None] * len(kept) if table is None else table.lines, strict=True):
        if line is not None:
            lines.append(f" {line} ")
        else:
            lines += [row[0], *_named(list(zip(columns[1:], row[1:], strict=True)), indent="  ")]
    _write_lines([*lines, *ends])


def write_fields(title: str | None, fields: Iterable[tuple[str, str]]) -> None:
    """Write names and values, one a line; those without a value are left out."""
    if title:
        write_line(title)
    _write_lines(map(safe_text, _named(list(fields), indent="  " if title else "")))


def _named(fields: list[tuple[str, str]], indent: str) -> list[str]:
    width = max((len(name) for name, value in fields if value), default=0)
    return [f"{indent}{name:{width}}  {value}" for name, value in fields if value]


def _write_lines(lines: Iterable[str]) -> None:
    if text := "\n".join(lines):
        _write(text)


def note(text: str) -> None:
    """Write a line for people to standard error, safe for a terminal.

    If the write fails, the command continues.
    """
    try:
        sys.stderr.write(f"{safe_text(text)}\n")
        sys.stderr.flush()
    except OSError:
        drop(sys.stderr)


def _write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@contextmanager
def released_unless_written(
    client: SyncClient, leases: Iterable[tuple[bytes, int]]
) -> Iterator[None]:
    """Write entries that were leased in the block; if they reach nobody, release their leases.

    A pipe takes bytes while its reader ends, so the reader has a moment to read them.

    Args:
        client: Has leased them.
        leases: Key and token of each.

    Raises:
        OSError: They could not be written; the message says what became of the leases.
    """
    try:
        yield
        sys.stdout.flush()
        _wait_reader()
    except BaseException as error:  # interrupted too: nobody has the tokens
        from fastjournal.client.core import calls  # noqa: PLC0415 - loads parts of the client

        became = "so the leases were released"
        try:
            client.call_many([calls.release(key, token) for key, token in leases])
        except FastjournalError as failure:
            became = f"and the leases end by their time ({failure.message})"
        if isinstance(error, OSError):
            reason = error.strerror or error
            raise OSError(f"cannot write to standard output: {reason}, {became}") from error
        raise


def _wait_reader() -> None:
    """Wait a moment for the reader of a pipe on standard output; raise if it has ended.

    Raises:
        BrokenPipeError: It has ended, and left something unread.
    """
    fd = sys.stdout.fileno()
    if not stat.S_ISFIFO(os.fstat(fd).st_mode):
        return
    hangup = select.poll()
    hangup.register(fd, 0)
    deadline = time.monotonic() + _READER_S
    while _unread(fd) and time.monotonic() < deadline:
        if hangup.poll(_LOOK_MS) and _unread(fd):
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def _unread(fd: int) -> int:
    """Return the bytes in a pipe."""
    (unread,) = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))
    return int(unread)


def counted(number: int, what: str) -> str:
    """Return ``1 record`` or ``1,234 records``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def bytes_field(name: str, data: bytes) -> dict[str, Any]:
    """Return a JSON object of bytes: as text, or in base64 under the name with ``_b64``."""
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_b64": base64.b64encode(data).decode()}


def show_bytes(data: bytes, characters: int | None = None) -> str:
    """Return bytes for a terminal: text, with all characters escaped that can disturb one."""
    safe = safe_text(data.decode("utf-8", "backslashreplace"))
    return safe if characters is None or len(safe) <= characters else safe[: characters - 1] + "…"


def second_key_fields(key: bytes, second_key: bytes | None) -> dict[str, Any]:
    """Return the second key of an entry as a JSON object has it: as ``unique`` or ``uri``."""
    unique = unique_of(key, second_key)
    if unique is not None:
        return bytes_field("unique", unique)
    return bytes_field("uri", second_key) if second_key else {}


def show_second_key(key: bytes, second_key: bytes | None) -> str:
    """Return the second key of an entry for a terminal: its URI, or ``unique`` and the value."""
    unique = unique_of(key, second_key)
    return show_bytes(second_key or b"") if unique is None else f"unique {show_bytes(unique)}"


def show_domain(domain: bytes, characters: int | None = None) -> str:
    """Return a domain for a terminal: that of a host with a port as people write it."""
    return show_bytes(shown_domain(domain), characters)


def entry_fields(entry: Entry) -> dict[str, Any]:
    """Return an entry as a JSON object. Names say their unit; what does not apply is null.

    An entry that was found by its URI has its journal key under ``key`` all the same.
    """
    key, uri = entry.key, entry.second_key
    if parse_journal_key(key) is None and parse_journal_key(uri) is not None:
        key, uri = uri, key
    fields = bytes_field("key", key) | second_key_fields(key, uri)
    parts = parse_journal_key(key)
    if parts is not None:
        fields |= bytes_field("domain", parts.domain)
        fields |= {"priority": parts.priority, "not_before_us": parts.not_before_us}
        fields |= bytes_field("id", parts.id)
    fields["type"] = type_name(entry.value_type)
    if is_json(entry):
        fields["format"] = "json"
    value = plain_value(entry)
    fields |= bytes_field("value", value) if isinstance(value, bytes) else {"value": value}
    if entry.token is not None:
        fields["token"] = entry.token
    if entry.meta is not None:
        meta = entry.meta
        fields |= {
            "attempts": meta.attempts,
            "state": [state.name.lower() for state in State if meta.state & state and state.name],
            "written_us": meta.timestamp_us,
            "created_us": meta.created_us,
            "modified_us": meta.modified_us,
            "accessed_us": meta.accessed_us,
            "expires_us": meta.expires_us or None,
            "ttl_us": meta.ttl_us or None,
            "worked_on_until_us": meta.worked_on_until_us or None,
        }
        if parts is not None:
            fields["not_before_us"] = meta.not_before_us  # a release with a delay has moved it
    return fields


def is_json(entry: Entry) -> bool:
    """Whether the value is a string that is a JSON object or array, as clients write a dict."""
    data = entry.value
    if entry.value_type != ValueType.STRING or data[:1] not in (b"{", b"["):
        return False
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


def show_value(entry: Entry, characters: int | None = _CELL_CHARACTERS) -> str:
    """Return an entry's value for a terminal."""
    value = plain_value(entry)
    if isinstance(value, bytes):
        return show_bytes(value, characters)
    return "" if value is None else str(value)


def show_field(name: str, value: Any) -> str:
    """Return a field of a JSON object for a terminal: what its name says is a time, as a time."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int):
        return json.dumps(value) if isinstance(value, dict | list) else str(value)
    if name in INSTANTS:
        return format_when(value, SystemClock().now_us()) if value else ""
    if name in _AS_IS:
        return str(value)
    return format_duration(value) if name.endswith("_us") else f"{value:,}"


def state_words(entry: Entry, now_us: int | None = None) -> str:
    """Return the state of an entry for people: ``due``, ``leased until ...``, ``buried``."""
    meta = entry.meta
    if meta is None:
        return ""
    now = SystemClock().now_us() if now_us is None else now_us
    if meta.state & State.BURIED:
        return "buried"
    words = "plain"
    if meta.worked_on_until_us > now:
        words = f"leased until {format_when(meta.worked_on_until_us, now)}"
    elif meta.not_before_us > now:
        words = f"delayed until {format_when(meta.not_before_us, now)}"
    elif meta.state & State.JOURNAL:
        words = "due"
    if meta.state & State.LOCKED:
        words += ", locked"
    if meta.state & State.PAUSED:
        words += ", domain paused"
    return words if meta.state & State.PERSISTENT else f"{words}, in memory only"


INSTANTS = {
    "written_us",
    "created_us",
    "modified_us",
    "accessed_us",
    "expires_us",
    "worked_on_until_us",
    "not_before_us",
    "timestamp_us",
    "first_due_us",
    "locked_until_us",
    "lease_ends_us",
    "paused_until_us",
    "daemon_paused_until_us",
    "oldest_us",
    "newest_us",
}
"""Fields that are instants; all others in ``_us`` are durations."""
_AS_IS = {"token"}
"""Numbers that are given to other commands."""


def plain_value(entry: Entry) -> bytes | int | float | bool | None:
    """Return a number, a truth or nothing as such, and everything else as its bytes.

    The daemon stores data as they came, so that data need not have the form of their type.
    """
    if entry.value_type in _TEXTUAL:
        return entry.value
    try:
        value = entry.decoded()
    except BadRequestError:
        return entry.value
    assert not isinstance(value, str), "text is textual"
    return value


def type_name(value_type: int) -> str:
    """Return the name of a value type; of one that is not known its number."""
    try:
        return ValueType(value_type).name.lower()
    except ValueError:
        return str(value_type)


def note_nothing_due(next_at_us: int | None) -> None:
    """Write that nothing is due, and when something is."""
    now_us = SystemClock().now_us()
    later = ""
    if next_at_us is not None and next_at_us <= INSTANT_US_MAX:
        later = f"; ask again at {format_when(next_at_us, now_us)}"
    note(f"nothing is due{later}")


def write_jobs(entries: Iterable[Entry], title: str | None, as_json: bool | None) -> None:
    """Write journal entries, as JSON or as a table under a title."""
    write_each(
        entries,
        as_json,
        fields=entry_fields,
        columns=("key", "URI or unique", "attempts", "value"),
        row=lambda entry: [
            show_bytes(entry.key),
            show_second_key(entry.key, entry.second_key),
            "" if entry.meta is None else str(entry.meta.attempts),
            show_value(entry),
        ],
        title=title,
    )


TABLE_ROWS = 1000
"""Rows of a table: a longer list becomes several, so that a terminal shows the first at once."""


def limit_option(things: str) -> Callable[[Decorated], Decorated]:
    """Return the option ``--limit`` for these things."""
    return click.option(
        "--limit",
        type=click.IntRange(0),
        default=1000,
        help=f"{things} at most; 0: all.",
    )


def page_size(limit: int) -> int:
    """Return how many to request at a time: one more than the limit shows whether more follows."""
    return min(limit + 1, TABLE_ROWS) if limit else TABLE_ROWS


def write_list(
    found: Iterator[T],
    limit: int,
    as_json: bool | None,
    *,
    fields: Callable[[T], dict[str, Any]],
    columns: Sequence[str],
    row: Callable[[T], list[str]],
) -> None:
    """Write what a scan finds.

    Args:
        found: The scan.
        limit: How many at most; 0: all.
        as_json: JSON or tables, as the option says.
        fields: Makes the JSON object of one.
        columns: Names of the columns of a table.
        row: Makes the row of one.
    """
    shown = islice(found, limit) if limit else found
    parts: Iterable[Iterable[T]] = (shown,)
    if not wants_json(as_json):
        parts = iter(lambda: list(islice(shown, TABLE_ROWS)), [])
    for part in parts:
        write_each(part, as_json, fields=fields, columns=columns, row=row)
    if limit and next(found, None) is not None:
        note(f"fj-cli: there is more behind these {limit:,}: --limit 0 lists all")


def confirm(question: str, consequence: str) -> None:
    """Ask on the terminal; without one, refuse.

    Args:
        question: A yes-or-no question.
        consequence: For the refusal: "it would drop 2 pieces".

    Raises:
        click.Abort: The answer is no, or Ctrl-C.
        click.UsageError: Standard input is no terminal.
    """
    if not sys.stdin.isatty():
        raise click.UsageError(f"{consequence}; give --yes", click.get_current_context())
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:
        note("")  # the shell goes on in a line of its own
        raise
    if not agreed:
        raise click.Abort
