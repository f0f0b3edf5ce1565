"""Range of records: the options ``segments``, ``domain``, ``since`` and ``until`` of a load.

They belong to the load and never to a query: PySpark keeps one reader for a loaded relation, so a
condition that a reader took from one query (``DataSourceReader.pushFilters``) would change what
other queries of the same frame, view or table read.

``segments`` leaves out segments by number, ``since`` and ``until`` those whose span of time in the
manifest is outside. The span is that of the earliest and the latest time of a segment's records:
times of its first and last record tell nothing, for a clock may have been set back in between. The
rows of the other segments are filtered. A row of damage stays: nobody knows its domain and time.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from fastjournal.cmdlog.snapshot import ManifestSegment
from fastjournal.errors import BadRequestError
from fastjournal.spark.decoding.view_columns import CORRUPT_COLUMN, cut
from fastjournal.spark.query.source_options import RANGE_OPTIONS, Options
from fastjournal.spark.storage.files import SegmentFile

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SEGMENTS = re.compile(r"([0-9]{1,9})(?:(-)([0-9]{1,9})?)?")
_MICROSECONDS = re.compile(r"[0-9]{1,19}")


class RecordRange(NamedTuple):
    """Records of the view ``records`` that are asked for."""

    segments: tuple[int, int | None] | None = None
    """Numbers of the first and the last segment; the latter None: all later ones."""
    domain: str | None = None
    since_us: int | None = None
    """Earliest time of a record, in microseconds since 1970."""
    until_us: int | None = None
    """Time before which a record is."""

    @classmethod
    def of(cls, options: Options) -> RecordRange:
        """Return the range that options name.

        Raises:
            BadRequestError: A value is no range of numbers or no instant, the range is empty, or
                the journal is one of another queue.
        """
        given = [name for name in RANGE_OPTIONS if options.text(name) is not None]
        if given and options.foreign is not None:
            raise BadRequestError(
                f"option {given[0]} is for a command log, not for a journal of {options.foreign}",
                hint="give the condition to the query: frame.where(...)",
            )
        since, until = (_instant(name, options.text(name)) for name in ("since", "until"))
        if since is not None and until is not None and since >= until:
            raise BadRequestError(
                f"option until={options.text('until')} is not after since={options.text('since')}",
                hint="since is the earliest time that is read, and until the first that is not",
            )
        return cls(_numbers(options.text("segments")), options.text("domain"), since, until)

    @property
    def columns(self) -> list[str]:
        """Columns of the view that tell whether a row is in the range; damage has no command."""
        found = [] if self.domain is None else ["domain"]
        if self.since_us is not None or self.until_us is not None:
            found.append("time")
        return [*found, "command"] if found else []

    def has_segment(self, segment: SegmentFile, listed: ManifestSegment | None) -> bool:
        """Whether records of a segment, which a manifest may list, may be in the range."""
        if self.segments is not None:
            first, last = self.segments
            if segment.number < first or (last is not None and segment.number > last):
                return False
        if listed is None or listed.min_us is None or listed.max_us is None:
            return True
        if self.since_us is not None and cut(listed.max_us) < self.since_us:
            return False
        return self.until_us is None or cut(listed.min_us) < self.until_us

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch of the view that are in the range, and those of damage."""
        if not self.columns:
            return batch
        asked = pa.scalar(True)
        if self.domain is not None:
            asked = pc.and_kleene(asked, pc.equal(batch.column("domain"), self.domain))
        if self.since_us is not None:
            times = batch.column("time").cast(pa.int64())
            asked = pc.and_kleene(asked, pc.greater_equal(times, self.since_us))
        if self.until_us is not None:
            times = batch.column("time").cast(pa.int64())
            asked = pc.and_kleene(asked, pc.less(times, self.until_us))
        damaged = pc.is_null(batch.column("command"))
        if CORRUPT_COLUMN.name in batch.schema.names:
            damaged = pc.or_(damaged, pc.is_valid(batch.column(CORRUPT_COLUMN.name)))
        return batch.filter(pc.or_kleene(asked, damaged))


def _numbers(text: str | None) -> tuple[int, int | None] | None:
    """Return the numbers of the option ``segments``."""
    if text is None:
        return None
    match = _SEGMENTS.fullmatch(text.strip())
    if match is None or (match[3] and int(match[3]) < int(match[1])):
        raise BadRequestError(
            f"option segments={text} is no number of a segment, such as 7, and no range of them, "
            "such as 7-9 or 7-"
        )
    first = int(match[1])
    if match[2] is None:
        return first, first
    return first, int(match[3]) if match[3] else None


def _instant(name: str, text: str | None) -> int | None:
    """Return the microseconds since 1970 that an option names."""
    if text is None:
        return None
    if _MICROSECONDS.fullmatch(text):
        return int(text)
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        instant = datetime.min
    if instant.tzinfo is None:
        raise BadRequestError(
            f"option {name}={text} is no instant with a time zone, such as "
            "2026-11-20T08:00:00Z, and no number of microseconds since 1970"
        )
    return (instant - _EPOCH) // timedelta(microseconds=1)
