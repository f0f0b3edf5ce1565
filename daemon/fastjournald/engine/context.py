"""Context of a handler: the state of the engine, its settings, request counters and checks. Pure.

``Context`` is the whole state of the engine between two requests. The checks are of arguments that
several handlers have.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import msgspec

from fastjournal import limits
from fastjournal.cmdlog.format.endings import Backoff
from fastjournal.limits import KEY_BYTES_MAX
from fastjournal.protocol import ErrorCode, Flag, Function, Reply, Request, encode_reply_to
from fastjournald.engine.authorization import Grants
from fastjournald.engine.job_lifecycle import JobLifecycle
from fastjournald.engine.next_options import Cycles
from fastjournald.engine.pubsub.subscriptions import Subscriptions
from fastjournald.engine.store import Store
from fastjournald.engine.undelivered import DeliveringReply
from fastjournald.engine.waiters import Waiter, Waiters
from fastjournald.tables.domain import NEVER
from fastjournald.tables.domain_limits import DomainLimit, DomainLimits
from fastjournald.tables.entry import Entry
from fastjournald.tables.key_table import TakenUris, Tombstones
from fastjournald.tables.leases import LeaseTokens
from fastjournald.tables.value_cache import Values
from fastjournald.wal.journal import Journal
from fastjournald.wal.record_encoder import Append


class Settings(msgspec.Struct, kw_only=True, frozen=True):
    """Bounds and defaults of the engine; sizes in bytes, times in microseconds."""

    value_bytes_max: int = limits.VALUE_BYTES_MAX
    reply_bytes_max: int = limits.REPLY_BYTES_MAX
    lease_us_default: int = limits.LEASE_US_DEFAULT
    attempts_max: int = limits.ATTEMPTS_MAX
    """Failed attempts after which an entry is buried; 0: never."""
    retry_delay_us: int = limits.RETRY_DELAY_US
    """After the first failed attempt; doubled for each further one. Not after a first that is a
    lost lease."""
    retry_delay_us_max: int = limits.RETRY_DELAY_US_MAX
    interval_us_default: int = 0
    """Least time between two deliveries of a domain; 0: no limit."""
    jobs_default: int = 0
    """Most entries of a domain that are leased at once; 0: no limit."""
    tombstone_ttl_us: int = limits.TOMBSTONE_TTL_US
    tombstones_max: int = limits.TOMBSTONES_MAX
    tombstones_bytes_max: int = limits.TOMBSTONES_BYTES_MAX
    clock_skew_us_max: int = limits.CLOCK_SKEW_US_MAX
    memory_bytes_max: int = 0
    """Bytes of entries in memory above which values are evicted; 0: no limit."""
    cold_bytes_min: int = limits.COLD_BYTES_MIN
    """Smaller values are never evicted. ADD and NOT may change only values in memory."""
    postpone_us_max: int = limits.POSTPONE_US_MAX
    """How far SETs may put off the work on a URI beyond its first due time; 0: no limit."""


UNKNOWN = -1
"""Function number under which requests with an unknown function are counted."""

_FUNCTIONS = frozenset(map(int, Function))


class RequestCounters:
    """Numbers of requests by function, of error replies by function and error code, and of jobs
    that gave way to one of another domain."""

    __slots__ = ("errors", "replaced", "requests")

    def __init__(self) -> None:
        self.requests = dict.fromkeys((*_FUNCTIONS, UNKNOWN), 0)
        """Function to the number of its requests so far."""
        self.errors: dict[tuple[int, str], int] = {}
        """Function and error code to the number of such replies so far."""
        self.replaced: dict[tuple[bytes, bytes], int] = {}
        """Two domains to the number of waiting jobs of the first that gave way, by their URI, to
        one of the second; at most ``REPLACED_PAIRS_MAX``, and empty names for all others."""

    def count_replaced(self, domain: bytes, by: bytes) -> None:
        """Count a waiting job that gave way to one of another domain."""
        pair = domain, by
        if pair not in self.replaced and len(self.replaced) >= limits.REPLACED_PAIRS_MAX:
            pair = b"", b""
        self.replaced[pair] = self.replaced.get(pair, 0) + 1

    def count_refused(self, function: int, error: str) -> None:
        """Count a request that was refused, and its error."""
        known = function if function in _FUNCTIONS else UNKNOWN
        self.requests[known] += 1
        self.count_error(known, error)

    def count_error(self, function: int, error: str) -> None:
        """Count an error reply; the error is its code and details."""
        about = function, error.partition(" ")[0]
        self.errors[about] = self.errors.get(about, 0) + 1


def _discard(data: bytes, records: int, now: int) -> int:
    """Discard the record: an engine without a log."""
    return 0


def new_journal(settings: Settings, append: Append, seed: bytes) -> Journal:
    """Return a journal with these settings."""
    return Journal(append, seed=seed, lease_us=settings.lease_us_default)


def _new_values(settings: Settings) -> Values | None:
    """Return the table of values in memory with its bound; None: there is no bound."""
    if not settings.memory_bytes_max:
        return None
    return Values(settings.memory_bytes_max, settings.cold_bytes_min)


class Context:
    """State of the engine that handlers read and change.

    Args:
        settings: Bounds and defaults.
        journal: Write-ahead log of the changes of persistent entries; None: there is no log.
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
            _new_values(self.settings),
            DomainLimits(
                DomainLimit(
                    interval_us=self.settings.interval_us_default,
                    jobs=self.settings.jobs_default,
                )
            ),
        )
        self.jobs = JobLifecycle(
            self.store,
            self.settings.attempts_max,
            Backoff(self.settings.retry_delay_us, self.settings.retry_delay_us_max),
        )
        self.now = 0
        """Latest instant passed to the engine; only ``clock_stepped`` decreases it."""
        self.ends_moved = 0
        """Durations whose end was moved so far because the clock was set."""
        self.newest_us = 0
        """Instant of the newest record in the log, if the clock was set back since; else 0."""
        self.tokens = LeaseTokens(self.settings.lease_us_default)
        self.counters = RequestCounters()
        self.taken_uris = TakenUris()
        self.replacing: list[int] = []
        """Places in the bulk of the SETs that replaced an entry, until their replies are made."""
        self.waiters = Waiters(self.store.scheduler.round_robin.newly_ready, self.store.signals)
        """NEXT requests that wait for work."""
        self.cycles = Cycles()
        """Turns of the domains of NEXTs that name several, or a prefix."""
        self.subscriptions = Subscriptions(self.store.changes)
        self.any_domain_at = 0
        """Instant of the last delivery to a NEXT for any domain, whose turn each of them has."""
        self.fetching = 0
        """Requests that wait for values to be read from disk. NEXT also loads values for the other
        waiting requests: otherwise all load the same value and all but one discard it."""
        self.reply_bytes_max = self.settings.reply_bytes_max
        """Current bound on the size of a reply with several pairs."""
        self.value_bytes_ration = limits.INSTANT_MAX
        """Current bound on a value in a reply; a larger value gets the error ``busy``."""
        self.read_only = False
        """New entries and deliveries are refused because the disk is nearly full."""
        self.pause_room = limits.PAUSE_RESERVE_BYTES
        """Bytes of records of pauses that are taken while it is read-only."""
        self.stopping = False
        """The daemon stops: no new request may wait for work."""
        self.has_hung_up: Callable[[Hashable], bool] = lambda _session: False
        """Whether the client of a session has closed its sending side."""
        self.gauges: Callable[[int], dict[str, int]] = lambda _now: {}
        """Figures that the daemon adds to STATS: connections, log bytes, uptime."""
        self.grants: Grants | None = None
        """Access tokens and the sessions authenticated with them; None: no authorization."""
        self.client_names: dict[Hashable, str] = {}
        """Session to the name that its client gave itself, for people."""
        self.auth_failures: dict[Hashable, int] = {}
        """Session to the number of its failed AUTH requests."""

    def ration(self, reply_bytes_max: int | None) -> None:
        """Bound the size of replies while memory is scarce; None: remove this bound."""
        if reply_bytes_max is None:
            self.reply_bytes_max = self.settings.reply_bytes_max
            self.value_bytes_ration = limits.INSTANT_MAX
        else:
            self.reply_bytes_max = min(reply_bytes_max, self.settings.reply_bytes_max)
            self.value_bytes_ration = reply_bytes_max

    def may_see(self, session: Hashable, entry: Entry) -> bool:
        """Whether ranges, expressions and notifications may show an entry to a session."""
        return self.grants is None or self.grants.may_see(session, entry)

    def domains_seen(self, session: Hashable) -> list[tuple[bytes, bytes | None]]:
        """Return the ranges of domain names that a session may list."""
        return [(b"", None)] if self.grants is None else self.grants.domain_ranges(session)

    def behind_us(self, now: int) -> int:
        """Return how far the clock is behind the latest instant of the engine and its log."""
        return max(0, self.now - now, self.newest_us - now)

    # --- deliveries -----------------------------------------------------------------------------

    def unproven(self, entries: list[Entry], *, leased: bool) -> list[bytes]:
        """Return the domains of these deliveries whose delivery time is in no lease record.

        The caller logs the delivery times: intervals between deliveries survive a restart.
        """
        unlogged = self.store.rules.limits.unlogged
        names = [
            entry.domain.name
            for entry in entries
            if entry.domain.waits_until and not (leased and entry.persistent)
        ]
        for name in names:
            unlogged.pop(name, None)
        return names

    # --- requests that wait ---------------------------------------------------------------------

    def wait(self, session: Hashable, request: Request, now: int) -> None:
        """Register a NEXT that waits until an entry is ready or its ttl ends."""
        deadline = NEVER if request.ttl is None else min(now + request.ttl, NEVER)
        if request.second_key:
            # NEXT does not use the second key, and its bytes are not counted
            request = msgspec.structs.replace(request, second_key=None)
        self.waiters.add(session, request, deadline)

    def answer(
        self, waiter: Waiter, reply: Reply | DeliveringReply, now: int
    ) -> tuple[Hashable, bytes]:
        """End the wait of a request; return the session and the encoded reply."""
        self.waiters.remove(waiter)
        self.store.work += limits.REQUEST_WORK
        if isinstance(reply, DeliveringReply):
            return waiter.session, reply
        if reply.error:
            self.counters.count_error(waiter.request.function, reply.error)
        return waiter.session, encode_reply_to(waiter.request.identifier, reply, now)


WORKED_ON = int(Flag.WORKED_ON)
OVERWRITE = int(Flag.OVERWRITE)
PERSIST = int(Flag.PERSIST)
DATA = int(Flag.DATA)
LISTEN = int(Flag.LISTEN)
META = int(Flag.META)
UPDATE_TIMEOUT = int(Flag.UPDATE_TIMEOUT)
TWO_KEYS = int(Flag.TWO_KEYS)
"""Plain integers: an IntFlag's ``&`` takes ten times as long."""

BAD_KEY = f"{ErrorCode.BAD_KEY} a key has 1 to {KEY_BYTES_MAX} bytes"
NOT_A_DOMAIN = f"{ErrorCode.BAD_KEY} a domain has 1 to {KEY_BYTES_MAX} bytes, none of them ':'"
HALF_TOKEN = f"{ErrorCode.BAD_REQUEST} a lease token needs both WORKED_ON and TIMEOUT"
CLOCK_SKEW = f"{ErrorCode.CLOCK_SKEW} the timestamp is too far ahead of the daemon's clock"
SCARCE = f"{ErrorCode.BUSY} memory is scarce, and the value is large; ask again later"
LOCKED = f"{ErrorCode.LOCKED} another connection has locked the entry"
LIMITED = f"{ErrorCode.BUSY} the limit of the domain allows no further hand-out for now"
READ_ONLY = f"{ErrorCode.READ_ONLY} the disk is nearly full; nothing new is taken until it is not"


def is_key(key: bytes | None) -> bool:
    """Whether this is a valid key."""
    return bool(key) and len(key or b"") <= KEY_BYTES_MAX


def is_domain(name: bytes) -> bool:
    """Whether a domain may have this name."""
    return 0 < len(name) <= KEY_BYTES_MAX and b":" not in name


def token_of(request: Request) -> int | str | None:
    """Return the lease token of a request for a key, None where it has none, or the error.

    A token that is over is lost, also where the end of the lease was not applied yet.
    """
    key = request.key
    if not key or len(key) > KEY_BYTES_MAX:
        return BAD_KEY
    worked_on = request.flags & WORKED_ON
    if worked_on and request.timeout is not None:
        return request.timeout
    if worked_on or request.timeout is not None:
        return HALF_TOKEN
    return None


def entry_to_change(
    context: Context, session: Hashable, key: bytes, now: int, token: int | None = None
) -> Entry | str:
    """Return the entry under a key, or why the session may not change it now.

    Args:
        context: Context with the store.
        session: The client's.
        key: Any key of the entry.
        now: The present.
        token: Token of the lease that the entry has to have; None: it needs none.
    """
    store = context.store
    entry = store.find(key)
    if entry is None:
        return ErrorCode.NOT_FOUND.value
    if store.locks.locked_to(entry.key, session, now):
        return LOCKED
    if token is not None and (entry.token != token or entry.leased_until <= now):
        return ErrorCode.LEASE_LOST.value
    return entry
