"""Decision pages: form, generated tables, and links to every page of docs/decisions/."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.decision_pages import (
    ANCHOR,
    PARTS,
    README,
    ROOT,
    Page,
    numbers_of,
    read_pages,
    with_tables,
)

PAGES = read_pages()
BY_NAME = {page.path.name: page for page in PAGES}
SOURCES = ("daemon", "fastjournal", "client", "tests", "systemd")
NUMBERS = 108
"""Single pages before they were folded by topic; no number is given any more."""


def files() -> Iterator[Path]:
    """Give everything that may mention a decision."""
    yield from ROOT.glob("*.md")
    yield from (ROOT / "docs").glob("*.md")
    for name in SOURCES:
        for path in (ROOT / name).rglob("*"):
            if path.suffix in (".py", ".md", ".service", ".toml", ".conf"):
                yield path


def test_decision_readme_has_the_tables_that_the_pages_give() -> None:
    text = README.read_text(encoding="utf-8")
    assert text == with_tables(text, PAGES), "run: make pages"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path.stem)
def test_decision_sections_have_anchor_context_decision_and_consequences(page: Page) -> None:
    assert page.sections
    for section in page.sections:
        assert section.anchors, section.heading
        assert section.parts == (() if section.is_note else PARTS), section.heading
    found = [anchor for section in page.sections for anchor in section.anchors]
    assert found == ANCHOR.findall(page.text), "an anchor outside of a section or note"
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path.stem)
def test_decision_keywords_and_modules_lead_somewhere(page: Page) -> None:
    assert len(page.keywords) >= 5
    assert not [word for word, count in Counter(page.keywords).items() if count > 1]
    assert page.modules
    for module in page.modules:
        inside = Path(*module.split("."))
        places = [ROOT / module, *(ROOT / room / inside for room in ("", "daemon", "client"))]
        files_or_folders = [place for at in places for place in (at, at.with_suffix(".py"))]
        assert any(map(Path.exists, files_or_folders)), f"{page.path.name} names {module}"


def test_decision_numbers_of_before_lead_to_one_section_each() -> None:
    numbers = [number for number, _, _ in numbers_of(PAGES)]
    assert len(set(numbers)) == len(numbers) == NUMBERS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path.stem)
def test_decision_pages_are_all_linked_from_the_documentation(page: Page) -> None:
    link = f"(decisions/{page.path.name}"
    linking = [path for path in (ROOT / "docs").glob("*.md") if link in path.read_text("utf-8")]
    assert linking, "no page of docs/ links to it; architecture.md lists them by topic"


def test_decision_mentions_name_a_page_and_not_a_number() -> None:
    mentions = 0
    for path in files():
        if path == Path(__file__):
            continue
        text = path.read_text("utf-8")
        assert not re.search(r"\bdecisions? \d{2,4}\b", text, re.IGNORECASE), path
        for name, anchor in re.findall(r"\bdecisions/([\w-]+\.md)(?:#([\w-]+))?", text):
            if name == README.name:
                continue
            mentions += 1
            assert name in BY_NAME, f"{path} names {name}"
            anchors = ANCHOR.findall(BY_NAME[name].text)
            assert not anchor or anchor in anchors, f"{path} names {name}#{anchor}"
    assert mentions > len(PAGES)
