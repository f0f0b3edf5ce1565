"""Limits of subscriptions, in number and bytes, for a connection and for all. Pure."""

from __future__ import annotations

from fastjournal.limits import (
    SUBSCRIPTIONS_BYTES_MAX,
    SUBSCRIPTIONS_BYTES_PER_CONNECTION_MAX,
    SUBSCRIPTIONS_MAX,
    SUBSCRIPTIONS_PER_CONNECTION_MAX,
)
from fastjournal.protocol import ErrorCode
from fastjournald.engine.pubsub.subscriber import Subscriber
from fastjournald.engine.pubsub.subscription import About, full_bytes

_TOO_MANY_HERE = (
    f"{ErrorCode.BUSY} {SUBSCRIPTIONS_PER_CONNECTION_MAX} subscriptions stand on this connection"
)
_TOO_MANY = f"{ErrorCode.BUSY} {SUBSCRIPTIONS_MAX} subscriptions stand on all connections"
_TOO_LARGE_HERE = (
    f"{ErrorCode.BUSY} the subscriptions of a connection may take "
    f"{SUBSCRIPTIONS_BYTES_PER_CONNECTION_MAX} bytes"
)
_TOO_LARGE = (
    f"{ErrorCode.BUSY} the subscriptions of all connections take {SUBSCRIPTIONS_BYTES_MAX} bytes"
)


def why_refused(
    subscriber: Subscriber | None, identifier: int, about: About, *, number: int, size: int
) -> str:
    """Return why a session cannot have one subscription more; empty: it can. O(1).

    Args:
        subscriber: The session; None: it has no subscription.
        identifier: It takes the place of the subscription that has this identifier.
        about: Key or filter of the new one.
        number: Subscriptions on all connections.
        size: Bytes that they take.
    """
    added = full_bytes(about)
    if size + added > SUBSCRIPTIONS_BYTES_MAX:
        return _TOO_LARGE
    if subscriber is not None:
        standing = subscriber.subscriptions.get(identifier)
        replaced = 0 if standing is None else full_bytes(standing.about)
        if subscriber.bytes + added - replaced > SUBSCRIPTIONS_BYTES_PER_CONNECTION_MAX:
            return _TOO_LARGE_HERE
        if standing is not None:
            return ""
        if subscriber.count >= SUBSCRIPTIONS_PER_CONNECTION_MAX:
            return _TOO_MANY_HERE
    return _TOO_MANY if number >= SUBSCRIPTIONS_MAX else ""
