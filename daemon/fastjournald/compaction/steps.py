"""Steps of the compaction of a segment: what its generator asks for, and how it ends.

A compaction is a generator that says what it needs from whoever drives it, the daemon or a test
that crashes at every point:

- ``TURN``: let others go on; it is answered with the present instant;
- ``NOW``: answer with the present instant at once;
- ``DURABLE``: wait until everything appended so far is durable;
- ``Blocking``: call a function that touches files, outside of the event loop, and send back what it
  returns, or throw in the ``LogFailedError``, ``LogLockedError`` or ``LogCorruptError`` that it
  raises;
- ``Blocking`` with ``exclusive``: the same while nobody begins a snapshot, up to the next request
  of the generator, or where a segment is replaced, until all entries know of that.

A driver that ends early, because the daemon stops, throws in ``CompactionStoppedError`` instead of
an answer. A crash throws in nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from enum import Enum, StrEnum
from typing import Any, NamedTuple, TypeAlias

import msgspec


class CompactionWish(Enum):
    """A wish of a compaction that is no call."""

    TURN = "turn"
    NOW = "now"
    DURABLE = "durable"


TURN, NOW, DURABLE = CompactionWish.TURN, CompactionWish.NOW, CompactionWish.DURABLE


class CompactionStoppedError(Exception):
    """The daemon stops: the compaction has to leave nothing half done on the disk."""


class Blocking(msgspec.Struct, frozen=True):
    """A call that touches files."""

    call: Callable[[], Any]
    exclusive: bool = False


class CompactionOutcome(StrEnum):
    """End of the compaction of a segment."""

    REMOVED = "removed"
    """Nothing in it mattered any more."""
    MOVED = "moved"
    """The rest of it was appended anew, and it was removed."""
    REWRITTEN = "rewritten"
    LEFT = "left"
    """Too little of it is dead."""
    FAILED = "failed"
    """It is damaged, or is being read, or there is no room."""


class CompactionResult(NamedTuple):
    """Outcome of a compaction, and the reason of a failure."""

    outcome: CompactionOutcome
    reason: str = ""

    def __str__(self) -> str:
        return self.reason or self.outcome.value


Compaction: TypeAlias = Generator[CompactionWish | Blocking, Any, CompactionResult]
