"""docs/protocol.md says of functions what is declared of them."""

from __future__ import annotations

import re

from fastjournal.protocol.functions import Right
from tests.docs.protocol_pages import DOCS, PROTOCOL, lock_sentence, protocol_page


def test_tables_of_functions_and_rights_are_those_of_the_declarations() -> None:
    assert PROTOCOL.read_text(encoding="utf-8") == protocol_page(), "make pages writes it"


def test_locks_of_the_page_cover_the_writes_of_the_declarations() -> None:
    assert lock_sentence() in " ".join(PROTOCOL.read_text(encoding="utf-8").split())


def test_rights_are_all_named_on_the_security_page() -> None:
    page = (DOCS / "security.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| .+ \|$", page, re.MULTILINE)
    assert rows == [str(right.name).lower() for right in Right]
