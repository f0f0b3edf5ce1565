"""States of an entry, and the table of legal transitions between them, by cause.

    absent   not in the store: new, removed, or popped by NEXT
    plain    key/value data that nobody works on
    ready    due: NEXT hands it out
    delayed  waits for its instant, for a lock, or for the end of other work on its URI
    leased   in flight: worked on until its lease ends
    buried   dead letter: set aside until KICK

A state changes in ``Entry.move_to`` and ``Entry.move_all`` only. They assert that the transition is
legal for its cause.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias


class EntryState:
    """Numbers of the states (plain integers: they are compared often)."""

    ABSENT: Final = 0
    PLAIN: Final = 1
    READY: Final = 2
    DELAYED: Final = 3
    LEASED: Final = 4
    BURIED: Final = 5


STATE_NAMES: Final = ("absent", "plain", "ready", "delayed", "worked on", "buried")
"""As STATS calls them."""

_STATES = range(len(STATE_NAMES))
_ABSENT, _PLAIN, _READY = EntryState.ABSENT, EntryState.PLAIN, EntryState.READY
_DELAYED, _LEASED, _BURIED = EntryState.DELAYED, EntryState.LEASED, EntryState.BURIED

Cause: TypeAlias = tuple[frozenset[int], ...]
"""Cause of transitions: for each state those that may follow it, for this cause."""


def _cause(*transitions: tuple[set[int], set[int]]) -> Cause:
    """Return a cause by states before, and those that may follow each of them."""
    return tuple(
        frozenset().union(*(after for before, after in transitions if state in before))
        for state in _STATES
    )


_QUEUED = {_READY, _DELAYED}
_WAITING = {_PLAIN, *_QUEUED}

INSERT: Final = _cause(({_ABSENT}, _WAITING))
"""SET, ADD; or an undelivered reply of NEXT, which popped it."""
LOAD: Final = _cause(({_ABSENT}, {*_WAITING, _LEASED, _BURIED}))
"""Recovery."""
REQUEUE: Final = _cause((_QUEUED, _QUEUED))
"""Its instant has come; or a lock, or work on its URI, began or ended."""
LEASE: Final = _cause((_WAITING, {_LEASED}))
"""NEXT takes what is ready, GET whatever waits."""
END_LEASE: Final = _cause(({_LEASED}, _WAITING))
"""The lease was released or ran out, or the attempt failed."""
BURY: Final = _cause(({*_WAITING, _LEASED}, {_BURIED}))
"""BURY, or the last attempt failed."""
KICK: Final = _cause(({_BURIED}, _WAITING))
RENAME: Final = _cause(({_PLAIN}, _QUEUED), (_QUEUED, _WAITING), ({_BURIED}, {_BURIED}))
"""A journal key for a plain one, or the other way round, or of another instant."""
REMOVE: Final = _cause(({*_WAITING, _LEASED, _BURIED}, {_ABSENT}))
"""DELETE, PURGE or the end of its life; newer work took its place; or NEXT popped it."""

CAUSES: Final[Mapping[str, Cause]] = {
    "INSERT": INSERT,
    "LOAD": LOAD,
    "REQUEUE": REQUEUE,
    "LEASE": LEASE,
    "END_LEASE": END_LEASE,
    "BURY": BURY,
    "KICK": KICK,
    "RENAME": RENAME,
    "REMOVE": REMOVE,
}
"""Table of legal transitions, by the names of their causes."""
