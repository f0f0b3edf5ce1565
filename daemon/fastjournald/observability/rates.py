"""Rates per minute of the last hour, in memory: of all domains, and of those where most happens."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import msgspec
import trio

from fastjournal.limits import PAGE_RATE_DOMAINS_MAX, PAGE_RATE_MINUTES

MINUTE_SECONDS: Final = 60.0


class Counts(NamedTuple):
    """Totals since the start, or differences of these."""

    set: int = 0
    delivered: int = 0
    completed: int = 0
    failed: int = 0
    """Attempts that failed, and leases that ran out."""

    def since(self, before: Counts) -> Counts:
        """Return the differences to earlier totals; these totals where they began anew."""
        differences = Counts(*(now - then for now, then in zip(self, before, strict=True)))
        return self if min(differences) < 0 else differences


class Minutes(msgspec.Struct):
    """Counts of each of the last minutes, the current one last."""

    before: Counts
    """Totals at the begin of the current minute."""
    past: deque[Counts] = msgspec.field(default_factory=lambda: deque(maxlen=PAGE_RATE_MINUTES - 1))

    def end_minute(self, totals: Counts) -> None:
        """Begin a new minute."""
        self.past.append(totals.since(self.before))
        self.before = totals

    def series(self, totals: Counts) -> dict[str, list[int]]:
        """Return the numbers of each minute by kind."""
        minutes = (*self.past, totals.since(self.before))
        return {name: [count[at] for count in minutes] for at, name in enumerate(Counts._fields)}

    @property
    def number(self) -> int:
        """Number of all that happened in the past minutes."""
        return sum(map(sum, self.past))


class Rates:
    """Rates of all domains together, and of some.

    Args:
        totals: Returns the totals of a domain since the start, or with None of everything; None:
            the domain is not counted.
        counted: Returns the domains that are counted.
    """

    def __init__(
        self,
        totals: Callable[[bytes | None], Counts | None],
        counted: Callable[[], Iterable[bytes]],
    ) -> None:
        self._totals = totals
        self._counted = counted
        self._all = Minutes(self._of(None))
        self._last = self._by_domain()
        """Totals at the begin of this minute."""
        self._before = self._last
        """Totals at the begin of the minute before, or of this one if it is the first."""
        self._domains: dict[bytes, Minutes] = {}

    def _of(self, domain: bytes | None) -> Counts:
        return self._totals(domain) or Counts()

    def _by_domain(self) -> dict[bytes, Counts]:
        return {name: self._of(name) for name in self._counted()}

    async def run(self) -> None:
        """End each minute."""
        while True:
            await trio.sleep(MINUTE_SECONDS)
            self.end_minute()

    def end_minute(self) -> None:
        """Begin a new minute; choose the domains that have rates."""
        self._all.end_minute(self._of(None))
        totals = self._by_domain()
        for name, now in totals.items():
            before = self._last.get(name, Counts())
            if name not in self._domains and now != before:
                self._domains[name] = Minutes(before)
            if name in self._domains:
                self._domains[name].end_minute(now)
        self._before, self._last = self._last, totals
        kept = _busiest((name, self._domains[name]) for name in self._domains if name in totals)
        self._domains = {name: minutes for name, minutes in self._domains.items() if name in kept}

    def series(self, domain: bytes | None = None) -> dict[str, list[int]] | None:
        """Return the numbers of each minute by kind, the current minute last.

        Args:
            domain: Name of a domain, of which SETs are not counted; None: all together.

        Returns:
            None: this domain is not counted.
        """
        if domain is None:
            return self._all.series(self._of(None))
        totals = self._totals(domain)
        if totals is None:
            return None
        minutes = self._domains.get(domain) or Minutes(self._last.get(domain, Counts()))
        series = minutes.series(totals)
        del series["set"]
        return series

    def is_delivered(self, domain: bytes) -> bool:
        """Whether work of a domain was delivered in this minute or the one before."""
        return self._of(domain).since(self._before.get(domain, Counts())).delivered > 0


def _busiest(domains: Iterable[tuple[bytes, Minutes]]) -> set[bytes]:
    ordered = sorted(domains, key=lambda item: item[1].number, reverse=True)
    return {name for name, minutes in ordered[:PAGE_RATE_DOMAINS_MAX] if minutes.number}


def bars(numbers: list[int], height: int = 36) -> str:
    """Return the path of a bar chart, of bars of 3 in steps of 4, the last one at the right end."""
    top = max(numbers, default=0)
    first = PAGE_RATE_MINUTES - len(numbers)
    return "".join(
        f"M{4 * at} {height}v-{max(1, round(number * height / top))}h3V{height}"
        for at, number in enumerate(numbers, first)
        if number
    )
