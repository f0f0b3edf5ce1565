"""Context of a handler: all that the engine remembers between two requests. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable

import msgspec

from fastjournal import limits
from fastjournal.protocol import Function, Reply, Request, encode_reply
from fastjournald.engine.authorization import Grants
from fastjournald.engine.pubsub.subscriptions import Subscriptions
from fastjournald.engine.settings import Settings
from fastjournald.engine.store import Store
from fastjournald.engine.undelivered import Handouts
from fastjournald.engine.waiters import Waiter, Waiters
from fastjournald.tables.domain import NEVER, Tombstones
from fastjournald.tables.entry import Entry
from fastjournald.tables.value_cache import Values
from fastjournald.wal.journal import Append, Journal

UNKNOWN = -1
"""Counts as the function of requests whose function has no name."""

FUNCTIONS = frozenset(map(int, Function))

_LEASE_MS_MAX = limits.INSTANT_MAX // 1000 - 1
"""The last whole millisecond of which all microseconds are instants."""


def _discard(data: bytes, records: int, now: int) -> int:
    """Keep nothing: the journal of an engine without a log."""
    return 0


def new_journal(settings: Settings, append: Append, seed: bytes) -> Journal:
    """Return a journal that fits these settings."""
    return Journal(append, seed=seed, lease_us=settings.lease_us_default)


def new_values(settings: Settings) -> Values | None:
    """Return the account of values in memory that these settings ask for, if they do."""
    if not settings.memory_bytes_max:
        return None
    return Values(settings.memory_bytes_max, settings.cold_bytes_min)


class Context:
    """Entries, who waits for work, tokens and counters.

    Args:
        settings: Bounds and defaults.
        journal: Where changes of persistent entries go; None: nowhere.
    """

    def __init__(self, settings: Settings | None = None, journal: Journal | None = None) -> None:
        self.settings = settings or Settings()
        self.journal = journal or new_journal(self.settings, _discard, bytes(8))
        self.store = Store(
            self.journal,
            Tombstones(
                self.settings.tombstone_ttl_us,
                self.settings.tombstones_max,
                self.settings.tombstones_bytes_max,
            ),
            self.settings.attempts_max,
            new_values(self.settings),
        )
        self.waiters = Waiters()
        self.handouts: Handouts | None = None
        """Work in replies that may never be sent, while somebody asks for that; else None."""
        self.has_hung_up: Callable[[Hashable], bool] = lambda _session: False
        """Whether the client of a session that waits has gone."""
        self.subscriptions = Subscriptions(self.store.changes)
        self.awaited: dict[bytes, Entry] = {}
        """By primary key, what those who wait would get, if its value were in memory."""
        self.fetching = 0
        """Requests that wait until values were read. NEXT lets those that the others of them will
        take be read too: else all would read the first one, and all but one in vain."""
        self.notifications = 0
        """Told so far."""
        self.lease_counter = 0
        """Lease operations so far: the last three digits of the next token."""
        self.reply_bytes_max = self.settings.reply_bytes_max
        """Of a reply with several pairs, at this moment."""
        self.value_bytes_ration = limits.INSTANT_MAX
        """A larger value is in no reply, at this moment: ``busy``."""
        self.read_only = False
        """Nothing new is taken and nothing is handed out: the disk is nearly full."""
        self.gauges: Callable[[int], dict[str, int]] = lambda _now: {}
        """What the daemon adds to its STATS: connections, log bytes, uptime."""
        self.grants: Grants | None = None
        """Tokens, and who has shown one; None: everybody may do everything."""
        self.auth_failures: dict[Hashable, int] = {}
        """Session to the number of wrong tokens it has shown."""
        self.requests = dict.fromkeys((*FUNCTIONS, UNKNOWN), 0)
        """Function to the number of its requests so far."""
        self.errors: dict[tuple[int, str], int] = {}
        """Function and error code to the number of such replies so far."""

    def ration(self, reply_bytes_max: int | None) -> None:
        """Keep replies this small while memory is scarce; None: it is not."""
        if reply_bytes_max is None:
            self.reply_bytes_max = self.settings.reply_bytes_max
            self.value_bytes_ration = limits.INSTANT_MAX
        else:
            self.reply_bytes_max = min(reply_bytes_max, self.settings.reply_bytes_max)
            self.value_bytes_ration = reply_bytes_max

    def expects(self, session: Hashable) -> bool:
        """Return whether the daemon owes the connection something that is still to come. O(1)."""
        return (
            self.waiters.count_of(session) > 0
            or self.subscriptions.has(session)
            or self.store.locks.count_of(session) > 0
        )

    def may_see(self, session: Hashable, entry: Entry) -> bool:
        """Whether ranges, expressions and notifications may show an entry to a session."""
        return self.grants is None or self.grants.may_see(session, entry)

    def count_error(self, function: int, error: str) -> None:
        """Count an error: its code and what follows it."""
        about = function, error.partition(" ")[0]
        self.errors[about] = self.errors.get(about, 0) + 1

    @staticmethod
    def encode(reply: Reply, request: Request, now: int) -> bytes:
        """Return the bytes of the reply to a request."""
        reply.identifier = request.identifier
        reply.timestamp = now
        return encode_reply(reply)

    def lease_deadline(self, timeout: int | None, now: int) -> int:
        """Return when a lease of that length ends; None or 0: of the default length."""
        return now + (timeout or self.settings.lease_us_default)

    def lease_token(self, entries: list[Entry], deadline: int) -> int:
        """Return the token, and so the end, of a lease operation on these entries.

        It is the deadline, rounded up to whole milliseconds; the microseconds below are a counter,
        so that it differs from the tokens that an entry has or had before.
        """
        # where instants saturate, there is room for as many milliseconds as may be looked through
        base = min(-(-deadline // 1000), _LEASE_MS_MAX - 2 * len(entries) // 1000)
        token = base * 1000 + self.lease_counter % 1000
        self.lease_counter += 1
        for entry in entries:
            extra = entry.extra
            if token in (extra.token_before, extra.token):
                return self._free_token(entries, base)
        return token

    def _free_token(self, entries: list[Entry], base: int) -> int:
        """Return the first token from millisecond ``base`` on that is free for all entries.

        A thousand have the same millisecond. Entries take two each, so one of the next is free.
        """
        taken = {entry.extra.token_before for entry in entries}
        taken.update(entry.extra.token for entry in entries)
        for tried in range(len(taken) + 1):
            token = (base + tried // 1000) * 1000 + self.lease_counter % 1000
            self.lease_counter += 1
            if token not in taken:
                return token
        raise AssertionError("entries have taken more tokens than they are")

    def wait(self, session: Hashable, request: Request, now: int) -> None:
        """Let a NEXT wait until something is ready, or its ttl is over."""
        deadline = NEVER if request.ttl is None else min(now + request.ttl, NEVER)
        if request.value or request.second_key:
            # which nobody counts, and NEXT does not use
            request = msgspec.structs.replace(request, value=b"", value_type=None, second_key=None)
        self.waiters.add(session, request, deadline)
        if self.store.newly_ready is None:
            self.store.newly_ready = deque()

    def stop_watching(self) -> None:
        """Where nobody waits, nobody has to be told what becomes ready."""
        if not self.waiters:
            self.store.newly_ready = None

    def answer(self, waiter: Waiter, reply: Reply, now: int) -> tuple[Hashable, bytes]:
        """Return who gets the reply to a request that waited, and its bytes."""
        self.waiters.remove(waiter)
        self.store.work += limits.REQUEST_WORK
        if reply.error:
            self.count_error(waiter.request.function, reply.error)
        return waiter.session, self.encode(reply, waiter.request, now)
