"""Logs whose entries meet each other in chains: by links, by one URI."""

from __future__ import annotations

from pathlib import Path

from fastjournal.cmdlog.format.endings import REPLACED
from fastjournal.cmdlog.format.layout import segment_name
from fastjournal.cmdlog.format.operation_records import Link, Rename
from fastjournal.testing.logs import SegmentBuilder

SECOND = 1_000_000


def write_log(directory: Path, *segments: SegmentBuilder) -> Path:
    """Write a log directory of these segments, numbered from 1, and return it."""
    directory.mkdir(parents=True)
    for number, segment in enumerate(segments, 1):
        (directory / segment_name(number)).write_bytes(bytes(segment))
    return directory


def linked_chain(length: int) -> SegmentBuilder:
    """Return a segment of entries of which each shares a link with the next: one component."""
    segment = SegmentBuilder()
    for number in range(length):
        job = segment.entry(b"key %d" % number)
        segment.operation(Link(job, b"link %d" % number))
        if number % 2:
            segment.operation(Link(job, b"link %d" % (number - 1)))
            segment.operation(Rename(job, b"link %d" % (number + 1), segment.now_us, b"", b""))
        segment.now_us += SECOND
    return segment


def ended_chain(length: int) -> SegmentBuilder:
    """Return a segment of entries that each take over a link of the one before, which is gone."""
    segment = SegmentBuilder()
    for number in range(length):
        key = b"key %d" % number
        job = segment.entry(key)
        for link in (number, number + 1):
            segment.operation(Link(job, b"link %d" % link))
        if number + 1 < length:
            segment.complete(job, key)
        segment.now_us += SECOND
    return segment


def hot_uri(sets: int, *, leased: int) -> SegmentBuilder:
    """Return a segment in which each SET takes one URI over, and one of them is leased meanwhile.

    Args:
        sets: Number of entries.
        leased: Number of the entry with the lease.
    """
    segment = SegmentBuilder()
    before: tuple[bytes, bytes] | None = None
    for number in range(sets):
        key = b"web:1:%d:x%d" % (segment.now_us, number)
        job = segment.entry(key, uri=b"http://hot", arrival=number)
        if number == leased:
            segment.lease([job], segment.now_us + 3600 * SECOND)
            before = None
        else:
            if before is not None:
                segment.complete(*before, how=REPLACED + 1)
            before = job, key
        segment.now_us += SECOND
    return segment
