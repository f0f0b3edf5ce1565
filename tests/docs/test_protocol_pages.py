"""docs/protocol.md says of functions what is declared of them."""

from __future__ import annotations

from tests.docs.protocol_pages import PROTOCOL, lock_sentence, protocol_page


def test_tables_of_functions_and_rights_are_those_of_the_declarations() -> None:
    assert PROTOCOL.read_text(encoding="utf-8") == protocol_page(), "make pages writes it"


def test_writes_for_locks_are_those_of_the_declarations() -> None:
    assert lock_sentence() in " ".join(PROTOCOL.read_text(encoding="utf-8").split())
