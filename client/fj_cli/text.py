"""Text of the command line: strict JSON, text that harms no terminal, tables, durations.

A column of a table is as wide as its widest cell, which is measured once; rows too wide are left
out. rich draws no table: it measures, folds and styles each cell several times (docs/decisions).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from fastjournal.errors import BadRequestError
from fastjournal.limits import INSTANT_MAX, WAIT_WITHOUT_END
from fastjournal.printable import NOT_PLAIN, safe_text
from fastjournal.time_texts import WRITE_DURATION
from fastjournal.times import to_timedelta


class Microseconds(int):
    """Microseconds of a duration, and what was written."""

    def __new__(cls, us: int, _text: str) -> Microseconds:
        """Take the number alone."""
        return super().__new__(cls, us)

    def __init__(self, _us: int, text: str) -> None:
        self.text = text


class _WrittenDuration(timedelta):
    """A duration that errors show as it was written."""

    text = ""

    def __str__(self) -> str:
        return self.text


FOREVER_US = INSTANT_MAX
"""As the microseconds of a wait: without end."""


def to_wait(us: int | None) -> float | timedelta | None:
    """Return the microseconds of a wait as the clients take it; None: no wait."""
    return WAIT_WITHOUT_END if us == FOREVER_US else to_duration_or_none(us)


def to_duration(us: int) -> timedelta:
    """Return microseconds as the clients take them; their errors show what was written."""
    if not isinstance(us, Microseconds):
        return to_timedelta(us)
    try:
        written = _WrittenDuration(microseconds=us)
    except OverflowError as error:
        raise BadRequestError(f"{us.text} is too long", hint=WRITE_DURATION) from error
    written.text = us.text
    return written


def to_duration_or_none(us: int | None) -> timedelta | None:
    """Return the same; None for None."""
    return None if us is None else to_duration(us)


__all__ = ["GAP", "Layout", "json_text", "lay_out", "safe_text"]


def json_text(fields: Mapping[str, Any], *, ascii_only: bool = False) -> str:
    """Return a JSON object on one line, strict: no ``NaN``, and nothing that disturbs a terminal.

    A float that is not finite has no JSON form: it is the string ``NaN``, ``Infinity`` or
    ``-Infinity``.

    Args:
        fields: The object.
        ascii_only: Escape all that is not ASCII, for an output that cannot hold it.
    """
    try:
        text = json.dumps(fields, ensure_ascii=ascii_only, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json_text(_finite(fields), ascii_only=ascii_only)
    # All characters but ASCII are inside of strings, where they may be escaped.
    return text if text.isprintable() else NOT_PLAIN.sub(_json_escaped, text)


def _json_escaped(match: re.Match[str]) -> str:
    character = match[0]
    return character if character.isprintable() else json.dumps(character)[1:-1]


def _finite(value: Any) -> Any:
    """Return a value of JSON in which floats that are not finite are strings."""
    if isinstance(value, float):
        spelled = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
        return spelled.get(str(value), value)
    if isinstance(value, Mapping):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value


GAP = "   "
"""Between two columns."""


class Layout(NamedTuple):
    """Lines of a table."""

    head: str
    rule: str
    lines: list[str | None]
    """One a row; None: the row is too wide."""


def lay_out(
    columns: Sequence[str], rows: Sequence[Sequence[str]], width: int, *, rule: str = "-"
) -> Layout | None:
    """Return a table of at most so many cells of the terminal; None: most rows do not fit.

    Columns without any value are left out, but the first, if all columns are too wide. Rows are
    left out only then, the widest first: so one long name costs no other row its place.

    Args:
        columns: Names of the columns.
        rows: Their cells, a text each that harms no terminal.
        width: Cells of a line.
        rule: Character of the line below the names.
    """
    from rich.cells import cell_len  # noqa: PLC0415 - rich is slow to load

    heads = [cell_len(name) for name in columns]
    cells = [[cell_len(text) for text in row] for row in rows]
    widths = [max(sizes) for sizes in zip(heads, *cells, strict=True)]
    kept: Sequence[int] = range(len(rows))
    chosen: Sequence[int] = range(len(columns))
    if _total(widths) > width:
        kept, widths = _fitting(heads, cells, width)
        chosen = [index for index, size in enumerate(widths) if size]
        if _total(widths) > width or 2 * len(kept) < len(rows):
            return None
    texts = [[rows[number][index] for index in chosen] for number in kept]
    sizes = [[cells[number][index] for index in chosen] for number in kept]
    names, used = [columns[index] for index in chosen], [widths[index] for index in chosen]
    right = [
        bool(texts) and all(row[place].replace(",", "").isdecimal() for row in texts)
        for place in range(len(chosen))
    ]
    pads = [(size, at_right) for size, at_right in zip(used, right, strict=True)]
    lines: list[str | None] = [None] * len(rows)
    for number, row, row_sizes in zip(kept, texts, sizes, strict=True):
        lines[number] = _line(row, row_sizes, pads)
    return Layout(
        _line(names, [heads[index] for index in chosen], pads),
        rule * (sum(used) + len(GAP) * (len(used) - 1)),
        lines,
    )


def _total(widths: Sequence[int]) -> int:
    """Return the width of a line: a blank at each end, and a gap between columns."""
    used = [size for size in widths if size]
    return sum(used) + len(GAP) * (len(used) - 1) + 2


def _fitting(
    heads: Sequence[int], cells: Sequence[Sequence[int]], width: int
) -> tuple[list[int], list[int]]:
    """Return the rows of the widest table that fits, in order, and its columns; 0: left out.

    A row goes in, the narrowest first, if the table still fits with it. O(rows * columns).
    """
    widths = [heads[0], *[0] * (len(heads) - 1)]
    kept = []
    for number in sorted(range(len(cells)), key=lambda number: sum(cells[number])):
        row = zip(heads, cells[number], widths, strict=True)
        wider = [max(head, size, so_far) if size else so_far for head, size, so_far in row]
        if _total(wider) <= width:
            widths = wider
            kept.append(number)
    return sorted(kept), widths


def _line(texts: Sequence[str], sizes: Sequence[int], pads: Sequence[tuple[int, bool]]) -> str:
    padded = (
        " " * (width - size) + text if at_right else text + " " * (width - size)
        for text, size, (width, at_right) in zip(texts, sizes, pads, strict=True)
    )
    return GAP.join(padded)
