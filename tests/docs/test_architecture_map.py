"""Map of docs/architecture.md: it names every module, and its paths exist.

The paths of docs/contributing.md exist, too. The ways of a SET and of the records of a segment name
functions with their files.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DAEMON = ROOT / "daemon/fastjournald"
ARCHITECTURE = ROOT / "docs/architecture.md"
CONTRIBUTING = ROOT / "docs/contributing.md"

LIBRARY = ROOT / "fastjournal"
SPARK = LIBRARY / "spark"
PROGRAMS = ROOT / "client"

MAPS = {
    DAEMON: "Daemon: `daemon/fastjournald/`",
    LIBRARY: "Library: `fastjournal/`",
    SPARK: "Spark: `fastjournal/spark/`",
    PROGRAMS: "Programs: `client/`",
}
"""Headings of the parts of the map."""

PUBLIC_NAMES = tuple(f"{part}__init__.py" for part in ("", "protocol/", "client/", "foreign/"))

ELSEWHERE = {
    LIBRARY: ("spark", *PUBLIC_NAMES),
    PROGRAMS: tuple(f"fj_cli/{path}" for path in ("commands", "data", "__init__.py")),
}
"""Modules and folders that a part of the map need not name: another part has them, they only pass
on the names of others, or they are as many as the subcommands."""

ONE_BY_ONE = ("engine/pubsub/", "client/core/calls/", "spool/reading/", "spool/appending/")
"""Folders whose modules the map names one by one."""

WAYS = {
    "Write path: group commit, outbox, commit marks": 8,
    "From a segment to a row": 6,
    "From a segment to an event": 5,
    "From an event to a report": 7,
}
"""Headings of the tables that follow the code, with the number of their steps."""

PLACEHOLDER = re.compile(r"<[^>/]+>")
"""Part of a path that stands for any name: ``handlers/<its name>.py``."""

ROOTS = (ROOT, DAEMON, LIBRARY, SPARK, ROOT / "client", ROOT / "tests", ROOT / "docs")
"""Folders that paths on the page start from."""


def paths_of(text: str) -> set[str]:
    """Return the quoted paths of a text: names of folders (``net/``) and of modules."""
    quoted = re.findall(r"`([^`\n]+)`", text)
    return {path for path in quoted if re.fullmatch(r"[\w./<>* -]+(/|\.py|\.md|\.toml)", path)}


def section(heading: str) -> str:
    """Return the text under a heading of the page, up to the next one."""
    text = ARCHITECTURE.read_text(encoding="utf-8")
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#)", text, re.M | re.S)
    assert found, heading
    return found[1]


def files_of(path: str, root: Path) -> set[Path]:
    """Return the files that a path of the page names: one, those of a folder, or of a pattern."""
    if path.endswith("/"):
        return {file for file in (root / path).rglob("*") if file.is_file()}
    return set(root.glob(PLACEHOLDER.sub("*", path)))


def is_code(module: Path) -> bool:
    """Whether a module is more than the docstring of a package."""
    return module.name != "__init__.py" or "import" in module.read_text(encoding="utf-8")


@pytest.mark.parametrize("root", MAPS, ids=["daemon", "library", "spark", "programs"])
def test_map_leads_to_every_module(root: Path) -> None:
    named = {file for path in paths_of(section(MAPS[root])) for file in files_of(path, root)}
    modules = {module for module in root.rglob("*.py") if is_code(module)}
    elsewhere = [root / name for name in ELSEWHERE.get(root, ())]
    modules = {one for one in modules if not any(one.is_relative_to(part) for part in elsewhere)}
    assert len(modules) >= 30
    missing = sorted(str(module.relative_to(root)) for module in modules - named)
    assert not missing, f"neither named nor in a named folder: {', '.join(missing)}"


def test_map_names_modules_one_by_one_where_a_folder_says_too_little() -> None:
    named = {path for heading in MAPS.values() for path in paths_of(section(heading))}
    assert not named & set(ONE_BY_ONE)


@pytest.mark.parametrize(
    ("page", "paths_min"),
    [(ARCHITECTURE, 80), (CONTRIBUTING, 20)],
    ids=["architecture", "contributing"],
)
def test_map_names_paths_that_exist(page: Path, paths_min: int) -> None:
    paths = paths_of(page.read_text(encoding="utf-8"))
    assert len(paths) >= paths_min
    gone = sorted(path for path in paths if not any(files_of(path, root) for root in ROOTS))
    assert not gone, f"no such files or folders: {', '.join(gone)}"


def functions_of(file: Path) -> set[str]:
    """Return the functions of a module, methods with their class."""
    found = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            methods = (ast.FunctionDef, ast.AsyncFunctionDef)
            found |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, methods)}
    return found


@pytest.mark.parametrize("heading", WAYS)
def test_map_of_a_way_names_functions_of_the_files_beside_them(heading: str) -> None:
    rows = [line.split("|") for line in section(heading).splitlines() if line.count("|") == 4]
    steps = [row for row in rows if "`" in row[2]]
    assert len(steps) == WAYS[heading]
    for _, step, calls, files, _ in steps:
        named = re.findall(r"`([^`]+)`", calls)
        paths = [
            file for path in paths_of(files) for root in ROOTS for file in files_of(path, root)
        ]
        defined = {path: functions_of(path) for path in paths}
        assert len(defined) == files.count(".py`"), step
        assert set(named) <= set().union(*defined.values()), step
        assert all(functions & set(named) for functions in defined.values()), step
