"""Units of the public interface: an integer of microseconds has a name that ends in ``_us``.

The sources of all public classes and functions are read: annotations, docstrings of attributes and
sections ``Args``. See docs/decisions/client-library.md, Units of time.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from enum import Enum
from typing import Any, NamedTuple

import fastjournal
import fastjournal.client
import fastjournal.spool
from fastjournal.client import calls
from fastjournal.client.core.worker_options import WorkerOptions

MODULES = (fastjournal, fastjournal.client, fastjournal.spool, calls)

TIMES = re.compile(
    r"(^|_)(timestamp|created|modified|accessed|expires|expiry|ttl|until|since|not_before|first_due"
    r"|next_at|lease|timeout|wait|delay|interval|duration|instant|now|patience|pause|uptime)$"
)
"""Names of instants and durations; those of counts (``due``, ``delayed``) are not among them."""

MICROSECONDS = re.compile(r"\bmicroseconds?\b", re.IGNORECASE)

NO_TIMES = {"token"}
"""A lease token is compared and sent back: its unit is the daemon's matter."""


class Named(NamedTuple):
    """A public parameter or attribute."""

    where: str
    name: str
    annotation: str
    text: str

    @property
    def is_wrong(self) -> bool:
        """Whether it is an integer of microseconds by its name or text, and does not say so."""
        if self.name.endswith("_us") or self.name in NO_TIMES:
            return False
        if self.annotation and not re.search(r"\bint\b", self.annotation):
            return False
        is_time = bool(TIMES.search(self.name)) and bool(self.annotation)
        return is_time or bool(MICROSECONDS.search(self.text))


def described(docstring: str) -> dict[str, str]:
    """Return the text of each argument in the section ``Args`` of a docstring."""
    section = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", inspect.cleandoc(docstring), re.M | re.S)
    found = re.findall(
        r"^    (\w+): (.*?)(?=^    \w+: |\Z)", section[1] if section else "", re.M | re.S
    )
    return dict(found)


def parameters(
    where: str, node: ast.FunctionDef | ast.AsyncFunctionDef, text: str
) -> Iterator[Named]:
    """Yield the parameters of a function, and its result where that is a plain number."""
    texts = described(text)
    arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
    for each in arguments:
        annotation = "" if each.annotation is None else ast.unparse(each.annotation)
        if not each.arg.startswith("_") and each.arg != "self":
            yield Named(where, each.arg, annotation, texts.get(each.arg, ""))
    if node.returns is not None and not node.name.startswith("_"):
        yield Named(where, node.name, ast.unparse(node.returns), text.partition("\n")[0])


def attributes(where: str, body: list[ast.stmt]) -> Iterator[Named]:
    """Yield what is assigned in a body, with the docstring behind it."""
    for node, after in zip(body, [*body[1:], None], strict=True):
        target = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
        name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "_")
        text = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            text = str(after.value.value)
        annotation = ast.unparse(node.annotation) if isinstance(node, ast.AnnAssign) else ""
        if not name.startswith("_"):
            yield Named(where, name, annotation, text)


def names_of(obj: Any) -> Iterator[Named]:
    """Yield all public parameters and attributes of a class or function."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(obj))).body[0]
    if isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef):
        yield from parameters(tree.name, tree, ast.get_docstring(tree) or "")
        return
    assert isinstance(tree, ast.ClassDef)
    yield from attributes(tree.name, tree.body)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            is_init = node.name == "__init__"
            if is_init or not node.name.startswith("_"):
                text = ast.get_docstring(tree if is_init else node) or ""
                yield from parameters(f"{tree.name}.{node.name}", node, text)
                yield from attributes(tree.name, node.body)


def public_objects() -> list[Any]:
    """Return the public classes, with their bases of this package, and the public functions."""
    found: dict[Any, None] = {}
    for module in MODULES:
        for name in module.__all__:
            obj = getattr(module, name)
            if inspect.isclass(obj) and not issubclass(obj, Enum):
                ours = (base for base in obj.__mro__ if base.__module__.startswith("fastjournal."))
                found.update(dict.fromkeys(ours))
            elif inspect.isfunction(obj):
                found[obj] = None
    return list(found)


def test_unit_microseconds_stands_in_each_public_name() -> None:
    named = [each for obj in public_objects() for each in names_of(obj)]
    assert len(named) > 500, "the interface is found"
    assert [f"{each.where}: {each.name}" for each in named if each.is_wrong] == []


class OldNames:
    """As metadata was, and a clock.

    Args:
        pause: How long, in microseconds.
    """

    ttl: int = 0
    priority: int = 0
    due: int = 0
    seen: int | None = None
    """When it was read, in microseconds."""
    created_us: int = 0
    lease: float = 0.5
    """Seconds; a microsecond has no name of its own."""

    def __init__(self, first: int, *, pause: int) -> None:
        self.moment = first + pause
        """The present instant, in microseconds."""

    def timestamp(self) -> int:
        """Return the instant."""
        return self.moment


def test_unit_walk_finds_microseconds_by_name_and_by_text() -> None:
    wrong = {each.name for each in names_of(OldNames) if each.is_wrong}
    assert wrong == {"ttl", "seen", "pause", "moment", "timestamp"}
    assert {each.name for each in names_of(WorkerOptions) if each.is_wrong} == set()
