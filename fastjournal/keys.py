"""Journal keys ``<domain>:<priority>:<timestamp>:<id>``: of a journal entry, not a plain entry.

The domain holds no ``:`` and is not empty; priority is 1 to 3 decimal digits, 0 to 255, smaller
runs first; timestamp is 1 to 20 decimal digits, an instant in microseconds since the Unix epoch,
at most 2**64 - 1, before which the work must not start; id is the rest, possibly empty, possibly
with ``:``. A key of any other form is a plain key. Source: docs/protocol.md, Keys.

The domain of a URI is its host, as the name of a queue. The reserved URI
``unique:<domain>:<value>`` names a value that is unique within its domain; any other URI is unique
over all domains.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from functools import cache
from ipaddress import IPv6Address
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from fastjournal.errors import BadRequestError
from fastjournal.limits import INSTANT_MAX, KEY_BYTES_MAX, PRIORITY_DEFAULT, PRIORITY_MAX
from fastjournal.numeric import check_integer
from fastjournal.times import Instant, check_instant_us, instant_us, to_datetime_or_none

_TIMESTAMP_DIGITS_MAX = 20
_NEARLY = re.compile(rb"[^:]+:[0-9]+:[0-9]+:", re.DOTALL)
PLAIN_HINT = "use build_journal_key, or plain=True if it is meant"
# Every SET splits its key: a table costs less than to check digits and bounds.
_PRIORITIES = {
    form % priority: priority
    for form in (b"%d", b"%02d", b"%03d")
    for priority in range(PRIORITY_MAX + 1)
}


class JournalKey(NamedTuple):
    """The four parts of a journal key."""

    domain: bytes
    priority: int
    not_before_us: int
    """Timestamp in the key: instant before which the work must not start; 0: none."""
    id: bytes

    @property
    def not_before(self) -> datetime | None:
        """Instant before which the work must not start; None: the key names none."""
        return to_datetime_or_none(self.not_before_us)


def parse_journal_key(key: bytes) -> JournalKey | None:
    """Return the parts of a journal key, or None if it is a plain key."""
    parts = split_journal_key(key)
    return None if parts is None else JournalKey(*parts)


def split_journal_key(key: bytes) -> tuple[bytes, int, int, bytes] | None:
    """Return what ``parse_journal_key`` does, as a plain tuple, which costs less."""
    try:
        domain, digits, timestamp, rest = key.split(b":", 3)
    except ValueError:
        return None
    priority = _PRIORITIES.get(digits)
    if (
        priority is None
        or not domain
        or len(timestamp) > _TIMESTAMP_DIGITS_MAX
        or not timestamp.isdigit()
    ):
        return None
    instant = int(timestamp)
    if instant > INSTANT_MAX:
        return None
    return domain, priority, instant, rest


def looks_like_journal_key(key: bytes) -> bool:
    """Whether a key has the form of a journal key and is none, such as ``pages:300:0:x``.

    Its priority is over 255, or its timestamp is too large: no worker would ever get its entry.
    """
    return split_journal_key(key) is None and _NEARLY.match(key) is not None


def moved_not_before(old: bytes, new: bytes, not_before: int) -> int:
    """Return before which instant an entry must not start once its primary key is ``new``.

    Args:
        old: The primary key so far.
        new: The primary key from now on.
        not_before: The instant so far: where a delay moved it beyond that of the old key, it stays,
            unless that of the new one is later. 0 for a plain key.
    """
    parts = parse_journal_key(new)
    if parts is None:
        return 0
    before = parse_journal_key(old)
    delayed = before is not None and not_before > before.not_before_us
    return max(parts.not_before_us, not_before) if delayed else parts.not_before_us


def build_journal_key(
    domain: str | bytes,
    id: str | bytes,
    *,
    not_before: Instant | None = None,
    not_before_us: int | None = None,
    priority: int = PRIORITY_DEFAULT,
) -> bytes:
    """Return the canonical key: priority in 3 digits, timestamp in 16, so byte order is work order.

    Args:
        domain: Not empty, without ``:``.
        id: Distinguishes entries of one domain, priority and instant; may hold ``:``.
        not_before: Instant before which the work must not start. Work of one priority is done in
            the order of these; without one it comes before all that names an instant.
        not_before_us: The same in microseconds since 1970, for programs that have it so; 0: none.
        priority: 0 (first) to 255 (last).

    Raises:
        BadRequestError: A part is outside these bounds, the instant is before 2000 or after 9999
            (so it was meant in another unit), or the key has over 4,096 bytes.
        TypeError: A value is of another type.
    """
    if not_before is not None:
        if not_before_us is not None:
            raise BadRequestError("give not_before or not_before_us, not both")
        not_before_us = instant_us("not_before", not_before)
    elif not_before_us is not None:
        not_before_us = check_instant_us("not_before_us", not_before_us, code="bad-key")
    return journal_key_of(domain, id, not_before_us or 0, priority)


def journal_key_of(
    domain: str | bytes, id: str | bytes, not_before_us: int, priority: int = PRIORITY_DEFAULT
) -> bytes:
    """Return the same of parts that are no choice of the caller: as an imported journal has them.

    Args:
        domain: As above.
        id: As above.
        not_before_us: An instant that a key can have: 0 to 2**64 - 1.
        priority: As above.

    Raises:
        BadRequestError: A part is outside these bounds, or the key has over 4,096 bytes.
        TypeError: A value is of another type.
    """
    domain = _checked_domain(domain)
    id = encode_text("id", id)
    priority = check_integer("priority", priority, 0, PRIORITY_MAX, "bad-key")
    not_before_us = check_integer("not_before_us", not_before_us, 0, INSTANT_MAX, "bad-key")
    key = b"%s:%03d:%016d:%s" % (domain, priority, not_before_us, id)
    if len(key) > KEY_BYTES_MAX:
        raise BadRequestError(f"key has {len(key)} bytes, over {KEY_BYTES_MAX}", code="bad-key")
    return key


def _checked_domain(domain: str | bytes) -> bytes:
    data = encode_text("domain", domain)
    if not data or b":" in data:
        shown = data.decode(errors="backslashreplace")
        raise BadRequestError(
            f"domain {shown!r} is empty or holds ':'",
            code="bad-key",
            hint="write a colon as %3A, as domain_of does",
        )
    return data


@cache
def _blake2b() -> Callable[..., Any]:
    """Return the hash function; hashlib loads OpenSSL, which few short programs need."""
    from hashlib import blake2b  # noqa: PLC0415 - see above

    return blake2b


def default_id(timestamp: int, uri: bytes | None, writer: str) -> str:
    """Return the id of a SET that was given none.

    It is the same again only for the same URI and timestamp: so a request for a URI that is being
    worked on is another entry, and a repeat of one is recognised.

    Args:
        timestamp: Timestamp of the SET.
        uri: Resource that the work is about.
        writer: Takes the place of the URI's hash where there is no URI; nobody else's name.
    """
    mark = writer if uri is None else _blake2b()(uri, digest_size=6).hexdigest()
    return f"{timestamp:x}-{mark}"


def encode_text(name: str, text: str | bytes) -> bytes:
    """Return the bytes of a key, URI, or part of one: UTF-8 for ``str``.

    Args:
        name: Name of the value, for the error.
        text: It.

    Raises:
        BadRequestError: ``bad-key``: it has no UTF-8 form.
        TypeError: It is neither.
    """
    if isinstance(text, bytes):
        return text
    if not isinstance(text, str):
        raise TypeError(f"{name} is str or bytes, not {type(text).__name__}")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise BadRequestError(
            f"{name} has no UTF-8 form at character {error.start}",
            code="bad-key",
            hint="give bytes for what is no text",
        ) from error


_UNIQUE = b"unique:"


def unique_uri(domain: str | bytes, value: str | bytes) -> bytes:
    """Return the reserved URI of a value that is unique within its domain.

    ``split_unique`` gives both back: a domain holds no ``:``, a value may.

    Raises:
        BadRequestError: ``bad-key``: the domain is none, the value is empty, or the URI has over
            4,096 bytes.
        TypeError: A part is neither text nor bytes.
    """
    data = encode_text("unique", value)
    uri = b"%b%b:%b" % (_UNIQUE, _checked_domain(domain), data)
    if not data or len(uri) > KEY_BYTES_MAX:
        most = KEY_BYTES_MAX - len(uri) + len(data)
        raise BadRequestError(
            f"unique has {len(data)} bytes, not 1 to {most}, beside the name of its queue",
            code="bad-key",
            hint="give the hash of a long value" if most > 0 else "give the queue a shorter name",
        )
    return uri


def split_unique(uri: bytes) -> tuple[bytes, bytes] | None:
    """Return the domain and the value of such a URI; None: it is a URI of a resource."""
    if not uri.startswith(_UNIQUE):
        return None
    domain, _, value = uri.removeprefix(_UNIQUE).partition(b":")
    return (domain, value) if domain and value else None


def unique_of(key: bytes, second_key: bytes | None) -> bytes | None:
    """Return the value of a job that is unique within its queue; None: it has none.

    A job that was renamed into another queue has none: its second key is shown as it is.
    """
    if not second_key or not second_key.startswith(_UNIQUE):
        return None
    parts, own = split_unique(second_key), split_journal_key(key)
    return parts[1] if parts is not None and own is not None and parts[0] == own[0] else None


def resource_uri(uri: str | bytes) -> bytes:
    """Return the URI of a resource, as the wire carries it.

    Raises:
        BadRequestError: ``bad-key``: it is empty, has over 4,096 bytes, or is of the reserved form.
        TypeError: It is neither text nor bytes.
    """
    data = encode_text("URI", uri)
    if not 0 < len(data) <= KEY_BYTES_MAX:
        raise BadRequestError(f"URI has {len(data)} bytes, not 1 to 4,096", code="bad-key")
    if data.startswith(_UNIQUE):
        raise BadRequestError(
            f"{data.decode(errors='backslashreplace')!r}: URIs that begin with 'unique:' are"
            " reserved",
            code="bad-key",
            hint="give unique=... for a value that is unique within its queue",
        )
    return data


def second_key_of(key: bytes | None, uri: str | bytes) -> bytes:
    """Return the second key of a SET under a whole key: a URI, or a plain further key.

    Args:
        key: The key; None: it is to be built of the URI.
        uri: It may have the reserved form of a value that is unique within the domain of the key.

    Raises:
        BadRequestError: ``bad-key``: it begins with ``unique:`` and has another form, or names
            another domain.
        TypeError: It is neither text nor bytes.
    """
    data = encode_text("key", uri)
    if data.startswith(_UNIQUE):
        parts = None if key is None else split_journal_key(key)
        unique = split_unique(data)
        if parts is None or unique is None or unique[0] != parts[0]:
            queue = "<queue>" if parts is None else parts[0].decode(errors="backslashreplace")
            raise BadRequestError(
                f"{data.decode(errors='backslashreplace')!r}: URIs that begin with 'unique:' are"
                f" reserved for jobs: unique:{queue}:<value>",
                code="bad-key",
                hint="enqueue(queue, unique=...) builds it",
            )
    return data


def deduplication_key(
    domain: str | bytes, uri: str | bytes | None, unique: str | bytes | None
) -> bytes | None:
    """Return the second key of a job: its URI, or the one for its unique value.

    Raises:
        BadRequestError: There are both, or one that no daemon accepts.
        TypeError: It is neither text nor bytes.
    """
    if unique is None:
        return None if uri is None else resource_uri(uri)
    if uri is not None:
        raise BadRequestError(
            "uri and unique exclude each other",
            hint="uri is unique over all queues, unique within its own",
        )
    return unique_uri(domain, unique)


KEY_EXCLUDES = "key excludes queue, priority, delay, not_before and id: they are parts of it"


def queue_of(queue: str | bytes | None, domain: str | bytes | None) -> str | bytes | None:
    """Return the queue by either of its names.

    Raises:
        BadRequestError: Both are given.
    """
    if queue is None:
        return domain
    if domain is not None:
        raise BadRequestError("queue and domain are two names of one argument", hint="give one")
    return queue


def job_key(key: str | bytes) -> tuple[bytes, bytes]:
    """Return a whole journal key as bytes, and its domain.

    Raises:
        BadRequestError: ``bad-key``: it is none, or longer than any daemon takes.
        TypeError: It is neither text nor bytes.
    """
    name = encode_text("key", key)
    parts = split_journal_key(name)
    if parts is None or len(name) > KEY_BYTES_MAX:
        raise BadRequestError(
            f"{name[:100].decode(errors='backslashreplace')!r} is no key of a job",
            code="bad-key",
            hint="build it with build_journal_key, or name a queue",
        )
    return name, parts[0]


_HINT = "name the domain, or give a URI with a host, such as https://example.org/"
_NAME = re.compile(r"[0-9a-z_][0-9a-z_-]*(\.[0-9a-z_-]+)*")
_ALLOWED = "a host has letters, digits, '-', '_' and '.', or is an IPv6 address in brackets"


def domain_of(uri: str | bytes) -> str:
    """Return the domain (queue) of a URI: its host in lower case, with its port.

    A host that is not ASCII has its IDNA form (``xn--...``). A port that the URI names, and the
    colons of an IPv6 address, follow as ``%3A``, because a domain holds no colon:
    ``http://Example.org:8080/`` is of ``example.org%3A8080``.

    Raises:
        BadRequestError: It has no host, or one that is neither a host name (letters, digits, ``-``,
            ``_`` and ``.``) nor an address; code ``bad-key``.
    """
    shown = uri.decode(errors="backslashreplace") if isinstance(uri, bytes) else uri
    try:
        text = uri.decode() if isinstance(uri, bytes) else uri
        parts = urlsplit(text)
        host, port = (parts.hostname or "").removesuffix("."), parts.port
        if host and not host.isascii():
            host = _idna(host)
    except ValueError as error:  # also of the port, of UTF-8 and of IDNA
        raise BadRequestError(
            f"{shown!r} has no domain: {error}", code="bad-key", hint=_HINT
        ) from None
    if not host:
        raise BadRequestError(f"{shown!r} has no host", code="bad-key", hint=_HINT)
    if _NAME.fullmatch(host) is None and not _is_ipv6(host):
        raise BadRequestError(
            f"{host!r} is no host name", code="bad-key", hint=f"{_ALLOWED}; or {_HINT}"
        )
    return (host if port is None else f"{host}:{port}").replace(":", "%3A")


_SHOWN = re.compile(rb"([0-9A-Za-z_.-]+):([0-9]{1,5})")
_ENCODED = re.compile(rb"([0-9A-Za-z_.-]+)%3A([0-9]{1,5})")


def shown_domain(domain: bytes) -> bytes:
    """Return a domain as people write it: that of a host with a port, ``example.org:8080``."""
    return _ENCODED.sub(rb"\1:\2", domain) if _ENCODED.fullmatch(domain) else domain


def typed_domain(text: bytes) -> bytes:
    """Return the domain that people mean: the reverse of ``shown_domain``."""
    return text.replace(b":", b"%3A") if _SHOWN.fullmatch(text) else text


def _is_ipv6(host: str) -> bool:
    try:
        return IPv6Address(host).scope_id is None
    except ValueError:
        return False


def _idna(host: str) -> str:
    import idna  # noqa: PLC0415 - its tables are large, and most hosts are ASCII

    return idna.encode(host, uts46=True).decode()
