"""Inspection of a log directory: reads all of it, reports every fault, changes nothing.

Each fault is a *diagnostic*. Some of them are left by a crash, and recovery repairs them by itself:

- ``leftover``: a segment that was being rewritten (``.rw``);
- ``empty``: the last segment has no record yet;
- ``torn``: the last segment ends in bytes that are no record, without a valid record after them;
- ``unfinished``: it ends in a group whose last records are missing.

The others are damage, and need ``--repair``:

- ``damaged``: bytes with valid records after them or in an earlier segment, a bad header, a record
  with a valid checksum that cannot be decoded, anything that the device cannot read, or all records
  of a file that is a copy of another segment;
- ``missing``: a segment that another one names is missing, and no record says that it was removed.
  Gaps in the numbers alone are legal;
- ``differs``: a segment is not the one that was sealed: it was cut at a record boundary, or it is
  an older copy. ``cmdlog.recovery.segment_chain`` has the sizes and checksums for this.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing

import msgspec

from fastjournal.cmdlog.format.layout import (
    SegmentInfo,
    pack_position,
    segment_name,
    unpack_position,
)
from fastjournal.cmdlog.format.operation_records import SegmentRemoved, SegmentRewritten
from fastjournal.cmdlog.locks import list_segments
from fastjournal.cmdlog.recovery.loss_report import describe_loss
from fastjournal.cmdlog.recovery.removals import doubtful_removals
from fastjournal.cmdlog.recovery.replay import BlockReplay, Replay
from fastjournal.cmdlog.recovery.replay_state import ReplayState
from fastjournal.cmdlog.recovery.scan import HEADER_BYTES, CorruptRegion, SegmentScan
from fastjournal.cmdlog.recovery.segment_chain import Seal, segment_start, why_misplaced
from fastjournal.cmdlog.recovery.segment_reader import Segment, SegmentReader, StartPacker
from fastjournal.cmdlog.recovery.value_budget import ValueBudget, ValueLimit
from fastjournal.disk import Disk

_LEFTOVER = re.compile(r"[0-9]{9}\.log\.rw")
_PROGRESS_RECORDS = 100_000
"""Records between two calls of ``on_progress``: a quarter of a second."""


class Progress(msgspec.Struct, frozen=True, gc=False):
    """Progress of reading."""

    segment: str
    """Name of the segment that is being read."""
    bytes_done: int
    bytes: int
    """Bytes of all segments."""
    records: int
    """Replayed so far."""


class Diagnostic(msgspec.Struct, frozen=True, gc=False):
    """Diagnostic: something in the log directory that clean operation does not leave there."""

    kind: str
    path: str
    offset: int
    """Offset of the first byte concerned."""
    bytes: int
    """How many; 0 for a segment that is missing."""
    message: str
    """Description of it, and of what is lost, as far as it is known."""
    kept: str | None = None
    """Where recovery has kept the bytes; None: there are none, or nothing was changed."""

    @property
    def damage(self) -> bool:
        """Whether it needs ``--repair``; else recovery repairs it by itself."""
        return self.kind in ("damaged", "missing", "differs")


class CorruptSegment(msgspec.Struct, gc=False):
    """Corrupt segment: one that a repair has to rewrite."""

    number: int
    damage: list[CorruptRegion]
    behind_loss: bool = False
    """Whether records are lost right before it."""
    chain_record: SegmentRewritten | SegmentRemoved | None = None
    """Operation to write about it, where it is not rewritten."""


class LogInspection(msgspec.Struct, gc=False):
    """Result of an inspection."""

    state: ReplayState
    segments: list[SegmentInfo]
    """As they are to be used: without the torn tail of the last one and without empty last ones."""
    diagnostics: list[Diagnostic]
    corrupt: list[CorruptSegment]
    begins: bool = False
    """Whether the last segment begins as ours do, so that it can be appended to."""


def inspect_log(
    disk: Disk,
    directory: str,
    state: ReplayState,
    on_progress: Callable[[Progress], None] | None = None,
    limit: ValueLimit | None = None,
    start_packer: StartPacker | None = None,
) -> LogInspection:
    """Read all segments of a log directory, and replay them into an empty state.

    Args:
        disk: Where the log is.
        directory: Directory of the log.
        state: Empty.
        on_progress: Called a few times a second.
        limit: How much memory it may take; None: all values are kept.
        start_packer: Starts what packs segments ahead; None: there is none.

    Raises:
        LogFailedError: Something cannot be read.
    """
    numbers = list_segments(disk, directory)
    sizes = [disk.size(f"{directory}/{segment_name(number)}") for number in numbers]
    packer = None if start_packer is None else start_packer(sizes)
    with closing(SegmentReader(disk, directory, numbers, packer)) as reader:
        inspector = LogInspector(disk, directory, state, on_progress, limit, reader)
        return inspector.run(numbers, sum(sizes))


class LogInspector:
    """Inspector of the segments of a directory; see ``inspect_log``.

    Args:
        disk: Where they are.
        directory: The directory.
        state: Empty.
        on_progress: Called a few times a second.
        limit: How much memory it may take; None: all values are kept.
        reader: Reads them.
        name_of: Returns the file name of a segment.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        state: ReplayState,
        on_progress: Callable[[Progress], None] | None,
        limit: ValueLimit | None,
        reader: SegmentReader,
        name_of: Callable[[int], str] = segment_name,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._name_of = name_of
        self._on_progress = on_progress
        self._replay = Replay(state)
        self._budget = None if limit is None else ValueBudget(state, limit)
        self._reader = reader
        self._inspection = LogInspection(state, [], [], [])
        self._present: list[int] = []
        self._bytes = 0
        self._bytes_done = 0

    def run_sealed(self, present: list[int], size: int) -> LogInspection:
        """Inspect segments that are all sealed, and hold none against what others say of it."""
        self._present = present
        self._bytes = size
        for number in present:
            self._replay_segment(self._scanned(number), last=False)
        self._drop_pardoned()
        return self._inspection

    def run(self, present: list[int], size: int) -> LogInspection:
        """Inspect the segments of a log; the last one may be in use by a writer."""
        inspection = self._inspection
        for name in self._disk.listdir(self._directory):
            if _LEFTOVER.fullmatch(name):
                path = f"{self._directory}/{name}"
                message = "a segment was being rewritten; the segment itself is whole"
                size = self._disk.size(path)
                inspection.diagnostics.append(Diagnostic("leftover", path, 0, size, message))
        self._present = present
        self._bytes = size
        numbers, last = self._without_empty(present)
        for number in numbers[:-1]:
            self._replay_segment(self._scanned(number), last=False)
        if last is not None:
            self._replay_segment(last, last=True)
            inspection.begins = numbers[-1] in inspection.state.previous
        self._drop_pardoned()
        self._find_breaks(present)
        return inspection

    def _path(self, number: int) -> str:
        return f"{self._directory}/{self._name_of(number)}"

    def _without_empty(self, present: list[int]) -> tuple[list[int], Segment | None]:
        """Return the numbers without those at the end that hold no record, and the last segment."""
        numbers = list(present)
        while numbers:
            segment = self._scanned(numbers[-1])
            scan = segment.scan
            if scan.runs or not (scan.clean or scan.torn):
                return numbers, segment
            path, size = self._path(numbers.pop()), len(segment.data)
            message = "the last segment holds no record yet"
            self._inspection.diagnostics.append(Diagnostic("empty", path, 0, size, message))
        return numbers, None

    def _scanned(self, number: int) -> Segment:
        segment = self._reader.read(number)
        data, scan = segment.data, segment.scan
        first = segment_start(data, scan)
        why = "" if first is None else why_misplaced(number, first.previous, self._present)
        if why:
            # none of its records counts: they are in the original segment
            start = min(HEADER_BYTES, scan.usable_bytes)
            copied = CorruptRegion(start, len(data), why)
            segment.scan = SegmentScan(len(data), [], [copied], readable=False)
            return segment
        for start, end in segment.unreadable:
            scan.readable = False
            reason = f"the device cannot read {end - start} bytes at offset {start}"
            scan.damage = [
                msgspec.structs.replace(found, reason=reason)
                if found.offset < end and start < found.end
                else found
                for found in scan.damage
            ]
        return segment

    def _replay_segment(self, segment: Segment, *, last: bool) -> None:
        number, data, scan = segment.number, segment.data, segment.scan
        replay = self._replay
        replay.start_segment(number, data, doubtful_removals(data, scan))
        for run in scan.runs:
            index = 0
            final = last and run is scan.runs[-1]
            blocks = BlockReplay(replay, run, segment.blocks(run))
            while index < len(run):
                stop = index + _PROGRESS_RECORDS
                index = blocks.replay(index, stop, last=final)
                self._report_progress(number, run.offset(min(index, len(run))))
        if self._budget is not None:
            self._budget.after_segment(number)
        usable = len(data)
        torn = last and scan.torn
        damage = sorted(
            [*(() if torn else scan.damage), *replay.damage, *replay.unapplied],
            key=lambda found: found.offset,
        )
        if damage:
            self._inspection.corrupt.append(CorruptSegment(number, damage))
            for found in damage:
                self._found(
                    "damaged", number, found, describe_loss(data, scan, found, replay.state.jobs)
                )
        if torn:
            usable = scan.usable_bytes
            self._found("torn", number, scan.damage[0], "")
        if replay.cut is not None and not damage:
            # before the torn tail, so the diagnostic of that is about the smaller part
            message = "its last records were never written, and no client got OK for it"
            found = CorruptRegion(replay.cut, usable, "a group of records is not all there")
            self._found("unfinished", number, found, message)
            usable = replay.cut
        self._inspection.segments.append(segment.info(usable))
        self._bytes_done += len(data)

    def _found(self, kind: str, number: int, found: CorruptRegion, more: str) -> None:
        message = f"{found.reason}; {more}" if more else found.reason
        self._inspection.diagnostics.append(
            Diagnostic(kind, self._path(number), found.offset, found.end - found.offset, message)
        )

    def _drop_pardoned(self) -> None:
        """Pardon removals that were not applied, where the entry is removed later anyway."""
        pardoned = self._replay.pardoned
        if not pardoned:
            return
        inspection = self._inspection
        for segment in inspection.corrupt:
            segment.damage = [
                found
                for found in segment.damage
                if pack_position(segment.number, found.offset) not in pardoned
            ]
        places = map(unpack_position, pardoned)
        paths = {(self._path(number), offset) for number, offset in places}
        inspection.diagnostics = [
            diagnostic
            for diagnostic in inspection.diagnostics
            if (diagnostic.path, diagnostic.offset) not in paths
        ]

    def _find_breaks(self, present: list[int]) -> None:
        """Hold the segments against what the records say of them."""
        inspection = self._inspection
        corrupt = {segment.number: segment for segment in inspection.corrupt}
        # the last ones are not sealed
        there = dict.fromkeys(present, Seal(0, 0))
        there |= {info.number: Seal(info.bytes, info.crc32c) for info in inspection.segments}
        for found in inspection.state.chain.breaks(there):
            number = found.number
            namer = inspection.state.chain.namer(number)
            if found.missing:
                corrupt[number] = CorruptSegment(number, [], chain_record=SegmentRemoved(number))
                if namer is not None:
                    corrupt.setdefault(namer, CorruptSegment(namer, [])).behind_loss = True
                inspection.diagnostics.append(
                    Diagnostic("missing", self._path(number), 0, 0, found.message)
                )
            elif number not in corrupt or not corrupt[number].damage:
                seal = there[number]
                rewritten = SegmentRewritten(number, *seal, done=False)
                corrupt.setdefault(number, CorruptSegment(number, [])).chain_record = rewritten
                following = min((n for n in there if n > number), default=number)
                corrupt.setdefault(following, CorruptSegment(following, [])).behind_loss = True
                inspection.diagnostics.append(
                    Diagnostic("differs", self._path(number), seal.bytes, 0, found.message)
                )
        inspection.corrupt = [corrupt[number] for number in sorted(corrupt)]

    def _report_progress(self, number: int, offset: int) -> None:
        if self._on_progress is not None:
            done = self._bytes_done + offset
            records = self._replay.state.records
            self._on_progress(Progress(self._name_of(number), done, self._bytes, records))
