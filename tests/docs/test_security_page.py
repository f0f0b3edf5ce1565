"""docs/security.md: the tests that it names exist, and each promise has one."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
SECURITY = TESTS.parent / "docs/security.md"


def test_page_of_security_names_tests_that_exist_for_each_promise() -> None:
    table = SECURITY.read_text(encoding="utf-8").partition("| promise | test |\n| --- | --- |\n")[2]
    rows = table.partition("\n\n")[0].splitlines()
    assert len(rows) >= 19
    for row in rows:
        promise, cell = (part.strip() for part in row.strip("|").split("|"))
        assert promise
        names = re.findall(r"`([^`]+)`", cell)
        assert names, row
        for name in names:
            file, _, test = name.partition("::")
            assert re.search(rf"^(?:async )?def {test}\(", (TESTS / file).read_text("utf-8"), re.M)
