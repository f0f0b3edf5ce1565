"""What the clients return. Times are microseconds: instants since the Unix epoch, durations."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from fastjournal.keys import JournalKey, parse_journal_key
from fastjournal.protocol import Meta
from fastjournal.protocol.values import Value, decode_value


class Written(msgspec.Struct, frozen=True, gc=False):
    """A write was done, and is as durable as was asked for."""

    timestamp: int
    """Instant that the write carries; sent again with it, the write changes nothing."""


class Entry(msgspec.Struct, gc=False):
    """One entry of the daemon."""

    key: bytes
    second_key: bytes = b""
    """Its other key, for a journal entry the URI; empty where it has none or none was asked."""
    value_type: int = 0
    value: bytes = b""
    """The value's bytes as they are stored; empty where the data was not asked for."""
    meta: Meta | None = None
    token: int | None = None
    """The lease token, where this reply leased the entry: the instant at which the lease ends."""

    @property
    def uri(self) -> bytes:
        """The second key under its usual name."""
        return self.second_key

    @property
    def journal_key(self) -> JournalKey | None:
        """The parts of a journal key; None for a plain key."""
        return parse_journal_key(self.key)

    def decoded(self) -> Value:
        """Return the value as the Python object that its type says.

        Raises:
            BadRequestError: The bytes are not of that type; code ``bad-value``.
        """
        return decode_value(self.value_type, self.value)


class Jobs(msgspec.Struct, gc=False):
    """What a NEXT gave: entries under one lease, or the instant at which to ask again."""

    token: int | None
    """The lease token of all these entries; None where nothing was due or they were deleted."""
    next_at: int | None
    """Instant at which something will be due; None where nothing waits, or where entries came."""
    pairs: list[Entry]

    def __len__(self) -> int:
        return len(self.pairs)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.pairs)
