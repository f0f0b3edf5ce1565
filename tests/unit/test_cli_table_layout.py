"""Table layout: columns as wide as their widest cell, and rows that do not fit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from fj_cli.output import write_table
from fj_cli.text import lay_out

COLUMNS = ("domain", "due", "paused")


def test_table_has_columns_as_wide_as_their_widest_cell() -> None:
    table = lay_out(COLUMNS, [("a", "12", ""), ("bücher", "1,000", "in 3m"), ("日本", "7", "")], 80)
    assert table is not None
    assert table.head == "domain     due   paused"
    assert table.rule == "-" * len(table.head)
    assert table.lines == [
        "a           12         ",
        "bücher   1,000   in 3m ",
        "日本         7         ",
    ]


def test_table_without_rows_is_its_head() -> None:
    table = lay_out(COLUMNS, [], 80)
    assert table is not None
    assert (table.head, table.lines) == ("domain   due   paused", [])


def test_wide_row_leaves_all_others_in_the_table() -> None:
    rows = [(f"domain-{number}", str(number), "") for number in range(50)]
    wide = ("x" * 2000, "7", "in 3m")
    table = lay_out(COLUMNS, [*rows[:25], wide, *rows[25:]], 80)
    assert table is not None
    assert table.lines.pop(25) is None
    assert [line and line.split() for line in table.lines] == [list(row[:2]) for row in rows]


def test_table_whose_rows_mostly_do_not_fit_is_none() -> None:
    rows = [("short", "1", ""), ("x" * 90, "2", ""), ("y" * 90, "3", "")]
    assert lay_out(COLUMNS, rows, 80) is None
    assert lay_out(COLUMNS, rows, 200) is not None
    assert lay_out(COLUMNS, [], 5) is None


@given(
    st.lists(st.lists(st.text("aé日", max_size=30), min_size=3, max_size=3), max_size=20),
    st.integers(1, 120),
)
def test_table_is_no_wider_than_the_terminal_and_loses_no_row(
    rows: list[list[str]], width: int
) -> None:
    table = lay_out(COLUMNS, rows, width)
    if table is None:
        return
    lines = [table.head, table.rule, *(line for line in table.lines if line is not None)]
    assert {cell_len(line) for line in lines} == {cell_len(table.rule)}
    assert cell_len(table.rule) + 2 <= width
    for row, line in zip(rows, table.lines, strict=True):
        assert line is None or all(cell in line for cell in row)
    assert 2 * table.lines.count(None) <= len(rows)


def test_row_that_does_not_fit_is_a_block_at_its_place(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    write_table("Title", COLUMNS, [("a", "1", ""), ("w\x1b" * 30, "2", ""), ("b", "3", "")])
    assert capsys.readouterr().out.splitlines() == [
        "Title",
        "",
        " domain   due ",
        " ──────────── ",
        " a          1 ",
        "w\\x1b" * 30,
        "  due  2",
        " b          3 ",
        "",
    ]
