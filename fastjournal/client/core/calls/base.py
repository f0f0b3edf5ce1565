"""Call and scan as types; refusals as exceptions; arguments that many calls share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeAlias, TypeVar

import msgspec

from fastjournal.client.core.failures import TOKEN_HINT
from fastjournal.client.core.results import Page
from fastjournal.client.core.retry_policy import rule_of
from fastjournal.clock import SystemClock
from fastjournal.errors import BadRequestError, LeaseLostError, RefusedError
from fastjournal.keys import PLAIN_HINT, encode_text, looks_like_journal_key, split_journal_key
from fastjournal.limits import (
    CLIENT_SNAPSHOT_S,
    INSTANT_MAX,
    KEY_BYTES_MAX,
    PAIRS_MAX,
    PRIORITY_MAX,
)
from fastjournal.numeric import check_integer
from fastjournal.protocol import QUERY_MASK, QUERY_SHIFT, Flag, Function, Query, Reply, Request
from fastjournal.protocol.constants import ErrorCode
from fastjournal.protocol.functions import BY_SERVER_FIRST
from fastjournal.times import Duration, Instant, check_instant_us, duration_us, expiry_us, lease_us

T = TypeVar("T")

_clock = SystemClock()

# Plain integers: the operators of IntFlag cost more than building a request.
UPDATE_TIMEOUT = int(Flag.UPDATE_TIMEOUT)
OVERWRITE = int(Flag.OVERWRITE)
WORKED_ON = int(Flag.WORKED_ON)
PERSIST = int(Flag.PERSIST)
DATA = int(Flag.DATA)
LISTEN = int(Flag.LISTEN)
META = int(Flag.META)
_CURSOR = int(Query.CURSOR) << QUERY_SHIFT
_NO_KEY = (_CURSOR, int(Query.REGEX) << QUERY_SHIFT)
"""Queries whose key field is a continuation token or an expression, and no key."""

_UNCHANGED = Reply(ttl=0)
"""Reply that says that nothing changed."""

_SENTENCES = {
    "not-found": "nothing stands under this key",
    "exists": "the key is taken; overwrite it or choose another",
    "stale": "a newer write stands there, so this one changed nothing",
    "worked-on": "the entry is being worked on",
    "lease-lost": "the lease is over; the entry is no longer yours, so drop this work",
    "locked": "another connection holds the lock; try again later",
    "not-owner": "another connection holds the lock, so it is not yours to end",
    "type-mismatch": "the stored value has another type",
    "overflow": "the result does not fit the width of the stored number; nothing changed",
    "too-large": "the daemon takes no message of this size",
    "unknown-function": "this daemon does not have this function; a newer version may",
    "clock-skew": "the timestamp is too far in the future; set this machine's clock",
    "read-only": "the daemon takes no writes; look at its log and its free disk space",
    "busy": "the daemon is at one of its limits; try again later",
    "shutting-down": "the daemon is stopping; try again when it is back",
}


class Call(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """A request, and what its reply means."""

    request: Request
    interpret: Callable[[Request, Reply], T]
    """Turns a reply without error into the result."""
    undo: Callable[[Request, Reply], list[Request]] | None = None
    """Requests that release leases and locks of the reply, for a caller that was cancelled
    meanwhile."""
    kept_codes: frozenset[str] = frozenset()
    """Refusals that mean: there was nothing to change."""

    def result(self, reply: Reply, *, repeated: bool = False) -> T:
        """Return the result that the reply means.

        Args:
            reply: To this request.
            repeated: It was sent before, and the reply to that is not known.

        Raises:
            RefusedError: The reply is an error.
            ProtocolError: The reply lacks what it must have.
        """
        outcome = self.outcome(reply, repeated=repeated)
        if isinstance(outcome, RefusedError):
            raise outcome
        return outcome

    def outcome(self, reply: Reply, *, repeated: bool = False) -> T | RefusedError:
        """Return the result that the reply means, or the refusal that it is; see ``result``."""
        if not reply.error:
            return self.interpret(self.request, reply)
        error = refusal(reply.error)
        if error.code in self.kept_codes:
            return self.interpret(self.request, _UNCHANGED)
        if self.request.flags & QUERY_MASK not in _NO_KEY:
            error.key = self.request.key or self.request.second_key or None
        if repeated:
            rule = rule_of(self.request)
            if error.code in rule.done_codes:
                return self.interpret(self.request, _UNCHANGED)
            error.maybe_done = rule.changes
        return error


class PagedCall(msgspec.Struct, Generic[T], frozen=True):
    """The call for the first page, and those for all that follow it."""

    first: Call[Page[T]]

    def following(self, cursor: bytes) -> Call[Page[T]]:
        """Return the call for the page after the one that had this cursor.

        A cursor outlives the connection, and a restart of the daemon. The page has as many entries,
        at most, as the first one was asked for. It is ``bad-cursor`` if the daemon did not create
        it.
        """
        first = self.first.request
        request = Request(
            first.function,
            flags=first.flags & ~(QUERY_MASK | LISTEN) | _CURSOR,
            key=cursor,
            timeout=first.timeout,
        )
        return Call(request, self.first.interpret, undo=self.first.undo)


def silence_allowed_s(reply_timeout_s: float | None, requests: Iterable[Request]) -> float | None:
    """Return the seconds after which a daemon that owes answers counts as lost; None: never.

    A NEXT that waits may be answered that much later, and a SNAPSHOT or REMOTE takes its time.
    """
    longest_us = 0.0
    for request in requests:
        if request.function >= BY_SERVER_FIRST:
            longest_us = max(longest_us, CLIENT_SNAPSHOT_S * 1e6)
        if request.function == Function.NEXT and request.flags & LISTEN:
            if request.ttl is None:
                return None
            longest_us = max(longest_us, request.ttl)
    return None if reply_timeout_s is None else reply_timeout_s + longest_us / 1e6


def refusal(error: str) -> RefusedError:
    """Return the exception for the error text of a reply: a code, perhaps a sentence."""
    code, _, sentence = error.partition(" ")
    kind = LeaseLostError if code == LeaseLostError.code else RefusedError
    hint = TOKEN_HINT if code == ErrorCode.AUTH_REQUIRED else None
    return kind(sentence or _SENTENCES.get(code, "the daemon refused it"), code=code, hint=hint)


Domains: TypeAlias = str | bytes | Sequence[str | bytes]
"""A domain, or several."""


def key_bytes(key: str | bytes) -> bytes:
    """Return a key as the wire carries it.

    Raises:
        BadRequestError: It is longer than any daemon takes, or has no UTF-8 form.
    """
    data = encode_text("key", key)
    if len(data) > KEY_BYTES_MAX:
        raise BadRequestError(f"key has {len(data)} bytes, over {KEY_BYTES_MAX}", code="bad-key")
    return data


def new_key_bytes(key: str | bytes, *, plain: bool) -> bytes:
    """Return a key for a new entry, as the wire carries it.

    Raises:
        BadRequestError: As ``key_bytes``; or no worker would get it, and it is not said to be
            ``plain``: it looks like a journal key and is none, or it is one after the year 9999.
    """
    data = key_bytes(key)
    if plain:
        return data
    if parts := split_journal_key(data):
        # a number from before 2000 is no mistake: it gives the order, and the work is due at once
        name = f"{data.decode(errors='backslashreplace')!r} is no key of work: its timestamp"
        check_instant_us(name, parts[2], least_us=0, code="bad-key", hint=PLAIN_HINT)
    elif looks_like_journal_key(data):
        raise BadRequestError(
            f"{data.decode(errors='backslashreplace')!r} looks like a journal key"
            f" <domain>:<priority>:<timestamp>:<id>, but its priority is not 0 to {PRIORITY_MAX},"
            " or its timestamp is too large: no worker would get it",
            code="bad-key",
            hint=PLAIN_HINT,
        )
    return data


def checked_token(token: int | None) -> int | None:
    """Return a lease token that fits its field.

    Raises:
        TypeError, BadRequestError: It does not.
    """
    return None if token is None else check_integer("token", token, 0, INSTANT_MAX)


def duration(name: str, value: Duration | None) -> int | None:
    """Return the microseconds of a duration; None: it was not given.

    Raises:
        TypeError, BadRequestError: It is none; ``name`` says which argument that is.
    """
    return None if value is None else duration_us(name, value)


def checked_lease(value: Duration | None) -> int | None:
    """Return the microseconds of a lease; 0: the daemon's default. None: none was given.

    Raises:
        TypeError, BadRequestError: It is none.
    """
    return None if value is None else lease_us("lease", value)


def expiry(value: Instant | None) -> int | None:
    """Return the microseconds of an expiry; 0: never. None: it was not given.

    Raises:
        TypeError, BadRequestError: It is none, or in the past by this machine's clock.
    """
    return None if value is None else expiry_us("expires", value, _clock.now_us())


def stamp(timestamp_us: int | None) -> int:
    """Return the timestamp of a write; 0: the client that sends it stamps it."""
    if timestamp_us is None:
        return 0
    return check_instant_us("timestamp_us", timestamp_us, least_us=0)


def checked_count(name: str, value: int) -> int:
    """Return a number that fits its field, and is not 0.

    Raises:
        TypeError, BadRequestError: It does not; ``name`` says which argument that is.
    """
    return check_integer(name, value, 1, PAIRS_MAX)


def persisted(persist: bool) -> int:
    """Return the flag for a write that is kept on disk."""
    return PERSIST if persist else 0


def token_flag(token: int | None) -> int:
    """Return the flag that says: the timeout is a lease token."""
    return 0 if token is None else WORKED_ON
