"""Bulk append: encodes many SETs quickly, for one write of many records.

``Spool.append`` checks each argument by itself; here msgspec has checked the types already, and the
domain of a host is computed once.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import msgspec

from fastjournal.clock import unique_timestamp
from fastjournal.errors import BadRequestError
from fastjournal.keys import build_journal_key, default_id, encode_text
from fastjournal.limits import KEY_BYTES_MAX, PRIORITY_DEFAULT
from fastjournal.protocol.constants import Flag, Function
from fastjournal.protocol.messages import Request
from fastjournal.protocol.requests import encode_request
from fastjournal.protocol.values import Value, encode_value
from fastjournal.spool.format import encode_record
from fastjournal.uris import domain_of

_AUTHORITY: Final = re.compile(r"[^:/?#]*://[^/?#]*")
_HOSTS_MAX: Final = 16_384

_SET: Final = int(Function.SET)
_PERSIST: Final = int(Flag.PERSIST)
_OVERWRITE: Final = int(Flag.OVERWRITE)

_domain_of_host = lru_cache(_HOSTS_MAX)(domain_of)


class Work(msgspec.Struct, gc=False):
    """One entry to be set; the fields are those of ``Spool.append``."""

    value: Value = b""
    uri: str | bytes | None = None
    domain: str | bytes | None = None
    priority: int = PRIORITY_DEFAULT
    not_before_us: int | None = None
    id: str | bytes | None = None
    overwrite: bool = False


class WorkEncoder:
    """Encodes work as records of a spool.

    Args:
        next_timestamp: Gives the timestamps, never one twice.
    """

    def __init__(self, next_timestamp: Callable[[], int] = unique_timestamp) -> None:
        self._next_timestamp = next_timestamp
        self._writer_id = secrets.token_hex(4)

    def encode(self, work: Work) -> tuple[bytes, bytes]:
        """Return the key of an entry, and the record that sets it.

        Raises:
            BadRequestError: A field that no daemon would take.
            TypeError: A field of another type.
        """
        timestamp_us, uri, domain = self._next_timestamp(), work.uri, work.domain
        if domain is None:
            domain = _domain(uri)
        raw_uri = None if uri is None else encode_text("URI", uri)
        if raw_uri is not None and not 0 < len(raw_uri) <= KEY_BYTES_MAX:
            raise BadRequestError(f"URI has {len(raw_uri)} bytes, not 1 to 4,096", code="bad-key")
        id = default_id(timestamp_us, raw_uri, self._writer_id) if work.id is None else work.id
        not_before_us = timestamp_us if work.not_before_us is None else work.not_before_us
        key = build_journal_key(domain, id, not_before_us=not_before_us, priority=work.priority)
        flags = _PERSIST | _OVERWRITE if work.overwrite else _PERSIST
        value_type, data = encode_value(work.value)
        request = Request(_SET, 0, flags, timestamp_us, key, raw_uri, value_type, data)
        return key, encode_record(encode_request(request))


def _domain(uri: str | bytes | None) -> str:
    """Return the domain of a URI; the part before the path decides, and is often the same."""
    authority = _AUTHORITY.match(uri) if isinstance(uri, str) else None
    return domain_of(uri or b"") if authority is None else _domain_of_host(authority[0])
