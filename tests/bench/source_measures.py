"""Measures of source files: import cycles, layers, long functions and modules, names of classes.

Each function returns its findings as lines of text, one for each; the figure is their number.
Complexity does not matter here: the whole project is parsed once, in about a second.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "fastjournal": ROOT / "fastjournal",
    "fastjournald": ROOT / "daemon/fastjournald",
    "fj_forwarder": ROOT / "client/fj_forwarder",
    "fj_cli": ROOT / "client/fj_cli",
}
DAEMON = "fastjournald"
SPARK = "fastjournal.spark"
DECISIONS = ROOT / "docs/decisions"

FUNCTION_LINES_MAX = 60
MODULE_LINES_MAX = 600
LONG_MODULES = {"fastjournal/limits.py": "data: a search for a bound ends there"}
"""Modules that may be longer, with the reason."""

HOT_LOOPS = {"read", "replay_stretch"}
"""Functions that may be longer: a call more in each round costs too much, as a benchmark shows."""

PROGRAMS = (DAEMON, "fj_forwarder", "fj_cli", SPARK)
"""Packages of the programs. Each uses modules of the library beside its own; only one has Spark."""

LAYOUT_PACKAGES = ("fastjournal.cmdlog", "fastjournal.spark", DAEMON)
RECORD_NAMES = {"body", "data", "envelope", "payload", "record", "result"}
"""Names that hold bytes of records of the log, wherever they are cut."""


@dataclass(frozen=True)
class Module:
    """One source file; it is parsed and walked once, when a measure looks into it."""

    name: str
    path: Path

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree."""
        return ast.parse(self.path.read_text(encoding="utf-8"))

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """The nodes of the tree."""
        return list(ast.walk(self.tree))

    @property
    def place(self) -> str:
        """The path below the checkout."""
        return str(self.path.relative_to(ROOT))


@cache
def modules() -> dict[str, Module]:
    """Return all modules of the project by their names."""
    found = {}
    for package, folder in PACKAGES.items():
        found.update(_modules_below(package, folder))
    return found


def _modules_below(package: str, folder: Path) -> Iterator[tuple[str, Module]]:
    for name, path in paths_below(package, folder):
        yield name, Module(name, path)


def paths_below(package: str, folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield names and files of the modules of a folder; nothing is parsed."""
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        yield ".".join([package, *parts]).removesuffix(".__init__"), path


# --- imports --------------------------------------------------------------------------------------


def imports_of(module: Module) -> set[str]:
    """Return the project's modules that one imports, for type checkers only or not."""
    known = modules()
    found = set()
    for node in module.nodes:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in known else node.module)
    return (found & known.keys()) - {module.name}


@cache
def import_graph() -> dict[str, set[str]]:
    """Return the modules that each module imports."""
    return {name: imports_of(module) for name, module in modules().items()}


def import_cycles() -> list[str]:
    """Return the groups of modules in which each imports all others, in the end."""
    graph = import_graph()
    reached = {name: _reached(graph, name) for name in graph}
    groups = {
        frozenset(other for other in reached[name] if name in reached[other]) for name in graph
    }
    return sorted(", ".join(sorted(group)) for group in groups if group)


def _reached(graph: dict[str, set[str]], start: str) -> set[str]:
    reached: set[str] = set()
    left = [start]
    while left:
        for name in graph[left.pop()]:
            if name not in reached:
                reached.add(name)
                left.append(name)
    return reached


@cache
def contracts() -> list[dict[str, Any]]:
    """Return the import contracts of pyproject.toml."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found: list[dict[str, Any]] = table["tool"]["importlinter"]["contracts"]
    return found


def _layers(contract: dict[str, Any]) -> set[str]:
    return {name for layer in contract["layers"] for name in re.findall(r"\w+", layer)}


def modules_in_no_layer() -> list[str]:
    """Return modules of the containers of layers contracts that no layer of them names."""
    return [
        name
        for contract in contracts()
        for container in contract.get("containers", ())
        for name in modules()
        if name.startswith(f"{container}.")
        and name.removeprefix(f"{container}.").partition(".")[0] not in _layers(contract)
    ]


def contract_mentions() -> list[str]:
    """Return the mentions of modules of the daemon in import contracts."""
    found = []
    for contract in contracts():
        title = contract["name"]
        if DAEMON in contract.get("containers", ()):
            found += [f"{title}: {name}" for name in sorted(_layers(contract))]
        for key in ("source_modules", "forbidden_modules", "ignore_imports"):
            text = " ".join(contract.get(key, ()))
            found += [f"{title}: {name}" for name in re.findall(rf"\b{DAEMON}\.[\w.]+", text)]
    return found


# --- functions ------------------------------------------------------------------------------------


def _code_lines(module: Module) -> set[int]:
    """Return the numbers of the lines that hold code: no blanks, comments or docstrings."""
    besides = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
    lines: set[int] = set()
    text = module.path.read_text(encoding="utf-8")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in besides:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in module.nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines.difference_update(_lines(node))
    return lines


def _functions(module: Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return [node for node in module.nodes if isinstance(node, kinds)]


def _lines(node: ast.stmt) -> range:
    """Return the numbers of the lines of a statement, code or not."""
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


@cache
def _long_functions() -> list[tuple[str, str]]:
    """Return the name of each function that is too long, and a line about it; longest first."""
    found = []
    for module in modules().values():
        long = [node for node in _functions(module) if len(_lines(node)) > FUNCTION_LINES_MAX]
        code = _code_lines(module) if long else set()
        for node in long:
            size = len(code & set(_lines(node)))
            if size > FUNCTION_LINES_MAX:
                found.append((size, node.name, f"{module.place}: {node.name}, {size} lines"))
    return [(name, line) for _, name, line in sorted(found, reverse=True)]


def long_functions() -> list[str]:
    """Return the functions with too many lines of code, but for the hot loops."""
    return [line for name, line in _long_functions() if name not in HOT_LOOPS]


def long_hot_loops() -> list[str]:
    """Return the functions with too many lines of code that may have them."""
    return [line for name, line in _long_functions() if name in HOT_LOOPS]


# --- modules and classes --------------------------------------------------------------------------


def long_modules() -> list[str]:
    """Return the modules with too many lines, longest first, but for those with a reason."""
    sizes = {
        module.place: len(module.path.read_text(encoding="utf-8").splitlines())
        for module in modules().values()
    }
    return [
        f"{place}: {size} lines"
        for place, size in sorted(sizes.items(), key=lambda one: -one[1])
        if size > MODULE_LINES_MAX and place not in LONG_MODULES
    ]


def classes_of_one_name() -> list[str]:
    """Return the names that two classes of one program have, with their modules.

    A program is its package with the modules of the library that it imports in the end. All of the
    library count as one more, but for the fakes. An underscore in front makes no other name.
    """
    library = {name for name in modules() if name.startswith("fastjournal.")}
    groups = [_modules_of(program) for program in PROGRAMS] + [library]
    found = set()
    for group in groups:
        for name, places in _classes(group).items():
            if len(places) > 1:
                found.add(f"{name}: {', '.join(sorted(places))}")
    return sorted(found)


def _modules_of(program: str) -> set[str]:
    """Return the modules of a program, and those that it imports, but for other programs."""
    graph = import_graph()
    own = {name for name in graph if name == program or name.startswith(f"{program}.")}
    used = set().union(*(_reached(graph, name) for name in own))
    others = tuple(f"{other}." for other in PROGRAMS if other != program)
    return own | {name for name in used if not f"{name}.".startswith(others)}


def _classes(names: set[str]) -> dict[str, list[str]]:
    """Return the places of each class of these modules, by its name without underscores."""
    found: dict[str, list[str]] = defaultdict(list)
    for module in (modules()[name] for name in names):
        for node in module.nodes:
            if isinstance(node, ast.ClassDef):
                found[node.name.strip("_")].append(module.place)
    return found


# --- decisions ------------------------------------------------------------------------------------


@cache
def decision_pages() -> list[Path]:
    """Return the pages of docs/decisions, but for their README."""
    return sorted(page for page in DECISIONS.glob("*.md") if page.name != "README.md")


def decision_page_names() -> list[str]:
    """Return the names of the decision pages."""
    return [page.name for page in decision_pages()]


def decisions_linked_from_nowhere() -> list[str]:
    """Return the decision pages that no other page and no source file names."""
    texts = {page: page.read_text(encoding="utf-8") for page in sorted(ROOT.glob("docs/**/*.md"))}
    texts[ROOT / "README.md"] = (ROOT / "README.md").read_text(encoding="utf-8")
    for module in modules().values():
        texts[module.path] = module.path.read_text(encoding="utf-8")
    return [
        page.name
        for page in decision_pages()
        if not any(page.name in text for other, text in texts.items() if other != page)
    ]


# --- record layout --------------------------------------------------------------------------------


def layout_by_numbers() -> list[str]:
    """Return the modules that cut records of the log at literal offsets, and how often."""
    found = []
    for module in modules().values():
        if module.name.startswith(LAYOUT_PACKAGES):
            number = sum(_is_literal_cut(node) for node in module.nodes)
            if number:
                found.append(f"{module.place}: {number} times")
    return found


def _is_literal_cut(node: ast.AST) -> bool:
    """Whether a node takes something from a record at a literal offset over 1.

    ``data[body + 21 : end]`` does, and ``unpack_from(data, body + 21)``.
    """
    if isinstance(node, ast.Subscript):
        return _names_in(node.value) and _has_offset(node.slice)
    if isinstance(node, ast.Call) and len(node.args) > 1:
        return _names_in(node.args[0]) and any(_has_offset(given) for given in node.args[1:])
    return False


def _names_in(node: ast.AST) -> bool:
    return any(isinstance(one, ast.Name) and one.id in RECORD_NAMES for one in ast.walk(node))


def _has_offset(node: ast.AST) -> bool:
    return any(
        isinstance(one, ast.Constant) and isinstance(one.value, int) and one.value > 1
        for one in ast.walk(node)
    )
