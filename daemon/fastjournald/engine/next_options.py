"""Options of NEXT and PEEK: the JSON object in the value; several domains, or a prefix. Pure.

A request with several domains, or with a prefix, has an empty key. Its domains take turns in a
cycle: the turn goes on behind the domain that was served last, also in the next request with the
same domains or prefix.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Annotated

import msgspec

from fastjournal.limits import (
    CYCLES_MAX,
    KEY_BYTES_MAX,
    LIMIT_MAX,
    NEXT_DOMAINS_MAX,
    NEXT_PREFIX_BYTES_MAX,
    NEXT_VALUE_BYTES_MAX,
)
from fastjournal.protocol import ErrorCode, Request, ValueType
from fastjournald.tables.domain import Domain
from fastjournald.tables.scheduler import Scheduler

_NO_STRING = f"{ErrorCode.BAD_VALUE} the value of NEXT is a JSON object of type string"
_LONG_VALUE = f"{ErrorCode.TOO_LARGE} the value of NEXT has at most {NEXT_VALUE_BYTES_MAX} bytes"
_BOTH = f"{ErrorCode.BAD_REQUEST} give `domains` or `prefix`, not both"
_KEY_TOO = f"{ErrorCode.BAD_REQUEST} `domains` or `prefix` in the value need an empty key"
_NO_DOMAINS = f"{ErrorCode.BAD_VALUE} `domains` is empty: name 1 to {NEXT_DOMAINS_MAX} domains"
_TOO_MANY = f"{ErrorCode.BAD_VALUE} `domains` has more than {NEXT_DOMAINS_MAX} names"
_BAD_NAME = f"{ErrorCode.BAD_KEY} a name in `domains` has 1 to {KEY_BYTES_MAX} bytes, no ':'"
_BAD_PREFIX = f"{ErrorCode.BAD_KEY} `prefix` has 1 to {NEXT_PREFIX_BYTES_MAX} bytes, no ':'"
_NO_ORDER = f"{ErrorCode.BAD_REQUEST} `ordered` needs `domains`"


class _Given(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON object."""

    attempts: Annotated[int, msgspec.Meta(ge=0, le=LIMIT_MAX)] = 0
    domains: tuple[str, ...] | None = None
    ordered: bool = False
    prefix: str | None = None


class NextOptions(msgspec.Struct, frozen=True):
    """Options of a NEXT."""

    attempts: int = 0
    """Failed attempts after which the entry is buried, for this lease; 0: the default bound."""
    domains: tuple[bytes, ...] = ()
    """Only these domains."""
    ordered: bool = False
    """The first domain that has work is next; False: they take turns."""
    prefix: bytes = b""
    """Only domains whose names begin so."""

    @property
    def selects(self) -> bool:
        """Whether it names domains, or their prefix."""
        return bool(self.domains or self.prefix)

    def next_at(self, scheduler: Scheduler) -> int:
        """Return when the next entry becomes due, or ``NEVER``; for a prefix a lower bound."""
        return min(map(scheduler.next_at, self.domains or (b"",)))


NO_OPTIONS = NextOptions()
_decode = msgspec.json.Decoder(_Given).decode


def options_of(request: Request) -> NextOptions | str:
    """Return the options of a NEXT or PEEK, or the error."""
    if request.value_type is None:
        return NO_OPTIONS
    if request.value_type != ValueType.STRING:
        return _NO_STRING
    if len(request.value) > NEXT_VALUE_BYTES_MAX:
        return _LONG_VALUE
    options = _options_in(bytes(request.value))
    if request.key and isinstance(options, NextOptions) and options.selects:
        return _KEY_TOO
    return options


def valid_options(request: Request) -> NextOptions:
    """Return the options of a request that was checked when it came."""
    options = options_of(request)
    assert isinstance(options, NextOptions), "it was checked when the request came"
    return options


@lru_cache(maxsize=256)
def _options_in(value: bytes) -> NextOptions | str:
    """Return the options in a value. A waiting request asks often."""
    try:
        given = _decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # UnicodeDecodeError: a name in the object is not UTF-8
        return f"{ErrorCode.BAD_VALUE} {error}"
    domains = tuple(dict.fromkeys(name.encode() for name in given.domains or ()))
    prefix = b"" if given.prefix is None else given.prefix.encode()
    if given.domains is not None and given.prefix is not None:
        return _BOTH
    if given.domains == ():
        return _NO_DOMAINS
    if given.domains is not None and len(given.domains) > NEXT_DOMAINS_MAX:
        return _TOO_MANY
    if not all(0 < len(name) <= KEY_BYTES_MAX and b":" not in name for name in domains):
        return _BAD_NAME
    if given.prefix is not None and (
        not 0 < len(prefix) <= NEXT_PREFIX_BYTES_MAX or b":" in prefix
    ):
        return _BAD_PREFIX
    if given.ordered and not domains:
        return _NO_ORDER
    return NextOptions(given.attempts, domains, given.ordered, prefix)


class Cycles:
    """Which domain was served last, for each list of domains and each prefix.

    The least recently used are forgotten: their domains begin their cycle again.
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: OrderedDict[tuple[bytes, ...] | bytes, bytes] = OrderedDict()

    def last(self, options: NextOptions) -> bytes:
        """Return the name of the domain served last; empty: none."""
        return self._last.get(options.domains or options.prefix, b"")

    def note(self, options: NextOptions, name: bytes) -> None:
        """Note the domain served last. O(1)."""
        about = options.domains or options.prefix
        self._last[about] = name
        self._last.move_to_end(about)
        if len(self._last) > CYCLES_MAX:
            self._last.popitem(last=False)


class Chosen:
    """The domains that a request selects and that have work, in their order of turns.

    It stands for ``RoundRobin.turns`` in NEXT and PEEK.

    Args:
        options: With several domains, or a prefix.
        scheduler: Has the domains.
        last: Name of the domain that was served last; empty: none.
    """

    __slots__ = ("_last", "_options", "_picked", "_scheduler")

    def __init__(self, options: NextOptions, scheduler: Scheduler, last: bytes) -> None:
        self._options = options
        self._scheduler = scheduler
        self._last = b"" if options.ordered else last
        self._picked: Domain | None = None

    def __bool__(self) -> bool:
        """Whether one of them has work; what was picked before has been served."""
        if self._picked is not None and not self._options.ordered:
            self._last = self._picked.name
        self._picked = next(self._cycle(), None)
        return self._picked is not None

    def values(self) -> Iterable[Domain]:
        """Return them; the first is the next. O(log n) for each."""
        return self._cycle()

    def move_to_end(self, name: bytes) -> None:
        """Do nothing: the next one that is picked is behind the last."""

    def _cycle(self) -> Iterator[Domain]:
        turns = self._scheduler.round_robin.turns
        names = self._options.domains
        if not names:
            yield from self._with_prefix(self._options.prefix)
            return
        if self._last in names:
            at = names.index(self._last) + 1
            names = names[at:] + names[:at]
        for name in names:
            domain = turns.get(name)
            if domain is not None:
                yield domain

    def _with_prefix(self, prefix: bytes) -> Iterator[Domain]:
        round_robin = self._scheduler.round_robin
        index = round_robin.ready_names
        last = self._last if self._last.startswith(prefix) else b""
        for name in index.irange(max(last, prefix), inclusive=(not last, True)):
            if not name.startswith(prefix):
                break
            yield round_robin.turns[name]
        if last:
            for name in index.irange(prefix, last):
                yield round_robin.turns[name]


def next_at(scheduler: Scheduler, request: Request) -> int:
    """Return when a request may get work that is not due now, or ``NEVER``; a lower bound."""
    if request.value_type is None:
        return scheduler.next_at(request.key)
    options = valid_options(request)
    return options.next_at(scheduler) if options.selects else scheduler.next_at(request.key)
