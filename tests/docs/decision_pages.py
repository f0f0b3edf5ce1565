"""Decision pages: reader of docs/decisions/, and generator of the table in its README.

``make pages`` writes the table, and a test compares them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DIRECTORY = ROOT / "docs" / "decisions"
README = DIRECTORY / "README.md"

ANCHOR = re.compile(r'<a id="([a-z0-9-]+)"></a>')


class Page(NamedTuple):
    """A page of docs/decisions/."""

    path: Path
    title: str
    keywords: tuple[str, ...]
    modules: tuple[str, ...]
    text: str


def read_page(path: Path) -> Page:
    """Return a page.

    Raises:
        ValueError: Its first three lines are not title, keywords and modules.
    """
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    starts = ("# ", "Keywords: ", "Modules: ")
    if len(lines) < len(starts) or not all(map(str.startswith, lines, starts)):
        raise ValueError(f"{path.name} does not begin with title, keywords and modules")
    title, keywords, modules = map(str.removeprefix, lines, starts)
    return Page(
        path,
        title,
        tuple(keywords.split(", ")),
        tuple(re.findall(r"`([^`]+)`", modules)),
        text,
    )


def read_pages() -> list[Page]:
    """Return all pages, by name."""
    return [read_page(path) for path in sorted(DIRECTORY.glob("*.md")) if path != README]


def pages_table(pages: list[Page]) -> str:
    """Return the table of pages."""
    rows = ["| page | keywords |", "| --- | --- |"]
    for page in pages:
        link = f"[{page.title}]({page.path.name})"
        rows.append(f"| {link} | {', '.join(page.keywords)} |")
    return "\n".join(rows) + "\n"


def with_tables(text: str, pages: list[Page]) -> str:
    """Return the text of the README with the table as the pages have it."""
    pattern = re.compile(r"(<!-- generated: pages -->\n).*?(<!-- end -->)", re.DOTALL)
    assert pattern.search(text), "the README has no place for the table"
    return pattern.sub(lambda found: found[1] + pages_table(pages) + found[2], text)


if __name__ == "__main__":
    README.write_text(with_tables(README.read_text(encoding="utf-8"), read_pages()), "utf-8")
