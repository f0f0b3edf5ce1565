"""Layout of the tests: tiers are directories, and what names a test file names one that exists."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
TIERS = {"unit", "property", "format", "integration", "system", "spark", "docs", "soak", "bench"}
SOURCES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *(path for room in ("fastjournal", "daemon", "client") for path in (ROOT / room).rglob("*.py")),
    *TESTS.rglob("*.py"),
]
NAMED = re.compile(r"\btests/(\w+/\w+\.py)\b|(?<!/)\b(\w+/(?:test|bench)_\w+\.py)\b")
BY_NAME = re.compile(r"\b((?:test|bench)_\w+\.py)\b")


def test_layout_has_a_directory_for_each_tier_and_nothing_else_with_tests() -> None:
    found = {path.relative_to(TESTS).parts[0] for path in TESTS.rglob("test_*.py")}
    assert found == TIERS - {"bench"}
    assert list((TESTS / "bench").glob("bench_*.py"))
    contributing = (ROOT / "docs/contributing.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `tests/(\w+)` \|", contributing, re.MULTILINE)) == TIERS


def test_layout_has_every_file_that_is_named() -> None:
    names = {path.name for path in TESTS.rglob("*.py")}
    paths = {str(path.relative_to(TESTS)) for path in TESTS.rglob("*.py")}
    missing = set()
    for source in SOURCES:
        text = source.read_text(encoding="utf-8")
        missing |= {(source.name, a or b) for a, b in NAMED.findall(text) if (a or b) not in paths}
        missing |= {(source.name, name) for name in BY_NAME.findall(text) if name not in names}
    assert missing == set()
