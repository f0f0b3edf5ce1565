"""Rules of docs/protocol.md, and the tests that are marked as showing them.

    @pytest.mark.rule("NEXT: Round robin", "Functions: 11 NEXT")

A rule is named by the heading of its section and, behind a colon, by its row of a table there (the
first column; where that is a number, the second too), by the beginning of a sentence that is marked
**Decided**, or by a few words of its own; ``*`` stands for all rows.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.marks import marked

DOCS = Path(__file__).parents[2] / "docs"

NUMBERED = ("bit", "n", "type", "offset")
"""Headings of first columns that are numbers: there the second column belongs to the name."""

NO_RULES = {
    "FJ/JR wire protocol, version 1",
    "Supported functions",
    "An example",
    "A whole conversation (golden bytes)",
}
"""Sections of docs/protocol.md that say none."""

DECIDED = re.compile(r"\*\*Decided[.:]?\*\*[:.]? ")

HEAD = """\
# Protocol rules and their tests

This page lists the tests of each rule of [protocol.md](../protocol.md), by section. A rule is a row
of a table, a sentence that is marked **Decided**, or a rule of the text. All tests of semantics run
on the engine and on a naive model of it (`tests/property/model.py`), which is written from the
protocol alone. `test_random_sessions.py` compares the two with random sessions, and
`test_random_sessions_daemon.py` does so over sockets.

Each test names its rules: `@pytest.mark.rule("NEXT: Round robin")`. This page is made from these
marks.
"""


def sections() -> dict[str, str]:
    """Return the text of docs/protocol.md under each heading that says a rule."""
    text = (DOCS / "protocol.md").read_text(encoding="utf-8")
    parts = re.split(r"^#{1,3} (.+)$", text, flags=re.MULTILINE)
    pairs = zip(parts[1::2], parts[2::2], strict=True)
    return {head: body for head, body in pairs if body.strip() and head not in NO_RULES}


def rows_of(text: str) -> list[str]:
    """Return the names of the rows of all tables in a text."""

    def cells_of(line: str) -> list[str]:
        return [cell.strip() for cell in line.strip().strip("|").split("|")]

    names = []
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        heading, _, *rows = table.splitlines()
        width = 2 if cells_of(heading)[0] in NUMBERED else 1
        names += [" ".join(cells_of(row)[:width]) for row in rows]
    return names


def decided_in(text: str) -> list[str]:
    """Return what is marked as decided outside of tables, from there to the end of the section."""
    found = []
    for match in DECIDED.finditer(text):
        line_start = text.rfind("\n", 0, match.start()) + 1
        if text[line_start] != "|":
            found.append(text[match.end() :])
    return found


def says(text: str, rule: str) -> bool:
    """Whether a text begins with the words of a rule."""
    return " ".join(text.split()).lower().startswith(" ".join(rule.split()).lower())


def shown() -> dict[str, dict[str, list[str]]]:
    """Return the tests that show each rule, by section, in the order of the page.

    Raises:
        ValueError: A mark names no section.
    """
    texts = sections()
    found: dict[str, dict[str, list[str]]] = {head: {} for head in texts}
    for head, text in texts.items():
        found[head] = {row: [] for row in rows_of(text)}
    for mark, test in marked("rule"):
        heads = [head for head in texts if mark.startswith(f"{head}: ")]
        if not heads:
            raise ValueError(f"{test}: no section of docs/protocol.md is that of {mark!r}")
        head = max(heads, key=len)
        rule = mark.removeprefix(f"{head}: ")
        rules = rows_of(texts[head]) if rule == "*" else [rule]
        for name in rules:
            found[head].setdefault(name, []).append(test)
    return found


def page() -> str:
    """Return the page of the reference that lists the tests of each rule."""
    lines = [HEAD]
    for head, rules in shown().items():
        lines += [f"## {head}\n", "| rule | shown by |", "| --- | --- |"]
        for rule, tests in rules.items():
            lines.append(f"| {rule} | {'<br>'.join(f'`{test}`' for test in sorted(set(tests)))} |")
        lines.append("")
    return "\n".join(lines)
