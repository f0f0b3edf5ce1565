"""Node of a remote log: adoption, standby, takeover, and the epoch that a primary has won.

Rules T1, T2, S1 to S5 of docs/remote-log.md. ``Node.run`` blocks in a thread: it adopts the
directory or waits for a log, follows the primary, and takes over. Then the log is replayed while
``Node.beating`` gives signs of life, and ``Node.store_log`` stores what the replay has written.
A request that fails is repeated until it is answered, or the node is stopped.
"""

from __future__ import annotations

import logging
import secrets
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import msgspec

from fastjournal.clock import Clock
from fastjournal.cmdlog.format.layout import SegmentInfo
from fastjournal.cmdlog.locks import list_segments
from fastjournal.disk import Disk, lacks_room
from fastjournal.errors import (
    FastjournalError,
    FencedError,
    ForeignRemoteLogError,
    LogFailedError,
    LogLockedError,
    RemoteLogCorruptError,
    StoreRefusedError,
    StoreUnavailableError,
)
from fastjournal.limits import REMOTE_LAG_BYTES_MAX
from fastjournal.loglines import LogEvent, Sentence
from fastjournal.numeric import exponential_backoff
from fastjournal.remote.checkpoints import Uploads, adopt
from fastjournal.remote.directory import RemoteFile, SurplusUse, judge_surplus, takes_over_at_once
from fastjournal.remote.local_log import LocalLog, read_remote_file, write_remote_file
from fastjournal.remote.objects import (
    CHECKPOINTS,
    EPOCHS,
    FORMAT_NAME,
    NONCE_BYTES,
    ChunkId,
    Epoch,
    SegmentRef,
    checkpoint_name,
    checkpoint_stem,
    decode_format,
    epoch_name,
)
from fastjournal.remote.open_store import ADOPTION_NAMES, CREATES_AT_ONCE, require_promises
from fastjournal.remote.reader import (
    Append,
    Candidate,
    LogReader,
    Restart,
    SilenceWatch,
    stored_end,
    take_over,
)
from fastjournal.remote.restore import CHUNKS_AHEAD, ReadAhead
from fastjournal.remote.store import Get, List, ObjectStore, Request, Steps, perform, run
from fastjournal.remote.writer import ChunkWriter, PrimaryLease, RemoteAck

LOG = logging.getLogger("fastjournal.remote")

CHECKPOINT_LOOK = 20
"""Reads of a standby to one look for a newer checkpoint."""

PAUSE_SECONDS = 0.05, 1.0
"""First and longest pause before a request is repeated."""


TAKEOVER_CAUSES = "restart", "seal", "silence"
"""Causes of a takeover: its directory wrote the epoch before, that was sealed, or it was silent."""


class Primary(msgspec.Struct, kw_only=True):
    """A node that has won an epoch. Everything in its directory is stored when it begins to serve.

    ``chunks.stored`` is the end of the local log, chunk 0 is stored, and no request is under way.
    """

    store: ObjectStore
    """Its calls block: they run in threads."""
    chunks: ChunkWriter
    uploads: Uploads
    """Of this epoch, with the checkpoint ``base``."""
    lease: PrimaryLease
    """Times of CLOCK_BOOTTIME in microseconds."""
    ack: RemoteAck
    base: ChunkId
    """Checkpoint from which the log was read."""
    base_us: int
    """Its time, in microseconds since the Unix epoch."""
    interval_us: int = 0
    """Shortest time between the begins of two chunks."""
    lag_bytes_max: int = REMOTE_LAG_BYTES_MAX
    """With ``async``: bytes that are not stored, from which on writers are slowed down."""
    cause: str = TAKEOVER_CAUSES[0]
    """Why it took over."""


class NodeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a node."""

    name: str
    addresses: tuple[str, ...] = ()
    """Addresses for clients."""
    build: str = ""
    ack: RemoteAck = RemoteAck.DURABLE
    takeover_after_us: int
    beat_us: int
    poll_us: int
    interval_us: int = 0
    lag_bytes_max: int = REMOTE_LAG_BYTES_MAX


class StoppedError(Exception):
    """The node was stopped while it waited, or while the log was replayed."""


class Node:
    """Node of a remote log, up to the moment when its daemon serves.

    Args:
        store: The store.
        disk: Disk of the directory.
        directory: Log directory; the caller holds its append lock.
        options: Options.
        clock: Gives times of chunks.
        boottime_us: CLOCK_BOOTTIME in microseconds.
        recover: Makes the log of the directory whole, and returns its segments: for adoption.
    """

    def __init__(
        self,
        store: ObjectStore,
        disk: Disk,
        directory: str,
        options: NodeOptions,
        *,
        clock: Clock,
        boottime_us: Callable[[], int],
        recover: Callable[[], list[SegmentInfo]],
    ) -> None:
        self.status = "reads the remote log"
        """What it does, for people."""
        self.on_standby: Callable[[], object] = lambda: None
        """Called, in the thread of ``run``, when ``status`` says that it waits for another node."""
        self.reader = LogReader()
        """What it has read."""
        self.stops: list[int] = []
        """Stop signals that the daemon has noted: one of them stops the node, within a second."""
        self._store = store
        self._disk = disk
        self._directory = directory
        self._options = options
        self._clock = clock
        self._boottime_us = boottime_us
        self._recover = recover
        self._stop = threading.Event()
        self._threads = ThreadPoolExecutor(CHUNKS_AHEAD)
        self._local = LocalLog(disk, directory, ReadAhead(self._request, self._threads))
        self._watch = self._new_watch()
        self._log = ""
        self._epoch = -1
        """Of ``remote.json``."""
        self._failing = False
        """Whether a request has failed, and was told, since the last read."""
        self._cause = ""
        self._started = False
        """Whether the store has served this node: what it refuses then may be a matter of time."""

    def stop(self) -> None:
        """End ``run`` soon: at the latest with the time-out of a request."""
        self._stop.set()

    @property
    def _is_stopped(self) -> bool:
        return self._stop.is_set() or bool(self.stops)

    def run(self) -> Primary | None:
        """Become the primary; None: the node was stopped.

        Raises:
            StoreRefusedError: The store does not keep its promises, or refuses this user.
            ForeignRemoteLogError: Directory, prefix or a chunk belong to another log.
            RemoteLogCorruptError: The remote log is damaged.
            FencedError: Another node has taken over meanwhile.
            LogError: The directory is damaged, or the disk failed.
        """
        try:
            self._try_store(CREATES_AT_ONCE)
            self._find_log()
            self._started = True
            return self._begin(self._follow())
        except StoppedError:
            return None
        finally:
            self._threads.shutdown(cancel_futures=True)

    # --- waiting --------------------------------------------------------------------------------

    def _pause(self, seconds: float) -> None:
        if self._stop.wait(seconds) or self.stops:
            raise StoppedError

    def _wait(self, tries: int, error: FastjournalError) -> None:
        """Wait before a request, or a step, is repeated."""
        self._watch.fail()
        if not self._failing:
            self._failing = True
            LOG.warning(LogEvent("remote-waits", error=Sentence(error)))
            self._tell(f"standby, waits: {error.message}")
        self._pause(exponential_backoff(*PAUSE_SECONDS, tries - 1))

    def _tell(self, status: str) -> None:
        if status != self.status:
            self.status = status
            self.on_standby()

    def _request(self, request: Request) -> object:
        """Carry out a request of the store, and repeat it until it is answered (W3)."""
        tries = 0
        while True:
            try:
                return perform(self._store, request)
            except StoreUnavailableError as error:
                tries += 1
                self._wait(tries, error)
            except StoreRefusedError as error:
                if not self._started:
                    raise
                tries += 1
                self._wait(tries, error)

    def _run(self, steps: Steps[Any]) -> Any:
        return run(steps, self._request)

    def _now(self) -> int:
        return self._clock.now_us()

    def _try_store(self, names: int) -> None:
        tries = 0
        while True:
            try:
                require_promises(self._store, secrets.token_bytes(NONCE_BYTES), names=names)
                return
            except StoreUnavailableError as error:
                tries += 1
                self._wait(tries, error)

    # --- the log of the directory ---------------------------------------------------------------

    def _find_log(self) -> None:
        """Find out which log it is; adopt the directory, or wait for a log."""
        told = read_remote_file(self._disk, self._directory)
        while (content := self._request(Get(FORMAT_NAME))) is None:
            self._require_new(told)
            self._failing = False
            if list_segments(self._disk, self._directory) and (segments := self._recover()):
                self._adopt(told, segments)
                return
            self._tell(
                "standby, waits for a remote log: start the node that has the data, or begin an"
                " empty one with fj-cli remote create"
            )
            self._pause(self._options.poll_us / 1_000_000)
        assert isinstance(content, bytes)
        log = decode_format(content, told.log if told else None).log
        if told is None:
            if list_segments(self._disk, self._directory):
                raise ForeignRemoteLogError(
                    f"the directory has a log of its own, and the prefix has the log {log}",
                    path=self._directory,
                    hint="an empty directory gets what the prefix has; a log needs a new prefix",
                )
            write_remote_file(self._disk, self._directory, log, -1)
        self._log, self._epoch = log, told.epoch if told else -1

    def _require_new(self, told: RemoteFile | None) -> None:
        """Raise where there was a log, whose ``format.json`` is missing."""
        if told is not None and told.epoch != 0:
            raise RemoteLogCorruptError(
                f"the prefix does not hold the log {told.log}, of which the directory is a part",
                path=FORMAT_NAME,
                hint="look at the URL; if the remote log is lost, remove remote.json, and this"
                " node begins a new one in an empty prefix",
            )
        found = self._request(List(EPOCHS, epoch_name(0), 1)) or self._request(List("log", "", 1))
        # else another node has begun it meanwhile
        if found and self._request(Get(FORMAT_NAME)) is None:
            raise ForeignRemoteLogError(
                "there are objects of a remote log, and it is missing",
                path=FORMAT_NAME,
                hint="somebody deleted parts of a remote log: use an empty prefix",
            )

    def _adopt(self, told: RemoteFile | None, segments: list[SegmentInfo]) -> None:
        self._log, self._epoch = told.log if told else str(uuid.uuid4()), 0
        write_remote_file(self._disk, self._directory, self._log, 0)
        self._try_store(ADOPTION_NAMES)
        size = sum(info.bytes for info in segments)
        LOG.info(LogEvent("adopting", log=self._log, segments=len(segments), bytes=size))
        links = {
            SegmentRef(info.number, info.bytes, info.crc32c): f"{self._directory}/{info.name}"
            for info in segments
        }
        nonce, name = secrets.token_bytes(NONCE_BYTES), self._options.name
        epoch = Epoch(0, self._log, name, nonce, -1, build=self._options.build)
        self._run(adopt(epoch, self._now(), links))

    # --- standby --------------------------------------------------------------------------------

    def _new_watch(self) -> SilenceWatch:
        options = self._options
        return SilenceWatch(
            options.takeover_after_us, options.takeover_after_us // 2 + options.poll_us
        )

    def _follow(self) -> Epoch:
        """Follow the primary until this node takes over; return its epoch."""
        self.reader = reader = LogReader(self._log)
        reads = tries = 0
        while True:
            try:
                if self._read():
                    epoch = self._take()
                    if epoch is not None:
                        return epoch
                    continue
                reads += 1
                if reads % CHECKPOINT_LOOK == 0:
                    self._look_for_checkpoint()
                tries = 0
            except (LogLockedError, LogFailedError) as error:
                if isinstance(error, LogFailedError) and not lacks_room(error):
                    raise
                # a part of a step may be done
                reader.base = None
                tries += 1
                self._wait(tries, error)
                continue
            assert reader.epoch is not None
            self._failing = False
            self._tell(f"standby of {reader.epoch.node}, epoch {reader.epoch.epoch}")
            self._pause(self._options.poll_us / 1_000_000)

    def _read(self) -> bool:
        """Read on, and sync; return whether to take over."""
        reader, began_us = self.reader, self._boottime_us()
        chunks = run(reader.advance(), self._answer)
        self._local.sync()
        assert reader.epoch is not None
        is_silent = self._watch.read(began_us, self._boottime_us(), chunks=chunks)
        at_once = takes_over_at_once(self._epoch, reader.epoch.epoch)
        ended = reader.sealed and reader.sealed_by_writer
        if not (is_silent or at_once or ended):
            return False
        causes = zip(TAKEOVER_CAUSES, (at_once, ended, is_silent), strict=True)
        self._cause = next(cause for cause, holds in causes if holds)
        return bool(run(reader.confirm(), self._answer))

    def _look_for_checkpoint(self) -> None:
        """Begin anew where there is a newer checkpoint: so the directory stays small."""
        base = self.reader.base
        # of epoch 0 only one counts
        after = checkpoint_name(base) if base and base.epoch else checkpoint_stem(ChunkId(1, 0))
        if self._request(List(CHECKPOINTS, after, 1)):
            self.reader.base = None

    def _answer(self, request: Any) -> object:
        """Carry out a request or a local step, and keep a former primary's surplus first."""
        if self._is_stopped:
            raise StoppedError
        if isinstance(request, Restart | Append):
            at = request.behind if isinstance(request, Restart) else request.chunk.id
            if 0 <= self._epoch < at.epoch:
                self._keep_former()
        return self._local.answer(request)

    def _keep_former(self) -> None:
        """Set aside what this node wrote in an epoch that is over, and the store has not.

        Behind that, what a later epoch has takes its place.
        """
        end = self._run(stored_end(self._log, self._epoch))
        if end is not None or self._options.ack is RemoteAck.ASYNC:
            use = judge_surplus(self._options.ack, self._epoch, self._epoch + 1)
            self._set_aside(self._local.surplus_behind(end or 0), use, self._epoch)
        self._note_epoch(-1)

    def _set_aside(self, surplus: list[Any], use: SurplusUse, epoch: int) -> None:
        diverged = use is not SurplusUse.CUT
        self._local.set_aside(surplus, f"{self._directory}.diverged-{epoch}" if diverged else "")

    def give_up(self) -> None:
        """Note that another node is to take over: the next start here takes over no sooner.

        Raises:
            LogFailedError: ``remote.json`` cannot be written.
        """
        self._note_epoch(-1)

    def _note_epoch(self, epoch: int) -> None:
        write_remote_file(self._disk, self._directory, self._log, epoch)
        self._epoch = epoch

    # --- takeover -------------------------------------------------------------------------------

    def _take(self) -> Epoch | None:
        options = self._options
        nonce = secrets.token_bytes(NONCE_BYTES)
        candidate = Candidate(options.name, nonce, options.addresses, options.build)
        epoch: Epoch | None = run(take_over(self.reader, candidate, self._now()), self._answer)
        self._local.sync()
        self._watch = self._new_watch()
        return epoch

    def _begin(self, epoch: Epoch) -> Primary:
        """Begin an epoch with a chunk, and settle what the directory has besides (T2, S1)."""
        options, base = self._options, self._local.base
        assert base is not None
        primary = Primary(
            store=self._store,
            chunks=ChunkWriter(epoch, self.reader.end, self.reader.time_us),
            uploads=Uploads(epoch.epoch, base),
            lease=PrimaryLease(options.beat_us, options.takeover_after_us),
            ack=options.ack,
            base=base[0],
            base_us=base[1].time_us,
            interval_us=options.interval_us,
            lag_bytes_max=options.lag_bytes_max,
            cause=self._cause,
        )
        self._store_chunk(primary, 0, 0, b"")
        surplus = self._local.surplus()
        use = judge_surplus(options.ack, self._epoch, epoch.epoch - 1)
        if use is not SurplusUse.STORE or not self._local.check.continues(surplus):
            self._set_aside(surplus, use, epoch.epoch - 1)
        LOG.info(
            LogEvent(
                "taken-over",
                epoch=epoch.epoch,
                cause=self._cause,
                segments=len(base[1].segments),
                checkpoint=f"{base[0].epoch}-{base[0].number}",
            )
        )
        return primary

    def _store_chunk(self, primary: Primary, segment: int, offset: int, payload: bytes) -> None:
        sent_us = self._boottime_us()
        self._run(primary.chunks.store(segment, offset, payload, self._now()))
        primary.lease.count_stored(sent_us)

    def _seal(self, primary: Primary) -> None:
        """Seal an epoch in which nobody was served: the node was stopped meanwhile (T3).

        A request that fails is not repeated: then a standby waits for the silence.
        """
        why = "a request was given up" if primary.chunks.under_way else ""
        try:
            if not why:
                self._run(primary.chunks.seal(self._now()))
        except (StoppedError, FencedError) as error:
            why = str(error) or "it was stopped"
        if why:
            LOG.warning(LogEvent("not-sealed", error=Sentence(why)))

    @contextmanager
    def beating(self, primary: Primary) -> Iterator[Callable[[], None]]:
        """Give signs of life while the block runs; yield a function that raises what ended them.

        A node that is stopped meanwhile seals its epoch. With ``async`` it goes on, as its
        directory may have acknowledged changes that are not stored yet.

        Raises:
            StoppedError: The node was stopped.
            FencedError: Another node has taken over.
            ForeignRemoteLogError: Another writer uses this epoch.
        """
        over, failures = threading.Event(), list[Exception]()

        def beat() -> None:
            try:
                while not over.wait(
                    max(0, primary.lease.beat_due_us() - self._boottime_us()) / 1_000_000
                ):
                    self._store_chunk(primary, 0, 0, b"")
            except (FastjournalError, StoppedError) as error:
                failures.append(error)

        def look() -> None:
            for error in failures:
                raise error
            if self._is_stopped and primary.ack is RemoteAck.DURABLE:
                raise StoppedError

        thread = threading.Thread(target=beat, name="beats")
        thread.start()
        try:
            try:
                yield look
            except BaseException:
                # the block failed: a beat that is repeated must not hold up its error
                self.stop()
                raise
            finally:
                over.set()
                thread.join()
            look()
        except StoppedError:
            self._seal(primary)
            raise

    def store_log(self, primary: Primary, flush: Callable[[], None]) -> None:
        """Note the epoch; then store surplus, and what the replay has appended (T2).

        Args:
            primary: The epoch.
            flush: Writes and syncs what the replay has appended; nothing is appended meanwhile.

        Raises:
            StoppedError: The node was stopped, and a request failed.
            FencedError: Another node has taken over.
            ForeignRemoteLogError: Another writer uses this epoch.
            LogFailedError: The log cannot be read, or ``remote.json`` cannot be written.
        """
        self._note_epoch(primary.chunks.epoch.epoch)
        flush()
        for segment, offset, piece in self._local.pieces(primary.chunks.stored):
            self._store_chunk(primary, segment, offset, piece)
