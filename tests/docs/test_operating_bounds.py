"""docs/operating.md: its defaults are those of the daemon, and its bounds name their tests."""

from __future__ import annotations

import re
from pathlib import Path

from fastjournald.config.options import DECLARED
from tests.docs.operating_pages import MIB, operating_page

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


def test_config_table_of_the_page_has_the_options_as_they_are_declared() -> None:
    assert OPERATING.read_text(encoding="utf-8") == operating_page(), "run make pages"


def test_limits_of_the_page_have_the_defaults_of_their_options() -> None:
    table = OPERATING.read_text(encoding="utf-8").partition("| bound | default | option |")[2]
    rows = [row.strip("|").split("|") for row in table.partition("\n\n")[0].splitlines()[2:]]
    checked = 0
    for bound, shown, names, *_ in rows:
        for name in re.findall(r"`(--[\w-]+)`(?! of )", names):
            value = DECLARED[name.strip("-").replace("-", "_")].default
            forms = (f"{value:,}", f"{value} s", f"{value // MIB} MiB", f"{value / 3600:g} h")
            wanted = forms if value else ("no limit",)
            assert any(re.search(rf"(?<![\d,]){form}\b", shown) for form in wanted), bound
            checked += 1
    assert checked > 10
