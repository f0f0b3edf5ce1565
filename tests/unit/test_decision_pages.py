"""The pages of docs/decisions have the form that their README asks for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGES = sorted(Path(__file__).parents[2].joinpath("docs/decisions").glob("[0-9]*.md"))
STATUS = re.compile(r"accepted|replaced by (\d{4})")


def test_no_number_is_used_twice() -> None:
    numbers = [page.name[:4] for page in PAGES]
    assert numbers
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_says_what_is_decided_why_and_what_follows(page: Path) -> None:
    text = page.read_text()
    assert text.startswith(f"# {page.name[:4]}: ")
    (status,) = re.findall(r"^Status: (.*)$", text, re.MULTILINE)
    known = STATUS.fullmatch(status)
    assert known is not None
    if known[1]:
        assert list(page.parent.glob(f"{known[1]}-*.md")), "the page that replaces it"
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["Context", "Decision", "Consequences"]
