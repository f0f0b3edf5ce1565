"""Rounds over the domains of a daemon for ``fj-cli top``: each sample reads a part of them.

A list of all domains in each sample would load a daemon that has 100,000 of them. So a sample goes
on where the one before has ended, and the rows that are on the screen are read anew.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import islice

import msgspec

from fastjournal.client.core.stats import DomainStats

FIRST_PART = 10_000
"""Domains of the first sample, which is to show the largest ones: half a second of a daemon."""

PART = 1_000
"""Domains of each further sample."""

KNOWN_MAX = 100_000
"""Domains whose figures are kept: some 50 MB."""


class DomainRounds:
    """Scans of the domains of one connection, one after the other, each read in parts.

    Args:
        scan: Begins a scan of the domains whose names begin with a prefix.
    """

    def __init__(self, scan: Callable[[bytes], Iterator[DomainStats]]) -> None:
        self._scan = scan
        self._prefix = b""
        self._rest: Iterator[DomainStats] | None = None
        self._part = FIRST_PART

    def next_part(self, prefix: bytes) -> tuple[list[DomainStats], bool]:
        """Return the next domains, and whether the scan has ended with them."""
        if prefix != self._prefix:
            self._prefix, self._rest, self._part = prefix, None, FIRST_PART
        if self._rest is None:
            self._rest = self._scan(prefix)
        found = list(islice(self._rest, self._part))
        is_end = len(found) < self._part
        if is_end:
            self._rest = None
        self._part = PART
        return found, is_end


class _Known(msgspec.Struct, frozen=True):
    stats: DomainStats
    at_us: int
    change: float
    """Growth in entries a second, since it was read before."""


class KnownDomains:
    """Newest figures of each domain, as the rounds so far have read them."""

    def __init__(self) -> None:
        self._known: dict[bytes, _Known] = {}
        self._seen: set[bytes] = set()
        """Domains of the round that goes on."""
        self._round_began_us: int | None = None
        self._last_began_us: int | None = None
        """Begin of the last round that has ended; None: none has."""

    def __len__(self) -> int:
        return len(self._known)

    @property
    def is_whole(self) -> bool:
        """Whether these are all domains that there are, as far as a whole round tells."""
        return self._last_began_us is not None and len(self._known) < KNOWN_MAX

    def stats(self) -> list[DomainStats]:
        """Return the figures of all domains, in no order."""
        return [known.stats for known in self._known.values()]

    def change_of(self, name: bytes) -> float:
        """Return by how many entries a second a domain grows."""
        return self._known[name].change

    def take(
        self,
        at_us: int,
        part: Collection[DomainStats],
        again: Collection[DomainStats] = (),
        *,
        ends_round: bool,
    ) -> None:
        """Note figures.

        Args:
            at_us: Instant at which they were read.
            part: Domains of the round that goes on.
            again: Domains that were known, read besides.
            ends_round: The round ends with this part: a domain that it has not seen is gone.
        """
        if self._round_began_us is None:
            self._round_began_us = at_us
        for stats in part:
            if stats.name in self._known or len(self._known) < KNOWN_MAX:
                self._note(stats, at_us)
            self._seen.add(stats.name)
        for stats in again:
            if stats.name in self._known:
                self._note(stats, at_us)
        if ends_round:
            for name in self._known.keys() - self._seen:
                del self._known[name]
            self._seen.clear()
            self._last_began_us, self._round_began_us = self._round_began_us, None

    def _note(self, stats: DomainStats, at_us: int) -> None:
        before = self._known.get(stats.name)
        # one that the last round did not see has come since
        since_us = self._last_began_us if before is None else before.at_us
        entries = 0 if before is None else before.stats.entries
        seconds = 0.0 if since_us is None else (at_us - since_us) / 1e6
        change = (stats.entries - entries) / seconds if seconds > 0 else 0.0
        self._known[stats.name] = _Known(stats, at_us, change)
