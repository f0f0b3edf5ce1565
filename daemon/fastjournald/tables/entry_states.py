"""States of an entry, and the table of legal transitions between them.

    absent   not in the store: new, removed, or popped by NEXT
    plain    key/value data that nobody works on
    ready    due: NEXT hands it out
    delayed  waits for its instant, for a lock, or for the end of other work on its URI
    leased   in flight: worked on until its lease ends
    buried   dead letter: set aside until KICK

A state changes in ``Entry.move_to`` only, which asserts that the transition is legal.
"""

from __future__ import annotations

from typing import Final


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

_ABSENT, _PLAIN, _READY = EntryState.ABSENT, EntryState.PLAIN, EntryState.READY
_DELAYED, _LEASED, _BURIED = EntryState.DELAYED, EntryState.LEASED, EntryState.BURIED

_WAITING = {_PLAIN, _READY, _DELAYED}

TRANSITIONS: Final = (
    # absent: inserted; leased and buried by recovery only
    frozenset({*_WAITING, _LEASED, _BURIED}),
    # plain: removed; a journal key by RENAME; leased by GET; BURY
    frozenset({_ABSENT, _READY, _DELAYED, _LEASED, _BURIED}),
    # ready: removed; RENAME; a lock or other work delays it; NEXT; BURY
    frozenset({_ABSENT, *_WAITING, _LEASED, _BURIED}),
    # delayed: removed; RENAME; its instant has come, or is another one; leased by GET; BURY
    frozenset({_ABSENT, *_WAITING, _LEASED, _BURIED}),
    # leased: completed; the lease was released or ran out, perhaps once too often; BURY
    frozenset({_ABSENT, *_WAITING, _BURIED}),
    # buried: removed; KICK; RENAME keeps it buried
    frozenset({_ABSENT, *_WAITING, _BURIED}),
)
"""By state, those that may follow it."""
