"""Logs whose entries meet each other in chains: by links, by one URI."""

from __future__ import annotations

from pathlib import Path

from fastjournal.cmdlog.format.layout import segment_name
from fastjournal.testing.logs import SegmentBuilder

SECOND = 1_000_000


def write_log(directory: Path, *segments: SegmentBuilder) -> Path:
    """Write a log directory of these segments, numbered from 1, and return it."""
    directory.mkdir(parents=True)
    for number, segment in enumerate(segments, 1):
        (directory / segment_name(number)).write_bytes(bytes(segment))
    return directory
