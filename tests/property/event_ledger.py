"""Ledger of a client that asks for everything that is an event, and counts what it was told.

It works in virtual time on an engine whose segments are small and are compacted again and again,
while the power fails. Nothing of what it counts comes from the log.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime

from fastjournal.protocol.constants import Flag, Function, ValueType
from fastjournal.protocol.messages import Reply
from fastjournal.spark.history.event_rows import EventKind
from tests.property.compacted_log import CompactedLog
from tests.property.subject import SECOND

ARCHIVE = "/archive"
LEASE = 5 * SECOND
DOMAINS = (b"a", b"b")
MANY = 1000
IN_MEMORY, LOGGED = 1, 2
"""Whether the SET that took the URI of a leased entry was persistent; 0: none did."""


@dataclass
class Known:
    """One entry, as its client knows it."""

    uri: bytes | None = None
    token: int = 0
    expires: int = 0
    superseded: int = 0
    buried: bool = False


def day_of(instant_us: int) -> str:
    """Return the UTC day of an instant."""
    return datetime.fromtimestamp(instant_us // SECOND, UTC).date().isoformat()


class EventLedger:
    """A client that counts what it was told.

    Args:
        seed: Decides everything that it asks.
        archive_bytes: Bound of the archive; 0: none.
    """

    def __init__(self, seed: int, archive_bytes: int = 0) -> None:
        self.draw = random.Random(seed)
        self.log = CompactedLog(cmdlog_seg_size=3000, archive_bytes_max=archive_bytes)
        self.log.config.archive_dir = ARCHIVE
        self.log.disk.mkdir(ARCHIVE)
        self.counts: Counter[tuple[str, EventKind]] = Counter()
        """By UTC day and kind."""
        self.jobs: dict[bytes, Known] = {}
        self.serial = 0

    # --- what it asks -----------------------------------------------------------------------------

    def ask(
        self,
        function: int,
        key: bytes = b"",
        value: bytes | None = None,
        *,
        persist: bool = True,
        uri: bytes | None = None,
        **how: int,
    ) -> Reply:
        """Ask for something that works."""
        self.pass_time(1)
        reply = self.log.ask(function, key, value, persist=persist, uri=uri, **how)
        assert reply.code == "", reply.error
        return reply

    def count(self, kind: EventKind, number: int = 1) -> None:
        if number:
            self.counts[day_of(self.log.clock.instant_us), kind] += number

    def remove(self, key: bytes, kind: EventKind) -> None:
        self.count(kind)
        del self.jobs[key]

    def pass_time(self, us: int) -> None:
        """Let time pass: leases and lives end."""
        self.log.pass_time(us / SECOND)
        for key, job in list(self.jobs.items()):
            if 0 < job.token <= self.log.clock.instant_us:
                self.count(EventKind.LOST)
                self.lease_over(key)
            elif not job.token and 0 < job.expires <= self.log.clock.instant_us:
                self.remove(key, EventKind.EXPIRED)

    def lease_over(self, key: bytes) -> bool:
        """End a lease; whether the entry stays."""
        job = self.jobs[key]
        if job.superseded:
            self.remove(key, EventKind.REPLACED)
        elif 0 < job.expires <= self.log.clock.instant_us:
            self.remove(key, EventKind.EXPIRED)
        else:
            job.token = 0
        return key in self.jobs

    def pick(self, *, leased: bool | None = None, buried: bool | None = None) -> bytes | None:
        """Return the key of an entry, if there is such a one."""
        keys = [
            key
            for key, job in sorted(self.jobs.items())
            if leased in (None, bool(job.token)) and buried in (None, job.buried)
        ]
        return self.draw.choice(keys) if keys else None

    def new_key(self) -> bytes:
        self.serial += 1
        return b"%s:1:0:%d" % (self.draw.choice(DOMAINS), self.serial)

    def set(self, *, persist: bool = True) -> None:
        key, uri, how = self.place()
        self.ask(Function.SET, key, bytes(8), persist=persist, uri=uri, **how)
        self.stored(key, uri, how, logged=persist)
        if not persist:
            # an entry in memory only is no part of the history
            self.ask(Function.DELETE, key, persist=False, flags=Flag.OVERWRITE)
            del self.jobs[key]

    def place(self) -> tuple[bytes, bytes | None, dict[str, int]]:
        """Return key, URI and the rest of a SET."""
        standing = self.pick(leased=self.draw.choice((None, True)))
        how: dict[str, int] = {"kind": ValueType.INTEGER}
        if standing is not None and self.draw.random() < 0.2:
            return standing, None, how | {"flags": Flag.OVERWRITE}
        if self.draw.random() < 0.2:
            how["timeout"] = self.log.clock.instant_us + self.draw.choice((2, 6, 60)) * SECOND
        return self.new_key(), self.draw.choice((None, None, b"u", b"v")), how

    def stored(self, key: bytes, uri: bytes | None, how: dict[str, int], *, logged: bool) -> None:
        self.count(EventKind.SET, logged)
        standing = self.jobs.pop(key, None)
        if standing is not None:
            self.count(EventKind.REPLACED)
            uri = None if standing.superseded else standing.uri
        for other, job in list(self.jobs.items()):
            if uri is None or job.uri != uri:
                continue
            if job.token:
                job.superseded = max(job.superseded, LOGGED if logged else IN_MEMORY)
            else:
                self.remove(other, EventKind.REPLACED)
        self.jobs[key] = Known(uri, expires=how.get("timeout", 0))

    def next(self, *, pop: bool) -> None:
        flags = Flag.OVERWRITE if pop else 0
        self.pass_time(1)
        count = self.draw.randint(1, 3)
        reply = self.log.ask(Function.NEXT, flags=flags, count=count, timeout=LEASE)
        for pair in reply.pairs or ():
            if pop:
                self.remove(pair.key, EventKind.COMPLETED)
            else:
                assert reply.timeout is not None
                self.jobs[pair.key].token = reply.timeout
                self.count(EventKind.LEASED)

    def work(self) -> None:
        """End or extend a lease."""
        key = self.pick(leased=True)
        if key is None:
            return
        job, chance = self.jobs[key], self.draw.random()
        if job.token <= self.log.clock.instant_us + 2:
            return
        how: dict[str, int] = {"flags": Flag.WORKED_ON, "timeout": job.token}
        if chance < 0.4:
            how["flags"] |= self.draw.choice((0, Flag.OVERWRITE))
            self.ask(Function.DELETE, key, **how)
            self.remove(key, EventKind.COMPLETED)
        elif chance < 0.55:
            reply = self.ask(Function.TOUCH, key, ttl=LEASE, **how)
            assert reply.timeout is not None
            job.token = reply.timeout
            self.count(EventKind.EXTENDED)
        elif chance < 0.7:
            self.ask(Function.RELEASE, key, **how)
            self.count(EventKind.RETURNED)
            self.lease_over(key)
        elif chance < 0.85:
            self.ask(Function.RELEASE, key, b"boom", kind=ValueType.STRING, **how)
            self.count(EventKind.FAILED)
            self.lease_over(key)
        elif chance < 0.9:
            # by somebody without the token
            self.ask(Function.DELETE, key)
            self.remove(key, EventKind.DELETED)
        else:
            self.ask(Function.BURY, key, b"bad", kind=ValueType.STRING, **how)
            stays = self.lease_over(key)
            self.count(EventKind.BURIED if stays else EventKind.RETURNED)
            if stays:
                job.buried = True

    def change(self) -> None:
        """Change an entry in another way."""
        key = self.pick(leased=self.draw.choice((None, False)))
        if key is None:
            return
        chance = self.draw.random()
        if chance < 0.4:
            if not self.jobs[key].token:
                how = {"at": self.log.entry(key).timestamp} if chance < 0.1 else {}
                self.ask(Function.DELETE, key, **how)
                self.remove(key, EventKind.DELETED)
        elif chance < 0.6:
            self.rename(key)
        elif chance < 0.7:
            self.serial += 1
            self.ask(Function.LINK, key, uri=b"link%d" % self.serial)
        elif chance < 0.85:
            self.ask(Function.ADD, key, bytes(8), kind=ValueType.INTEGER)
        elif (buried := self.pick(buried=True)) is not None:
            self.ask(Function.KICK, buried)
            self.count(EventKind.KICKED)
            self.jobs[buried].buried = False

    def rename(self, key: bytes) -> None:
        target = self.pick(leased=False)
        if target in (None, key) or self.draw.random() < 0.7:
            target = self.new_key()
        assert target is not None
        self.ask(Function.RENAME, key, uri=target, flags=Flag.OVERWRITE)
        self.count(EventKind.RENAMED)
        if target in self.jobs:
            self.remove(target, EventKind.REPLACED)
        self.jobs[target] = self.jobs.pop(key)

    def rule(self) -> None:
        """Change the rules of a domain, or clear it."""
        domain, chance = self.draw.choice(DOMAINS), self.draw.random()
        rules = self.log.engine.store.rules
        if chance < 0.5:
            ttl = self.draw.choice((0, SECOND))
            before = rules.pauses.until(domain)
            self.ask(Function.PAUSE, domain, ttl=ttl)
            self.count(EventKind.PAUSED if ttl else EventKind.RESUMED, bool(ttl or before))
        elif chance < 0.7:
            limits = rules.limits.own(domain)
            given = b'{"jobs":%d}' % self.draw.choice((0, 50))
            self.ask(Function.LIMIT, domain, given, kind=ValueType.STRING)
            self.count(EventKind.LIMITED, rules.limits.own(domain) != limits)
        elif chance < 0.85:
            buried = [key for key, job in self.jobs.items() if job.buried]
            found = [key for key in buried if key.startswith(domain)]
            assert self.ask(Function.KICK, uri=domain, count=MANY).ttl == len(found)
            for key in found:
                self.count(EventKind.KICKED)
                self.jobs[key].buried = False
        else:
            self.pass_time(1)
            jobs = self.jobs.items()
            found = [key for key, job in jobs if key.startswith(domain) and not job.token]
            # often one, which is no batch
            count = 1 if len(found) > 1 and self.draw.random() < 0.5 else MANY
            keys_before = {entry.key for entry in self.log.engine.store}
            assert self.log.ask(Function.PURGE, domain, count=count).ttl == min(count, len(found))
            keys = {entry.key for entry in self.log.engine.store}
            for key in keys_before - keys:
                self.remove(key, EventKind.PURGED)
