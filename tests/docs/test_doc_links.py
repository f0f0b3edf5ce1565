"""Links, modules and make targets that README.md and docs/ name, and pages that the site lists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import yaml

from tests.docs.site_hooks import OF_THE_ROOT

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "fastjournal": ROOT / "fastjournal",
    "fastjournald": ROOT / "daemon/fastjournald",
    "fj_forwarder": ROOT / "client/fj_forwarder",
    "fj_cli": ROOT / "client/fj_cli",
    "tests": ROOT / "tests",
}
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
ANCHOR = re.compile(r'<a id="([^"]+)"></a>')

DOTTED = re.compile(rf"\b((?:{'|'.join(PACKAGES)})(?:\.[a-z]\w*)+)(?:\.([A-Z]\w*))?")
"""Name of a module, or of something in it."""

FILE = re.compile(r"`((?:\w+/)+\w+\.py)`")
HOMES = (ROOT, ROOT / "daemon/fastjournald", ROOT / "tests")

MAKE = re.compile(r"`make ([a-z]+(?:-[a-z]+)*)\b")
MAKE_IN_BLOCK = re.compile(r"^make ([a-z]+(?:-[a-z]+)*)\b", re.MULTILINE)
PACKAGE_ROW = re.compile(r"^ *((?:[\w/]+, )*[\w/]+) {2,}\S", re.MULTILINE)
"""Row of a package's docstring: its modules, and what they are."""

PACKAGE_FILES = sorted(
    path
    for name, folder in PACKAGES.items()
    if name != "tests"
    for path in folder.rglob("__init__.py")
)
OTHER_ENDINGS = {"md", "toml", "service", "socket", "example", "cli"}
"""Ends of file names that look like names of modules: ``fastjournald.toml``."""


def text_of(page: Path) -> str:
    return FENCED.sub("", page.read_text(encoding="utf-8"))


def anchors_of(page: Path) -> set[str]:
    """Return the named anchors, and those of headings: lower case, words, hyphens for blanks."""
    headings = HEADING.findall(text_of(page))
    named = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return named.union(ANCHOR.findall(text_of(page)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    for path, anchor in LINK.findall(text_of(page)):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {path}"
        if anchor:
            assert anchor in anchors_of(target), f"{page.name} links to {path}#{anchor}"


def test_links_are_found_on_pages() -> None:
    found = [link for page in PAGES for link in LINK.findall(text_of(page))]
    assert len(found) > 50
    assert any(anchor for _, anchor in found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_names_modules_that_exist(page: Path) -> None:
    known = {}
    for package, folder in PACKAGES.items():
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            known[".".join([package, *parts]).removesuffix(".__init__")] = path
    gone = []
    for name, member in DOTTED.findall(page.read_text(encoding="utf-8")):
        home, _, last = name.rpartition(".")
        file = known.get(name) or known.get(home)
        inside = member or ("" if name in known else last)
        if last in OTHER_ENDINGS:
            continue
        if file is None or not re.search(rf"\b{inside}\b", file.read_text("utf-8")):
            gone.append(name)
    gone += [
        name
        for name in FILE.findall(page.read_text(encoding="utf-8"))
        if not any((home / name).exists() for home in HOMES)
    ]
    assert not gone


@pytest.mark.parametrize("file", PACKAGE_FILES, ids=lambda file: "/".join(file.parts[-3:-1]))
def test_package_docstring_names_its_modules_and_no_others(file: Path) -> None:
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    rows = [name for row in PACKAGE_ROW.findall(text) for name in row.split(", ")]
    places = [file.parent / name for name in rows]
    assert [p.name for p in places if not (p.is_dir() or p.with_suffix(".py").exists())] == []
    modules = [
        *file.parent.glob("*.py"),
        *(path.parent for path in file.parent.glob("*/__init__.py")),
    ]
    names = {path.stem for path in modules if not path.stem.startswith("__")}
    assert names - set(re.findall(r"\w+", text)) == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_names_make_targets_that_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    tiers = {f"test-{path.name}" for path in (ROOT / "tests").iterdir() if path.is_dir()}
    text = page.read_text(encoding="utf-8")
    named = {*MAKE.findall(text), *MAKE_IN_BLOCK.findall("".join(FENCED.findall(text)))}
    assert named <= targets | tiers


def nav_of(part: object) -> set[str]:
    """Return the pages of a part of the navigation, as it stands in mkdocs.yml."""
    if isinstance(part, str):
        return {part}
    inner = part.values() if isinstance(part, dict) else part
    assert not isinstance(inner, int | None), part
    return set().union(*map(nav_of, inner))


def test_page_of_docs_is_in_the_navigation_of_the_site() -> None:
    nav = nav_of(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    docs = ROOT / "docs"
    pages = {str(page.relative_to(docs)) for page in PAGES if page.is_relative_to(docs)}
    made = {page for page in nav if page in OF_THE_ROOT.values() or page.startswith("reference/")}
    assert not pages - nav, "no reader finds these pages: put them into nav in mkdocs.yml"
    assert not nav - pages - made, "nav in mkdocs.yml has pages that docs/ has not"


def test_docs_have_at_most_10_000_lines() -> None:
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs").glob("*/*.md")]
    lines = sum(len(page.read_text(encoding="utf-8").splitlines()) for page in pages)
    assert lines <= 10_000, f"{lines} lines: say each rule once, in the page of its reader"
