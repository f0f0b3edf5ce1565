"""Every rule of docs/protocol.md has a test that says so."""

from __future__ import annotations

from tests.docs.protocol_rules import (
    DECIDED,
    decided_in,
    rows_of,
    says,
    sections,
    shown,
)

SAID_IN_A_TABLE = 7
"""Sentences marked **Decided** in rows of tables: the row stands for them."""


def test_table_rows_all_have_a_test() -> None:
    without = [
        f"{head}: {rule}"
        for head, rules in shown().items()
        for rule, tests in rules.items()
        if not tests
    ]
    assert without == []


def test_decision_sentences_of_the_protocol_have_a_test() -> None:
    marked = shown()
    without = [
        f"{head}: {' '.join(sentence.split())[:60]}"
        for head, text in sections().items()
        for sentence in decided_in(text)
        if not any(says(sentence, rule) for rule in marked[head])
    ]
    assert without == []


def test_decision_sentences_in_tables_are_counted() -> None:
    everywhere = sum(len(DECIDED.findall(text)) for text in sections().values())
    assert (
        everywhere - sum(len(decided_in(text)) for text in sections().values()) == SAID_IN_A_TABLE
    )


def test_page_sections_that_say_a_rule_have_a_test() -> None:
    assert [head for head, rules in shown().items() if not rules] == []


def test_table_rows_are_named_by_their_number_and_name() -> None:
    assert rows_of("| n | name | what |\n| --- | --- | --- |\n| 0 | NOP | nothing |\n") == ["0 NOP"]
    assert rows_of("| a | b |\n| --- | --- |\n| x | y |\n") == ["x"]
