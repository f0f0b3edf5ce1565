"""The bounds of fastjournal stand in one place, each once."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

from fastjournal import limits


def test_limit_is_defined_once() -> None:
    tree = ast.parse(Path(limits.__file__).read_text())
    names = [
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    ]
    assert "WAITS_MAX" in names
    assert [name for name, number in Counter(names).items() if number > 1] == []
