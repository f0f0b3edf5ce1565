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
from fastjournal.keys import domain_of
from fastjournal.protocol.values import Value
from fastjournal.spool.appending.spool_writer import encode_set

_AUTHORITY: Final = re.compile(r"[^:/?#]*://[^/?#]*")
_HOSTS_MAX: Final = 16_384

_domain_of_host = lru_cache(_HOSTS_MAX)(domain_of)


class Work(msgspec.Struct, gc=False):
    """Work: one entry to be set; the fields are those of ``Spool.append``."""

    value: Value = b""
    uri: str | bytes | None = None
    domain: str | bytes | None = None
    priority: int | None = None
    not_before_us: int | None = None
    id: str | bytes | None = None
    overwrite: bool = False
    unique: str | bytes | None = None
    delay_us: int | None = None
    key: str | bytes | None = None


class WorkEncoder:
    """Encoder of work, as records of a spool.

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
        uri, domain = work.uri, work.domain
        return encode_set(
            self._next_timestamp(),
            self._writer_id,
            uri,
            _domain(uri) if domain is None and work.key is None else domain,
            work.priority,
            None,
            work.not_before_us,
            work.value,
            work.id,
            work.overwrite,
            unique=work.unique,
            delay_us=work.delay_us,
            key=work.key,
        )


def _domain(uri: str | bytes | None) -> str:
    """Return the domain of a URI; the part before the path decides, and is often the same."""
    authority = _AUTHORITY.match(uri) if isinstance(uri, str) else None
    return domain_of(uri or b"") if authority is None else _domain_of_host(authority[0])
