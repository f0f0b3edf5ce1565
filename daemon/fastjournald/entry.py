"""One entry, as it stands in memory. All times are microseconds."""

from __future__ import annotations

from typing import Final

import msgspec

from fastjournal.protocol.constants import State
from fastjournal.protocol.messages import Meta
from fastjournald.indexes import Domain
from fastjournald.values import Cold


class Place:
    """Which index of its domain an entry stands in (plain integers: they are compared often)."""

    PLAIN: Final = 0
    """In none: plain key/value data that nobody works on."""
    READY: Final = 1
    DELAYED: Final = 2
    """It waits for its instant, or for the end of other work on its URI."""
    LEASED: Final = 3
    BURIED: Final = 4


PLACE_NAMES = ("plain", "ready", "delayed", "worked on", "buried")


class Entry(msgspec.Struct, gc=False):
    """A value under its keys, and the state of the work on it."""

    key: bytes
    uri: bytes | None
    value_type: int
    value: bytes | Cold
    timestamp: int
    created: int
    modified: int
    accessed: int
    arrival: int
    domain: Domain
    priority: int = 0
    journal: bool = False
    """The primary key is a journal key: NEXT hands it out."""
    persistent: bool = False
    not_before: int = 0
    expires: int = 0
    ttl: int = 0
    attempts: int = 0
    token: int = 0
    token_before: int = 0
    """The token of the lease before, which a lease must not repeat."""
    superseded: int = 0
    """Timestamp of the SET that took the URI while this was worked on; 0: none did."""
    place: int = Place.PLAIN
    item: bytes = b""
    """What stands for it in the ready or delayed list, if it is in one."""
    links: list[bytes] | None = None
    reason: bytes | None = None
    """Why it is buried."""
    first_due: int = 0
    """When the work on its URI was first due that SETs put off since; 0: when it is due itself."""
    job_id: bytes = b""
    """Of the record that carries it; empty: there is none."""
    position: int = 0
    """Of that record in the log."""
    record_bytes: int = 0
    starts: int = 0
    """Start-attempt records under this job id: workq takes 255."""

    def all_keys(self) -> list[bytes]:
        """Return the primary key and all further keys, also those that lead elsewhere by now."""
        keys = [self.key]
        if self.uri is not None:
            keys.append(self.uri)
        if self.links:
            keys += self.links
        return keys

    def meta(self, *, locked: bool) -> Meta:
        """Return the metadata block."""
        state = State.LOCKED if locked else State(0)
        if self.persistent:
            state |= State.PERSISTENT
        if self.place == Place.BURIED:
            state |= State.BURIED
        if self.journal:
            state |= State.JOURNAL
        if self.domain.paused_until:
            state |= State.PAUSED
        return Meta(
            timestamp=self.timestamp,
            created=self.created,
            modified=self.modified,
            accessed=self.accessed,
            expires=self.expires,
            ttl=self.ttl,
            worked_on_until=self.token,
            not_before=self.not_before,
            priority=self.priority,
            state=int(state),
            attempts=min(self.attempts, 0xFFFF),
        )
