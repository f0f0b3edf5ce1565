"""Stretch of a slot: where delayed records stand, and what is known of them while they wait."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from fastjournal.limits import SUSPECT_LOSSES


class Settled(NamedTuple):
    """Outcome of a record that is known and could not be carried out: it is not sent again."""

    code: str
    """The error code, for dead/; empty: the daemon has it, and it is to be erased."""
    sentence: str
    is_counted: bool = False
    """It is in dead/ already, and only has to be erased."""
    is_damage: bool = False
    """It is no record, but bytes between records."""


class Stretch(msgspec.Struct, gc=False):
    """Stretch of a slot: what is pending from ``start`` to ``end`` waits until ``due_us``."""

    start: int
    end: int
    due_us: int
    tries: int = 0
    """How often it was put off."""
    losses: int = 0
    """On how many connections it had no reply when they ended."""
    skewed_us: int = 0
    """When it was first refused as clock-skew; 0: never."""
    awaited: bool = False
    """Put off for no reason of its own: ``--once`` waits for it."""
    settled: Settled | None = None
    latest_us: int = 0
    """However many it is folded with, it is due by then."""
    begun: bool = False
    """A part of it was read again already, and the rest comes next: it is not folded."""
    folded: bool = False
    """It is made of several, and others may lie in between."""
    alive: bool = True
    """Not done with, and not in another one."""
    code: str = ""
    """The error code at which it was put off; empty: there was none, or there are several."""

    @property
    def is_suspect(self) -> bool:
        """Whether it is tried alone, and rarely."""
        return self.losses >= SUSPECT_LOSSES

    @property
    def is_exact(self) -> bool:
        """Whether it is one suspect, and nothing else: other stretches leave that out."""
        return self.is_suspect and not self.folded

    @property
    def is_erasure(self) -> bool:
        """Whether it is one record that only has to be erased."""
        return self.settled is not None and not self.settled.code

    @property
    def can_be_folded(self) -> bool:
        """Whether it may lose what is known of its records: not of one that is to be erased."""
        return not self.begun and not self.is_erasure
