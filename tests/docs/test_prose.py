"""Prose of README.md and docs/: plain technical English, with the noun of the field first."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GENERATED = "protocol-tests.md"
PAGES = [
    ROOT / "README.md",
    *sorted(path for path in (ROOT / "docs").glob("*.md") if path.name != GENERATED),
]

BLOCK_LINES = re.compile(r"^```.*?^```\n|^ {4}[^\n]*\n", re.MULTILINE | re.DOTALL)
QUOTED = re.compile(r"`[^`\n]*`")
"""Names and texts that a program prints: they stay as they are."""

BADLY_BEGUN = re.compile(
    r"(?:^(?:#+|-|\d+\.)? ?|[.:;?!] |\*\* |\| )(?:What|Who|Whose|Whoever|That|Of)\b.{0,50}",
    re.MULTILINE,
)
"""Heading, sentence or cell that begins with a word that is no subject."""

HOME_MADE = re.compile(
    r"\b(?:forgets?|forgot(?:ten)?|rouses?|lets? go|g[ia]ves? up|given up|wins? back|"
    r"stands? still|(?:is|are|was|were|be|been) told|hands? out|handed out|g[ia]ves? back|"
    r"given back|remembers?|remembered|remembering)\b.{0,50}"
)
"""Verb of daily life for a technical act."""


def prose(page: Path) -> str:
    """Return the text of a page without blocks of code and quoted names."""
    return QUOTED.sub("``", BLOCK_LINES.sub("", page.read_text(encoding="utf-8")))


def found(pattern: re.Pattern[str], text: str) -> list[str]:
    """Return the places of a text at which a pattern matches."""
    return [match[0].strip() for match in pattern.finditer(text)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_sentences_and_headings_begin_with_a_noun(page: Path) -> None:
    assert not found(BADLY_BEGUN, prose(page))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_technical_acts_have_technical_verbs(page: Path) -> None:
    text = prose(page).partition("\n## Glossary\n")[0]
    assert not found(HOME_MADE, text), "the glossary in architecture.md has the terms"


def test_patterns_find_what_they_are_for() -> None:
    assert found(BADLY_BEGUN, "## What grows\n- Who reads.\nIt is so. That is it.\n| a | Of b |\n")
    assert not found(BADLY_BEGUN, "The page says what grows. Thatch. Office: the list of all.\n")
    assert found(HOME_MADE, "A client is told so, and work is handed out.")
