"""Expressions matched together find what each finds alone, and equal sets are shared."""

from __future__ import annotations

import re2
from hypothesis import given
from hypothesis import strategies as st

from fastjournal.limits import EXPRESSION_SET_INSTRUCTIONS
from fastjournald.engine.key_filter import KeyFilter, expression_filter, re2_options
from fastjournald.engine.pubsub.regex_sets import CompiledSet, CompiledSets, SetSearch, memory_of

EXPRESSIONS = [
    b"a", b"^a", b"a$", b"b+c", b"(a|b)*c", b".", b"^$", b"", b"[^a]", b"a{3}", b"\\xff", b"(?i)AB",
    b"^ab|^ba", b"\\bab\\b", b"a.c", b"(?s).\n", b"\xe4",
]  # fmt: skip


def selected(expression: bytes) -> KeyFilter:
    wanted = expression_filter(expression)
    assert isinstance(wanted, KeyFilter)
    return wanted


def found_in(search: SetSearch[int], key: bytes) -> list[int]:
    return sorted(one for part in search.parts for one in part.found_in(key))


@given(
    st.lists(st.sampled_from(EXPRESSIONS), max_size=30),
    st.lists(st.integers(0, 29), max_size=20),
    st.lists(st.binary(max_size=6) | st.text("abc", max_size=6).map(str.encode), max_size=8),
)
def test_expression_sets_find_what_each_expression_finds(
    expressions: list[bytes], ended: list[int], keys: list[bytes]
) -> None:
    sets = CompiledSets()
    search: SetSearch[int] = SetSearch("session", sets)
    standing = dict(enumerate(expressions))
    for number, expression in standing.items():
        search.add(expression, selected(expression).instructions, number)
    for number in ended:
        if number in standing:
            search.remove(standing.pop(number), number)
    for key in keys:
        assert found_in(search, key) == [
            number
            for number, expression in standing.items()
            if selected(expression).matches_inside(key) and selected(expression).matches(key)
        ]
    search.clear()
    assert (len(sets), sets.bytes) == (0, 0)


def test_expression_sets_are_shared_by_those_who_have_the_same() -> None:
    sets = CompiledSets()
    searches: list[SetSearch[int]] = [SetSearch(session, sets) for session in range(100)]
    for search in searches:
        for expression in (b"a", b"b"):
            search.add(expression, selected(expression).instructions, 1)
    assert len(sets) == 1
    assert len({part.compiled for search in searches for part in search.parts}) == 1
    key = b"xa"
    assert all(found_in(search, key) == [1] for search in searches)
    compiled = searches[0].parts[0].compiled
    assert compiled is not None
    assert compiled.work(key) == 1
    assert compiled.work(b"xa" * 1000) > 1
    for search in searches:
        search.clear()
    assert (len(sets), sets.bytes) == (0, 0)


def test_expression_set_is_no_larger_than_one_expression_may_be() -> None:
    sets = CompiledSets()
    search: SetSearch[int] = SetSearch("session", sets)
    for number in range(100):
        expression = b"item%d.*x" % number
        search.add(expression, selected(expression).instructions, number)
    assert 1 < len(search.parts) < 20
    for part in search.parts:
        assert part.compiled is not None
        assert part.compiled.instructions <= EXPRESSION_SET_INSTRUCTIONS
    assert found_in(search, b"an item77 and x") == [7, 77]


def test_expression_set_has_the_memory_that_its_automaton_needs() -> None:
    literal = bytes(range(0x80, 0x100))
    one = b"[ab]*" + literal
    compiled = CompiledSet((one,), 1)
    assert compiled.bytes > memory_of(1), "with so little it was not made"
    compiled.users = 1
    for tail in (literal, literal[:-1]):
        key = b"ab" * 1500 + tail
        assert bool(compiled.search(key)) == (
            re2.search(one, key, re2_options(1 << 20)) is not None
        )
    largest = b"|".join([b"x%d" % number for number in range(40)])
    instructions = selected(largest).instructions
    assert CompiledSet((largest,), instructions).bytes == memory_of(instructions)
