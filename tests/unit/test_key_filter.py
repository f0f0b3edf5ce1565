"""Ranges and expressions: which keys they mean, and what is refused."""

from __future__ import annotations

import string

import pytest
import re2
from hypothesis import given, settings
from hypothesis import strategies as st

from fastjournal.limits import EXPRESSION_BYTES_MAX, KEY_BYTES_MAX
from fastjournald.engine.key_filter import (
    KeyFilter,
    LongMatches,
    expression_filter,
    literal_prefix,
    range_filter,
    re2_options,
)
from fastjournald.engine.pubsub.regex_sets import CompiledSet, CompiledSets, SetSearch, memory_of


def matching(expression: bytes) -> KeyFilter:
    found = expression_filter(expression)
    assert isinstance(found, KeyFilter), found
    return found


def between(first: bytes, last: bytes) -> KeyFilter:
    found = range_filter(first, last)
    assert isinstance(found, KeyFilter), found
    return found


def test_bound_that_is_too_long_is_bad_key() -> None:
    for first, last in ((b"k" * (KEY_BYTES_MAX + 1), b""), (b"", b"k" * (KEY_BYTES_MAX + 1))):
        assert str(range_filter(first, last)).startswith("bad-key ")
    between(b"k" * KEY_BYTES_MAX, b"k" * KEY_BYTES_MAX)


@pytest.mark.parametrize(
    "expression",
    [
        b"(a{1,500}){1,2}" * 2, b"(((a?){50}){20})b" * 2, b"a?" * 2000,
        b"(((a{1,10}){1,10}){1,10})" * 150, b"[ab]*a[ab]{1000}c" * 3, b"\\pL" * 33,
    ],
)  # fmt: skip
def test_expression_that_could_run_away_is_too_complex(
    expression: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    assert str(expression_filter(expression)).startswith("bad-regex too complex")
    assert capfd.readouterr() == ("", "")


URLS = {
    rb"https?://([a-z0-9-]{1,63}\.)+example\.com/": b"http://a.b-c.example.com/x",
    rb"^https?://[^/]+/": b"https://example.org/",
    rb"^https?://(www\.)?example\.(com|org|co\.uk)(:[0-9]{1,5})?(/[^?#]*)?(\?[^#]*)?(#.*)?$": (
        b"https://www.example.co.uk:8080/a/b?c=d#e"
    ),
    rb"^(https?|ftp)://[^\s/$.?#].[^\s]*$": b"ftp://example.org/file",
    (
        rb"https?://(www\.)?[-a-zA-Z0-9@:%._+~#=]{1,256}\.[a-zA-Z0-9()]{1,6}\b"
        rb"[-a-zA-Z0-9()@:%_+.~#?&/=]*"
    ): b"see https://www.example.org/path?query=1",
    rb"^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]{2,63}$": b"a-host.example.org",
    rb"https?://(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)+(?:com|org|net|io|de)/": (
        b"http://x.y.example.io/"
    ),
    rb"(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])(\.(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])){3}": (
        b"http://192.0.2.255/"
    ),
    rb"\.(jpe?g|png|gif|webp|svg|ico|css|js|woff2?|ttf|pdf|zip|gz|mp[34])(\?.*)?$": (
        b"http://example.org/a.woff2?v=1"
    ),
    rb"/[0-9]{4}/[0-9]{2}/[0-9]{2}/[a-z0-9-]{1,200}/?$": b"http://e.org/2024/02/29/a-title/",
    rb"[?&](utm_[a-z]+|fbclid|gclid|sessionid)=[^&]{1,256}": b"http://e.org/?a=b&utm_source=x",
    rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}": b"/00112233-4455-6677-8899-aabbccddeeff",
    rb"^[^:]{1,63}:[0-9]{3}:[0-9]{16}:[0-9a-f]{64}$": b"d:128:" + b"1" * 16 + b":" + b"f" * 64,
    b"|".join(b"host%d\\.example\\.org" % at for at in range(100)): b"host42.example.org",
}
"""Expressions for URLs as people write them, and a key that each matches."""


@pytest.mark.parametrize("expression", URLS)
def test_expression_for_urls_is_taken_and_matches(expression: bytes) -> None:
    found = matching(expression)
    assert found.matches(URLS[expression])
    assert not found.matches(b"")
    assert not found.matches(b"-" * KEY_BYTES_MAX)


def test_match_that_may_take_long_is_left_to_a_thread() -> None:
    found = matching(b"(a{1,30}){1,30}b")
    assert found.takes_long(b"a" * KEY_BYTES_MAX)
    assert not found.takes_long(b"a" * 50)
    assert not matching(b"^https?://[^/]+/").takes_long(b"a" * KEY_BYTES_MAX)
    matches = LongMatches(found, [b"a" * 100 + b"b", b"a" * 100])
    assert not matches.found
    matches.run()
    assert matches.found == {b"a" * 100 + b"b": True, b"a" * 100: False}


def test_expression_that_is_too_long_is_bad_regex() -> None:
    assert matching(b"^" + b"k" * (EXPRESSION_BYTES_MAX - 1)).matches(b"k" * EXPRESSION_BYTES_MAX)
    assert str(expression_filter(b"k" * (EXPRESSION_BYTES_MAX + 1))).startswith("bad-regex ")


@pytest.mark.parametrize(
    ("expression", "prefix"),
    [
        (b"^pages:", b"pages:"), (b"\\Apages:", b"pages:"), (b"^pages\\:00\\.", b"pages:00."),
        (b"^pages:(a|b)", b"pages:"), (b"^pages:[|)]", b"pages:"), (b"^pages:[]|)]x", b"pages:"),
        (b"^pages:[[:alpha:]|]", b"pages:"), (b"^ab*", b"a"), (b"^ab?c", b"a"), (b"^ab{0,2}", b"a"),
        (b"^ab+", b"a"), (b"^a\\.*", b"a"), (b"^\xff\xfe", b"\xff\xfe"),
        (b"^pages:.*\\|", b"pages:"), (b"^a$", b"a"), (b"pages:", b""), (b"(^a)", b""),
        (b"^a|b", b""), (b"^(a|b)|c", b""), (b"^a[|]|b", b""), (b"(?i)^a", b""), (b"^(?i)a", b""),
        (b"^*a", b""), (b"^\\x41", b""), (b"^a\\Q|\\E", b""), (b"^", b""), (b"", b""),
        (b"^a\\", b"a"),
    ],
)  # fmt: skip
def test_fixed_start_is_told(expression: bytes, prefix: bytes) -> None:
    assert literal_prefix(expression) == prefix


def test_rest_of_a_range_behind_a_key_begins_just_behind_it() -> None:
    rest = matching(b"^a.*c").after(b"abc")
    assert not rest.matches(b"abc")
    assert rest.matches(b"abc\0c")
    assert rest.stop == b"b"
    assert between(b"c", b"d").after(b"a").start == b"c"


PARTS = rb"""
^ \A a b \. . * ? + {0,2} | ( ) (?i) (?m) (?: (?s-i: [ ] [^ - \ \Q \E $ \b [:alpha:] \| \] \pL { } A
""".split()
PARTS_BY_CHARACTER = dict(zip(string.printable, [*PARTS, b"\xff", b"\n"], strict=False))
# text is one choice, a list is two for each of its elements
EXPRESSIONS = st.text(list(PARTS_BY_CHARACTER), max_size=10).map(
    lambda text: b"".join(map(PARTS_BY_CHARACTER.__getitem__, text))
)
KEYS = st.text("ab.A|\n\xff]", max_size=6).map(lambda text: text.encode("latin-1"))


@settings(max_examples=1500)
@given(
    st.one_of(EXPRESSIONS, EXPRESSIONS.map(lambda tail: b"^a" + tail)),
    st.lists(KEYS, min_size=1, max_size=20),
)
def test_range_of_an_expression_leaves_out_no_key_that_it_matches(
    expression: bytes, keys: list[bytes]
) -> None:
    found = expression_filter(expression)
    if isinstance(found, str):
        return
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.log_errors = False
    plain = re2.compile(expression, options)
    for key in keys:
        assert found.matches(key) == (plain.search(key) is not None)


# --- regex sets -----------------------------------------------------------------------------------
# Expressions matched together find what each finds alone, and equal sets are shared.


SETS_EXPRESSIONS = [
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
    st.lists(st.sampled_from(SETS_EXPRESSIONS), max_size=30),
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
    assert compiled.work(key) == 1
    assert compiled.work(b"xa" * 1000) > 1
    for search in searches:
        search.clear()
    assert (len(sets), sets.bytes) == (0, 0)


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
