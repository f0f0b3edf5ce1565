"""Items of a foreign journal, and names and facts of its queues, the same for every program.

Names of queues become domains. A domain holds no ``:``, so ``:`` becomes ``%3A``, and ``%`` becomes
``%25``: no two queues become one domain, and the name of the queue follows from its domain.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, TypeAlias

import google_crc32c
import msgspec

_ESCAPED = re.compile(rb"%(3A|25)")
_ESCAPES = {b"3A": b":", b"25": b"%"}


def domain_of(name: bytes) -> bytes:
    """Return the domain of a queue or tube of this name."""
    return name.replace(b"%", b"%25").replace(b":", b"%3A")


def name_of(domain: bytes) -> bytes:
    """Return the name of the queue that has this domain; of any other domain itself."""
    name = _ESCAPED.sub(lambda found: _ESCAPES[found[1]], domain)
    return name if domain_of(name) == domain else domain


class FittedName(NamedTuple):
    """Name of a queue for a domain."""

    name: bytes
    exact: bool
    """Whether an import of the queue gives the same domain."""


def fit_name(
    domain: bytes, not_allowed: re.Pattern[bytes], bytes_max: int, *, utf8: bool = False
) -> FittedName:
    """Return a name for the queue of a domain.

    A name that the other program does not take has ``_`` for each byte that is not allowed, and at
    its end 8 hex digits of the CRC-32C of the domain, so that no two domains become one queue.

    Args:
        domain: Domain.
        not_allowed: Matches each byte that the name may not have.
        bytes_max: Bytes of the longest name.
        utf8: The name has to be UTF-8.
    """
    name = name_of(domain)
    fits = len(name) <= bytes_max and not_allowed.search(name) is None
    if utf8 and fits:
        try:
            name.decode()
        except UnicodeDecodeError:
            fits = False
    if fits:
        return FittedName(name, domain_of(name) == domain)
    mark = b"_%08x" % google_crc32c.value(domain)
    fitted = not_allowed.sub(b"_", name)[: bytes_max - len(mark)]
    if utf8:
        fitted = (
            fitted.decode("ascii", "replace").replace("\N{REPLACEMENT CHARACTER}", "_").encode()
        )
    return FittedName(fitted + mark, exact=False)


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


OnProgress: TypeAlias = Callable[[int, int], None]
"""Called with the bytes that were read, and those that there are."""
_PROGRESS_RECORDS = 100_000
"""Records between two calls: a quarter of a second."""


class Item(msgspec.Struct, frozen=True, gc=False):
    """Work that another queue has not done, as the entry that it becomes here.

    Reading the same journal again gives the same keys and timestamps: so importing it twice changes
    nothing the second time.
    """

    key: bytes
    """A journal key: domain, priority, the instant before which it must not start, id."""
    value: bytes
    timestamp: int
    """Instant of the write in microseconds; at least 1."""
    expires: int
    """Instant at which it vanishes; 0: never."""
    reason: str | None
    """Why it is buried; None: it waits."""
    path: str
    """Its file."""
    offset: int
    """Offset of its first byte in that file."""


class Fault(msgspec.Struct, frozen=True, gc=False):
    """A place in a journal that cannot be read."""

    path: str
    offset: int
    message: str
    damage: bool
    """Data are lost here; else it is the usual end of file of a killed server."""


class ForeignRecord(msgspec.Struct, frozen=True, gc=False):
    """A record of a foreign journal, for people."""

    path: str
    offset: int
    size: int
    fields: dict[str, Any]
    value: bytes | None
    """Body or item; None: the record has none."""


class QueueFacts(msgspec.Struct, frozen=True, gc=False):
    """A queue, and what holds for its work as a whole."""

    domain: bytes
    items: int
    ttr_us: tuple[int, int, int] | None = None
    """Least, median and largest time to run of its jobs; None: not in the format."""
    attempts: int = 0
    """Largest number of attempts of its jobs; 0: not in the format."""
    others: int = 0
    """Jobs whose times to run or attempts differ from these largest ones."""


class ReadProgress:
    """Reports the progress of reading, at bounded intervals."""

    def __init__(self, size: int, tell: OnProgress | None) -> None:
        self._size = size
        self._tell = tell
        self._done = 0
        self._records = 0

    def add(self, size: int) -> None:
        """Count a record of so many bytes."""
        self._done += size
        self._records += 1
        if self._tell is not None and self._records % _PROGRESS_RECORDS == 0:
            self._tell(self._done, self._size)


class ForeignJournal(Protocol):
    """A foreign journal that was read to its end: what is still to be done is known."""

    @property
    def count(self) -> int:
        """How many items there are, also expired ones."""

    @property
    def faults(self) -> list[Fault]:
        """Damaged places that could not be read."""

    @property
    def queues(self) -> list[QueueFacts]:
        """Queues with items."""

    @property
    def not_carried(self) -> dict[str, int]:
        """Facts that an entry does not hold, and how many items had each."""

    def items(self) -> Iterator[Item]:
        """Yield the items in the order in which they were written, one value in memory at a time.

        Raises:
            LogError: A file can no longer be read.
        """
