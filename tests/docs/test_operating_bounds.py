"""docs/operating.md: every bound of its table names the tests that try to exceed it."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
OPERATING = TESTS.parent / "docs/operating.md"


def test_limits_of_the_page_name_tests_that_exist() -> None:
    table = OPERATING.read_text().partition(
        "| bound | default | option | effect beyond it | test |\n"
    )[2]
    rows = table.partition("\n\n")[0].splitlines()[1:]
    assert len(rows) > 20
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert len(cells) == 5, row
        if cells[4] != "the system's":
            files = re.findall(r"`([^`]+)`", cells[4])
            assert files, row
            for file in files:
                assert (TESTS / file).is_file(), file
