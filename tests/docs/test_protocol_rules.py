"""docs/protocol-tests.md names a test for every rule of docs/protocol.md, and all of them exist."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
DOCS = TESTS.parent / "docs"

NUMBERED = ("bit", "n", "type", "offset")
"""Headings of first columns that are numbers: there the second column belongs to the name."""

SAID_IN_A_TABLE = 7
"""Sentences marked **Decided** in rows of tables: the row stands for them."""


def sections(document: str) -> dict[str, str]:
    """The text under each heading."""
    parts = re.split(r"^#{1,3} (.+)$", (DOCS / document).read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def rows_of(text: str) -> list[str]:
    """The names of the rows of all tables in a text."""
    names = []
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        heading, _, *rows = table.splitlines()
        width = 2 if cells_of(heading)[0] in NUMBERED else 1
        names += [" ".join(cells_of(row)[:width]) for row in rows]
    return names


NO_RULES = {
    *("The FJ/JR wire protocol, version 1", "What this version of the daemon answers"),
    "An example",
}
RULES = {heading: rows_of(text) for heading, text in sections("protocol-tests.md").items()}


def test_every_row_of_the_tables_has_its_rule() -> None:
    for heading, text in sections("protocol.md").items():
        for name in rows_of(text):
            assert name in RULES.get(heading, []), f"{heading}: {name}"


def words(text: str) -> str:
    return " ".join(text.split()).lower()


def test_every_decided_sentence_has_its_rule() -> None:
    in_tables = 0
    for heading, text in sections("protocol.md").items():
        if heading in NO_RULES:
            continue
        rules = [words(rule) for rule in RULES.get(heading, [])]
        for match in re.finditer(r"\*\*Decided[.:]?\*\*[:.]? ", text):
            line_start = text.rfind("\n", 0, match.start()) + 1
            if text[line_start] == "|":
                in_tables += 1
                continue
            said = words(text[match.end() :])
            assert any(said.startswith(rule) for rule in rules), f"{heading}: {said[:60]}"
    assert in_tables == SAID_IN_A_TABLE


def test_every_section_that_says_a_rule_is_there() -> None:
    told = {heading for heading, text in sections("protocol.md").items() if text.strip()}
    assert told - NO_RULES == {heading for heading, rules in RULES.items() if rules}


def test_every_test_that_is_named_exists() -> None:
    files = {path.name: path.read_text() for path in TESTS.rglob("test_*.py")}
    lines = (DOCS / "protocol-tests.md").read_text().splitlines()
    rows = [line for line in lines if line.startswith("| ") and "| --- |" not in line]
    for row in rows:
        if row == "| rule | shown by |":
            continue
        named = re.findall(r"`(test_\w+\.py)::(\w+)`", row)
        assert named, row
        for file, name in named:
            assert file in files, row
            assert re.search(rf"^(async def |def |){name}(\(| = )", files[file], re.MULTILINE), name
