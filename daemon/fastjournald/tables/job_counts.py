"""Job counts: what became of the jobs of each domain since the start, how long they waited and ran.

The domains that are counted apart are bounded in number. Where a further one fails, or many have
come, those with the fewest failures and completions give up theirs, which stay in the sum: a crawl
of a million hosts takes no memory and next to no time, and does not hide the queue that fails.
Until then further domains share the counts of all others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from heapq import nlargest
from struct import Struct

from fastjournal.cmdlog.format.endings import LEASED_BYTES
from fastjournal.limits import COUNTED_DOMAINS_MAX
from fastjournald.histogram import Histogram
from fastjournald.tables.domain import Domain
from fastjournald.tables.entry import Entry
from fastjournald.tables.lease_holders import LeaseOperation

_PASSED_MAX = 10 * COUNTED_DOMAINS_MAX
"""Further domains after which some give up their counts, also where none of them fails."""

_due_of = Struct(">Q").unpack_from
"""Takes the facts of a lease (``cmdlog.format.endings``); returns the due instant, in a tuple."""


@lru_cache(maxsize=32)
def _unpacker_of_dues(number: int) -> Callable[[bytes], tuple[int, ...]]:
    """Return what unpacks the due instants of so many facts: one call for all is the fastest."""
    return Struct(">" + f"Q{LEASED_BYTES - 8}x" * number).unpack


class JobCounts:
    """Counts of jobs since the start of the daemon: of a domain, or of all."""

    __slots__ = ("attempts_failed", "buried", "completed", "leases_lost", "run_us", "waited_us")

    def __init__(self) -> None:
        self.completed = 0
        """Jobs deleted with their lease token, or popped."""
        self.attempts_failed = 0
        """Leases that a worker ended with an error."""
        self.leases_lost = 0
        """Leases that ended by time."""
        self.buried = 0
        """Jobs that became dead letters."""
        self.waited_us = Histogram(40, 10)
        """From due to delivery, of each delivery."""
        self.run_us = Histogram(40, 10)
        """From lease to completion; without jobs leased before the start of the daemon."""

    @property
    def troubles(self) -> int:
        """Failed attempts, lost leases and burials."""
        return self.attempts_failed + self.leases_lost + self.buried

    def merge(self, others: Iterable[JobCounts]) -> None:
        """Add the counts of others."""
        several = list(others)
        for counts in several:
            self.completed += counts.completed
            self.attempts_failed += counts.attempts_failed
            self.leases_lost += counts.leases_lost
            self.buried += counts.buried
        self.waited_us.merge([counts.waited_us for counts in several])
        self.run_us.merge([counts.run_us for counts in several])


class JobCountsTable:
    """Job counts by domain.

    Args:
        domains: Domains that have entries, by name. Counts do not refer to their domain, which
            refers to them: a reference cycle would outlive a domain.
    """

    def __init__(self, domains: Mapping[bytes, Domain]) -> None:
        self._domains = domains
        self.by_domain: dict[bytes, JobCounts] = {}
        """Of the domains that are counted apart, at most ``COUNTED_DOMAINS_MAX``."""
        self.begun = 0
        """How often a domain began to be counted apart."""
        self._others = JobCounts()
        """Counts of all other domains, which have given up theirs or got none."""
        self._passed = 0
        """Domains that got none since some gave up theirs."""

    def attach(self, domain: Domain) -> JobCounts | None:
        """Let a domain add to the counts under its name, if it is counted apart. O(1)."""
        counts = domain.counts = self.by_domain.get(domain.name)
        return counts

    def of(self, domain: Domain) -> JobCounts:
        """Return the counts that a domain adds to, its own if there is room. O(1), amortized."""
        counts = self.attach(domain)
        if counts is not None:
            return counts
        if len(self.by_domain) < COUNTED_DOMAINS_MAX:
            return self._begin(domain)
        self._passed += 1
        if self._passed > _PASSED_MAX:
            return self._begin(domain)
        domain.counts = self._others
        return self._others

    def of_failing(self, domain: Domain) -> JobCounts:
        """Return the counts of a domain in which something fails: they are its own."""
        counts: JobCounts | None = domain.counts or self.attach(domain)
        return self._begin(domain) if counts is None or counts is self._others else counts

    def is_shared(self, counts: JobCounts) -> bool:
        """Whether these are the counts of all other domains."""
        return counts is self._others

    def _begin(self, domain: Domain) -> JobCounts:
        """Count a domain apart from now on."""
        if len(self.by_domain) >= COUNTED_DOMAINS_MAX:
            self._merge_least()
            self._passed = 0
        self.begun += 1
        counts = self.by_domain[domain.name] = domain.counts = JobCounts()
        return counts

    # --- events ---------------------------------------------------------------------------------

    def deliver(self, entries: list[Entry], now: int) -> None:
        """Count entries that are delivered together, just now.

        Those of one domain that waited about as long take no step each, if the log has their lease
        (tests.bench.bench_instructions).
        """
        number = len(entries)
        if number == 1:
            self._deliver_one(entries[0], now)
            return
        facts = b"".join([entry.extra.leased for entry in entries])
        dues = _unpacker_of_dues(number)(facts) if len(facts) == LEASED_BYTES * number else (now,)
        latest = max(dues)
        if latest >= now:
            # in memory only, popped, just set, or the clock was set back
            for entry in entries:
                self._deliver_one(entry, now)
            return
        before = now - 1
        if len({entry.domain for entry in entries}) > 1:
            for entry, due in zip(entries, dues, strict=True):
                domain = entry.domain
                waited = (domain.counts or self.of(domain)).waited_us
                waited.total += now - due
                waited.counts[(before - due).bit_length()] += 1
            return
        domain = entries[0].domain
        waited = (domain.counts or self.of(domain)).waited_us
        waited.total += number * now - sum(dues)
        place = (before - latest).bit_length()
        if place == (before - min(dues)).bit_length():
            waited.counts[place] += number
        else:
            for due in dues:
                waited.counts[(before - due).bit_length()] += 1

    def _deliver_one(self, entry: Entry, now: int) -> None:
        leased = entry.extra.leased
        due = _due_of(leased)[0] if leased else entry.due
        waited = (entry.domain.counts or self.of(entry.domain)).waited_us
        if due < now:
            waited.total += now - due
            waited.counts[(now - 1 - due).bit_length()] += 1
        else:
            waited.counts[0] += 1

    def complete(self, entries: list[Entry], lease: LeaseOperation | None, now: int) -> None:
        """Count entries that their worker completed, of one lease operation."""
        domain, number = entries[0].domain, len(entries)
        if number > 1 and len({entry.domain for entry in entries}) > 1:
            for domain, number in Counter([entry.domain for entry in entries]).items():
                self._complete(domain, number, lease, now)
            return
        self._complete(domain, number, lease, now)

    def _complete(
        self, domain: Domain, number: int, lease: LeaseOperation | None, now: int
    ) -> None:
        counts = domain.counts or self.of(domain)
        counts.completed += number
        if lease is not None and 0 < lease.since <= now:
            ran, run_us = now - lease.since, counts.run_us
            run_us.total += ran * number
            run_us.counts[(ran - 1).bit_length() if ran else 0] += number

    def pop(self, entries: list[Entry], now: int) -> None:
        """Count entries that NEXT removes as it delivers them."""
        self.deliver(entries, now)
        self.complete(entries, None, now)

    # --- sums -----------------------------------------------------------------------------------

    def total(self) -> JobCounts:
        """Return the sum of all domains. O(domains that are counted apart)."""
        total = JobCounts()
        total.merge([self._others, *self.by_domain.values()])
        return total

    def most(self, number: int) -> list[bytes]:
        """Return the domains with most failures, then completions. O(n log number)."""
        return nlargest(number, self.by_domain, key=self._rank)

    def _merge_least(self) -> None:
        """Give up the half of the domains with the fewest failures and completions."""
        names = sorted(self.by_domain, key=self._rank)[: COUNTED_DOMAINS_MAX // 2]
        self._others.merge([self.by_domain.pop(name) for name in names])
        for name in names:
            if name in self._domains:
                self._domains[name].counts = None

    def _rank(self, name: bytes) -> tuple[int, int]:
        counts = self.by_domain[name]
        return counts.troubles, counts.completed
