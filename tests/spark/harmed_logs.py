"""A log that was cleaned, and harm that its records' checksums do not show."""

from __future__ import annotations

from pathlib import Path

from fastjournal.cmdlog.format.layout import SEGMENT_HEADER
from fastjournal.cmdlog.recovery.scan import scan_segment
from fastjournal.protocol.constants import Flag, Function
from tests.property.compacted_log import LOG, CompactedLog

OLDER = "older-copy"
"""File with what the first segment was before it was cleaned."""


def write_cleaned_log(directory: Path) -> None:
    """Write a log whose first segment was rewritten, and whose second one was removed."""
    log = CompactedLog(cmdlog_seg_size=8192)
    for name in (b"one/%d", b"two/%d", b"three/%d"):
        log.fill(20, key=name)
        log.roll()
    (directory / OLDER).write_bytes(log.disk.read(f"{LOG}/000000001.log"))
    for number in range(12):
        log.done(Function.DELETE, b"one/%d" % number, flags=Flag.OVERWRITE)
    log.empty(20, key=b"two/%d")
    one, two = log.writer.sealed[:2]
    assert (log.clean(one), log.clean(two)) == ("rewritten", "removed")
    log.flush()
    for name in log.segments():
        (directory / name).write_bytes(log.disk.read(f"{LOG}/{name}"))


def harm_first_segment(directory: Path, change: str) -> None:
    """Cut the first segment to its header or at a record, put a copy there, or remove it."""
    path = directory / "000000001.log"
    data = path.read_bytes()
    if change == "header":
        path.write_bytes(SEGMENT_HEADER)
    elif change == "record":
        path.write_bytes(data[: list(scan_segment(data).spans())[4][2]])
    elif change == "older":
        path.write_bytes((directory / OLDER).read_bytes())
    elif change == "another":
        path.write_bytes((directory / "000000003.log").read_bytes())
    else:
        path.unlink()
