"""One interface to the engine and to its naive model, and short ways to build requests.

The engine gets every request as it comes off the wire (encoded and decoded again), and its
replies are decoded, so that flags and fields are those that a client sees.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from typing import Any

import msgspec

from fastjournal.cmdlog.read_value import Whereabouts, read_value
from fastjournal.cmdlog.recovery.recover import recover
from fastjournal.cmdlog.writer import LogWriter, SyncPolicy
from fastjournal.protocol import ClientConnection, decode_reply, decode_request, encode_request
from fastjournal.protocol.constants import QUERY_SHIFT, Flag, Function, Query, ValueType
from fastjournal.protocol.messages import Meta, Pair, Reply, Request
from fastjournal.testing.disk import SimulatedDisk
from fastjournald.engine.engine import Engine, Missing, Scan, Settings
from fastjournald.engine.key_filter import LongMatches
from fastjournald.engine.undelivered import DeliveredJobs, DeliveringReply
from fastjournald.engine.value_memory import evict_values, fill_value, missing_notifications
from fastjournald.recovery.recover import begin_anew, load_engine, value_limit
from fastjournald.tables.domain import NEVER
from fastjournald.tables.entry import Cold
from fastjournald.tables.signals import CHANGES, READY, TIMER, VALUES
from fastjournald.tables.value_cache import Unreadable
from tests.property.model import Model
from tests.property.model_parts import Rules
from tests.property.value_watch import ValueWatch

START = 1_700_000_000_000_000
SECOND = 1_000_000
SESSION = "one"
SEGMENT_BYTES = 100_000


LOG = "/log"


class Shell:
    """Tasks that look at the engine only when its signals say so: nothing is missed by that."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.wakes_at = 0
        """When the timers look again, if no signal comes."""
        self.woken = 0
        """Signals of tasks that have something to do still."""

    def check(self) -> None:
        """Take the signals; all who have something to do were signalled, now or before."""
        engine = self.engine
        signals = engine.signals.take()
        self.woken |= signals
        wake = engine.next_wake()
        instant = NEVER if wake is None else wake
        if signals & (READY | TIMER) or self.wakes_at <= engine.now:
            self.wakes_at = instant
        assert self.wakes_at <= instant, "the timers would be late"
        for signal, has_work in (
            (CHANGES, engine.notifications.unmatched > 0),
            (VALUES, len(engine.dispatcher.awaited) > 0),
        ):
            assert not has_work or self.woken & signal
            if not has_work:
                self.woken &= ~signal


class EngineSubject:
    """The engine behind the wire format, with its log on a simulated disk."""

    cold = False
    """Whether every value leaves memory as soon as it may."""

    in_bulk = False
    """Whether the next request is carried out in bulk, where it can be: every other one is."""

    persists = False
    """Whether all that is SET is persistent: only what the log has may leave memory."""

    watch: ValueWatch | None = None
    """Notes whether the engine looks at values that may have left memory."""

    def __init__(self, rules: Rules, *, checks: bool = True, cold: bool | None = None) -> None:
        self.checks = checks
        known = Settings.__struct_fields__
        given = {k: v for k, v in asdict(rules).items() if k in known}
        if self.cold if cold is None else cold:
            given |= {"memory_bytes_max": 1, "cold_bytes_min": 1}
        elif self.watch is not None:
            # what is in memory is counted, and nothing has to leave it
            given |= {"memory_bytes_max": 1 << 62, "cold_bytes_min": 1}
        self.settings = Settings(**given)
        self.read = 0
        """Values read from the disk."""
        self.disk = SimulatedDisk()
        self.disk.mkdir(LOG)
        self.starts = 0
        self.reply_bytes = 0
        """Size of the last reply on the wire."""
        self.start(START)

    def start(self, now: int) -> None:
        found = recover(
            self.disk,
            LOG,
            now_us=now,
            tombstones_max=self.settings.tombstones_max,
            tombstones_bytes_max=self.settings.tombstones_bytes_max,
            tombstone_ttl_us=self.settings.tombstone_ttl_us,
            limit=value_limit(self.settings),
        )
        assert not found.diagnostics
        assert not found.state.odd
        self.starts += 1
        seed = self.starts.to_bytes(8)
        self.engine = load_engine(found.state, self.settings, self._append, seed=seed, now=now)
        self.writer = LogWriter(
            self.disk,
            LOG,
            segment_bytes_max=SEGMENT_BYTES,
            sync=SyncPolicy.OS,
            active=found.active,
            sealed=found.sealed,
            segment_start=self.engine.journal.log.segment_start,
        )
        segments = [*found.sealed, *([found.active] if found.active else [])]
        begin_anew(self.engine, found.state, segments, self.disk, LOG, now)
        self.shell = Shell(self.engine)
        self.ended: list[tuple[Hashable, Reply]] = []
        self.delivered: list[DeliveredJobs] = []
        """Work of all replies so far."""
        self.evict()
        self.check()

    def check(self) -> None:
        """Every invariant holds."""
        if self.checks:
            with self._unwatched():
                self.engine.check()
                self.shell.check()

    @contextmanager
    def checked_once(self) -> Iterator[None]:
        """Check at the end of the block, not after each request."""
        before, self.checks = self.checks, False
        yield
        self.checks = before
        self.check()

    def _unwatched(self) -> AbstractContextManager[None]:
        return self.watch.paused() if self.watch is not None else nullcontext()

    def _append(self, data: bytes, records: int, now: int) -> int:
        return self.writer.append(data, records, now)

    def tell(self, now: int) -> list[tuple[Hashable, Reply]]:
        """Return the notifications of those who listen."""
        told: list[tuple[Hashable, Reply]] = []
        while self.engine.notifications.unmatched:
            for session in self.engine.notifications.match()[0]:
                while self.engine.notifications.has_notifications(session):
                    missing = missing_notifications(self.engine.context, session)
                    unreadable = self.fetch(missing)
                    data = self.engine.notifications.pop(session, now, unreadable)
                    told += [(session, reply) for reply in decoded(data)]
        return told

    def restart(self, now: int) -> None:
        """All that was appended is on disk; recover it."""
        self.writer.flush()
        self.disk = self.disk.kill()
        self.start(now)

    def turns(self) -> list[bytes]:
        """The domains whose turn it is, in order."""
        return list(self.engine.store.scheduler.round_robin.turns)

    def tombstones(self, now: int) -> dict[bytes, int]:
        """The tombstones that stand, with their timestamps."""
        stones = self.engine.store.tombstones
        found = {key: stones.get(key, now) for key, _ in list(stones.items())}
        return {key: timestamp for key, timestamp in found.items() if timestamp is not None}

    def handle(self, session: Hashable, request: Request, now: int) -> Reply | None:
        if self.persists and request.function == Function.SET:
            request = msgspec.structs.replace(request, flags=request.flags | Flag.PERSIST)
        asked = decode_request(encode_request(request))
        self.in_bulk = not self.in_bulk
        done = self.engine.handle_bulk(session, [asked], now) if self.in_bulk else []
        data = done[0] if done else self.engine.handle(session, asked, now)
        self.check()
        while isinstance(data, Missing):
            data = self.engine.handle(session, asked, now, self.fetch(data))
            self.check()
        unreadable: Unreadable = {}
        while isinstance(data, Scan):
            finished = self.engine.step(data, now, unreadable)
            self.check()
            unreadable = {}
            if isinstance(finished, Missing):
                unreadable = self.fetch(finished)
            elif isinstance(finished, LongMatches):
                finished.run()
            elif finished is not None:
                data = finished
        self.evict()
        if data is None:
            return None
        self._note(data)
        self.reply_bytes = len(data)
        replies = decoded(data)
        self.ended += [(session, reply) for reply in replies[:-1]]
        return replies[-1]

    def _note(self, data: bytes) -> None:
        if isinstance(data, DeliveringReply):
            self.delivered.append(data.jobs)

    def serve_waiters(self, now: int) -> list[tuple[Hashable, Reply]]:
        """Replies to those who waited, first those that QUIT has ended."""
        served, self.ended = self.ended, []
        if self.engine.waiters:
            # those whose values are in memory are served first, and so get other tokens
            cold = [entry for entry in self.engine.store if isinstance(entry.value, Cold)]
            unreadable = self.fetch(Missing(cold))
            answers = self.engine.serve_waiters(now, unreadable)
            for _, data in answers:
                self._note(data)
            served += [(one, decode_reply(data)) for one, data in answers]
            self.check()
        else:
            # which changes nothing, so that all was checked
            assert not self.engine.serve_waiters(now)
        assert not self.engine.dispatcher.awaited
        self.evict()
        return served

    def fetch(self, missing: Missing | None) -> Unreadable:
        """Read what is on the disk only; return the reads that failed."""
        for entry in missing.entries if missing else ():
            with self._unwatched():
                assert isinstance(entry.value, Cold)
                place = Whereabouts(entry.position, entry.record_bytes, entry.job_id)
                value = read_value(self.disk, LOG, place)
                fill_value(self.engine.store, entry, entry.job_id, value)
            self.read += 1
        if missing and missing.entries:
            self.check()
        return {}

    def evict(self) -> None:
        """Let every value leave memory that may; all that was appended is durable."""
        if self.watch is None and self.engine.store.values is None:
            return
        with self._unwatched():
            values = self.engine.store.values
            if values is not None:
                self.writer.write()
                self.writer.sync()
                cold = values.cold
                while evict_values(self.engine.store, self.writer.durable_at, 1000):
                    pass
                if values.cold != cold:
                    self.check()
            if self.watch is not None:
                self.watch.end_request(self.engine.store)

    def advance(self, now: int) -> None:
        self.engine.advance(now)
        self.check()

    def clock_stepped(self, now: int, step_us: int) -> None:
        self.engine.clock_stepped(now, step_us)
        self.check()

    def end_session(self, session: Hashable) -> None:
        self.ended = [(s, reply) for s, reply in self.ended if s != session]
        self.engine.end_session(session)
        self.check()


def decoded(data: bytes) -> list[Reply]:
    connection = ClientConnection()
    connection.receive_data(data)
    return connection.next_events()


def request(
    function: int,
    key: bytes = b"",
    value: bytes | None = None,
    *,
    kind: int = ValueType.BUFFER,
    flags: int = 0,
    uri: bytes | None = None,
    at: int = START,
    timeout: int | None = None,
    ttl: int | None = None,
    count: int | None = None,
    identifier: int = 7,
) -> Request:
    """Build a request with the flags that its fields need."""
    return Request(
        function=function,
        identifier=identifier,
        # of a Flag each `|` and `&` is a call of Python
        flags=int(flags) | (Query.RANGE << QUERY_SHIFT if uri is not None else 0),
        timestamp=at,
        key=key,
        second_key=uri,
        value_type=None if value is None else kind,
        value=value or b"",
        timeout=timeout,
        ttl=ttl,
        count=count,
    )


class Subject:
    """A subject under test with its own clock, driven by short calls; each returns the reply."""

    def __init__(self, target: EngineSubject | Model) -> None:
        self.target = target
        self.now = START

    def under(self, **rules: int) -> Subject:
        """A fresh one of the same kind with these settings."""
        return Subject(type(self.target)(Rules(**rules)))

    @contextmanager
    def checked_once(self) -> Iterator[None]:
        """Check at the end of the block, not after each request: for many entries at a time."""
        target = self.target
        with target.checked_once() if isinstance(target, EngineSubject) else nullcontext():
            yield

    def clock_steps(self, us: int) -> None:
        """Set the clock: no time passes."""
        self.now += us
        self.target.clock_stepped(self.now, us)

    def later(self, us: int) -> None:
        """Move the clock."""
        self.now += us

    def ask(self, req: Request, session: Hashable = SESSION) -> Reply:
        """Send a request that is answered at once."""
        reply = self.target.handle(session, req, self.now)
        assert reply is not None, "the request waits"
        assert reply.identifier == req.identifier
        assert reply.timestamp == self.now
        return reply

    def set(self, key: bytes, value: bytes | None = b"v", **fields: Any) -> str:
        """SET; returns the error code, empty for success."""
        return self.ask(request(Function.SET, key, value, **fields)).code

    def get(self, key: bytes, **fields: Any) -> Reply:
        return self.ask(request(Function.GET, key, **fields))

    def value(self, key: bytes) -> bytes | None:
        """Return the value from a GET with DATA; None: not found."""
        reply = self.get(key, flags=Flag.DATA)
        assert reply.code in ("", "not-found")
        return reply.pairs[0].value if reply.pairs else None

    def pair(self, key: bytes, **fields: Any) -> Pair:
        """The pair of a successful GET with DATA and META."""
        reply = self.get(key, **{"flags": Flag.DATA | Flag.META, **fields})
        assert reply.error == ""
        assert reply.pairs is not None
        assert len(reply.pairs) == 1
        return reply.pairs[0]

    def meta(self, key: bytes, **fields: Any) -> Meta:
        """The metadata block that GET returns."""
        meta = self.pair(key, **fields).meta
        assert meta is not None
        return meta

    def delete(self, key: bytes, *, token: int | None = None, **fields: Any) -> str:
        if token is not None:
            fields = {**fields, "timeout": token, "flags": fields.get("flags", 0) | Flag.WORKED_ON}
        return self.ask(request(Function.DELETE, key, **fields)).code

    def next(self, domain: bytes = b"", **fields: Any) -> Reply:
        """NEXT that is answered at once."""
        return self.ask(request(Function.NEXT, domain, **fields))

    def jobs(self, domain: bytes = b"", **fields: Any) -> list[bytes]:
        """The keys that NEXT returns."""
        reply = self.next(domain, **fields)
        assert reply.error == ""
        assert reply.pairs is not None
        return [pair.key for pair in reply.pairs]

    def lease(self, domain: bytes = b"", **fields: Any) -> int:
        """The token of a NEXT that returns work."""
        reply = self.next(domain, **fields)
        assert reply.pairs
        assert reply.timeout is not None
        return reply.timeout

    def listen(self, domain: bytes = b"", session: Hashable = SESSION, **fields: Any) -> None:
        """NEXT that waits for work."""
        req = request(Function.NEXT, domain, flags=Flag.LISTEN | fields.pop("flags", 0), **fields)
        assert self.target.handle(session, req, self.now) is None, "the request does not wait"

    def serve(self) -> list[tuple[Hashable, Reply]]:
        """Answers to those who wait."""
        return self.target.serve_waiters(self.now)

    def end_session(self, session: Hashable) -> None:
        """The connection is gone."""
        self.target.end_session(session)

    def release(self, key: bytes, token: int, **fields: Any) -> str:
        fields = {**fields, "timeout": token, "flags": Flag.WORKED_ON}
        return self.ask(request(Function.RELEASE, key, **fields)).code

    def touch(self, key: bytes, token: int | None = None, **fields: Any) -> Reply:
        if token is not None:
            fields = {**fields, "timeout": token, "flags": Flag.WORKED_ON}
        return self.ask(request(Function.TOUCH, key, **fields))

    def add(self, key: bytes, value: bytes | None, kind: int, **fields: Any) -> Reply:
        return self.ask(request(Function.ADD, key, value, kind=kind, **fields))

    def flip(self, key: bytes, **fields: Any) -> Reply:
        """NOT."""
        return self.ask(request(Function.NOT, key, **fields))

    def truncate(self, key: bytes, size: int, **fields: Any) -> str:
        """TRUNCATE to a size of 8 bytes; returns the error code, empty for success."""
        value = size.to_bytes(8, "big", signed=True)
        fields = {"kind": ValueType.INTEGER, **fields}
        return self.ask(request(Function.TRUNCATE, key, value, **fields)).code

    def rename(self, key: bytes, to: bytes | None, **fields: Any) -> str:
        """RENAME; returns the error code, empty for success."""
        return self.ask(request(Function.RENAME, key, uri=to, **fields)).code

    def link(self, key: bytes, link: bytes | None, **fields: Any) -> str:
        """LINK; returns the error code, empty for success."""
        return self.ask(request(Function.LINK, key, uri=link, **fields)).code

    def lock(
        self,
        key: bytes,
        timeout: int | None = None,
        session: Hashable = SESSION,
        *,
        renew: bool = False,
    ) -> str:
        """LOCK; returns the error code, empty for success."""
        flags = Flag.UPDATE_TIMEOUT if renew else 0
        return self.ask(request(Function.LOCK, key, timeout=timeout, flags=flags), session).code

    def unlock(self, key: bytes, session: Hashable = SESSION) -> str:
        """UNLOCK; returns the error code, empty for success."""
        return self.ask(request(Function.UNLOCK, key), session).code

    def bury(self, key: bytes, token: int | None = None, reason: bytes | None = None) -> str:
        """BURY; returns the error code, empty for success."""
        flags = 0 if token is None else Flag.WORKED_ON
        req = request(Function.BURY, key, reason, timeout=token, flags=flags)
        return self.ask(req).code

    def kick(self, key: bytes) -> int:
        """KICK by key; returns how many."""
        return self._kicked(request(Function.KICK, key))

    def kick_domain(self, domain: bytes, count: int | None = None) -> int:
        """KICK of a domain; returns how many."""
        return self._kicked(request(Function.KICK, uri=domain, count=count))

    def _kicked(self, req: Request) -> int:
        reply = self.ask(req)
        assert (reply.error, reply.timeout, reply.pairs) == ("", None, None)
        assert reply.ttl is not None
        return reply.ttl

    def pause(self, domain: bytes, ttl: int | None) -> str:
        """PAUSE; returns the error code, empty for success."""
        return self.ask(request(Function.PAUSE, domain, ttl=ttl)).code

    def stats(self, key: bytes = b"", **fields: Any) -> dict[str, Any]:
        """The numbers of STATS."""
        reply = self.ask(request(Function.STATS, key, **fields))
        assert reply.error == ""
        assert reply.pairs is not None
        assert [pair.value_type for pair in reply.pairs] == [ValueType.STRING]
        numbers = json.loads(reply.pairs[0].value)
        assert isinstance(numbers, dict)
        return numbers


STATS_FIELDS = (
    "entries",
    "waiting",
    "due",
    "delayed",
    "worked_on",
    "buried",
    "oldest_due_us",
    "domains",
    "state",
    "attempts",
    "buried_reason",
    "last_error",
    "interval_us",
    "jobs_max",
    "next_waiting",
    "domain_next_waiting",
    "paused_until",
)


COMPARED_FLAGS = int(Flag.WORKED_ON | Flag.LISTEN | Flag.CURSOR)


def comparable(reply: Reply | None) -> object:
    """Return the comparable part of a reply: all but an error's sentence and the wire's widths."""
    if reply is None:
        return "waits"
    bits = reply.flags & COMPARED_FLAGS
    times = (reply.timestamp, reply.timeout, reply.ttl)
    pairs = compared_pairs(reply.pairs)
    return (reply.code, reply.identifier, bits, times, reply.cursor, pairs)


def compared_pairs(pairs: Sequence[Pair] | None) -> object:
    """Return the comparable part of pairs: of an object of STATS the fields of both."""
    if not pairs or not pairs[0].value.startswith(b"{"):
        return pairs
    facts = [(pair.key, json.loads(pair.value)) for pair in pairs]
    return [(key, *(numbers.get(name) for name in STATS_FIELDS)) for key, numbers in facts]
