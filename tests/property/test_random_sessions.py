"""1,000 random sessions of 200 requests: the engine answers all of them as the naive model does."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

import pytest

from fastjournal.protocol.constants import Flag, Function
from fastjournald.tables.entry import CAUSES, Cause, Entry, EntryState
from tests.property.model import Model
from tests.property.model_parts import Rules
from tests.property.random_sessions import (
    RESTART,
    Choices,
    Step,
    check_session,
    draw_session,
    play,
    shrink,
)
from tests.property.side_by_side import SideBySide
from tests.property.subject import SECOND, START, EngineSubject

SESSIONS = int(os.environ.get("FASTJOURNAL_SESSIONS", "1000"))
REQUESTS = 200
PARTS = 20
CHOICES = Choices(START)
RESTARTING = replace(CHOICES, restarts=True)


def run(steps: Sequence[Step], attempts_max: int, *, cold: bool = False) -> None:
    rules = Rules(lease_us_default=5 * SECOND, attempts_max=attempts_max, postpone_us_max=SECOND)
    engine = EngineSubject(rules, checks=False, cold=cold)
    now = START

    def clock(wait: int) -> int:
        nonlocal now
        # the daemon wakes whenever something happens
        end = now + wait
        while (at := both.model.next_event()) is not None and at <= end:
            now = max(now, at)
            both.model.advance(now)
            engine.advance(now)
            both.settle(now)
        now = end
        return now

    both = SideBySide(engine, Model(rules))
    play(steps, both, clock)
    engine.engine.check()


@pytest.mark.rule("GET: Entries that a lease leaves out")
@pytest.mark.parametrize("part", range(PARTS))
def test_random_sessions_pass_with_the_model_beside(part: int) -> None:
    for seed in range(part, SESSIONS, PARTS):
        steps = draw_session(seed, REQUESTS, RESTARTING if seed % 2 else CHOICES)
        assert len(steps) == REQUESTS
        check_session(steps, partial(run, attempts_max=seed % 3, cold=seed % 4 > 1), START, seed)


def test_random_sessions_make_every_legal_transition_of_an_entry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = {id(cause): name for name, cause in CAUSES.items()}
    legal = {
        (name, before, after)
        for name, cause in CAUSES.items()
        for before, row in enumerate(cause)
        for after in row
    }
    # by a restart after the end of a lease that other work waits for: test_bulk_load
    unmade = {("REQUEUE", EntryState.READY, EntryState.READY)}
    made: set[tuple[str, int, int]] = set()
    move_to = Entry.move_to

    def recorded(entry: Entry, state: int, cause: Cause) -> None:
        made.add((names[id(cause)], entry.state, state))
        move_to(entry, state, cause)

    def all_recorded(entries: Iterable[Entry], state: int, cause: Cause) -> None:
        for entry in entries:
            recorded(entry, state, cause)

    monkeypatch.setattr(Entry, "move_to", recorded)
    monkeypatch.setattr(Entry, "move_all", staticmethod(all_recorded))
    # from here on half as many make all of them as from 0 on
    for seed in range(58, 58 + max(SESSIONS, 1000)):
        run(draw_session(seed, REQUESTS, RESTARTING), attempts_max=seed % 3)
        if legal - made == unmade:
            break
    assert legal - made == unmade


def test_session_is_drawn_from_its_seed_alone() -> None:
    assert draw_session(7, 50, CHOICES) == draw_session(7, 50, CHOICES)
    assert draw_session(7, 50, CHOICES) != draw_session(8, 50, CHOICES)


def test_session_that_fails_is_shrunk_to_the_steps_that_it_needs() -> None:
    steps = draw_session(1, 100, CHOICES)
    needed = {steps[17], steps[60], steps[61]}
    assert set(shrink(steps, lambda them: needed <= set(them))) == needed


def test_random_sessions_report_a_difference_as_code() -> None:
    steps = draw_session(1, 30, CHOICES)

    def differs(them: Sequence[Step]) -> None:
        assert steps[4] not in them, "they differ"

    with pytest.raises(AssertionError, match="session 1: they differ") as failed:
        check_session(steps, differs, START, 1)
    code = str(failed.value).partition(f"start={START}\n")[2]
    assert eval(code, {"Step": Step, "Function": Function}) == [steps[4]]


FOUND = {
    "a link that a SET takes as URI leads elsewhere after a restart too": [
        Step(Function.SET, b"a:1:0:y", value=b"x", flags=Flag.PERSIST, wait=1),
        Step(Function.LINK, b"a:1:0:y", b"l", flags=Flag.PERSIST, wait=1),
        Step(Function.NEXT, flags=Flag.PERSIST, timeout=5 * SECOND, wait=2),
        Step(Function.SET, b"b:1:0:x", b"l", b"y", flags=Flag.PERSIST, wait=2),
        Step(RESTART, wait=2),
        Step(Function.NEXT, flags=Flag.META),
        Step(Function.NEXT, flags=Flag.META, wait=6 * SECOND),
    ],
    "a superseded entry is not renamed to the URI that it has lost": [
        Step(Function.SET, b"q", b"l", b"1", wait=1),
        Step(Function.GET, b"q", timeout=60 * SECOND, wait=1),
        Step(Function.SET, b"a:1:0:x", b"l", b"2", timeout=1000, wait=1),
        Step(Function.RENAME, b"q", b"l", wait=SECOND),
        Step(Function.LINK, b"q", b"l", wait=1),
        Step(Function.GET, b"l", flags=Flag.META),
    ],
    "a SET over the same key and URI does not end the chain that bounds how far it is put off": [
        Step(Function.SET, b"b:7:%d:x" % (START + 240 * SECOND), b"u", b"1"),
        Step(Function.SET, b"a:2:0:x", b"u", b"2", wait=1),
        Step(Function.SET, b"a:2:0:x", b"u", b"3", flags=Flag.OVERWRITE, wait=1),
        Step(Function.SET, b"a:1:%d:x" % (START + 240 * SECOND), b"u", b"4", wait=1),
        Step(Function.GET, b"u", flags=Flag.META),
    ],
}


@pytest.mark.parametrize("name", FOUND)
def test_random_sessions_that_differed_once_do_not_any_more(name: str) -> None:
    run(FOUND[name], attempts_max=0)
