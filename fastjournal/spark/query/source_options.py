"""Options of the data source: one table of names, allowed values, and views where each counts.

Spark hands options over as texts, with names in any case. An unknown name or value is an error that
names the nearest known one. A new option or view is a line in the tables here.

``segments``, ``domain``, ``since`` and ``until`` are a range of records. They belong to the load
and never to a query: PySpark keeps one reader for a loaded relation, so a condition that a reader
took from one query (``DataSourceReader.pushFilters``) would change what other queries of the same
frame, view or table read.

``segments`` leaves out segments by number, ``since`` and ``until`` those whose span of time in the
manifest is outside. The span is that of the earliest and the latest time of a segment's records:
times of its first and last record do not bound it, because a clock may have been set back in
between. The rows of the other segments are filtered. A row of damage stays: its domain and time are
unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from fastjournal.cmdlog.snapshot import ManifestSegment
from fastjournal.errors import BadRequestError
from fastjournal.foreign.formats import Format
from fastjournal.printable import did_you_mean
from fastjournal.spark.decoding.view_columns import CORRUPT_COLUMN, cut
from fastjournal.spark.storage.files import SegmentFile

LOG_VIEWS = ("records", "entries")
VIEWS = (*LOG_VIEWS, "events", "spool")
STREAM_VIEWS = ("records", "events")
MODES = ("failfast", "permissive")
PARTITION_BYTES = 64 * 1024 * 1024
"""A segment of usual size is one partition: cmdlog-seg-size is no larger."""
SIZE_MAX = 2**63 - 1
"""Most that Spark takes for a number of bytes."""
RANGE_OPTIONS = ("segments", "domain", "since", "until")
"""Options that leave out records of a log."""
FOREIGN_JOURNALS = (Format.BEANSTALKD, Format.KESTREL)


_SIZE = re.compile(r"([0-9]+)\s*(?:([kmgt])i?)?b?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
"""Factors of Spark's own texts of sizes."""


class Option(NamedTuple):
    """One option of the data source."""

    name: str
    values: tuple[str, ...] = ()
    """Allowed values, the default first; empty: any text."""
    views: tuple[str, ...] = ()
    """Views where it counts; empty: all."""
    is_size: bool = False
    """Its value is a number of bytes."""


OPTIONS = (
    Option("path"),
    Option("paths"),
    Option("view", VIEWS),
    Option("journal", tuple(Format), views=LOG_VIEWS),
    Option("mode", MODES),
    Option("columnNameOfCorruptRecord"),
    Option("instants", ("timestamp", "us")),
    Option("maxBytesPerTrigger", views=STREAM_VIEWS, is_size=True),
    Option("cleanSource", ("off", "delete"), views=STREAM_VIEWS),
    Option("maxPartitionBytes", views=("records",), is_size=True),
    *(Option(name, views=("records",)) for name in RANGE_OPTIONS),
)

_BY_NAME = {option.name.lower(): option for option in OPTIONS}
_TABLE_MARK = "provider"
"""Only the properties of a table of SQL name it."""
_TABLE_PREFIX = "option."
"""Spark marks the options of a table so; its other properties belong to the catalog."""


class Options:
    """Checked options of one load, table or stream.

    Args:
        given: Names and values, as Spark hands them over.

    Raises:
        BadRequestError: One is unknown, has an unknown value, or is for another view.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        found = {name.lower(): value for name, value in given.items()}
        self.is_table = _TABLE_MARK in found
        if self.is_table:
            prefixed = [name for name in found if name.startswith(_TABLE_PREFIX)]
            names = {name.removeprefix(_TABLE_PREFIX) for name in prefixed} | {"path"}
            found = {name: value for name, value in found.items() if name in names}
        self.given = found
        """Values by name in lower case."""
        for name, value in found.items():
            option = _BY_NAME.get(name)
            if option is None:
                raise _unknown_option(name)
            if option.values and value.lower() not in option.values:
                raise BadRequestError(
                    f"option {option.name}={value} is not one of {', '.join(option.values)}",
                    hint=did_you_mean(value, option.values),
                )
            if option.is_size:
                _bytes_of(option.name, value)
        for name in found:
            option = _BY_NAME[name]
            if option.views and self.view not in option.views:
                raise BadRequestError(
                    f"option {option.name} is not for the view {self.view}",
                    hint=f"it counts in the view {' and '.join(option.views)}",
                )

    def text(self, name: str) -> str | None:
        """Return the text of an option; None: it is not given."""
        return self.given.get(name.lower())

    def choice(self, name: str) -> str:
        """Return the value of an option that has allowed values, or its default."""
        return self.given.get(name.lower(), _BY_NAME[name.lower()].values[0]).lower()

    @property
    def view(self) -> str:
        """Name of the view."""
        return self.choice("view")

    @property
    def permissive(self) -> bool:
        """Whether damage becomes a row."""
        return self.choice("mode") == "permissive"

    @property
    def corrupt_column(self) -> str:
        """Name of the column of damage."""
        return self.text("columnNameOfCorruptRecord") or "_corrupt"

    @property
    def instants_us(self) -> bool:
        """Whether instants are numbers of microseconds."""
        return self.choice("instants") == "us"

    @property
    def bytes_per_trigger(self) -> int | None:
        """Most bytes of a batch of a stream; None: no bound."""
        return self._bytes("maxBytesPerTrigger")

    @property
    def bytes_per_partition(self) -> int:
        """Bytes of a segment for each partition of the view ``records``, about."""
        return self._bytes("maxPartitionBytes") or PARTITION_BYTES

    def _bytes(self, name: str) -> int | None:
        text = self.text(name)
        return None if text is None else _bytes_of(name, text)

    @property
    def cleans(self) -> bool:
        """Whether a stream unlinks archived segments that it has read."""
        return self.choice("cleanSource") == "delete"

    @property
    def journal(self) -> Format | None:
        """Format that is asked for; None: a log of fastjournald, or of workq."""
        return None if "journal" not in self.given else Format(self.choice("journal"))

    @property
    def foreign(self) -> Format | None:
        """Format of a journal that is no log of segments; None: it is one."""
        return self.journal if self.journal in FOREIGN_JOURNALS else None


def _bytes_of(name: str, text: str) -> int:
    """Return the size that an option names."""
    match = _SIZE.fullmatch(text.strip())
    size = int(match[1]) * _UNITS[(match[2] or "").lower()] if match else 0
    if not 0 < size <= SIZE_MAX:
        raise BadRequestError(
            f"option {name}={text} is not a number of bytes, as 67108864, or with a unit, as 64m",
            hint="the units are k, m, g and t, and their long forms, such as KiB and kb: powers "
            "of 1,024",
        )
    return size


def _unknown_option(name: str) -> BadRequestError:
    names = [option.name for option in OPTIONS if option.name != "paths"]
    return BadRequestError(
        f"there is no option {name}; the options are {', '.join(names)}",
        hint=did_you_mean(name, names),
    )


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
        """Columns of the view that decide whether a row is in the range; damage has no command."""
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
