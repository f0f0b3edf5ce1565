"""States of an entry: the table of legal transitions, and the one place where they happen."""

from __future__ import annotations

import ast
from itertools import product
from pathlib import Path

import pytest

from fastjournal.cmdlog.format.packed_entry import pack_facts
from tests.door.tables import STATE_NAMES, TRANSITIONS, Domain, Entry, EntryState

STATES = sorted(value for name, value in vars(EntryState).items() if name.isupper())
DAEMON = Path(__file__).parents[2] / "daemon" / "fastjournald"


def entry_in(state: int) -> Entry:
    facts = pack_facts(1, 2, 3, 4, 5, 6)
    return Entry(facts, b"a:1:2:x", None, b"value", Domain(b"a"), state=state)


def test_transition_table_has_a_row_and_a_name_for_every_state() -> None:
    assert list(range(len(STATES))) == STATES
    assert len(TRANSITIONS) == len(STATE_NAMES) == len(STATES)
    assert set().union(*TRANSITIONS) == set(STATES), "every state can be reached"


def test_new_entry_is_absent() -> None:
    assert entry_in(EntryState.ABSENT).state == EntryState.ABSENT
    facts = pack_facts(1, 2, 3, 4, 5, 6)
    assert Entry(facts, b"k", None, b"", Domain(b"")).state == EntryState.ABSENT


@pytest.mark.parametrize(("before", "after"), list(product(STATES, STATES)))
def test_transition_is_made_only_if_legal(before: int, after: int) -> None:
    entry = entry_in(before)
    if after in TRANSITIONS[before]:
        entry.move_to(after)
        assert entry.state == after
    else:
        with pytest.raises(AssertionError):
            entry.move_to(after)
        assert entry.state == before


def test_transitions_that_must_never_happen_are_illegal() -> None:
    absent, leased, buried = EntryState.ABSENT, EntryState.LEASED, EntryState.BURIED
    for before, after in (
        (absent, absent),  # removed twice
        (leased, leased),  # delivered to two workers
        (buried, leased),  # a dead letter delivered
        (EntryState.PLAIN, EntryState.PLAIN),
    ):
        assert after not in TRANSITIONS[before]


def test_state_is_assigned_in_one_method() -> None:
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
    assert assigned == ["tables/entry.py"]
