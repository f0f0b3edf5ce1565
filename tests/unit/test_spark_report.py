"""The tables that the nightly run prints, where the names of domains are hostile."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from fastjournal.spark.jobs import BACKLOG_NUMBERS, THROUGHPUT_NUMBERS
from fastjournal.spark.report import Report, print_report


@pytest.mark.parametrize("name", ["[/x]", "[bold]x", "x\x1b[2J\x9b\r\n\u202e"])
def test_domain_names_are_neither_markup_nor_escapes(name: str) -> None:
    backlog: dict[str, Any] = {"domain": name, "oldest_due_us": 0} | dict.fromkeys(
        BACKLOG_NUMBERS, 1
    )
    throughput: dict[str, Any] = {"domain": name, "minutes": 1} | dict.fromkeys(
        THROUGHPUT_NUMBERS, 1
    )
    out = io.StringIO()
    report: Any = Report("directory", [backlog], [throughput])
    print_report(report, Console(file=out, width=200))
    lines = out.getvalue().splitlines()
    assert all(line.isprintable() for line in lines)
    shown = name if name.isprintable() else "x\\x1b[2J\\u009b\\r\\n\\u202e"
    assert sum(shown in line for line in lines) == 2
