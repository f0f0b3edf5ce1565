"""Names of the queues of an export: one for each domain, found when its first entry comes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from fastjournal.foreign.names import FittedName


class QueueNames:
    """Names of queues for entries that come sorted by domain; no two domains have one.

    Args:
        fit: Returns the name of the queue of a domain.
        not_carried: Counts domains that an import of the queue would name otherwise.
    """

    def __init__(self, fit: Callable[[bytes], FittedName], not_carried: Counter[str]) -> None:
        self._fit = fit
        self._not_carried = not_carried
        self._domain: bytes | None = None
        self._names = set[bytes]()
        self.name = b""
        """Name of the queue of the last entry."""

    def enter(self, domain: bytes) -> bool:
        """Take the domain of the next entry; return whether its queue begins with it."""
        if domain == self._domain:
            return False
        self._domain = domain
        fitted = self._fit(domain)
        self.name, number = fitted.name, 1
        while self.name in self._names:
            # the name that another domain was given; no domain holds a colon
            number += 1
            self.name = self._fit(b"%b:%d" % (domain, number)).name
        self._names.add(self.name)
        self._not_carried["domains_renamed"] += not fitted.exact or number > 1
        return True
