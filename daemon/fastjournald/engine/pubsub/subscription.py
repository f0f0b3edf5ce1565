"""Subscription: the wish of one LISTEN request to be notified of changes. Pure."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple, TypeAlias

from fastjournald.engine.key_filter import KeyFilter
from fastjournald.engine.pubsub.regex_sets import SetSearch, memory_of

SUBSCRIPTION_BYTES = 410
"""Memory of a subscription, besides its keys and its expression."""

RANGE_BYTES = 260
"""Memory of a range in the index, besides its bounds."""

SEARCH_BYTES = 2000
"""Memory of the expressions of a session about one range, besides what is compiled."""


class FilterText(NamedTuple):
    """A key filter without anything compiled."""

    start: bytes
    stop: bytes | None
    expression: bytes | None
    instructions: int


About: TypeAlias = bytes | KeyFilter | FilterText
"""One key, or a filter of keys."""


class Subscription:
    """One subscription; of no more use once it is not ``live``."""

    __slots__ = ("identifier", "key", "keys", "live", "session", "since")

    def __init__(self, session: Hashable, identifier: int, about: About, since: int) -> None:
        self.session = session
        self.identifier = identifier
        """Identifier of the request, which its notifications bear."""
        self.key = about if isinstance(about, bytes) else None
        self.keys: FilterText | None = None
        """The filter, where it is not about one key."""
        if not isinstance(about, bytes):
            self.keys = FilterText(about.start, about.stop, about.expression, about.instructions)
        self.since = since
        """Number of the last change before it began."""
        self.live = True

    @property
    def about(self) -> bytes | FilterText:
        """Key or filter."""
        if self.key is not None:
            return self.key
        assert self.keys is not None
        return self.keys


ExpressionSearch: TypeAlias = SetSearch[Subscription]


def own_bytes(about: About) -> int:
    """Return the memory of a subscription, besides what it may share with others."""
    if isinstance(about, bytes):
        return SUBSCRIPTION_BYTES + len(about)
    size = SUBSCRIPTION_BYTES + RANGE_BYTES + len(about.start) + len(about.stop or b"")
    return size if about.expression is None else size + SEARCH_BYTES + len(about.expression)


def full_bytes(about: About) -> int:
    """Return the memory of a subscription, with its expression compiled for itself alone."""
    if isinstance(about, bytes) or about.expression is None:
        return own_bytes(about)
    return own_bytes(about) + memory_of(about.instructions)
