"""Marks of tests, read from their text: what they say is known without collecting the tests."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent


@cache
def marked(mark: str) -> list[tuple[str, str]]:
    """Return each argument of a mark, a literal, and the test that has it, as ``file::test``."""
    return sorted(_marked(mark))


def _marked(mark: str) -> Iterator[tuple[str, str]]:
    for path in TESTS.rglob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        if f"mark.{mark}(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for decorator in node.decorator_list:
                    for argument in _arguments(decorator, mark):
                        yield argument, f"{path.name}::{node.name}"


def _arguments(decorator: ast.expr, mark: str) -> list[str]:
    """Return the arguments of ``pytest.mark.<mark>``; none of what is another decorator."""
    match decorator:
        case ast.Call(ast.Attribute(ast.Attribute(attr="mark"), attr), arguments) if attr == mark:
            return [str(ast.literal_eval(argument)) for argument in arguments]
    return []
