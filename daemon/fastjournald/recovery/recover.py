"""Recovery: from the files of the command log to an engine that goes on where it stopped.

The archive is opened first: its directory, a trial link, the segments that wait for their links.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator
from functools import partial

from fastjournal.clock import SteadyClock
from fastjournal.cmdlog.archive import Archive
from fastjournal.cmdlog.format.endings import LEASE_LOST, REPLACED, end_of_lease, pack_ending
from fastjournal.cmdlog.format.envelope import Envelope
from fastjournal.cmdlog.format.layout import SegmentInfo, segment_name, unpack_position
from fastjournal.cmdlog.format.operation_records import unpack_content
from fastjournal.cmdlog.format.records import decode_record, decode_time
from fastjournal.cmdlog.locks import APPEND_LOCK
from fastjournal.cmdlog.recovery.recover import Progress, Recovered, recover
from fastjournal.cmdlog.recovery.repair import write_file
from fastjournal.cmdlog.recovery.replay_state import ReplayState
from fastjournal.cmdlog.recovery.segment_chain import Chain, Seal
from fastjournal.cmdlog.recovery.value_budget import ValueLimit
from fastjournal.cmdlog.writer import LogWriter, SyncPolicy
from fastjournal.disk import Disk, lacks_room
from fastjournal.errors import LINKS_REFUSED, ConfigError, LogFailedError
from fastjournal.keys import parse_journal_key
from fastjournal.loglines import LogEvent, Sentence
from fastjournald.config.options import Config
from fastjournald.engine.context import Settings, new_journal
from fastjournald.engine.engine import Engine
from fastjournald.engine.value_memory import evict_values
from fastjournald.recovery.bulk_load import load_store
from fastjournald.recovery.scan_worker import start_scan_worker
from fastjournald.tables.domain_limits import DomainLimit
from fastjournald.tables.entry import Entry
from fastjournald.tables.key_table import COMPLETION_BYTES, TOMBSTONE_RECORD_BYTES
from fastjournald.tables.value_cache import NUMBER_BYTES_MAX, NUMBER_TYPES
from fastjournald.wal.record_encoder import Append
from fastjournald.wal.segment_usage import SegmentUsage

LOG = logging.getLogger("fastjournald")

_TRIAL = "link.trial"

_REFUSALS = {
    errno.EXDEV: "is on another file system than the log; the archive is hard links",
    **dict.fromkeys(LINKS_REFUSED, "its file system, or its owner, allows no hard links"),
    errno.EACCES: "cannot be written to by this user",
    errno.EROFS: "is on a file system that is mounted read-only",
}


def make_archive_directory(disk: Disk, log_directory: str, directory: str) -> None:
    """Make the directory, where it is missing, as private as the log's.

    Raises:
        ConfigError: It cannot be made.
    """
    try:
        disk.mkdir(directory, like=log_directory)
    except LogFailedError as error:
        raise ConfigError(f"--archive-dir: {error.message}", path=directory) from error


def try_link(disk: Disk, log_directory: str, directory: str) -> None:
    """Link a file of the log into the archive, and remove the link again.

    Where only the space for a name is missing, the daemon starts all the same: workers must be able
    to finish on a full disk.

    Args:
        disk: Where log and archive are.
        log_directory: Directory of the log, with its lock file.
        directory: Directory of the archive; the caller holds its lock.

    Raises:
        ConfigError: No segment could ever be linked there.
    """
    trial = f"{directory}/{_TRIAL}"
    try:
        if disk.exists(trial):
            disk.unlink(trial)
        disk.link(f"{log_directory}/{APPEND_LOCK}", trial)
        disk.unlink(trial)
    except LogFailedError as error:
        cause = error.__cause__
        refusal = _REFUSALS.get(cause.errno or 0) if isinstance(cause, OSError) else None
        if refusal is not None:
            raise ConfigError(
                f"--archive-dir: {refusal}",
                path=directory,
                hint="name a directory beside the log, which this user may write to",
            ) from error
        LOG.warning(LogEvent("archive-trial-failed", path=directory, error=Sentence(error)))


def open_archive(disk: Disk, config: Config, usage: SegmentUsage, writer: LogWriter) -> Archive:
    """Read the state of the archive, and find the segments of the log that need links.

    Args:
        disk: Disk of log and archive; the lock of the archive is held.
        config: Options.
        usage: Segment usage table; compaction waits for the links from now on.
        writer: Writer of the log, after recovery.

    Raises:
        LogCorruptError: The state cannot be decoded.
        LogFailedError: It cannot be read; or this is another log, and it cannot be written.
    """
    archive = Archive(disk, config.cmdlog_path, config.archive_dir, config.archive_bytes_max)
    warning = archive.resume(writer.sealed, usage.sealed_as, writer.next_number)
    usage.archived_before = archive.next
    if warning:
        LOG.warning(
            LogEvent("archive-of-another-log", path=archive.directory, reason=Sentence(warning))
        )
    return archive


_JOB_BYTES = 600
"""Memory of a live job during replay, with keys of a usual length, without its value."""

EVICTED_MAX = 10_000

__all__ = ["Progress", "load_engine", "recover_engine"]


def recover_engine(
    disk: Disk,
    config: Config,
    settings: Settings,
    clock: SteadyClock,
    *,
    seed: bytes,
    on_progress: Callable[[Progress], None] | None = None,
    worker: bool = False,
    listed: bool = False,
) -> tuple[Engine, LogWriter]:
    """Replay the log, and open it for appending.

    Args:
        disk: Where the log is; the caller holds its append lock.
        config: Options.
        settings: The engine's part of them.
        clock: The machine's, or a test's.
        seed: 8 random bytes, for job ids.
        on_progress: Called now and then.
        worker: Whether a process may read segments ahead, which finds the log on the real disk.
        listed: A remote log has checked the segments: records that say otherwise do not count. The
            log goes on in a new segment.

    Raises:
        LogCorruptError: Damage inside the log, and no ``repair``; nothing was changed.
        LogFailedError: The disk failed.
    """
    started_us = clock.monotonic_us()
    now_us = clock.now_us()
    recovered = _replay(disk, config, settings, now_us, on_progress, worker=worker, listed=listed)
    state = recovered.state
    _report(recovered)
    # the first record of a new segment has the highest numbers so far
    anew = _number_foreign(state) or bool(config.archive_dir) or listed
    active, sealed = _segments_to_go_on(disk, config.cmdlog_path, recovered, anew=anew)
    engine = load_engine(state, settings, _too_early, seed=seed, now=clock.now_us())
    writer = LogWriter(
        disk,
        config.cmdlog_path,
        segment_bytes_max=config.cmdlog_seg_size,
        sync=SyncPolicy(config.cmdlog_sync),
        active=active,
        sealed=sealed,
        segment_start=engine.journal.log.segment_start,
    )
    engine.journal.append_to(writer.append)
    _restore_usage(engine, writer, state)
    _tell_segments(engine, state.chain, sealed, active, clock.now_us())
    _remove_orphans(engine, state, clock.now_us())
    segments = [*sealed, *([active] if active else [])]
    begin_anew(engine, state, segments, disk, config.cmdlog_path, clock.now_us())
    while evict_values(engine.store, writer.durable_at, EVICTED_MAX):
        pass
    LOG.info(
        LogEvent(
            "recovered",
            records=state.records,
            entries=engine.store.entries,
            segments=len(sealed) + (active is not None),
            milliseconds=(clock.monotonic_us() - started_us) // 1000,
        )
    )
    return engine, writer


def _replay(
    disk: Disk,
    config: Config,
    settings: Settings,
    now_us: int,
    on_progress: Callable[[Progress], None] | None,
    *,
    worker: bool,
    listed: bool = False,
) -> Recovered:
    return recover(
        disk,
        config.cmdlog_path,
        now_us=now_us,
        repair=config.repair,
        tombstones_max=settings.tombstones_max,
        tombstones_bytes_max=settings.tombstones_bytes_max,
        tombstone_ttl_us=settings.tombstone_ttl_us,
        limit=value_limit(settings),
        on_progress=on_progress,
        start_packer=partial(start_scan_worker, config.cmdlog_path) if worker else None,
        listed=listed,
    )


def make_whole(
    disk: Disk, config: Config, settings: Settings, clock: SteadyClock
) -> list[SegmentInfo]:
    """Cut a torn tail of the log, and return its segments.

    Raises:
        LogCorruptError: Damage inside the log.
        LogFailedError: The disk failed.
    """
    recovered = _replay(disk, config, settings, clock.now_us(), None, worker=False)
    _report(recovered)
    return [*recovered.sealed, *([recovered.active] if recovered.active else [])]


def _segments_to_go_on(
    disk: Disk, directory: str, recovered: Recovered, *, anew: bool
) -> tuple[SegmentInfo | None, list[SegmentInfo]]:
    """Return the segment to append to, if there is one, and the sealed ones.

    ``anew``: append to no segment that has records.
    """
    active, sealed = recovered.active, recovered.sealed
    rewritten = _rewrite_last(disk, directory, recovered)
    if active and active.records:
        # the file may be linked into a snapshot, which never changes, or into the archive, where
        # it would come twice: append to another one, and else to this one, since each start on a
        # full disk would take one more inode
        is_linked = not rewritten and disk.link_count(f"{directory}/{active.name}") > 1
        if anew or is_linked:
            return None, [*sealed, active]
    return active, sealed


def _number_foreign(state: ReplayState) -> bool:
    """Give workq's own jobs serial numbers that no other entry had; return whether it has any.

    Replay counts those that are there, which are fewer where compaction has taken some, and so
    gives numbers of those again. At the first start each has its number for the first time.
    """
    if not state.foreign:
        return False
    foreign = [job for job in state.jobs.values() if job.more.foreign]
    if state.previous:
        serial = max(state.arrival, state.serial_told)
        for job in foreign:
            serial += 1
            job.arrival = serial
        state.arrival = serial
    return bool(foreign)


def _restore_usage(engine: Engine, writer: LogWriter, state: ReplayState) -> None:
    """Restore the facts about segments, from records, in writer and segment usage table."""
    usage = engine.journal.usage
    writer.previous.update(state.previous)
    usage.previous = writer.previous
    usage.seals_in = state.chain.told_in
    usage.sealed_as = dict(state.chain.sealed_as)
    if writer.sealed and writer.sealed[-1].number in usage.previous:
        # it was never rewritten: otherwise a durable record in a later segment has that
        last = writer.sealed[-1]
        usage.sealed_as[last.number] = (last.bytes, last.crc32c)
    foreign = (info.number for info in writer.sealed if info.number not in usage.previous)
    usage.foreign_last = max(foreign, default=0)


def _too_early(data: bytes, records: int, now: int) -> int:
    """Refuse records: the writer asks the journal for the first record, so it comes later."""
    raise AssertionError("loading an engine writes nothing")


def value_limit(settings: Settings) -> ValueLimit | None:
    """Return how much memory replay may use for what is live; None: as much as it takes."""
    if not settings.memory_bytes_max:
        return None
    return ValueLimit(
        bytes_max=settings.memory_bytes_max,
        entry_bytes=_JOB_BYTES,
        value_bytes_min=settings.cold_bytes_min,
        types_kept=NUMBER_TYPES,
        bytes_kept=NUMBER_BYTES_MAX,
    )


def _rewrite_last(disk: Disk, directory: str, recovered: Recovered) -> bool:
    """Replace the last segment by a copy of itself, make that durable, and return True.

    False: there is no room for that, or no segment. After a failed sync the system takes the pages
    for clean: they are read back, but no later sync writes them. Bytes that this process has read
    must not count as durable because a sync succeeds.
    """
    if recovered.active is not None:
        last = recovered.active
    elif recovered.sealed:
        last = recovered.sealed[-1]
    else:
        return False
    path = f"{directory}/{last.name}"
    try:
        free_bytes = disk.free_space(directory).bytes
        why_not = f"{free_bytes} bytes are free" if free_bytes < last.bytes else ""
        if not why_not:
            write_file(disk, f"{path}.rw", disk.read(path), like=path)
    except LogFailedError as error:
        if not lacks_room(error):
            raise
        why_not = "no space, inode or quota is left"
    if why_not:
        # on a full disk workers must still be able to finish
        LOG.warning(LogEvent("not-written-anew", path=path, reason=Sentence(why_not)))
        return False
    disk.rename(f"{path}.rw", path)
    disk.sync_directory(directory)
    return True


def load_engine(
    state: ReplayState, settings: Settings, append: Append, *, seed: bytes, now: int
) -> Engine:
    """Return an engine that goes on where the log ends; time is not applied to it yet.

    The jobs of ``state`` are used up.
    """
    engine = Engine(settings, new_journal(settings, append, seed))
    store = engine.store
    limits = {name: DomainLimit.from_record(limit) for name, limit in state.limits.items()}
    store.rules.load(state.pauses, limits)
    load_store(store, state, now)
    for name, delivered_at in state.delivered_at.items():
        store.rules.restore_delivery(name, delivered_at, now)
    engine.journal.ids.serial = max(state.arrival, state.serial_told)
    for key, tomb in state.tombstones.items():
        record_bytes = TOMBSTONE_RECORD_BYTES if tomb.operation else COMPLETION_BYTES
        store.tombstones.put(key, tomb.timestamp, tomb.deleted_us, record_bytes)
    engine.journal.leases.last_token = state.last_token
    for job_id, number in state.begins:
        engine.journal.usage.begins(job_id, number)
    engine.journal.usage.paused_until.update(state.paused_until)
    engine.journal.usage.limited_in.update(state.limited_in)
    engine.context.tokens.count = (state.last_token + 1) % 1000 if state.last_token else 0
    return engine


def _tell_segments(
    engine: Engine, chain: Chain, sealed: list[SegmentInfo], active: SegmentInfo | None, now: int
) -> None:
    """Record the size and checksum of each sealed segment whose record of these is missing.

    The segment is workq's own, or a crash came where it was about to be replaced.
    """
    # the start of the next segment records it for the last one
    for info in sealed if active else sealed[:-1]:
        if chain.seals.get(info.number) != [Seal(info.bytes, info.crc32c)]:
            engine.journal.log.segment_rewritten(
                info.number, info.bytes, info.crc32c, now, done=True
            )


def begin_anew(
    engine: Engine,
    state: ReplayState,
    segments: list[SegmentInfo],
    disk: Disk,
    directory: str,
    now: int,
) -> None:
    """Begin durations now that began in the future by the log (the clock was ahead).

    Args:
        engine: The loaded engine; changes are written to its log.
        state: From replay.
        segments: Segments of the log.
        disk: Disk of the log.
        directory: Directory of the log.
        now: Present instant.
    """
    newest_us = max((info.max_us or info.last_us or 0 for info in segments), default=0)
    written: list[tuple[Entry, int]] = []
    began = state.began_ahead
    began.any = newest_us > began.present_us
    if began.any:
        written = list(_delays_written_ahead(engine, state, disk, directory))
    else:
        newest_us = 0
    ends = engine.begin_anew(began, written, now, newest_us)
    if ends.total():
        LOG.warning(
            LogEvent(
                "begun-anew",
                leases=ends.leases,
                delays=ends.delays,
                pauses=ends.pauses,
                expiries=ends.expiries,
                seconds=f"{(newest_us - now) / 1_000_000:.1f}",
                what="the clock was ahead when they began, and was set back by this time",
            )
        )


def _delays_written_ahead(
    engine: Engine, state: ReplayState, disk: Disk, directory: str
) -> Iterator[tuple[Entry, int]]:
    """Yield entries whose own record has a delay of RELEASE, and is from a clock that was ahead."""
    present_us = state.began_ahead.present_us
    for entry in engine.store:
        parts = parse_journal_key(entry.key) if entry.not_before > present_us else None
        if parts is None or entry.not_before <= parts.not_before_us:
            continue
        segment, offset = unpack_position(entry.position)
        path = f"{directory}/{segment_name(segment)}"
        record, _ = decode_record(disk.read_slice(path, offset, entry.record_bytes))
        time = decode_time(record.time) or 0
        content = unpack_content(record) if time > present_us else None
        if isinstance(content, Envelope) and content.not_before == entry.not_before:
            # else a later record has the delay
            yield entry, time


def _remove_orphans(engine: Engine, state: ReplayState, now: int) -> None:
    """Log the removal of each job whose removal is only implied: otherwise it may return."""
    journal = engine.journal
    for job_id, orphan in state.orphans.items():
        implied, job = orphan.implied, orphan.job
        # the tombstone first: after the removal record, it is no longer implied
        if implied is not None and state.tombstones.get(implied.key) is implied.laid:
            laid = implied.laid
            journal.log.tombstone(implied.key, laid.timestamp, now, deleted_us=laid.deleted_us)
        lost = end_of_lease(job.leased_until, now, job.attempts, 0).lost
        how = REPLACED | LEASE_LOST if lost else REPLACED
        facts = pack_ending(how, job.arrival, job.attempts + 1, job.due, job.lease_start)
        journal.gone(job_id, job.key, facts, now, buried=job.reason is not None)


def _report(recovered: Recovered) -> None:
    for diagnostic in recovered.diagnostics:
        LOG.warning(
            LogEvent(
                "found",
                kind=diagnostic.kind,
                path=diagnostic.path,
                offset=diagnostic.offset,
                bytes=diagnostic.bytes,
                kept=str(diagnostic.kept),
                what=Sentence(diagnostic.message),
            )
        )
    for what, count in sorted(recovered.state.odd.items()):
        LOG.warning(LogEvent("odd", what=Sentence(what), count=count))
