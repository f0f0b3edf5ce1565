"""Packed facts of an entry: every field comes back as it was set."""

from __future__ import annotations

from itertools import product

import pytest

from fastjournal.cmdlog.format.packed_entry import ORDER_BYTES, pack_facts
from fastjournald.tables.domain import Domain
from fastjournald.tables.entry import CAUSES, STATE_NAMES, AccessTimes, Entry, EntryState, Extra


def an_entry(*facts: int) -> Entry:
    return Entry(pack_facts(*facts), b"a:1:2:x", None, b"value", Domain(b"a"))


def test_facts_sort_by_priority_instant_and_arrival() -> None:
    ascending = [(1, 300, 900), (2, 0, 800), (2, 1, 700), (2, 1, 701), (2, 256, 1), (3, 0, 0)]
    packed = [pack_facts(*order, 0, 0, 0) for order in ascending]
    assert packed == sorted(packed)
    assert [facts[:ORDER_BYTES] for facts in packed] == sorted(
        facts[:ORDER_BYTES] for facts in reversed(packed)
    )


def test_entry_that_was_only_read_has_times_and_no_other_cold_field() -> None:
    entry = an_entry(1, 2, 3, 4, 5, 6)
    entry.domain = Domain(b"")
    entry.accessed = 9
    assert type(entry.extra) is AccessTimes
    assert (entry.accessed, entry.modified) == (9, entry.created)
    unset = Extra(seen=9)
    for name in Extra.__struct_fields__:
        assert getattr(entry.extra, name) == getattr(unset, name)
    with pytest.raises(AttributeError):
        entry.extra.token = 5
    entry.modified = 8
    assert type(entry.extra) is AccessTimes
    entry.own().token = 5
    assert entry.extra == Extra(changed=8, seen=9, token=5)


# --- entry states ---------------------------------------------------------------------------------
# States of an entry: the table of legal transitions by cause, and the one place of them.


STATES = sorted(value for name, value in vars(EntryState).items() if name.isupper())


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
