"""One function for each request: it builds the request and knows how to read the reply.

Pure: no socket, no clock. ``SyncClient`` and ``Client`` move the bytes of these calls and add
nothing, so a request means the same in both. Times are microseconds; keys are ``str`` (UTF-8) or
``bytes``. A request with timestamp 0 is stamped by the client that sends it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import msgspec

from fastjournal.client.results import Entry, Jobs, Written
from fastjournal.errors import BadRequestError, ProtocolError, RefusedError
from fastjournal.keys import encode_text
from fastjournal.limits import INSTANT_MAX, KEY_BYTES_MAX, PAIRS_MAX
from fastjournal.protocol import Flag, Function, Pair, Reply, Request, ValueType
from fastjournal.protocol.values import Value, encode_value

T = TypeVar("T")

# Plain integers: the operators of IntFlag cost more than building a request.
_UPDATE_TIMEOUT = int(Flag.UPDATE_TIMEOUT)
_OVERWRITE = int(Flag.OVERWRITE)
_WORKED_ON = int(Flag.WORKED_ON)
_PERSIST = int(Flag.PERSIST)
_DATA = int(Flag.DATA)
_LISTEN = int(Flag.LISTEN)
_META = int(Flag.META)

WAIT_WITHOUT_END = INSTANT_MAX
"""As ``wait_us`` of a NEXT: wait until there is work, however long that takes."""

_SENTENCES = {
    "not-found": "nothing stands under this key",
    "exists": "the key is taken; overwrite it or choose another",
    "stale": "a newer write stands there, so this one changed nothing",
    "worked-on": "the entry is being worked on",
    "lease-lost": "the lease is over; the entry is no longer yours, so drop this work",
    "locked": "another connection holds the lock; try again later",
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
    """Requests that give back what the reply gave, for a caller that has gone away meanwhile."""

    def result(self, reply: Reply) -> T:
        """Return the result that the reply means.

        Raises:
            RefusedError: The reply is an error.
            ProtocolError: The reply lacks what it must have.
        """
        if reply.error:
            raise refusal(reply.error)
        return self.interpret(self.request, reply)


def results_or_refusals(many: list[Call[T]], replies: list[Reply]) -> list[T | RefusedError]:
    """Return for each call the result that its reply means, or the refusal that it is."""
    return [
        refusal(reply.error) if reply.error else call.interpret(call.request, reply)
        for call, reply in zip(many, replies, strict=True)
    ]


def silence_allowed_s(reply_timeout_s: float | None, requests: Iterable[Request]) -> float | None:
    """Return the seconds after which a daemon that owes answers counts as lost; None: never.

    A NEXT that waits may be answered that much later.
    """
    longest_us = 0
    for request in requests:
        if request.function == Function.NEXT and request.flags & _LISTEN:
            if request.ttl is None:
                return None
            longest_us = max(longest_us, request.ttl)
    return None if reply_timeout_s is None else reply_timeout_s + longest_us / 1e6


def refusal(error: str) -> RefusedError:
    """Return the exception for the error text of a reply: a code, perhaps a sentence."""
    code, _, sentence = error.partition(" ")
    return RefusedError(sentence or _SENTENCES.get(code, "the daemon refused it"), code=code)


def nop() -> Call[int]:
    """Ask for nothing; the result is the daemon's clock."""
    return Call(Request(Function.NOP), _daemon_clock)


def quit_() -> Call[None]:
    """Ask the daemon to answer what it owes (a waiting NEXT with nothing) and to close."""
    return Call(Request(Function.QUIT), _nothing)


def set_(
    key: str | bytes,
    value: Value = b"",
    *,
    uri: str | bytes | None = None,
    persist: bool = True,
    overwrite: bool = False,
    expires: int | None = None,
    ttl: int | None = None,
    timestamp: int | None = None,
) -> Call[Written]:
    """Set a key to a value; see ``SyncClient.set``."""
    value_type, data = encode_value(value)
    flags = (_PERSIST if persist else 0) | (_OVERWRITE if overwrite else 0)
    request = Request(
        Function.SET,
        flags=flags,
        timestamp=timestamp or 0,
        key=key_bytes(key),
        second_key=None if uri is None else key_bytes(uri),
        value_type=value_type,
        value=data,
        timeout=_instant("expires", expires),
        ttl=_instant("ttl", ttl),
    )
    return Call(request, _written)


def get(
    key: str | bytes,
    *,
    data: bool = True,
    meta: bool = False,
    lease_us: int | None = None,
    expires: int | None = None,
    skip_worked_on: bool = False,
) -> Call[Entry]:
    """Read one entry; see ``SyncClient.get``."""
    if lease_us is not None and expires is not None:
        raise BadRequestError("a GET takes a lease or sets the expiry, not both")
    flags = (_DATA if data else 0) | (_META if meta else 0)
    flags |= _UPDATE_TIMEOUT if expires is not None else 0
    flags |= _WORKED_ON if skip_worked_on else 0
    request = Request(
        Function.GET,
        flags=flags,
        key=key_bytes(key),
        timeout=_instant("lease_us", lease_us) if expires is None else _instant("expires", expires),
    )
    return Call(request, _entry, undo=None if lease_us is None else _release_all)


def delete(
    key: str | bytes,
    *,
    token: int | None = None,
    overwrite: bool = False,
    persist: bool = True,
    timestamp: int | None = None,
) -> Call[Written]:
    """Delete an entry, or with its token complete a job; see ``SyncClient.delete``."""
    flags = (_PERSIST if persist else 0) | (_OVERWRITE if overwrite else 0)
    request = Request(
        Function.DELETE,
        flags=flags | _token_flag(token),
        timestamp=timestamp or 0,
        key=key_bytes(key),
        timeout=_instant("token", token),
    )
    return Call(request, _written)


def next_(
    domain: str | bytes = b"",
    *,
    count: int = 1,
    lease_us: int | None = None,
    wait_us: int | None = None,
    delete: bool = False,
    meta: bool = False,
) -> Call[Jobs]:
    """Lease what is due; see ``SyncClient.next``."""
    if not 0 < count <= PAIRS_MAX:
        raise BadRequestError(f"count {count} is not 1 to {PAIRS_MAX}")
    flags = _DATA | (_META if meta else 0)
    flags |= _OVERWRITE if delete else 0
    flags |= _LISTEN if wait_us is not None else 0
    endless = wait_us == WAIT_WITHOUT_END
    request = Request(
        Function.NEXT,
        flags=flags,
        key=key_bytes(domain),
        count=count,
        timeout=_instant("lease_us", lease_us),
        ttl=None if endless else _instant("wait_us", wait_us),
    )
    return Call(request, _jobs, undo=None if delete else _release_all)


def release(key: str | bytes, token: int, *, delay_us: int | None = None) -> Call[None]:
    """Give a leased entry back; see ``SyncClient.release``."""
    request = Request(
        Function.RELEASE,
        flags=_token_flag(token),
        key=key_bytes(key),
        timeout=_instant("token", token),
        ttl=_instant("delay_us", delay_us),
    )
    return Call(request, _nothing)


def touch(key: str | bytes, token: int | None = None, *, ttl_us: int) -> Call[int | None]:
    """Extend a lease, or without a token move the expiry; see ``SyncClient.touch``."""
    request = Request(
        Function.TOUCH,
        flags=_token_flag(token),
        key=key_bytes(key),
        timeout=_instant("token", token),
        ttl=_instant("ttl_us", ttl_us),
    )
    return Call(request, _touched if token is not None else _timeout)


def bury(key: str | bytes, token: int | None = None, *, reason: str = "") -> Call[None]:
    """Set an entry aside; see ``SyncClient.bury``."""
    request = Request(
        Function.BURY,
        flags=_token_flag(token),
        key=key_bytes(key),
        value_type=ValueType.STRING,
        value=reason.encode("utf-8", "backslashreplace"),
        timeout=_instant("token", token),
    )
    return Call(request, _nothing)


def stats(key: str | bytes = b"", *, data: bool = False) -> Call[dict[str, Any]]:
    """Ask for counts of the daemon, a domain or, with ``data``, all about one entry."""
    return Call(Request(Function.STATS, flags=_DATA if data else 0, key=key_bytes(key)), _json)


def snapshot() -> Call[str]:
    """Ask for a snapshot; the result is the path of its directory on the daemon's machine."""
    return Call(Request(Function.SNAPSHOT), _text)


def key_bytes(key: str | bytes) -> bytes:
    """Return a key as the wire carries it.

    Raises:
        BadRequestError: It is longer than any daemon takes, or has no UTF-8 form.
    """
    data = encode_text("key", key)
    if len(data) > KEY_BYTES_MAX:
        raise BadRequestError(f"key has {len(data)} bytes, over {KEY_BYTES_MAX}", code="bad-key")
    return data


def _instant(name: str, value: int | None) -> int | None:
    if value is not None and not 0 <= value <= INSTANT_MAX:
        raise BadRequestError(f"{name} {value} is not 0 to 2**64 - 1")
    return value


def _token_flag(token: int | None) -> int:
    return 0 if token is None else _WORKED_ON


# --- reading replies ----------------------------------------------------------------------------


def _nothing(_request: Request, _reply: Reply) -> None:
    return None


def _daemon_clock(_request: Request, reply: Reply) -> int:
    return reply.timestamp


def _written(request: Request, _reply: Reply) -> Written:
    return Written(request.timestamp)


def _timeout(_request: Request, reply: Reply) -> int | None:
    return reply.timeout


def _touched(_request: Request, reply: Reply) -> int | None:
    if reply.timeout is None:
        raise ProtocolError("the daemon extended a lease without naming the token")
    return reply.timeout


def _to_entry(pair: Pair, token: int | None) -> Entry:
    return Entry(pair.key, pair.second_key, pair.value_type, pair.value, pair.meta, token)


def _only_pair(reply: Reply) -> Pair:
    if reply.pairs is None or len(reply.pairs) != 1:
        raise ProtocolError("the daemon's reply does not carry exactly one pair")
    return reply.pairs[0]


def _entry(request: Request, reply: Reply) -> Entry:
    leased = request.timeout is not None and not request.flags & _UPDATE_TIMEOUT
    return _to_entry(_only_pair(reply), reply.timeout if leased else None)


def _jobs(request: Request, reply: Reply) -> Jobs:
    pairs = reply.pairs or []
    if not pairs:
        return Jobs(None, reply.timeout, [])
    leased = not request.flags & _OVERWRITE
    if leased and reply.timeout is None:
        raise ProtocolError("the daemon leased entries without naming the token")
    token = reply.timeout if leased else None
    return Jobs(token, None, [_to_entry(pair, token) for pair in pairs])


def _release_all(_request: Request, reply: Reply) -> list[Request]:
    token = reply.timeout
    if token is None:
        return []
    return [release(pair.key, token).request for pair in reply.pairs or ()]


def _json(_request: Request, reply: Reply) -> dict[str, Any]:
    try:
        return msgspec.json.decode(_only_pair(reply).value, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"the daemon's statistics are not a JSON object: {error}") from error


def _text(_request: Request, reply: Reply) -> str:
    return _only_pair(reply).value.decode("utf-8", "surrogateescape")
