"""Prose of pages, docstrings and comments: plain English, with the noun of the field first."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]

SOURCES = [
    path for part in ("fastjournal", "daemon", "client") for path in (ROOT / part).rglob("*.py")
]
TESTS = list((ROOT / "tests").rglob("*.py"))

BLOCK_LINES = re.compile(r"^```.*?^```\n|^ {4}[^\n]*\n", re.MULTILINE | re.DOTALL)
QUOTED = re.compile(r"`+[^`\n]+`+")
"""Names and texts that a program prints: they stay as they are."""

BADLY_BEGUN = re.compile(
    r"(?:^(?:#+|-|\d+\.)? ?|[.:;?!] |\*\* |\| )(?:What|Who|Whose|Whoever|That|Of)\b.{0,50}",
    re.MULTILINE,
)
"""Heading, sentence or cell that begins with a word that is no subject."""

NO_SUBJECT = re.compile(r"\b(?:What|Who|Whose|Whoever|That|Of)\b")
DOCSTRING_BADLY_BEGUN = re.compile(
    rf"(?:\A|[.:;?!]\s+|\n\n\s*|\n\s*- ){NO_SUBJECT.pattern}.{{0,50}}"
)
"""Sentence of a docstring, or text of an argument, that begins so."""

NO_NOUN_FIRST = re.compile(
    r'(?:\A|^ *class [^"]*?:\n +)"""((?:How|Where|When|Which|Every(?:thing)?|All|It)\b.{0,50})',
    re.MULTILINE,
)
"""First line of the docstring of a module or a class, which a search goes by, without its noun."""

COMMENT = re.compile(r"(?:^ *# .*\n)+", re.MULTILINE)
COMMENT_BADLY_BEGUN = re.compile(
    rf"(?:\A(?i:{NO_SUBJECT.pattern})|[.:;?!] {NO_SUBJECT.pattern}).{{0,50}}"
)

HOME_MADE = re.compile(
    r"\b(?:forgets?|forgot(?:ten)?|rouses?|lets?\s+go|g[ia]ves?\s+up|given\s+up|wins?\s+back|"
    r"stands?\s+still|(?:is|are|was|were|be|been)\s+told|hands?\s+out|handed\s+out|"
    r"g[ia]ves?\s+back|given\s+back|remembers?|remembered|remembering)\b.{0,50}"
)
"""Verb of daily life for a technical act."""


TEST_NAME = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)
UNIT_TEST_BADLY_NAMED = re.compile(
    r"test_(?:an?|the|that|th[eo]se|its?|what(?:ever)?|who(?:se|ever)?|which|when|where|while|there|"
    r"no|nor|neither|nothing|nobody|every|each|all|any|both|some|several|many|more|few|only|too|also|so|"
    r"one|two|three|others?|another|same|after|at|behind|before|by|in|of|on|under|with|without|"
    r"give|up|\d+)_"
)
"""Article, pronoun, number, adverb or preposition in front of the mechanism."""

MECHANISMS = """
address archive attempt auth backlog backpressure bench block blocking body budget bulk bury
cancellation certificate chain cli client clock close command commit compaction completion config
connect connection crash cursor daemon damage decision decoder delay demo disk domain door dump
encoder end engine entry error event explain explained export expression extension failed failover
fork forked forwarder function handshake hangup history http import install interpreter job key kick
kill layer layout lease limit link listen listener live lock locked log loop malformed map memory
metric model monitoring next nop notification opcode output page pause peek ping pipeline poison
poll poller port power program prose protocol purge quickstart quit random range raw reader ready
record recovery refusal release removal rename repair replay reply report request restart retry
right run runbook scan sdist segment server service session set sighup signal sigterm site slot
snapshot soak socket spark spool stat status stop stream structure subcommand subscription sync
systemd table terminal thread throughput timeout tls token top torn trio truncate tutorial type unit
uri usage value view waiver watch wheel worker workq
"""
"""First words of the names of tests, but for unit tests, in the singular: what a test is about.

A new word is the field's term for a mechanism, a part or a document, and no article, pronoun,
number, adverb or preposition.
"""


def prose(page: Path) -> str:
    """Return the text of a page without blocks of code and quoted names."""
    return QUOTED.sub("``", BLOCK_LINES.sub("", page.read_text(encoding="utf-8")))


def docstrings(text: str) -> Iterator[str]:
    """Yield the docstrings of a source file, those of attributes too."""
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        for inner in body if isinstance(body, list) else ():
            if isinstance(inner, ast.Expr) and isinstance(inner.value, ast.Constant):
                yield QUOTED.sub("``", cleandoc(str(inner.value.value)))


def comments(text: str) -> Iterator[str]:
    """Yield the comments of a source file that have lines of their own."""
    for match in COMMENT.finditer(text):
        yield " ".join(line.strip(" #") for line in match[0].splitlines())


def found_in_docstrings(pattern: re.Pattern[str], hint: re.Pattern[str]) -> list[str]:
    """Return the places in docstrings of sources and tests; only files with the hint are parsed."""
    places = []
    for path in SOURCES if pattern is HOME_MADE else [*SOURCES, *TESTS]:
        text = path.read_text(encoding="utf-8")
        if hint.search(text):
            name = path.relative_to(ROOT)
            for docstring in docstrings(text):
                places += [f"{name}: {place}" for place in found(pattern, docstring)]
    return places


def found(pattern: re.Pattern[str], text: str) -> list[str]:
    """Return the places of a text at which a pattern matches."""
    return [match[0].strip() for match in pattern.finditer(text)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_sentences_begin_with_a_noun(page: Path) -> None:
    assert not found(BADLY_BEGUN, prose(page))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_verbs_are_technical(page: Path) -> None:
    text = prose(page).partition("\n## Glossary\n")[0]
    assert not found(HOME_MADE, text), "the glossary in architecture.md has the terms"


def test_prose_of_docstrings_begins_with_a_noun() -> None:
    assert not found_in_docstrings(DOCSTRING_BADLY_BEGUN, NO_SUBJECT)


def test_prose_of_modules_and_classes_has_its_noun_in_the_first_line() -> None:
    assert not [
        f"{path.relative_to(ROOT)}: {line}"
        for path in SOURCES
        for line in NO_NOUN_FIRST.findall(path.read_text(encoding="utf-8"))
    ]
    assert NO_NOUN_FIRST.findall('"""How it goes."""') == ['How it goes."""']
    assert NO_NOUN_FIRST.findall('class A:\n    """When it is."""\n')


def test_prose_of_docstrings_has_technical_verbs() -> None:
    assert not found_in_docstrings(HOME_MADE, HOME_MADE), "the glossary has the terms"


def test_prose_of_comments_begins_with_a_noun_and_has_technical_verbs() -> None:
    places = []
    for path in SOURCES:
        for comment in comments(path.read_text(encoding="utf-8")):
            for pattern in (COMMENT_BADLY_BEGUN, HOME_MADE):
                places += [f"{path.relative_to(ROOT)}: {p}" for p in found(pattern, comment)]
    assert not places


def is_mechanism(name: str) -> bool:
    """Whether the name of a test begins with a mechanism, in the singular or the plural."""
    word = name.split("_")[1]
    singular = word.removesuffix("ies") + "y" if word.endswith("ies") else word.removesuffix("s")
    return not {word, singular}.isdisjoint(MECHANISMS.split())


def test_prose_of_test_names_begins_with_a_mechanism() -> None:
    names = {
        f"{path.relative_to(ROOT)}: {name}": "unit" in path.parts
        for path in TESTS
        for name in TEST_NAME.findall(path.read_text(encoding="utf-8"))
    }
    assert sum(names.values()) > 1000
    badly = [
        name
        for name, unit in names.items()
        if (UNIT_TEST_BADLY_NAMED.search(name) if unit else not is_mechanism(name.split(": ")[1]))
    ]
    assert not badly, "put the mechanism first, or add a mechanism that is new to MECHANISMS"


def test_prose_patterns_find_what_they_are_for() -> None:
    assert found(BADLY_BEGUN, "## What grows\n- Who reads.\nIt is so. That is it.\n| a | Of b |\n")
    assert not found(BADLY_BEGUN, "The page says what grows. Thatch. Office: the list of all.\n")
    assert found(HOME_MADE, "A client is told so, and work is handed out.")
    source = '"""It is so.\n\nArgs:\n    a: Of b.\n"""\nX = 1\n"""Who reads."""\n# whose is it\n'
    texts = list(docstrings(source))
    assert [len(found(DOCSTRING_BADLY_BEGUN, text)) for text in texts] == [1, 1]
    assert found(COMMENT_BADLY_BEGUN, *comments(source))
    assert not found(DOCSTRING_BADLY_BEGUN, "It says what grows\nOf all. The Office. :class:`Of`")
    assert not list(docstrings("x = 'Who reads.'\nf('What')\n"))
    names = ["test_leases_end", "test_entries_wait", "test_every_lease_ends", "test_it_ends"]
    assert [is_mechanism(name) for name in names] == [True, True, False, False]
