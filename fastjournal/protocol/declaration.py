"""Declaration of a protocol function: rights, retry policy, effect on the log, row of the table."""

from __future__ import annotations

from enum import Enum, IntFlag, auto

import msgspec


class Right(IntFlag):
    """Rights of a token; the names are those of the file of tokens."""

    READ = auto()
    WRITE = auto()
    NEXT = auto()
    ADMIN = auto()


class Scope(Enum):
    """Place in a request of the keys or domains that a right has to be for; as the table says."""

    KEY = "key"
    KEY_AND_URI = "key, URI"
    KEY_OR_SCAN = "key; RANGE, REGEX, CURSOR leave out what is outside"
    TWO_KEYS = "key, second key"
    DOMAIN = "domain"
    DOMAIN_OR_ALL = "domain; the empty one: everything"
    KEY_OR_DOMAIN = "key, or domain"
    NAMES = "names that are outside are left out"
    KEY_DOMAIN_OR_DAEMON = "key, or domain; of the daemon: everything, or admin"
    CONNECTION = "requests of this connection"
    EVERYTHING = "everything"


class RequiredRights(msgspec.Struct, frozen=True):
    """Rights that a function needs, and for what."""

    rights: Right
    scope: Scope
    with_token: Right | None = None
    """Instead of ``rights``, where the request has a lease token."""
    with_lease: Right | None = None
    """Instead of ``rights``, where a GET leases."""
    with_expiry: Right | None = None
    """Instead of ``rights``, where a GET sets an expiry."""
    with_listen: Right = Right(0)
    """Beside the others, with LISTEN."""
    or_admin: bool = False
    """The right admin is enough."""


class Retry(msgspec.Struct, frozen=True):
    """Retry policy: what a client does whose connection was lost before the reply came."""

    repeat: bool
    """Send the request again."""
    changes: bool = True
    """It changes something, so that its caller has to know that it may have been done."""
    done_codes: frozenset[str] = frozenset()
    """Refusals of a repeat that mean: what was asked for is so."""


class LogEffect(Enum):
    """Effect of a function on the size of the log, which backpressure and compaction care for."""

    NONE = auto()
    GROWS = auto()
    """Appends records without end."""
    GROWS_BY_LEASE = auto()
    """Appends records where the request has a timeout."""
    SHRINKS_WITHOUT_VALUE = auto()
    """Appends records that end others; with a value also the value, without end."""
    SHRINKS = auto()
    """Appends records that end others: what compaction waits for."""


class Declaration(msgspec.Struct, frozen=True, kw_only=True):
    """Declaration of one function: the facts in all tables about it."""

    text: str
    """Its row of the table in docs/protocol.md."""
    access: RequiredRights | None
    """None: it needs neither AUTH nor a right."""
    retry: Retry
    log: LogEffect = LogEffect.NONE
    locked: bool = False
    """A write, for locks: ``locked`` where another connection has locked the entry."""
    spoolable: bool = False
    """A spool takes it: it changes something, and nobody needs its answer."""
    by_engine: bool = True
    """The engine has a handler for it; else the server carries it out."""
