"""The parts of the naive model: its settings, entries, refusals and sizes. See model.py."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from fastjournal.keys import JournalKey
from fastjournal.protocol.constants import Flag, Query, State
from fastjournal.protocol.messages import Meta, Pair, Request

U64_MAX = 2**64 - 1
KEY_BYTES_MAX = 4096


@dataclass
class Rules:
    """The settings of the engine, by the same names."""

    reply_bytes_max: int = 4 * 1024 * 1024
    lease_us_default: int = 24 * 3600 * 1_000_000
    attempts_max: int = 0
    tombstone_ttl_us: int = 3600 * 1_000_000
    tombstones_max: int = 1_000_000
    tombstones_bytes_max: int = 1_000_000_000
    clock_skew_us_max: int = 60_000_000
    value_bytes_max: int = 1_000_000
    postpone_us_max: int = 3600 * 1_000_000
    interval_us_default: int = 0
    retry_delay_us: int = 1_000_000
    retry_delay_us_max: int = 3600 * 1_000_000
    jobs_default: int = 0


class Bit:
    """Flags as numbers: of a Flag each `|` and `&` is a call of Python."""

    DATA = int(Flag.DATA)
    LISTEN = int(Flag.LISTEN)
    META = int(Flag.META)
    OVERWRITE = int(Flag.OVERWRITE)
    PERSIST = int(Flag.PERSIST)
    PERSIST_ALIAS = int(Flag.PERSIST_ALIAS)
    TWO_KEYS = int(Flag.TWO_KEYS)
    UPDATE_TIMEOUT = int(Flag.UPDATE_TIMEOUT)
    WORKED_ON = int(Flag.WORKED_ON)


@dataclass(eq=False)
class Entry:
    """All that is known of one value."""

    key: bytes
    arrival: int
    created: int
    parts: JournalKey | None
    uri: bytes | None = None
    links: list[bytes] = field(default_factory=list)
    displaced_at: int | None = None
    """Timestamp of the first SET that took its URI from this entry while it was worked on."""
    taken: list[bytes] = field(default_factory=list)
    """The keys that such SETs took: its URI or links."""
    displacement: int = 0
    """The how manieth displaced entry it is: they are dropped in this order."""
    value_type: int = 0
    value: bytes = b""
    timestamp: int = 0
    modified: int = 0
    accessed: int = 0
    expires: int = 0
    ttl: int = 0
    persistent: bool = False
    not_before: int = 0
    attempts: int = 0
    buried: bool = False
    reason: bytes = b""
    error: bytes | None = None
    """Error text of the last attempt that failed."""
    token: int = 0
    moved: int = 0
    """By how much steps of the clock moved the end of its lease."""
    leased_at: int = 0
    """When the record was written that tells of its lease; of others below the same."""
    delayed_at: int = 0
    touched_at: int = 0
    """0: its own record tells of its expiry, or a client gave that instant."""
    token_before: int = 0
    attempts_max: int = 0
    """Bound of its lease on failed attempts; 0: the lease has none."""
    renews: set[int] = field(default_factory=set)
    """Tokens of the same lease that a repeat of its last TOUCH may come with."""
    first_due: int = 0
    """When this, or what it replaced through the URI, was to start at first; 0: as it is."""
    locked_by: Hashable = None
    locked_until: int = 0
    writes: int = 0
    """How often its value was set."""

    @property
    def leased_until(self) -> int:
        """When its lease ends; 0: it is not leased."""
        return min(self.token + self.moved, U64_MAX) if self.token else 0

    def all_keys(self) -> list[bytes]:
        """All keys that lead here."""
        keys = [self.key, *self.links] if self.uri is None else [self.key, self.uri, *self.links]
        return [key for key in keys if key not in self.taken] if self.taken else keys

    def order(self) -> tuple[int, int, int]:
        assert self.parts is not None
        return (self.parts.priority, self.not_before, self.arrival)

    def meta(self, *, paused: bool) -> Meta:
        state = State.PERSISTENT * self.persistent | State.BURIED * self.buried
        state |= State.LOCKED * (self.locked_by is not None) | State.PAUSED * paused
        return Meta(
            timestamp_us=self.timestamp,
            created_us=self.created,
            modified_us=self.modified,
            accessed_us=self.accessed,
            expires_us=self.expires,
            ttl_us=self.ttl,
            worked_on_until_us=self.token,
            not_before_us=self.not_before,
            priority=self.parts.priority if self.parts else 0,
            state=state | State.JOURNAL * (self.parts is not None),
            attempts=self.attempts,
        )


class RefusedError(Exception):
    """An error code of the protocol."""


@dataclass(eq=False)
class Waiter:
    """A NEXT that waits for work."""

    session: Hashable
    request: Request
    deadline: int | None


def refuse(code: str, when: bool) -> None:
    """Raise the error where the condition holds."""
    if when:
        raise RefusedError(code)


def check_key(key: bytes) -> None:
    refuse("bad-key", not 0 < len(key) <= KEY_BYTES_MAX)


def second_key_of(r: Request) -> bytes:
    """The second key, where there must be one."""
    if r.query != Query.RANGE or r.second_key is None:
        raise RefusedError("bad-request")
    check_key(r.second_key)
    return r.second_key


def token_of(r: Request, *, needed: bool = False) -> int | None:
    """The lease token of a request: WORKED_ON and TIMEOUT come together or not at all."""
    worked_on = bool(r.flags & Bit.WORKED_ON)
    refuse("bad-request", worked_on != (r.timeout is not None) or (needed and not worked_on))
    return r.timeout


def reply_bytes(pairs: list[Pair]) -> int:
    """Largest reply to NEXT with these pairs: 64 bytes, and the sizes of a pair at their widest."""
    data = sum(len(p.key) + len(p.second_key) + len(p.value) for p in pairs)
    return 64 + data + 9 * len(pairs) + sum(68 for p in pairs if p.meta is not None)
