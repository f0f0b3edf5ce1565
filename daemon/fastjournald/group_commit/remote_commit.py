"""Remote commit: stores the log chunk by chunk, and releases the replies that wait for that.

Rules W1 to W5 and T3 of docs/remote-log.md; ``fastjournal.remote.writer`` has them as steps, and
this module their time, threads and memory. ``RemoteCommit.run`` is one loop:

    wait for appended bytes, or the beat -> gather -> write -> store a chunk -> release replies

One request is under way at a time. Meanwhile requests append, as during a slow sync (``commit``).
Where the store has to acknowledge (``RemoteAck.DURABLE``), the loop leads the commit: the log is
written once for a chunk, and synced while the chunk is on its way. Where it need not, the log is
committed as without a remote log, and the loop follows.

Clients that wait for each reply send again right after a chunk is stored. So the loop waits until
as much was appended as that chunk had, for a part of the time of a request (as ``commit`` does).

A request that takes longer than its time-out fails, whatever its progress. So a chunk is larger
than 1 MiB only where the ones before were stored quickly.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import trio

from fastjournal.clock import Clock
from fastjournal.cmdlog.format.layout import pack_position
from fastjournal.errors import LogFailedError, StoreRefusedError, StoreUnavailableError
from fastjournal.loglines import LogEvent, Sentence
from fastjournal.numeric import exponential_backoff
from fastjournal.remote.objects import ChunkId
from fastjournal.remote.store import Create, Request, Steps, perform, run_async
from fastjournal.remote.writer import RemoteAck
from fastjournald.group_commit.commit import GroupCommit
from fastjournald.histogram import Histogram

if TYPE_CHECKING:
    from fastjournal.remote.node import Primary

LOG = logging.getLogger("fastjournald")

CHUNK_BYTES_MAX = 8 * 1024 * 1024
"""Bytes at which gathering for a chunk stops."""

CHUNK_BYTES_FIRST = 1024 * 1024
"""The same until stores were quick, and for what is read from a segment again. A store that takes
less than this in its time-out is too slow."""

CHUNK_BYTES_MIN = 64 * 1024
"""The same where the store is slow."""

CHUNK_SECONDS = 0.6
"""A chunk that takes longer makes the following ones smaller: a quarter of the time-out."""

HELD_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of waiting writes that are kept in memory. Others are read from their segment."""

WRITE_BYTES = 200
"""Memory that a waiting write takes besides its bytes."""

BUFFER_BYTES_MAX = 1024 * 1024
"""Appended bytes that are written before the next chunk."""

GATHER_SHARE = 0.2
"""Longest wait for the clients of the last chunk, as a part of the time of its request."""

PAUSE_SECONDS = 0.05, 1.0
"""First and longest pause before a request is repeated."""

Result = TypeVar("Result")


class Call(Protocol):
    """Runs a blocking call, and waits for its end."""

    def __call__(self, call: Callable[[], Result], /) -> Awaitable[Result]:
        """Return what the call returns, or raise what it raises."""


async def call_in_thread(call: Callable[[], Result]) -> Result:
    """Run a blocking call in a thread, at once. A cancelled task leaves it there, to its time-out.

    ``trio.to_thread.run_sync`` takes two more turns of the event loop: each is a part of the time
    for which clients wait.
    """
    token, task, waits = trio.lowlevel.current_trio_token(), trio.lowlevel.current_task(), True

    def report(result: Any) -> None:
        if waits:
            trio.lowlevel.reschedule(task, result)

    def deliver(result: Any) -> None:
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(report, result)

    def abandon(_: object) -> trio.lowlevel.Abort:
        nonlocal waits
        waits = False
        return trio.lowlevel.Abort.SUCCEEDED

    trio.lowlevel.start_thread_soon(call, deliver, "fastjournald-store")
    result: Result = await trio.lowlevel.wait_task_rescheduled(abandon)
    return result


def boottime_us() -> int:
    """Return CLOCK_BOOTTIME in microseconds, which counts suspensions of the machine."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


class _Write(NamedTuple):
    """A write of the log that is not stored, or several that follow each other."""

    segment: int
    offset: int
    size: int
    data: bytes | None
    """None: it is read from the segment."""
    since_us: int
    """When it was written."""

    @property
    def place(self) -> tuple[int, int, int]:
        """Segment, offset, and when it was written."""
        return self.segment, self.offset, self.since_us


class Backlog:
    """Writes that are not stored, in order, in bounded memory. Pure."""

    def __init__(self) -> None:
        self.bytes = 0
        """Bytes of all."""
        self._held = 0
        self._writes: deque[_Write] = deque()

    @property
    def since_us(self) -> int | None:
        """When the oldest one was written; None: there is none."""
        return self._writes[0].since_us if self._writes else None

    def add(self, segment: int, offset: int, data: bytes, now_us: int) -> None:
        """Add a write. O(1)."""
        size, writes = len(data), self._writes
        self.bytes += size
        if self._held + size + WRITE_BYTES <= HELD_BYTES_MAX:
            self._held += size + WRITE_BYTES
            writes.append(_Write(segment, offset, size, data, now_us))
            return
        last = writes[-1] if writes else None
        if (
            last is not None
            and last.data is None
            and last.segment == segment
            and last.size + size <= CHUNK_BYTES_FIRST
        ):
            writes[-1] = last._replace(size=last.size + size)
        else:
            writes.append(_Write(segment, offset, size, None, now_us))

    def take(self, bytes_max: int) -> list[_Write]:
        """Remove and return the next writes of one segment, together at most so many bytes.

        A write that is larger comes alone; none: nothing waits.
        """
        taken: list[_Write] = []
        room, writes = bytes_max, self._writes
        while writes and (not taken or (writes[0].segment == taken[0].segment and room > 0)):
            if taken and writes[0].size > room:
                break
            write = writes.popleft()
            room -= write.size
            self.bytes -= write.size
            if write.data is not None:
                self._held -= write.size + WRITE_BYTES
            taken.append(write)
        return taken


class RemoteCommit:
    """Stores the log in chunks, and releases the replies that wait for them.

    Args:
        commit: Group commit of the local log. All that is written of it is stored.
        primary: The epoch.
        clock: Gives the times of the chunks.
        boottime_us: Clock of the lease.
        call: Runs a blocking request of the store.
    """

    def __init__(
        self,
        commit: GroupCommit,
        primary: Primary,
        clock: Clock,
        *,
        boottime_us: Callable[[], int] = boottime_us,
        call: Call = call_in_thread,
    ) -> None:
        self.primary = primary
        self.leads = primary.ack is RemoteAck.DURABLE
        """Whether replies wait for the store."""
        self.stored = commit.writer.written
        """Appended bytes that are stored, of ``LogWriter.appended``."""
        self.sealed = False
        """Whether the epoch ended in good order."""
        self.request_us = Histogram(24)
        """Histogram of microseconds per creation of a chunk or checkpoint, up to 16.8 s: other
        requests may have whole segments."""
        self.requests: Counter[tuple[str, str]] = Counter()
        """Requests of the store by kind (the class of ``store.Request`` in small letters) and
        result: ok, unavailable, refused."""
        self.on_settled: Callable[[], object] = lambda: None
        """Called when more is settled: sends the replies that waited."""
        self.on_stored: Callable[[], object] = lambda: None
        """Called when a chunk is stored."""
        self.before_seal: Callable[[], object] = lambda: None
        """Called when all is stored, before the epoch is sealed."""
        self._commit = commit
        self._writer = commit.writer
        self._clock = clock
        self._boottime_us = boottime_us
        self._call = call
        self._backlog = Backlog()
        self._under_way_since: int | None = None
        """When the oldest bytes of the chunk under way were written."""
        self.withheld = False
        """Whether no reply may leave."""
        self._told = self.stored
        """Bytes that were settled at the last call of ``on_settled``."""
        self._bytes_max = CHUNK_BYTES_FIRST
        self._wanted = sys.maxsize
        """Appended bytes at which the loop goes on."""
        self._reached = trio.Event()
        self._next_at = self._gather_until = -1.0
        self._expected = 0
        """Position that ``appended`` reaches when the clients of the last chunk sent as much again.
        The next chunk waits for it, at the longest until ``_gather_until``."""
        self._create_seconds = 0.0
        """How long the last create took."""
        self._failing_since: float | None = None
        """When the store began to fail; None: it answers."""
        self._local_due = trio.Event()
        """What was appended is to be committed locally."""
        self._cuts = trio.lowlevel.ParkingLot()
        self._ending = False
        self._over = trio.Event()
        self._life = trio.CancelScope()
        if self._writer.written_at not in (0, primary.chunks.stored):
            raise RuntimeError("the log has bytes that are not stored")
        commit.remote = self
        self._writer.on_write = self._note_write
        self._set_limit()

    # --- figures --------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """Number of the epoch."""
        return self.primary.chunks.epoch.epoch

    @property
    def fenced(self) -> bool:
        """Whether the epoch is sealed."""
        return self.primary.chunks.fenced

    @property
    def stored_position(self) -> int:
        """Position in the command log behind the last stored chunk."""
        return self.primary.chunks.stored

    @property
    def lag_bytes(self) -> int:
        """Appended bytes that are not stored."""
        return self._writer.appended - self.stored

    @property
    def lag_us(self) -> int:
        """Age of the oldest of them that is written, in microseconds; 0: there are none."""
        since_us = self._under_way_since
        if since_us is None:
            since_us = self._backlog.since_us
        return 0 if since_us is None else self._boottime_us() - since_us

    # --- calls of group commit ------------------------------------------------------------------

    def look(self) -> None:
        """Note that somebody waits for what was appended."""
        writer = self._writer
        if writer.appended >= self._wanted:
            self._reached.set()
        if writer.appended - writer.written >= BUFFER_BYTES_MAX:
            self._local_due.set()

    def test_lease(self) -> None:
        """Withhold all replies where the lease has ended, until the next chunk is stored (W5)."""
        if not self.withheld and not self.primary.lease.may_answer(self._boottime_us()):
            LOG.warning(LogEvent("replies-withheld", bytes=self.lag_bytes))
            self._withhold()
            self._reached.set()

    # --- the loop -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Store chunk after chunk, until ``finish``.

        Raises:
            FencedError: Another node has taken over.
            ForeignRemoteLogError: Another writer uses this epoch.
            LogFailedError: The local log failed.
        """
        try:
            with self._life:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._commit_locally)
                    await self._store_all()
                    nursery.cancel_scope.cancel()
        finally:
            self._withhold()
            self._over.set()

    async def finish(self, seconds: float) -> bool:
        """Store the rest, and seal the epoch (T3); nothing is appended any more.

        Returns:
            Whether it is sealed. Else the store took longer than ``seconds``.
        """
        self._ending = True
        self._reached.set()
        with trio.move_on_after(seconds):
            await self._over.wait()
        if not self.sealed:
            LOG.warning(LogEvent("not-sealed", bytes=self.lag_bytes))
            self._life.cancel()
        return self.sealed

    def cut(self, end: int) -> None:
        """Begin a checkpoint of the log up to a position, which sealing a segment has just made."""
        self.primary.chunks.cut(end)

    async def cut_at(self) -> tuple[ChunkId, int]:
        """Wait until the log is stored up to the cut; return its last chunk, and its time."""
        while (found := self.primary.chunks.cut_at) is None:
            await self._cuts.park()
        return found

    async def carry_out(self, steps: Steps[Result]) -> Result:
        """Carry out a rule with the store; a request that fails is repeated (W3).

        Raises:
            RemoteLogError: As the rule does.
        """
        return await run_async(steps, self.answer)

    async def _store_all(self) -> None:
        while True:
            await self._wait_due()
            if self._ending and not self._is_pending():
                break
            await self._gather()
            await self._store_next()
        self.before_seal()
        await self.carry_out(self.primary.chunks.seal(self._clock.now_us()))
        self.sealed = True

    def _is_pending(self) -> bool:
        """Return whether there is something to store."""
        if self.leads or self._ending:
            return self._writer.appended > self.stored
        return self._backlog.bytes > 0

    async def _wait_due(self) -> None:
        """Wait until there is something to store, or the beat is due, or the end has come."""
        while not (self._ending or self._is_pending()):
            due_us = self.primary.lease.beat_due_us() - self._boottime_us()
            if due_us <= 0:
                return
            await self._wait_appended(self.stored + 1, due_us / 1_000_000)

    async def _gather(self) -> None:
        """Wait for the shortest time between chunks, and for clients that were just answered."""
        while not self._ending and (left := self._next_at - trio.current_time()) > 0:
            await self._wait_appended(sys.maxsize, left)
        # all sessions with work at this moment go first
        await trio.lowlevel.checkpoint()
        left = self._gather_until - trio.current_time()
        if self.leads and left > 0 and self._writer.appended < self._expected and not self._ending:
            await self._wait_appended(self._expected, left)

    async def _wait_appended(self, wanted: int, seconds: float) -> None:
        self._wanted, self._reached = wanted, trio.Event()
        with trio.move_on_after(seconds):
            await self._reached.wait()
        self._wanted = sys.maxsize

    async def _store_next(self) -> None:
        """Store a chunk: of what was appended, or none, as a sign of life."""
        chunks, lease = self.primary.chunks, self.primary.lease
        if self.leads or self._ending:
            await self._write()
        taken = self._backlog.take(self._bytes_max)
        segment, offset = 0, 0
        if taken:
            segment, offset, self._under_way_since = taken[0].place
            if offset and pack_position(segment, offset) != chunks.stored:
                raise RuntimeError(f"bytes before {offset} of segment {segment} are not stored")
        payload = await self._payload(taken)
        taken.clear()
        self._next_at = trio.current_time() + self.primary.interval_us / 1_000_000
        sent_us = self._boottime_us()
        await self.carry_out(chunks.store(segment, offset, payload, self._clock.now_us()))
        lease.count_stored(sent_us)
        self.stored += len(payload)
        self._under_way_since = None
        self._adapt(len(payload))
        self._release()
        self._expected = self._writer.appended + len(payload)
        self._gather_until = trio.current_time() + GATHER_SHARE * self._create_seconds

    async def _write(self) -> None:
        """Write what was appended, unless enough waits already; its sync is the other task's."""
        if self._writer.appended > self._writer.written and self._backlog.bytes < self._bytes_max:
            await self._commit.write()
        if self._writer.committed < self._writer.written:
            self._local_due.set()

    async def _payload(self, taken: list[_Write]) -> bytes:
        pieces = [write.data for write in taken if write.data is not None]
        if len(pieces) == len(taken):
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        size = sum(write.size for write in taken)
        segment, offset = taken[0].segment, taken[0].offset
        payload = await self._call(partial(self._writer.read, segment, offset, size))
        if len(payload) != size:
            raise LogFailedError(f"segment {segment} ends before {offset + size}")
        return payload

    def _adapt(self, size: int) -> None:
        """Choose the size of the next chunk."""
        if self._create_seconds > CHUNK_SECONDS:
            self._bytes_max = max(self._bytes_max // 2, CHUNK_BYTES_MIN)
        elif size > self._bytes_max // 2:
            self._bytes_max = min(self._bytes_max * 2, CHUNK_BYTES_MAX)

    async def _commit_locally(self) -> None:
        """Sync what the loop has written, and write where much was appended meanwhile."""
        while True:
            await self._local_due.wait()
            self._local_due = trio.Event()
            # the request of the chunk begins first
            await trio.lowlevel.checkpoint()
            if self._writer.appended - self._writer.written >= BUFFER_BYTES_MAX:
                await self._commit.write()
            await self._commit.sync_written()
            self._tell_settled()

    # --- replies --------------------------------------------------------------------------------

    def _note_write(self, segment: int, offset: int, data: bytes) -> None:
        self._backlog.add(segment, offset, data, self._boottime_us())
        if self._writer.appended >= self._wanted:
            self._reached.set()

    def _withhold(self) -> None:
        self.withheld, self._told = True, -1
        self._set_limit()

    def _set_limit(self) -> None:
        if self.withheld:
            self._writer.set_limit(-1)
        else:
            self._writer.set_limit(self.stored if self.leads else None)

    def _release(self) -> None:
        """Let replies leave up to what is stored."""
        self.withheld = False
        self._set_limit()
        self.test_lease()
        self._cuts.unpark_all()
        self.on_stored()
        self._tell_settled()

    def _tell_settled(self) -> None:
        settled = self._writer.settled
        if settled > self._told:
            self._told = settled
            self._commit.release()
            self.on_settled()

    # --- requests of the store ------------------------------------------------------------------

    async def answer(self, request: Request) -> object:
        """Carry out a request; one that fails is repeated (W3)."""
        kind, tries = type(request).__name__.lower(), 0
        while True:
            began = trio.current_time()
            try:
                answer = await self._call(partial(perform, self.primary.store, request))
            except (StoreUnavailableError, StoreRefusedError) as error:
                refused = isinstance(error, StoreRefusedError)
                self._count(kind, "refused" if refused else "unavailable", began)
                self._note_failure(error)
                await trio.sleep(exponential_backoff(*PAUSE_SECONDS, tries))
                tries += 1
            else:
                seconds = self._count(kind, "ok", began)
                if isinstance(request, Create):
                    self._create_seconds = seconds
                self._note_success()
                return answer

    def _count(self, kind: str, result: str, began: float) -> float:
        seconds = trio.current_time() - began
        self.requests[kind, result] += 1
        if kind == "create":
            self.request_us.add(round(seconds * 1_000_000))
        return seconds

    def _note_failure(self, error: Exception) -> None:
        if self._failing_since is None:
            self._failing_since = trio.current_time()
            LOG.warning(LogEvent("store-fails", error=Sentence(error), lag_bytes=self.lag_bytes))

    def _note_success(self) -> None:
        if self._failing_since is not None:
            seconds = trio.current_time() - self._failing_since
            self._failing_since = None
            LOG.warning(
                LogEvent("store-answers", seconds=f"{seconds:.3f}", lag_bytes=self.lag_bytes)
            )
