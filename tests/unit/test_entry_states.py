"""States of an entry: the table of legal transitions by cause, and the one place of them."""

from __future__ import annotations

import ast
from itertools import product
from pathlib import Path

import pytest

from fastjournal.cmdlog.format.packed_entry import pack_facts
from fastjournald.tables.domain import Domain
from fastjournald.tables.entry import CAUSES, STATE_NAMES, Entry, EntryState

STATES = sorted(value for name, value in vars(EntryState).items() if name.isupper())
DAEMON = Path(__file__).parents[2] / "daemon" / "fastjournald"


def entry_in(state: int) -> Entry:
    facts = pack_facts(1, 2, 3, 4, 5, 6)
    return Entry(facts, b"a:1:2:x", None, b"value", Domain(b"a"), state=state)


def test_transition_table_has_a_row_and_a_name_for_every_state() -> None:
    assert list(range(len(STATES))) == STATES
    assert len(STATE_NAMES) == len(STATES)
    for cause in CAUSES.values():
        assert len(cause) == len(STATES)
    reached = {after for cause in CAUSES.values() for row in cause for after in row}
    assert reached == set(STATES)


def test_new_entry_is_absent() -> None:
    assert entry_in(EntryState.ABSENT).state == EntryState.ABSENT
    facts = pack_facts(1, 2, 3, 4, 5, 6)
    assert Entry(facts, b"k", None, b"", Domain(b"")).state == EntryState.ABSENT


@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize(("before", "after"), list(product(STATES, STATES)))
def test_transition_is_made_only_if_legal_for_its_cause(
    before: int, after: int, cause: str
) -> None:
    legal = CAUSES[cause]
    one, among = entry_in(before), entry_in(before)
    if after in legal[before]:
        one.move_to(after, legal)
        Entry.move_all([among], after, legal)
        assert one.state == among.state == after
    else:
        with pytest.raises(AssertionError):
            one.move_to(after, legal)
        with pytest.raises(AssertionError):
            Entry.move_all([among], after, legal)
        assert one.state == among.state == before


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (EntryState.ABSENT, EntryState.ABSENT),  # removed twice
        (EntryState.LEASED, EntryState.LEASED),  # delivered to two workers
        (EntryState.BURIED, EntryState.LEASED),  # a dead letter delivered
        (EntryState.PLAIN, EntryState.PLAIN),
    ],
)
def test_transitions_that_must_never_happen_have_no_cause(before: int, after: int) -> None:
    assert not any(after in cause[before] for cause in CAUSES.values())


def test_state_is_assigned_in_one_class() -> None:
    """Entries are the only objects of the daemon with an attribute of that name."""
    assigned = []
    for path in sorted(DAEMON.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            targets = node.targets if isinstance(node, ast.Assign) else []
            if isinstance(node, ast.AugAssign):
                targets = [node.target]
            assigned += [
                f"{path.relative_to(DAEMON)}"
                for target in targets
                if isinstance(target, ast.Attribute) and target.attr == "state"
            ]
    # ``move_to`` and ``move_all``
    assert assigned == ["tables/entry.py"] * 2
