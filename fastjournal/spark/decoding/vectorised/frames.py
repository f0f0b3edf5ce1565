"""Frames of all records of an undamaged segment, found at once.

A record begins with a time whose first four bytes are always the same, so every place with these
bytes, a possible size and a command behind them may be one. Where each one ends the next has to
begin: a chain from the header to the end of the file that leaves no byte out. Its checksums are
those of the records, or that of the whole file where a manifest has it.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fastjournal.cmdlog.format.layout import (
    CRC_BYTES,
    SEGMENT_HEADER,
    SIMPLE_BODY_BYTES,
    TIME_BYTES,
    TIME_VERSION,
    Command,
)
from fastjournal.cmdlog.recovery.scan import RecordRun, scan_segment
from fastjournal.spark.decoding.byte_arrays import Offsets, SegmentBytes

_TIME_HEAD = (TIME_VERSION, 0, 0, 0)
"""How a time between the years 1 and 34,000 begins."""

_BLOCK_BYTES = 256 * 1024


class Frames(NamedTuple):
    """Offsets of records, of their bodies, and behind their bodies, so of their checksums."""

    start: Offsets
    body: Offsets
    end: Offsets


def find_frames(segment: SegmentBytes) -> Frames | None:
    """Return the frames of a segment; None where they do not fill it, which the scan explains."""
    data = segment.bytes
    first = len(SEGMENT_HEADER)
    if data[:first].tobytes() != SEGMENT_HEADER or segment.size == first:
        return None
    start = _find_heads(data)
    size = segment.uvarints(start + TIME_BYTES)
    body = size.end
    command = segment.byte(body)
    possible = size.valid & (size.numbers >= SIMPLE_BODY_BYTES) & (size.numbers < segment.size)
    possible &= (command >= Command.ADD) & (command <= Command.TIMEOUT_ATTEMPT)
    start, body = start[possible], body[possible]
    end = body + size.numbers[possible].astype(np.int64)
    chain = _chain(start, end + CRC_BYTES, first, segment.size)
    return None if chain is None else Frames(start[chain], body[chain], end[chain])


def _find_heads(data: npt.NDArray[np.uint8]) -> Offsets:
    """Return where bytes stand that may begin a record; in blocks, which stay in the cache."""
    found: list[Offsets] = []
    behind = len(data) - len(_TIME_HEAD) + 1
    for first in range(0, behind, _BLOCK_BYTES):
        stop = min(first + _BLOCK_BYTES, behind)
        is_head = data[first:stop] == _TIME_HEAD[0]
        for index, byte in enumerate(_TIME_HEAD[1:], 1):
            is_head &= data[first + index : stop + index] == byte
        found.append(np.flatnonzero(is_head) + first)
    return np.concatenate(found)


def _chain(start: Offsets, behind: Offsets, first: int, size: int) -> Offsets | None:
    """Return which records follow each other directly from ``first`` to ``size``."""
    if not len(start) or start[0] > first:
        return None
    following = np.searchsorted(start, behind)
    leads_on = following == np.arange(1, len(start) + 1)
    leads_on[:-1] &= start[1:] == behind[:-1]
    leads_on[-1:] = False
    breaks = np.flatnonzero(~leads_on).tolist()
    kept = np.ones(len(start), np.bool_)
    at = int(np.searchsorted(start, first))
    kept[:at] = False
    index = bisect_left(breaks, at)
    while True:
        last = breaks[index]
        if behind[last] == size:
            kept[last + 1 :] = False
            return np.flatnonzero(kept)
        at = int(following[last])
        if at >= len(start) or start[at] != behind[last]:
            return None
        # heads that stand inside of a record
        kept[last + 1 : at] = False
        while breaks[index] < at:
            index += 1


def frames_of(run: RecordRun) -> Frames:
    """Return the frames of a run of records that the scan found."""
    behind = np.array(run.ends, np.int64)
    start = np.concatenate((np.array([run.start]), behind[:-1]))
    return Frames(start, np.array(run.bodies, np.int64), behind - CRC_BYTES)


def valid_frames(data: bytes, segment: SegmentBytes) -> Frames:
    """Return the frames of the records of a segment, without those in damage."""
    frames = find_frames(segment)
    if frames is not None:
        return frames
    runs = [frames_of(run) for run in scan_segment(data).runs]
    if not runs:
        return Frames(*(np.zeros(0, np.int64) for _ in range(3)))
    return Frames(*(np.concatenate(parts) for parts in zip(*runs, strict=True)))
