"""Tests reach the inside of the daemon through one door: a renamed module costs a line there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.door.places import PLACES

TESTS = Path(__file__).parents[1]
DOOR = TESTS / "door"
FILES = [path for path in sorted(TESTS.rglob("*.py")) if DOOR not in path.parents]
ROOMS = {path.stem for path in (TESTS.parent / "daemon/fastjournald").iterdir()}
PATCHED = re.compile(r"fastjournald\.(\w+)[\w.]*")


def named_modules(text: str) -> list[str]:
    """Return the daemon's modules that a file names, in imports and in strings of dotted names."""
    # most files have no such name in any form, and need not be parsed
    found = []
    for node in ast.walk(ast.parse(text if "fastjournald" in text else "")):
        match node:
            case ast.ImportFrom(module=str(module)):
                found.append(module)
            case ast.Import(names=names):
                found += [alias.name for alias in names]
            case ast.Constant(value=str(value)):
                patched = PATCHED.fullmatch(value)
                if patched is not None and patched[1] in ROOMS:
                    found.append(value)
    return [name for name in found if name.partition(".")[0] == "fastjournald"]


def test_door_is_the_only_place_that_names_modules_of_the_daemon() -> None:
    found = {path.name: named_modules(path.read_text(encoding="utf-8")) for path in FILES}
    assert {name: modules for name, modules in found.items() if modules} == {}


@pytest.mark.parametrize(
    "text",
    [
        "import fastjournald.main",
        "from fastjournald import main",
        "from fastjournald.main import main",
        "def late():\n    from fastjournald.net.tls import Handshakes",
        "patch('fastjournald.' 'net.session.TURN_WORK')",
    ],
)
def test_door_check_sees_each_way_round_it(text: str) -> None:
    assert len(named_modules(text)) == 1


def test_door_has_no_name_without_a_user() -> None:
    texts = [path.read_text(encoding="utf-8") for path in FILES]
    used = {name for text in texts for name in re.findall(r"[\w.]+", text)}
    used |= {part for name in used for part in name.split(".")}
    for path in sorted(DOOR.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fastjournald"):
                assert {alias.name for alias in node.names} <= used, path.name
    for module, names in PLACES.items():
        assert set(names.split()) <= used, module
