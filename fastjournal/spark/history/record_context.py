"""Context of event records: what the records around a record tell of it. Pure, in numpy.

Everything here needs one segment and no state, so segments are looked at side by side. The fold
over the state of jobs is ``extractor``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fastjournal.cmdlog.format.layout import Command
from fastjournal.cmdlog.format.removal_time import REPLACED_UNTOLD
from fastjournal.spark.decoding.byte_arrays import Mask, Numbers

RESTATED = 1
"""The job is an entry that is written again under a new id."""
CAME_BACK = 2
"""It was popped, and came back: no removal of another job follows."""
PERHAPS_BACK = 4
"""The same, unless the removal behind it, of an older version, ends the old id of the entry."""
AGAIN = 8
"""Start-attempt of a lease that goes on, and is written once more."""
IN_PURGE = 16
"""Removal of a batch, as PURGE writes it; counts where the removal does not tell its reason."""
OF_DOMAIN = 32
"""It concerns a domain, and no job."""

NEAR = 8
"""Records that a removal looks back to: a group of compaction has four."""
_PAIR = 2
"""Records of a dead letter that is deleted: its removal, and its tombstone."""


class RecordFacts(NamedTuple):
    """Facts of all records of a segment, in order."""

    command: Numbers
    stored: Mask
    """It carries an entry, and no job of another program."""
    is_later: Mask
    """It is later than the last change of what it carries."""
    batch: Numbers
    """Records that follow in its batch; -1: it leads no batch."""
    again: Numbers
    """1: a lease told again; 0: a lease; -1: none."""
    tombstone: Mask
    """It is a tombstone without an entry."""
    of_domain: Mask
    """It is a pause or a limit."""
    removal: Numbers
    """Why a job goes, see ``cmdlog.format.removal_time``."""


class RecordContext(NamedTuple):
    """Context of all records of a segment."""

    flags: Numbers
    """Sums of ``RESTATED`` and those below it."""
    removals: Numbers
    """Numbers of removals that may end the old id of a restated job, ascending."""
    replacements: Numbers
    """For each of them the number of the record of that job; several times, oldest first, where a
    removal of an older version does not tell which."""


def find_context(facts: RecordFacts) -> RecordContext:
    """Return the context of the records of a segment."""
    count = len(facts.command)
    index = np.arange(count)
    batch = _last_before(facts.batch >= 0)
    size = np.where(batch >= 0, facts.batch[batch], 0)
    in_batch = (batch >= 0) & (index - batch <= size)
    restated = facts.stored & (in_batch | facts.is_later)
    flags = np.where(restated, RESTATED, 0)
    removes = (facts.command == Command.COMPLETE) | (facts.command == Command.DELETE)
    removals, replacements = _replacements(facts, restated, removes)
    replaces = np.zeros(count + 1, np.bool_)
    replaces[removals] = True
    untold = np.append(removes & (facts.removal == REPLACED_UNTOLD), False)
    popped = restated & ~in_batch
    flags[popped & ~replaces[1:]] |= CAME_BACK
    flags[popped & replaces[1:] & untold[1:]] |= PERHAPS_BACK
    lease = _last_before(facts.again >= 0)
    again = (lease >= 0) & (facts.again[lease] > 0)
    flags[again & (facts.command == Command.START_ATTEMPT)] |= AGAIN
    pair = (size == _PAIR) & np.append(facts.tombstone[1:], False)
    flags[removes & in_batch & ~pair] |= IN_PURGE
    flags[facts.of_domain] |= OF_DOMAIN
    return RecordContext(flags, removals, replacements)


def _last_before(marked: Mask) -> Numbers:
    """Return for each record the number of the last marked one before it; -1: none."""
    index = np.arange(len(marked))
    found = np.maximum.accumulate(np.where(marked, index, -1))
    return np.concatenate([[-1], found[:-1]]) if len(marked) else found


def _replacements(facts: RecordFacts, restated: Mask, removes: Mask) -> tuple[Numbers, Numbers]:
    """Return pairs of a removal and a restated job shortly before it."""
    rows, jobs = [], []
    for distance in range(NEAR, 0, -1):
        told = (facts.removal == distance) | (facts.removal == REPLACED_UNTOLD)
        found = np.flatnonzero(removes & told)
        found = found[found >= distance]
        found = found[restated[found - distance]]
        rows.append(found)
        jobs.append(found - distance)
    removals, replacements = np.concatenate(rows), np.concatenate(jobs)
    order = np.argsort(removals, kind="stable")
    return removals[order], replacements[order]
