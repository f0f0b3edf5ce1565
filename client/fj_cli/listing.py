"""Lists of a scan, page by page: JSON lines or tables, and a note where more follows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

import click

from fj_cli.output import note, wants_json, write_json, write_table

T = TypeVar("T")
Decorated = TypeVar("Decorated", bound=Callable[..., Any])

TABLE_ROWS = 1000
"""Rows of a table: a longer list becomes several, so that a terminal shows the first at once."""


def limit_option(things: str) -> Callable[[Decorated], Decorated]:
    """Return the option ``--limit`` for these things."""
    return click.option(
        "--limit",
        type=click.IntRange(0),
        default=1000,
        show_default=True,
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
    if wants_json(as_json):
        for one in shown:
            write_json(fields(one))
    else:
        _write_tables(shown, columns, row)
    if limit and next(found, None) is not None:
        note(f"fj-cli: there is more behind these {limit:,}: --limit 0 lists all")


def _write_tables(
    shown: Iterator[T], columns: Sequence[str], row: Callable[[T], list[str]]
) -> None:
    while True:
        rows = [row(one) for one in islice(shown, TABLE_ROWS)]
        if rows:
            write_table(None, columns, rows)
        if len(rows) < TABLE_ROWS:
            return
