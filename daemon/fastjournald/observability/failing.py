"""Failing work: dead letters, and jobs that are tried again, grouped by error and domain.

A walk over entries is made of parts of a sublist each. Between two parts the entries may change, so
each part is searched anew, behind the last key of the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from heapq import nsmallest
from itertools import chain
from typing import Any, Final

import msgspec

from fastjournal.client.core.delivery_reasons import error_group
from fastjournal.limits import PAGE_ENTRIES_MAX, PAGE_GROUPS_MAX, PAGE_WALK_MAX
from fastjournald.engine.context import Context
from fastjournald.engine.job_lifecycle import BURIED_AT_ATTEMPTS_MAX
from fastjournald.observability.domain_totals import TimeSlices
from fastjournald.tables.domain import Domain
from fastjournald.tables.entry import Entry
from fastjournald.tables.sorted_entries import SortedEntries

BURIED, RETRYING, WAITING, BACK_OFF = "buried", "retrying", "waiting", "back-off"
STATES: Final = (BURIED, RETRYING, WAITING, BACK_OFF)
"""Back-off: those among the entries that are tried again which wait for their next attempt."""
OTHERS = "other errors"
"""Group of the errors beyond PAGE_GROUPS_MAX."""

_PART = 64
_DOMAINS = 256
"""Domains without an entry after which a part is empty, so that the walk can yield."""

SORTS: Final[dict[str, Callable[[Entry], Any]]] = {
    "due": lambda entry: entry.delayed_until or entry.due,
    "age": lambda entry: entry.created,
}
"""Orders of a list of entries, the earliest first; without one they are in the order of work."""


@lru_cache(maxsize=4096)
def _group(text: bytes) -> str:
    return error_group(text.decode("utf-8", "replace"))


def error_of(entry: Entry) -> str:
    """Return the group of the error that an entry failed with last, or was buried for."""
    return _group(_whole_error(entry))


def _whole_error(entry: Entry) -> bytes:
    extra = entry.extra
    reason = extra.reason
    if reason and (reason != BURIED_AT_ATTEMPTS_MAX or not extra.error):
        return reason
    return extra.error or b""


class Selection(msgspec.Struct, frozen=True):
    """Filter of entries of queues."""

    state: str = BURIED
    domain: bytes | None = None
    """None: all domains."""
    error: str | None = None
    """Group of errors; None: any."""
    older_us: int = 0
    """Only entries that were created so long ago."""
    part: str = ""
    """Part of the error or of its group, in lower case; empty: any."""

    def has(self, entry: Entry, now: int) -> bool:
        """Whether an entry of this state and domain passes the filter."""
        if self.state in (RETRYING, BACK_OFF) and not entry.extra.attempts:
            return False
        if self.older_us and entry.created > now - self.older_us:
            return False
        if self.error is not None and error_of(entry) != self.error:
            return False
        if not self.part or self.part in error_of(entry).lower():
            return True
        return self.part in _whole_error(entry).decode("utf-8", "replace").lower()

    def parts(self, context: Context) -> Iterator[list[Entry]]:
        """Yield the entries of this state and domain, unfiltered, some at a time, or none."""
        domains = context.store.scheduler.domains
        if self.domain is not None:
            named = domains.get(self.domain)
            yield from [] if named is None else self._parts_of(named)
            return
        for at, domain in enumerate(list(domains.values())):
            yield from self._parts_of(domain)
            if at % _DOMAINS == 0:
                yield []

    def _parts_of(self, domain: Domain) -> Iterator[list[Entry]]:
        if self.state == BURIED:
            yield from parts_of(domain.buried_order)
        else:
            yield from parts_of(domain.delayed)
            if self.state != BACK_OFF:
                yield from parts_of(domain.ready)


def parts_of(entries: SortedEntries) -> Iterator[list[Entry]]:
    """Yield the entries of a list, some at a time; it may change meanwhile."""
    key = bytes(9)
    while part := entries.part_from(key, _PART):
        key = entries.key_after(part[-1])
        yield part


class Found(msgspec.Struct):
    """Entries that pass a filter."""

    number: int = 0
    entries: list[Entry] = msgspec.field(default_factory=list)
    """The first ones in the order, as many as a page shows."""
    is_cut: bool = False
    """There may be more: only the first PAGE_WALK_MAX were looked at."""


async def find(
    context: Context, selection: Selection, sort: str, now: int, slices: TimeSlices
) -> Found:
    """Return how many entries pass a filter, and the first of them."""
    found, looks = Found(), 0
    for part in selection.parts(context):
        passed = [entry for entry in part if selection.has(entry, now)]
        found.number += len(passed)
        found.entries = first_ones(chain(found.entries, passed), sort)
        looks += len(part)
        if looks >= PAGE_WALK_MAX:
            found.is_cut = True
            break
        await slices.give_way()
    return found


def first_ones(entries: Iterator[Entry], sort: str) -> list[Entry]:
    """Return the first entries in an order, as many as a page shows."""
    if sort in SORTS:
        return nsmallest(PAGE_ENTRIES_MAX, entries, key=SORTS[sort])
    return [entry for entry, _ in zip(entries, range(PAGE_ENTRIES_MAX), strict=False)]


class Group(msgspec.Struct):
    """Entries of one domain that failed with errors that are alike."""

    error: str
    domain: bytes
    buried: int = 0
    retrying: int = 0
    """Entries that are tried again."""
    oldest: int = 0
    """Instant at which the oldest of them was created."""

    @property
    def number(self) -> int:
        """Number of its entries."""
        return self.buried + self.retrying


class Failing(msgspec.Struct):
    """Groups of failing entries."""

    groups: list[Group]
    """Those with most entries first."""
    is_cut: bool
    """There may be more: only the first PAGE_WALK_MAX entries were looked at."""


async def groups(context: Context, wanted: Selection, now: int, slices: TimeSlices) -> Failing:
    """Return the groups of the buried entries, and of those that failed and are tried again.

    Args:
        context: Context of the engine.
        wanted: Filter; its state does not count.
        now: The present.
        slices: Slices of the walk.
    """
    found: dict[tuple[str, bytes], Group] = {}
    is_cut = False
    for state in (BURIED, RETRYING):
        selection, looks = msgspec.structs.replace(wanted, state=state), 0
        for part in selection.parts(context):
            for entry in part:
                if selection.has(entry, now):
                    _count(found, entry, state)
            looks += len(part)
            if looks >= PAGE_WALK_MAX:
                is_cut = True
                break
            await slices.give_way()
    return Failing(sorted(found.values(), key=lambda group: -group.number), is_cut)


def _count(found: dict[tuple[str, bytes], Group], entry: Entry, state: str) -> None:
    name = error_of(entry), entry.domain.name
    if name not in found and len(found) >= PAGE_GROUPS_MAX:
        name = OTHERS, b""
    group = found.get(name)
    if group is None:
        group = found[name] = Group(*name, oldest=entry.created)
    group.oldest = min(group.oldest, entry.created)
    if state == BURIED:
        group.buried += 1
    else:
        group.retrying += 1
