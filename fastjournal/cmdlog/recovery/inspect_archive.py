"""Inspection of an archive directory: its files, the chain of its segments, and its gaps.

An archive has each segment as it was sealed (``cmdlog.archive``). So records of the log
about segments that compaction has rewritten or removed since are ignored. These rules hold:

- the checksum in the name of a file is that of the file;
- the first record of a segment names the one before it, with its size and checksum when it was
  sealed, and a file has both;
- a segment that grew while the daemon had no archive has two files: the shorter one is the begin of
  the longer one, which is replayed;
- numbers ascend by one. Missing numbers are a gap.

Diagnostics are those of ``inspect_log``, and ``gap``: a gap whose reason is in the archive, or one
before the first file, after a reader unlinked the files that it has read. ``missing`` is any other
gap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import google_crc32c

from fastjournal.cmdlog.archive import (
    MISSING,
    STATE_NAME,
    ArchivedSegment,
    archived_segment,
    gaps_between,
    list_archived,
    missing_text,
    read_state,
)
from fastjournal.cmdlog.recovery.inspect_log import (
    Diagnostic,
    LogInspection,
    LogInspector,
    Progress,
)
from fastjournal.cmdlog.recovery.replay_state import ReplayState
from fastjournal.cmdlog.recovery.segment_reader import SegmentReader, read_segment
from fastjournal.cmdlog.recovery.value_budget import ValueLimit
from fastjournal.disk import Disk

_Found = tuple[ArchivedSegment, int]
"""A file, and its size."""


def is_archive(disk: Disk, directory: str) -> bool:
    """Whether a directory is an archive: it has its state, or a file with a name of an archive.

    Raises:
        LogFailedError: The directory cannot be read.
    """
    names = disk.listdir(directory)
    return STATE_NAME in names or any(map(archived_segment, names))


def archived_files(disk: Disk, directory: str) -> dict[int, list[_Found]]:
    """Return the files of each segment, the longest last, by number, ascending.

    A listing may miss a name that the daemon links at the same time, and have a later one: all
    before the last one of a first listing was linked by the second.

    Raises:
        LogFailedError: The directory, or a file, cannot be read.
    """
    last = max((one.number for one in list_archived(disk, directory)), default=0)
    found: dict[int, list[_Found]] = {}
    for one in list_archived(disk, directory):
        if one.number <= last:
            size = disk.size(f"{directory}/{one.name}")
            found.setdefault(one.number, []).append((one, size))
    return {number: sorted(files, key=lambda file: file[1]) for number, files in found.items()}


def inspect_archive(
    disk: Disk,
    directory: str,
    state: ReplayState,
    on_progress: Callable[[Progress], None] | None = None,
    limit: ValueLimit | None = None,
) -> LogInspection:
    """Read all files of an archive, and replay its segments into an empty state.

    Args:
        disk: Where the archive is.
        directory: Directory of the archive.
        state: Empty.
        on_progress: Called a few times a second.
        limit: How much memory it may take; None: all values are kept.

    Raises:
        LogCorruptError: Its state (``ARCHIVE.json``) cannot be understood.
        LogFailedError: Something cannot be read.
    """
    # the daemon writes its state after the links
    told = read_state(disk, directory)
    files = archived_files(disk, directory)
    newest = {number: found[-1][0] for number, found in files.items()}

    def name_of(number: int) -> str:
        return newest[number].name

    numbers = list(files)
    with closing(SegmentReader(disk, directory, numbers, None, name_of)) as reader:
        inspector = LogInspector(disk, directory, state, on_progress, limit, reader, name_of)
        found = inspector.run_sealed(numbers, sum(sizes[-1][1] for sizes in files.values()))
    of_files = {info.number: info.crc32c for info in found.segments}
    diagnostics = found.diagnostics
    damaged = {one.path for one in diagnostics}
    for number, versions in files.items():
        differing = [
            *_check_files(disk, directory, versions, of_files[number]),
            *_check_seal(directory, versions, state),
        ]
        diagnostics += [one for one in differing if one.path not in damaged]
    known = () if told is None else told.gaps
    last = max([*numbers, 0 if told is None else told.next - 1])
    spans = [(number, number) for number in numbers]
    # the first segment says that there was one before it; known gaps may say more
    before = state.previous.get(numbers[0], 0) if numbers else 0
    if before and all(gap.first > before for gap in known):
        spans.append((before, before - 1))
    if spans or known:
        for first, end, _, _, reason in gaps_between(spans, known, last):
            is_begin = end < min(numbers, default=last + 1)
            diagnostics.append(_gap(directory, first, end, reason, is_begin=is_begin))
    return found


def _check_files(
    disk: Disk, directory: str, versions: list[_Found], crc32c: int
) -> Iterator[Diagnostic]:
    """Yield the files of a segment that are not what their names say.

    ``crc32c``: the checksum that the longest one has.
    """
    longest, size = versions[-1]
    if crc32c != longest.crc32c:
        yield _differs(directory, longest, size, f"the file has the checksum {crc32c:08x}")
    for one, bytes_ in versions[:-1]:
        data, _ = read_segment(disk, f"{directory}/{one.name}")
        found = google_crc32c.value(data)
        if found != one.crc32c:
            yield _differs(directory, one, bytes_, f"the file has the checksum {found:08x}")
        elif (
            google_crc32c.value(disk.read_slice(f"{directory}/{longest.name}", 0, bytes_)) != found
        ):
            yield _differs(
                directory, one, bytes_, f"{longest.name}, which is longer, begins otherwise"
            )


def _check_seal(directory: str, versions: list[_Found], state: ReplayState) -> Iterator[Diagnostic]:
    """Yield a segment that is not the one named by the next segment."""
    number = versions[0][0].number
    seal = state.chain.sealed_as.get(number)
    if seal is not None and all((size, one.crc32c) != seal for one, size in versions):
        namer = state.chain.namer(number)
        yield _differs(
            directory,
            *versions[-1],
            f"segment {namer} says that it had {seal[0]} bytes and the checksum {seal[1]:08x}"
            " when it was sealed",
        )


def _differs(directory: str, file: ArchivedSegment, size: int, message: str) -> Diagnostic:
    return Diagnostic("differs", f"{directory}/{file.name}", 0, size, message)


def _gap(directory: str, first: int, last: int, reason: str, *, is_begin: bool) -> Diagnostic:
    text = missing_text(first, last)
    if reason != MISSING:
        return Diagnostic("gap", f"{directory}/{STATE_NAME}", 0, 0, f"{text}: {reason}")
    if is_begin:
        message = f"{text}: a reader has taken what is before the first file, or it is lost"
        return Diagnostic("gap", directory, 0, 0, message)
    return Diagnostic("missing", directory, 0, 0, f"{text}, and the archive says nothing of it")


def verify_archive(
    disk: Disk,
    directory: str,
    *,
    on_progress: Callable[[Progress], None] | None = None,
) -> list[Diagnostic]:
    """Return everything that is wrong with an archive, and its gaps.

    Raises:
        LogCorruptError: Its state (``ARCHIVE.json``) cannot be understood.
        LogFailedError: Something cannot be read.
    """
    return inspect_archive(disk, directory, ReplayState(), on_progress).diagnostics
