"""Decision pages: generated tables, and mentions that lead to a page and to a module."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.decision_pages import ANCHOR, README, ROOT, Page, read_pages, with_tables

PAGES = read_pages()
BY_NAME = {page.path.name: page for page in PAGES}
SOURCES = ("daemon", "fastjournal", "client", "tests", "systemd")


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
def test_decision_modules_lead_somewhere(page: Page) -> None:
    for module in page.modules:
        inside = Path(*module.split("."))
        places = [ROOT / module, *(ROOT / room / inside for room in ("", "daemon", "client"))]
        files_or_folders = [place for at in places for place in (at, at.with_suffix(".py"))]
        assert any(map(Path.exists, files_or_folders)), f"{page.path.name} names {module}"


def test_decision_mentions_name_a_page_and_an_anchor_of_it() -> None:
    mentions = 0
    for path in files():
        for name, anchor in re.findall(
            r"\bdecisions/([\w-]+\.md)(?:#([\w-]+))?", path.read_text("utf-8")
        ):
            if name == README.name:
                continue
            mentions += 1
            assert name in BY_NAME, f"{path} names {name}"
            anchors = ANCHOR.findall(BY_NAME[name].text)
            assert not anchor or anchor in anchors, f"{path} names {name}#{anchor}"
    assert mentions > len(PAGES)
