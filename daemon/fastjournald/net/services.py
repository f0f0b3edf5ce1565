"""Services: calls that a connection makes of background tasks, most of them to wait."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Protocol

import msgspec

from fastjournal.protocol import Request
from fastjournald.admission.turn_budget import QueuedClient, Share
from fastjournald.engine.engine import Missing, Scan
from fastjournald.tables.entry import Entry
from fastjournald.tables.value_cache import Unreadable


class Fetch(Protocol):
    """Type of ``Services.fetch``."""

    def __call__(self, missing: Missing, earlier: Iterable[Entry] = (), /) -> Awaitable[Unreadable]:
        """Read values; those of ``earlier`` once more, where they left memory meanwhile.

        Returns:
            The reads that failed.
        """


class Services(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of a connection."""

    fetch: Fetch
    """Reads values that are on disk only."""
    evict: Callable[[], object]
    """Lets values leave memory, if there are too many."""
    run_scan: Callable[[Scan, Callable[[], bool], Callable[[], bool], Share], Awaitable[bytes]]
    """Returns the reply to a scan; the second argument tells whether the client is lost, the third
    whether it has ended its requests."""
    take_snapshot: Callable[[Hashable, Request], Awaitable[bytes]]
    """Returns the reply to a SNAPSHOT."""
    wait_turn: Callable[[Share, int], Awaitable[None]]
    """Returns when a client may begin work of that size."""
    queue_up: Callable[[Share, Callable[[], object], int], QueuedClient]
    """The same by a call, without a task that waits; then the turn budget has to be asked."""
    pass_on: Callable[[Share], Awaitable[None]]
    """Lets others have their turn, and returns when the client may go on."""
    wait_matched: Callable[[], Awaitable[None]]
    """Returns when no longer so many changes wait to be matched that no more should come."""
    wait_notification_turn: Callable[[], Awaitable[None]]
    """Returns when a session may be notified of some changes."""
