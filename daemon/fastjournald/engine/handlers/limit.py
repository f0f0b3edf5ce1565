"""LIMIT: rate limit, concurrency limit, lease and attempts of a domain."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Annotated

import msgspec

from fastjournal.limits import (
    LIMIT_BYTES,
    LIMIT_MAX,
    LIMIT_VALUE_BYTES_MAX,
    LIMITED_BYTES_MAX,
    LIMITED_DOMAINS_MAX,
)
from fastjournal.protocol import ErrorCode, Request, ValueType
from fastjournal.versioned_json import json_fault
from fastjournald.engine.context import Context
from fastjournald.engine.handlers.arguments import NOT_A_DOMAIN, READ_ONLY, is_domain
from fastjournald.tables.domain_limits import UNLIMITED

_Number = Annotated[int, msgspec.Meta(ge=0, le=LIMIT_MAX)] | msgspec.UnsetType

_TOO_MANY = f"{ErrorCode.BUSY} {LIMITED_DOMAINS_MAX} domains have limits of their own"
_TOO_LARGE = f"{ErrorCode.BUSY} the domains with limits take {LIMITED_BYTES_MAX} bytes"
_NO_STRING = f"{ErrorCode.BAD_VALUE} LIMIT needs a JSON object as a value of type string"
_LONG_VALUE = f"{ErrorCode.TOO_LARGE} the value of LIMIT has at most {LIMIT_VALUE_BYTES_MAX} bytes"
_STRING = int(ValueType.STRING)


class _Given(msgspec.Struct, forbid_unknown_fields=True):
    """The value of a request; what is not named stays."""

    interval_us: _Number = msgspec.UNSET
    jobs: _Number = msgspec.UNSET
    lease_us: _Number = msgspec.UNSET
    attempts: _Number = msgspec.UNSET


_decode = msgspec.json.Decoder(_Given).decode


def limit(context: Context, _session: Hashable, request: Request, now: int) -> str:
    """Set the limits of a domain that the value names, whether it has entries or not."""
    name = request.key
    if not is_domain(name):
        return NOT_A_DOMAIN
    if request.value_type != _STRING:
        return _NO_STRING
    if len(request.value) > LIMIT_VALUE_BYTES_MAX:
        return _LONG_VALUE
    try:
        given = msgspec.structs.asdict(_decode(request.value))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # the second one comes of a name that is no UTF-8
        return f"{ErrorCode.BAD_VALUE} {json_fault(request.value, error)}"
    store = context.store
    limits = store.rules.limits
    before = limits.own(name)
    named = {field: number for field, number in given.items() if number is not msgspec.UNSET}
    after = msgspec.structs.replace(before, **named)
    if after == before:
        return ""
    if before == UNLIMITED:
        if len(limits) >= LIMITED_DOMAINS_MAX:
            return _TOO_MANY
        if limits.bytes + LIMIT_BYTES + len(name) > LIMITED_BYTES_MAX:
            return _TOO_LARGE
    if context.read_only:
        return READ_ONLY
    store.rules.limit(name, after, now)
    if name in limits.unlogged:
        # no record may prove a delivery from before there was an interval
        del limits.unlogged[name]
        context.journal.log.delivered(name, limits.last_delivery(name), now)
    context.journal.log.limited(name, after, now)
    return ""
