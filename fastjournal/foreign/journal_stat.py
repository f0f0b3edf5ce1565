"""Statistics of a journal of any format: its files, and the state of the work in each queue."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from fastjournal.cmdlog.archive import list_archived
from fastjournal.cmdlog.format.layout import SEGMENT_HEADER, segment_name
from fastjournal.cmdlog.locks import list_segments
from fastjournal.cmdlog.recovery.inspect_archive import inspect_archive, is_archive
from fastjournal.cmdlog.recovery.inspect_log import Diagnostic, Progress, inspect_log
from fastjournal.cmdlog.recovery.replay_state import ReplayState
from fastjournal.cmdlog.snapshot import is_snapshot
from fastjournal.disk import Disk
from fastjournal.errors import BadRequestError
from fastjournal.foreign.beanstalkd import BeanstalkdJournal
from fastjournal.foreign.formats import (
    Format,
    find_format,
    list_binlogs,
    no_journal,
    require_format,
)
from fastjournal.foreign.items import OnProgress
from fastjournal.foreign.journal_files import find_size, list_queues
from fastjournal.foreign.kestrel import KestrelJournal
from fastjournal.foreign.snapshot_entries import value_limit
from fastjournal.keys import split_journal_key


class QueueStat(msgspec.Struct, gc=False):
    """Number of live entries of a queue, by state."""

    domain: bytes | None
    """None: plain entries, which have none."""
    entries: int = 0
    """Sum of the next five."""
    due: int = 0
    delayed: int = 0
    leased: int = 0
    buried: int = 0
    expired: int = 0
    value_bytes: int = 0


class JournalStat(msgspec.Struct, gc=False):
    """Statistics of a journal."""

    format: Format
    files: int
    file_bytes: int
    findings: int
    """Places that cannot be read, torn ends too."""
    queues: list[QueueStat]
    is_archive: bool = False
    """Whether the files are the archive of a log."""


class _Live(msgspec.Struct, frozen=True, gc=False):
    """Facts of a live entry that count."""

    key: bytes
    not_before: int
    expires: int
    buried: bool
    leased: bool
    value_bytes: int


def open_format(disk: Disk, directory: str, wanted: Format | None) -> Format:
    """Return the format of the journal in a directory.

    Raises:
        BadRequestError: There is none, or another than is wanted, which is named.
        LogFailedError: The directory cannot be read.
    """
    is_empty = not disk.listdir(directory)
    if wanted is Format.KESTREL and is_empty:
        # a Kestrel without items has no file
        return wanted
    found = find_format(disk, directory)
    if (
        found is None
        and wanted in (None, Format.FASTJOURNAL)
        # a snapshot of a log without records has no segment, and an archive has other names
        and (is_snapshot(disk, directory) or is_archive(disk, directory))
    ):
        return Format.FASTJOURNAL
    if wanted is not None:
        require_format(disk, directory, wanted)
        return wanted
    if found is None and is_empty:
        raise BadRequestError(
            f"{directory} is empty: it holds no segment, such as 000000001.log",
            hint="name the directory of --cmdlog-path, or a snapshot; --format kestrel reads the "
            "journal of a Kestrel without items",
        )
    if found is None:
        raise no_journal(directory, Format.FASTJOURNAL)
    return found


def is_finding(disk: Disk, diagnostic: Diagnostic, format: Format) -> bool:
    """Whether a diagnostic of the inspection of a log is a fault in this format.

    A workq-server begins a segment by its header; fastjournald appends a record with it. A gap
    whose reason is in the archive is its content, and no fault.
    """
    if diagnostic.kind == "gap":
        return False
    if format is not Format.WORKQ or diagnostic.kind != "empty":
        return True
    return disk.read_slice(diagnostic.path, 0, len(SEGMENT_HEADER) + 1) != SEGMENT_HEADER


def journal_files(disk: Disk, directory: str, format: Format) -> list[str]:
    """Return the paths of the files of a journal that count, in the order of reading."""
    if format is Format.KESTREL:
        return [path for paths in list_queues(disk, directory).values() for path in paths]
    if format is Format.BEANSTALKD:
        return [f"{directory}/binlog.{number}" for number in list_binlogs(disk, directory)]
    names = [segment_name(number) for number in list_segments(disk, directory)]
    if not names:
        names = [one.name for one in list_archived(disk, directory)]
    return [f"{directory}/{name}" for name in names]


def stat_journal(
    disk: Disk,
    directory: str,
    format: Format,
    now_us: int,
    on_progress: OnProgress | None = None,
) -> JournalStat:
    """Return the statistics of a journal. Holds no lock: while a server runs, its end may be torn.

    Args:
        disk: Where it is.
        directory: Its directory.
        format: Its format, from ``open_format``.
        now_us: The present, for what is due or has expired.
        on_progress: Called a few times a second.

    Raises:
        LogFailedError: Something cannot be read.
    """
    paths = journal_files(disk, directory, format)
    archive = False
    stats: dict[bytes | None, QueueStat] = {}
    if format is Format.BEANSTALKD or format is Format.KESTREL:
        reader = BeanstalkdJournal if format is Format.BEANSTALKD else KestrelJournal
        journal = reader(disk, directory, on_progress=on_progress)
        findings = len(journal.faults)
        for item in journal.items():
            live = _Live(
                item.key,
                _instant(item.key),
                item.expires,
                item.reason is not None,
                False,
                len(item.value),
            )
            _count(stats, live, now_us)
    else:
        state = ReplayState()

        def tell(progress: Progress) -> None:
            if on_progress is not None:
                on_progress(progress.bytes_done, progress.bytes)

        archive = not list_segments(disk, directory) and is_archive(disk, directory)
        inspect = inspect_archive if archive else inspect_log
        found = inspect(disk, directory, state, tell, value_limit())
        findings = sum(is_finding(disk, one, format) for one in found.diagnostics)
        for live in _entries(state):
            _count(stats, live, now_us)
    size = sum(find_size(disk, path) or 0 for path in paths)
    order = sorted(stats.values(), key=lambda queue: queue.domain or b"")
    return JournalStat(format, len(paths), size, findings, order, archive)


def _entries(state: ReplayState) -> Iterator[_Live]:
    for job in state.jobs.values():
        size = job.more.cold_bytes or len(job.value)
        buried, leased = job.reason is not None, job.token > 0
        yield _Live(job.key, job.not_before, job.expires, buried, leased, size)


def _count(stats: dict[bytes | None, QueueStat], live: _Live, now_us: int) -> None:
    parts = split_journal_key(live.key)
    domain = None if parts is None else parts[0]
    queue = stats.setdefault(domain, QueueStat(domain))
    queue.entries += 1
    queue.value_bytes += live.value_bytes
    if 0 < live.expires <= now_us:
        queue.expired += 1
    elif live.buried:
        queue.buried += 1
    elif live.leased:
        queue.leased += 1
    elif live.not_before > now_us:
        queue.delayed += 1
    else:
        queue.due += 1


def _instant(key: bytes) -> int:
    parts = split_journal_key(key)
    return 0 if parts is None else parts[2]
