"""Protocol functions: one declaration for each, from which the tables about functions are made.

``Function`` is the number on the wire; ``Function.SET.declared`` has all that the parts need of it.
These are made from the declarations, or compared with them by a test: the daemon's handlers, its
checks of rights, its backpressure, retries of a client, the requests of a spool, and the tables of
docs/protocol.md. A condition that depends on more than the function is where it is checked.
"""

from __future__ import annotations

from enum import Enum, IntEnum, IntFlag, auto
from typing import Final, Self

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
    DOMAIN_OR_EVERYTHING = "domain; the empty one: everything, admin"
    DOMAIN_OR_ALL = "domain, or each in the value; the empty one: everything"
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
    """Retry policy of a client whose connection was lost before the reply."""

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
    """A spool accepts it: it changes something, and its answer is not needed."""
    by_engine: bool = True
    """The engine has a handler for it; else the server carries it out, which may take long."""


_READ: Final = Retry(repeat=True, changes=False)
_AGAIN: Final = Retry(repeat=True)
_ONCE: Final = Retry(repeat=False)


def _done(*codes: str) -> Retry:
    return Retry(repeat=True, done_codes=frozenset(codes))


_WRITE_KEY: Final = RequiredRights(Right.WRITE, Scope.KEY)
_WRITE_OR_TOKEN: Final = RequiredRights(Right.WRITE, Scope.KEY, with_token=Right.NEXT)
_WRITE_TWO_KEYS: Final = RequiredRights(Right.WRITE, Scope.TWO_KEYS)


class Function(IntEnum):
    """Functions that a request may ask for; those of no published design begin at 256."""

    _value_: int
    declared: Declaration

    def __new__(cls, number: int, declared: Declaration | None = None) -> Self:
        """Make the member of that number; ``Function(2)`` finds it, and has no declaration."""
        if declared is None:
            raise TypeError(f"function {number} has no declaration")
        member = int.__new__(cls, number)
        member._value_ = number
        member.declared = declared
        return member

    NOP = (
        0,
        Declaration(
            text="nothing; success. Key: name of the client, for people. META: see below",
            access=None,
            retry=_READ,
        ),
    )
    QUIT = (
        1,
        Declaration(
            text="success after all earlier replies; then the daemon closes",
            access=None,
            retry=_ONCE,
        ),
    )
    SET = (
        2,
        Declaration(
            text="set key to value. Exists and no OVERWRITE: `exists`. TIMEOUT: expiry instant (0 "
            "never). TTL: touch duration. PERSIST. LISTEN. Query RANGE: the second key is a "
            "further, unique key (the URI). WORKED_ON: `worked-on` where the entry under the key "
            "is leased. Reply ttl: entries that it replaced; pair: that of another domain. See "
            "below",
            access=RequiredRights(Right.WRITE, Scope.KEY_AND_URI, with_listen=Right.READ),
            retry=_done("stale"),
            log=LogEffect.GROWS,
            locked=True,
            spoolable=True,
        ),
    )
    GET = (
        3,
        Declaration(
            text="see below",
            access=RequiredRights(
                Right.READ,
                Scope.KEY_OR_SCAN,
                with_lease=Right.NEXT,
                with_expiry=Right.READ | Right.WRITE,
                with_listen=Right.READ,
            ),
            retry=_READ,
            log=LogEffect.GROWS_BY_LEASE,
        ),
    )
    DELETE = (
        4,
        Declaration(
            text="delete by any key; leaves a tombstone; OVERWRITE: no tombstone, all trace "
            "removed. Nothing there: `not-found`, and the tombstone is still left. WORKED_ON + "
            "TIMEOUT: only if the entry's lease token equals timeout, else `lease-lost`: this is "
            "how a worker completes a job",
            access=_WRITE_OR_TOKEN,
            retry=_done("not-found"),
            log=LogEffect.SHRINKS,
            locked=True,
            spoolable=True,
        ),
    )
    ADD = (
        5,
        Declaration(
            text="add the value (integer or float) to the stored number; returns the new value "
            "(with its data, DATA or not). Missing: `not-found`, with OVERWRITE it is created. "
            "Other type: `type-mismatch`. Does not fit its stored width: `overflow`, unchanged. "
            "See below",
            access=_WRITE_KEY,
            retry=_ONCE,
            log=LogEffect.GROWS,
            locked=True,
            spoolable=True,
        ),
    )
    NOT = (
        6,
        Declaration(
            text="flip a boolean; returns the new value, with its data. See below",
            access=_WRITE_KEY,
            retry=_ONCE,
            log=LogEffect.GROWS,
            locked=True,
            spoolable=True,
        ),
    )
    TRUNCATE = (
        7,
        Declaration(
            text="resize buffer or string to the size in the value (integer); grows with zero "
            "bytes. See below",
            access=_WRITE_KEY,
            retry=_ONCE,
            log=LogEffect.GROWS,
            locked=True,
            spoolable=True,
        ),
    )
    LOCK = (
        8,
        Declaration(
            text="lock a value for timeout (duration; 60 s if absent) for this connection; others' "
            "writes get `locked`; ends with UNLOCK, the timeout or the connection. "
            "UPDATE_TIMEOUT: renew a lock that this connection holds, else `not-owner`. See below",
            access=_WRITE_KEY,
            retry=_AGAIN,
        ),
    )
    UNLOCK = (
        9,
        Declaration(
            text="end a lock, by its owner, else `not-owner`; no lock: `not-found`",
            access=_WRITE_KEY,
            retry=_AGAIN,
        ),
    )
    RENAME = (
        10,
        Declaration(
            text="change the primary key to the second key; all else is kept (a further key: "
            "`bad-key`). Target exists: `exists`, or replaced with OVERWRITE (but `locked`, or "
            "`worked-on`, where it is). See below",
            access=_WRITE_TWO_KEYS,
            retry=_ONCE,
            log=LogEffect.GROWS,
            locked=True,
            spoolable=True,
        ),
    )
    NEXT = (
        11,
        Declaration(
            text="see below",
            access=RequiredRights(Right.NEXT, Scope.DOMAIN_OR_ALL),
            retry=_ONCE,
            log=LogEffect.GROWS,
        ),
    )
    LINK = (
        12,
        Declaration(
            text="add the second key to the value of key; that key exists: `exists`. See below",
            access=_WRITE_TWO_KEYS,
            retry=_ONCE,
            log=LogEffect.GROWS,
            locked=True,
            spoolable=True,
        ),
    )
    RELEASE = (
        13,
        Declaration(
            text="give a leased entry back: WORKED_ON + TIMEOUT token; TTL: not before now + ttl. "
            "With a value (string, at most 4,096 bytes) the attempt failed; COUNT: buried if so "
            "many have. See below",
            access=RequiredRights(Right.NEXT, Scope.KEY),
            retry=_done("lease-lost", "not-found"),
            log=LogEffect.SHRINKS_WITHOUT_VALUE,
            locked=True,
            spoolable=True,
        ),
    )
    TOUCH = (
        14,
        Declaration(
            text="with WORKED_ON + TIMEOUT token: the lease now ends at now + ttl, the reply's "
            "timeout is the new token. Without: expiry at now + ttl",
            access=_WRITE_OR_TOKEN,
            retry=_AGAIN,
            log=LogEffect.GROWS,
            locked=True,
            spoolable=True,
        ),
    )
    BURY = (
        15,
        Declaration(
            text="make a leased (token) or any entry a dead letter; value: the reason. Without a "
            "token a leased entry may be buried too, which ends the lease. NEXT no longer returns "
            "it, GET does. See below",
            access=_WRITE_OR_TOKEN,
            retry=_AGAIN,
            log=LogEffect.GROWS,
            locked=True,
            spoolable=True,
        ),
    )
    KICK = (
        16,
        Declaration(
            text="make buried entries ready again: by key, or with an empty key and second key = "
            "domain up to count of them; reply timeout absent, ttl = how many (what is not buried "
            "does not count); domain KICK goes in work order. See below",
            access=RequiredRights(Right.WRITE, Scope.KEY_OR_DOMAIN),
            retry=_ONCE,
            log=LogEffect.GROWS,
            locked=True,
            spoolable=True,
        ),
    )
    STATS = (
        17,
        Declaration(
            text="see below",
            access=RequiredRights(Right.READ, Scope.KEY_DOMAIN_OR_DAEMON),
            retry=_READ,
        ),
    )
    PAUSE = (
        18,
        Declaration(
            text="key: domain; NEXT returns nothing of it for ttl; ttl 0 resumes. Empty key: all "
            "domains together. See below",
            # a worker of a domain may slow it
            access=RequiredRights(Right.NEXT, Scope.DOMAIN_OR_EVERYTHING, or_admin=True),
            retry=_AGAIN,
            log=LogEffect.GROWS,
            spoolable=True,
        ),
    )
    AUTH = (
        19,
        Declaration(
            text="value: the token; key: name of the client, for people. Where the daemon requires "
            "a token, all but NOP, QUIT and AUTH get `auth-required` before it; where it does not, "
            "AUTH is success",
            access=None,
            retry=_ONCE,
        ),
    )
    DOMAINS = (
        20,
        Declaration(
            text="the domains that hold entries, a limit or a pause, in byte order: key = prefix "
            "of their names (may be empty), count and cursor as for GET. See below",
            access=RequiredRights(Right.READ, Scope.NAMES),
            retry=_READ,
        ),
    )
    PURGE = (
        21,
        Declaration(
            text="delete the entries of a domain that nobody works on (waiting, delayed, buried), "
            "at most count of them; reply ttl = how many; OVERWRITE: no tombstones. See below",
            access=RequiredRights(Right.WRITE, Scope.DOMAIN),
            retry=_ONCE,
            log=LogEffect.SHRINKS,
        ),
    )
    LIMIT = (
        22,
        Declaration(
            text="key: domain; value: string, a JSON object with any of `interval_us` (least time "
            "between two deliveries), `jobs` (most entries worked on at once), `lease_us` (the "
            "domain's default lease), `attempts` (its max-attempts); 0: the daemon's default; what "
            "is not named stays. Always persistent. An unknown name or a bad number: `bad-value`. "
            "See below",
            access=RequiredRights(Right.NEXT, Scope.DOMAIN, or_admin=True),
            retry=_AGAIN,
            log=LogEffect.GROWS,
            spoolable=True,
        ),
    )
    CANCEL = (
        23,
        Declaration(
            text="count: the identifier of a NEXT that waits, or of a LISTEN, on this connection: "
            "that NEXT is answered with count 0, the subscription ends. Nothing of that "
            "identifier: `not-found`, and nothing changes. See below",
            access=RequiredRights(Right(0), Scope.CONNECTION),
            retry=_ONCE,
        ),
    )
    PEEK = (
        24,
        Declaration(
            text="what NEXT would deliver now, in its order and with the same domain, count, "
            "DATA and META; nothing is leased, and nothing changes. See below",
            access=RequiredRights(Right.READ, Scope.DOMAIN_OR_ALL),
            retry=_READ,
        ),
    )
    SNAPSHOT = (
        256,
        Declaration(
            text="take a snapshot of the command log, see below",
            # it holds everything, and fills the disk
            access=RequiredRights(Right.ADMIN, Scope.EVERYTHING),
            retry=_ONCE,
            by_engine=False,
        ),
    )
    REMOTE = (
        257,
        Declaration(
            text="key `checkpoint`: store a checkpoint of the remote log; key `handover`: end, and "
            "let a standby take over. See below",
            access=RequiredRights(Right.ADMIN, Scope.EVERYTHING),
            # a repeat would reach the node that has taken over
            retry=_ONCE,
            by_engine=False,
        ),
    )


BY_SERVER: Final = frozenset(int(each) for each in Function if not each.declared.by_engine)
"""Functions that the server carries out. They take long, and delay later replies."""

BY_SERVER_FIRST: Final = min(BY_SERVER)
"""The lowest of them, as a quick test of each request."""
