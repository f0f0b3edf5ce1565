"""Every record that the daemon can write, at all limits at once, against workq's rules."""

from __future__ import annotations

import pytest

from fastjournal.limits import (
    KEY_BYTES_MAX,
    LINK_BYTES_MAX,
    LINKS_PER_ENTRY_MAX,
    LOG_PAYLOAD_BYTES_MAX,
    REASON_BYTES_MAX,
    VALUE_BYTES_MAX,
)
from fastjournal.protocol.constants import Flag, Function, ValueType
from tests.property.compacted_log import CompactedLog
from tests.property.subject import SECOND

VALUE = b"\xff" * VALUE_BYTES_MAX
REASON = b"\xff" * REASON_BYTES_MAX
DOMAINS = [b"d" * 255, b"\xff" * 3900]
"""One that workq takes as a name, and one that is escaped."""


def long(start: bytes) -> bytes:
    """Return a key as long as keys may be."""
    return start + b"k" * (KEY_BYTES_MAX - len(start))


def keys_of_links(count: int) -> list[bytes]:
    """So many keys that take all that links of an entry may."""
    size = min(LINK_BYTES_MAX // count, KEY_BYTES_MAX)
    return [b"link %02d " % number + b"l" * (size - 8) for number in range(count)]


class Largest:
    """A log with an entry at all limits, and what may be done to it."""

    def __init__(self, domain: bytes, links: int) -> None:
        self.log = CompactedLog(cmdlog_seg_size=16 << 20, max_attempts=0)
        self.domain = domain
        self.key = long(domain + b":001:00000000000000000001:")
        self.uri = long(b"uri ")
        self.links = keys_of_links(links)
        self.put(self.key, self.uri)
        for link in self.links:
            self.log.done(Function.LINK, self.key, uri=link)

    def put(self, key: bytes, uri: bytes | None = None) -> None:
        self.log.pass_time(0.001)
        expires = self.log.clock.instant_us + 3600 * SECOND
        flags = Flag.OVERWRITE
        self.log.done(Function.SET, key, VALUE, uri=uri, timeout=expires, flags=flags)

    def lease(self, key: bytes = b"") -> int:
        reply = self.log.ask(Function.NEXT, self.domain, timeout=60 * SECOND)
        assert reply.pairs
        assert reply.timeout
        return reply.timeout

    def restate(self) -> None:
        """Let cleaning write all anew."""
        self.log.roll()
        for info in list(self.log.writer.sealed):
            self.log.clean(info)
        self.log.roll()
        for info in list(self.log.writer.sealed):
            self.log.clean(info)

    def do_superseded(self) -> None:
        self.lease()
        for number, key in enumerate([self.uri, *self.links]):
            self.put(b"plain %d" % number, key)
        self.restate()

    def do_leased(self) -> None:
        token = self.lease()
        self.restate()
        how = {"flags": Flag.WORKED_ON, "timeout": token}
        self.log.done(Function.TOUCH, self.key, ttl=90 * SECOND, **how)
        self.restate()

    def do_released(self) -> None:
        token = self.lease()
        how = {"flags": Flag.WORKED_ON, "timeout": token}
        self.log.done(Function.RELEASE, self.key, ttl=SECOND, **how)
        self.restate()

    def do_failed(self) -> None:
        self.log.done(
            Function.LIMIT, self.domain, b'{"attempts":2,"jobs":1}', kind=ValueType.STRING
        )
        for error in (REASON, REASON[:-1] + b"x"):
            self.restate()
            how = {"flags": Flag.WORKED_ON, "timeout": self.lease(), "ttl": 0}
            self.log.done(Function.RELEASE, self.key, error, kind=ValueType.STRING, **how)
            self.restate()
        self.log.done(Function.KICK, self.key)
        self.restate()

    def do_ran_out(self) -> None:
        self.lease()
        self.log.pass_time(100)
        self.restate()

    def do_buried(self) -> None:
        self.log.done(Function.BURY, self.key, REASON)
        self.restate()
        self.log.done(Function.BURY, self.key, REASON[:-1] + b"x")
        self.restate()
        self.log.done(Function.KICK, self.key)
        self.restate()

    def do_renamed(self) -> None:
        self.key, old = long(self.domain + b":002:00000000000000000002:"), self.key
        self.log.done(Function.RENAME, old, uri=self.key)
        self.restate()

    def do_completed(self) -> None:
        token = self.lease()
        self.log.done(Function.DELETE, self.key, flags=Flag.WORKED_ON, timeout=token)
        self.restate()

    def do_deleted(self) -> None:
        self.log.done(Function.DELETE, self.key, flags=Flag.OVERWRITE)
        self.restate()

    def do_expired(self) -> None:
        self.log.pass_time(4000)
        self.restate()

    def do_touched_and_paused(self) -> None:
        self.log.done(Function.TOUCH, self.key, ttl=4000 * SECOND)
        self.log.done(Function.PAUSE, self.domain, ttl=4000 * SECOND)
        self.restate()

    def do_overwritten(self) -> None:
        self.put(self.key, self.uri)
        self.put(b"plain", self.uri)
        self.restate()

    def do_tombstones(self) -> None:
        self.log.done(Function.DELETE, self.key)
        self.log.ask(Function.DELETE, long(b"never there "))
        self.log.ask(Function.DELETE, self.key, flags=Flag.OVERWRITE)
        self.restate()


DOINGS = [name for name in vars(Largest) if name.startswith("do_")]


@pytest.mark.parametrize("links", [LINK_BYTES_MAX // KEY_BYTES_MAX, LINKS_PER_ENTRY_MAX])
@pytest.mark.parametrize("domain", DOMAINS, ids=["name", "escaped"])
@pytest.mark.parametrize("doing", DOINGS)
def test_records_at_all_limits_at_once_are_what_workq_takes(
    doing: str, domain: bytes, links: int
) -> None:
    largest = Largest(domain, links)
    getattr(largest, doing)()
    largest.log.check()


def test_record_bound_has_room_for_an_entry_at_all_limits_and_little_more() -> None:
    largest = Largest(DOMAINS[1], 8)
    largest.log.done(Function.BURY, largest.key, REASON)
    largest.restate()
    record = largest.log.entry(largest.key).record_bytes
    assert LOG_PAYLOAD_BYTES_MAX - 8192 < record < LOG_PAYLOAD_BYTES_MAX
