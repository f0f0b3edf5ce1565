"""Queue facts: times to run and numbers of attempts of the jobs of each queue, counted."""

from __future__ import annotations

from collections import Counter

from fastjournal.foreign.items import QueueFacts

OTHER_LIMITS = "other_ttr_or_attempts"
"""Jobs whose time to run or number of attempts is not the largest one of their queue, which is what
a limit of a domain can hold. Counted among the facts that are not carried."""


class QueueCounts:
    """Counts the jobs of each queue by time to run and number of attempts."""

    def __init__(self) -> None:
        self._queues: dict[bytes, Counter[tuple[int, int]]] = {}

    def add(self, domain: bytes, ttr_us: int, attempts: int = 0) -> None:
        """Count a job; ``attempts``: how many it may take, 0: any number."""
        self._queues.setdefault(domain, Counter())[ttr_us, attempts] += 1

    def facts(self) -> list[QueueFacts]:
        """Return the facts of all queues, in the order of their domains."""
        return [_facts(domain, self._queues[domain]) for domain in sorted(self._queues)]


def _facts(domain: bytes, counts: Counter[tuple[int, int]]) -> QueueFacts:
    items = counts.total()
    attempts = max(number for _, number in counts)
    times = sorted(counts)
    largest = times[-1][0]
    middle = passed = 0
    for (ttr, _), number in sorted(counts.items()):
        passed += number
        if 2 * passed >= items:
            middle = ttr
            break
    same = counts[largest, attempts]
    return QueueFacts(domain, items, (times[0][0], middle, largest), attempts, items - same)
