"""docs/protocol.md says of functions what is declared of them."""

from __future__ import annotations

import re

from fastjournal.protocol.functions import Function, Right
from tests.docs.protocol_pages import DOCS, PROTOCOL, lock_sentence, protocol_page


def test_tables_of_functions_and_rights_are_those_of_the_declarations() -> None:
    assert PROTOCOL.read_text(encoding="utf-8") == protocol_page(), "make pages writes it"


def test_writes_for_locks_are_those_of_the_declarations() -> None:
    assert lock_sentence() in " ".join(PROTOCOL.read_text(encoding="utf-8").split())


def test_security_page_names_each_function_beside_its_rights() -> None:
    page = (DOCS / "security.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", page, re.MULTILINE))
    for function in Function:
        access = function.declared.access
        if access is not None:
            forms = (access.rights, access.with_token, access.with_lease)
            needed = {right for rights in forms for right in rights or Right(0)}
            for right in needed:
                assert re.search(rf"\b{function.name}\b", rows[str(right.name).lower()]), right
