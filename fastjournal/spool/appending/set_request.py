"""SET request of a spooled entry: its key, and the record that goes into a slot."""

from __future__ import annotations

from typing import Final

from fastjournal.errors import BadRequestError
from fastjournal.keys import build_journal_key, default_id, domain_of, encode_text, journal_key_of
from fastjournal.limits import KEY_BYTES_MAX
from fastjournal.protocol.constants import Flag, Function, ValueType
from fastjournal.protocol.messages import Request
from fastjournal.protocol.requests import encode_request
from fastjournal.protocol.values import Value, encode_value
from fastjournal.spool.format import encode_record
from fastjournal.times import Instant

_PERSIST: Final = int(Flag.PERSIST)
_OVERWRITE: Final = int(Flag.OVERWRITE)
_SET: Final = int(Function.SET)
_BUFFER: Final = int(ValueType.BUFFER)


def encode_set(
    timestamp_us: int,
    writer_id: str,
    uri: str | bytes | None,
    domain: str | bytes | None,
    priority: int,
    not_before: Instant | None,
    not_before_us: int | None,
    value: Value,
    id: str | bytes | None,
    overwrite: bool,
    expires_us: int | None = None,
    ttl_us: int | None = None,
) -> tuple[bytes, bytes]:
    """Return the key of an entry, and the pending record of the persistent SET that makes it.

    Args:
        timestamp_us: Instant of the write, in microseconds.
        writer_id: Stands for the URI in the default id of an entry without one.
        uri: As ``Spool.append`` describes it, and so are all others.
        domain: None: that of the URI.
        priority: 0 to 255.
        not_before: None, with ``not_before_us``: the timestamp.
        not_before_us: The same in microseconds.
        value: The payload.
        id: None: made of timestamp and URI.
        overwrite: Replace what stands under the key.
        expires_us: Instant of the expiry, in microseconds.
        ttl_us: Duration by which each read moves it, in microseconds.

    Raises:
        BadRequestError: A field that no daemon would take.
        TypeError: A field of another type.
    """
    if uri is not None:
        uri = encode_text("URI", uri)
        if not 0 < len(uri) <= KEY_BYTES_MAX:
            raise BadRequestError(f"URI has {len(uri)} bytes, not 1 to 4,096", code="bad-key")
    if domain is None:
        domain = domain_of(uri or b"")
    if id is None:
        id = default_id(timestamp_us, uri, writer_id)
    if not_before is None and not_before_us is None:
        key = journal_key_of(domain, id, timestamp_us, priority)
    else:
        key = build_journal_key(
            domain, id, not_before=not_before, not_before_us=not_before_us, priority=priority
        )
    if type(value) is bytes:
        value_type, data = _BUFFER, value
    else:
        value_type, data = encode_value(value)
    flags = _PERSIST | _OVERWRITE if overwrite else _PERSIST
    request = Request(_SET, 0, flags, timestamp_us, key, uri, value_type, data, expires_us, ttl_us)
    return key, encode_record(encode_request(request))
