"""Parts of the protocol's pages that are made from the code: run this module to write them.

python -m tests.docs.protocol_pages
"""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from pathlib import Path
from types import ModuleType

from fastjournal.protocol import constants
from fastjournal.protocol.constants import ErrorCode
from fastjournal.protocol.functions import Function, RequiredRights, Right

DOCS = Path(__file__).parents[2] / "docs"
PROTOCOL = DOCS / "protocol.md"


def functions_table() -> list[str]:
    """Return the table of functions."""
    rows = [f"| {int(f)} | {f.name} | {f.declared.text} |" for f in Function]
    return ["| n | name | effect |", "| --- | --- | --- |", *rows]


def rights_table() -> list[str]:
    """Return the table of rights: a row for all functions that need the same."""
    functions: dict[str, list[str]] = {}
    for function in Function:
        access = function.declared.access
        if access is not None:
            needed = f"{rights_text(access)} | {access.scope.value}"
            functions.setdefault(needed, []).append(function.name)
    rows = [f"| {', '.join(names)} | {needed} |" for needed, names in functions.items()]
    return ["| function | right | for |", "| --- | --- | --- |", *rows]


def attribute_docs(module: ModuleType, inside: str = "") -> dict[str, str]:
    """Return the docstring of each attribute of a module, or of a class in it, in one line."""
    tree: ast.Module | ast.ClassDef = ast.parse(Path(str(module.__file__)).read_text("utf-8"))
    if inside:
        classes = (node for node in tree.body if isinstance(node, ast.ClassDef))
        tree = next(node for node in classes if node.name == inside)
    found = {}
    for before, after in pairwise(tree.body):
        match before, after:
            case (
                ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = " ".join(text.split())
    return found


def errors_table() -> list[str]:
    """Return the table of error codes."""
    texts = attribute_docs(constants, "ErrorCode")
    rows = []
    for code in ErrorCode:
        text = texts[code.name].removesuffix(".")
        first = text.partition(" ")[0]
        if len(first) == 1 or not first.isupper():
            text = text[0].lower() + text[1:]
        ends = "; may close the connection" if code.closes else ""
        rows.append(f"| `{code}` | {text} | {code.effect.value}{ends} |")
    return ["| code | meaning | for a kept request |", "| --- | --- | --- |", *rows]


def rights_text(access: RequiredRights) -> str:
    """Return the rights in words."""

    def told(rights: Right) -> str:
        text = " and ".join(str(right.name).lower() for right in rights) or "none"
        more = access.with_listen & ~rights
        return text + (f" (with LISTEN: and {told(more)})" if more else "")

    forms = [
        ("", access.rights),
        ("with a lease token ", access.with_token),
        ("with a lease ", access.with_lease),
        ("with a new expiry ", access.with_expiry),
    ]
    text = "; ".join(form + told(rights) for form, rights in forms if rights is not None)
    return text + (", or admin" if access.or_admin else "")


def lock_sentence() -> str:
    """Return the sentence about what is a write, for locks."""
    *names, last = [function.name for function in Function if function.declared.locked]
    return f"Writes, for locks, are {', '.join(names)} and {last}."


def with_table(page: str, table: list[str]) -> str:
    """Return a page with this table instead of the one that has the same heading."""
    found = re.search(rf"^{re.escape(table[0])}\n(?:\|.*\n)+", page, re.MULTILINE)
    assert found is not None, table[0]
    return page[: found.start()] + "\n".join([*table, ""]) + page[found.end() :]


def protocol_page() -> str:
    """Return docs/protocol.md as it should be."""
    page = PROTOCOL.read_text(encoding="utf-8")
    for table in (functions_table(), rights_table(), errors_table()):
        page = with_table(page, table)
    return page


if __name__ == "__main__":
    PROTOCOL.write_text(protocol_page(), encoding="utf-8")
