"""Glossary of docs/architecture.md: each term of the field leads to its place.

The first column of the table has the terms of a row, between commas, colons and parentheses. The
last column has their place: modules, folders, pages. A term leads there if a head at the place has
it: the path, the first line of the docstring of a module or class, the name of a class, the title
of a page. So a search over these finds the place by the term.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
ARCHITECTURE = ROOT / "docs/architecture.md"
DECISIONS = ROOT / "docs/decisions"
FOLDERS = ("daemon/fastjournald", "fastjournal", "client", ".", "docs")
"""Folders that paths of the glossary start from, in this order."""

DECIDED = {
    "admission control": "admission-control",
    "backpressure": "admission-control",
    "bulk load": "recovery",
    "compaction": "log-compaction",
    "continuation token": "range-and-regex-scans",
    "dead letter": "work-scheduling",
    "deduplication key": "work-scheduling",
    "fair queuing": "event-loop",
    "fencing token": "work-scheduling",
    "group commit": "write-ahead-log",
    "heartbeat": "client-library",
    "idempotent": "client-library",
    "LRU cache": "value-cache",
    "prefetch": "value-cache",
    "publish/subscribe": "publish-subscribe",
    "retry policy": "client-library",
    "round robin": "work-scheduling",
    "scheduler": "work-scheduling",
    "single-flight": "value-cache",
    "tombstone": "work-scheduling",
    "torn write": "recovery",
    "write-ahead log": "write-ahead-log",
}
"""Term to the page of docs/decisions/ with the term in its title, or in the title of a decision."""

IN_TITLES = {"LRU cache": "LRU value cache", "retry policy": "retries"}
"""Term to the form that it has in titles, where that is another one."""


class Term(NamedTuple):
    """Term of the glossary with its place."""

    name: str
    places: tuple[str, ...]
    """Paths of modules, folders and pages, as the last column has them."""


def terms(page: str) -> list[Term]:
    """Return the terms of the glossary in the text of a page."""
    rows = [line.split("|") for line in page.partition("\n## Glossary\n")[2].splitlines()]
    found = []
    # before the first row: the head of the table and the line below it
    for _, names, *_, where, _ in [row for row in rows if len(row) > 3][2:]:
        places = tuple(re.findall(r"`([^`]+)`", where) + re.findall(r"\]\(([^)]+)\)", where))
        parts = (name.strip() for name in re.split(r"[,:()]", names))
        found += [Term(name, places) for name in parts if name]
    return found


def terms_without_place(page: str | None = None) -> list[str]:
    """Return the terms that lead to no head of their place, or to no title of their decision."""
    text = ARCHITECTURE.read_text(encoding="utf-8") if page is None else page
    glossary = terms(text)
    found = [
        f"{term.name}: {', '.join(term.places) or 'no place'}"
        for term in glossary
        if not _has(term.name, _heads_of(term))
    ]
    names = {term.name for term in glossary}
    for name, page_name in DECIDED.items():
        titles = _titles(DECISIONS / f"{page_name}.md")
        if name not in names or not _has(IN_TITLES.get(name, name), titles):
            found.append(f"{name}: docs/decisions/{page_name}.md")
    return found


def _has(term: str, text: str) -> bool:
    """Whether a text has a term: a blank is also a hyphen or nothing, a plural counts."""
    words = re.sub(r"\\?[- /]", "[-_ /]?", re.escape(term))
    words = re.sub("y$", "(y|ies)", words)
    return re.search(rf"(\b|_){words}", text, re.IGNORECASE) is not None


def _heads_of(term: Term) -> str:
    return "\n".join(_head(file) for place in term.places for file in _files(place))


def _files(place: str) -> list[Path]:
    """Return the files of a place; none if there is no such file or folder."""
    for folder in FOLDERS:
        path = ROOT / folder / place
        if path.is_dir():
            return sorted(path.rglob("*.py"))
        if path.is_file():
            return [path]
    return []


def _head(file: Path) -> str:
    if file.suffix == ".md":
        return _titles(file)
    tree = ast.parse(file.read_text(encoding="utf-8"))
    lines = [str(file.relative_to(ROOT)), _first_line(tree)]
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            lines += [re.sub(r"(?<=[a-z])(?=[A-Z])", " ", node.name), _first_line(node)]
    return "\n".join(lines)


def _first_line(node: ast.Module | ast.ClassDef) -> str:
    return (ast.get_docstring(node) or "").partition("\n")[0]


def _titles(page: Path) -> str:
    lines = page.read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if line.startswith("#"))
