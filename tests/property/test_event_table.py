"""Event table: each archived segment once, whatever fails while it is written."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pyarrow.parquet

from fastjournal.cmdlog.archive_format import ArchivedSegment
from fastjournal.errors import LogFailedError
from fastjournal.spark.event_table import EventTable
from tests.property.test_event_extraction import ARCHIVE, Ledger

EVENTS = "/output/events"
OPERATIONS = 500


class Nights(Ledger):
    """A ledger whose archive is taken into a table, on a disk that fails meanwhile."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.operations = OPERATIONS
        self.failed = 0

    def read(self) -> None:
        """Take the archive; at a failure the power goes, and the next night takes what is left."""
        self.log.flush()
        self.log.disk.fail_at(self.draw.randint(1, 120))
        try:
            EventTable(self.log.disk, EVENTS).update(ARCHIVE)
        except LogFailedError:
            self.failed += 1
        self.log.lose_power(self.draw.getrandbits(20))
        self.open()

    def table(self) -> EventTable:
        """Take what is left, on a disk that works."""
        self.archive_sealed()
        table = EventTable(self.log.disk, EVENTS)
        table.update(ARCHIVE)
        return table


def rows(ledger: Ledger, path: str) -> list[dict[str, object]]:
    data = ledger.log.disk.read(path)
    found: list[dict[str, object]] = pa.parquet.read_table(pa.BufferReader(data)).to_pylist()
    return found


def test_event_table_has_each_event_once_whatever_fails_in_any_night() -> None:
    failed = 0
    for seed in range(4):
        ledger = Nights(seed)
        ledger.run()
        table = ledger.table()
        found = Counter(row["event"] for path in table.files for row in rows(ledger, path))
        assert found == {str(kind): count for kind, count in ledger.counts.items()}
        assert table.gaps == []
        assert sum(commit.rows for commit in table.commits) == found.total()
        disk = ledger.log.disk
        assert [name for name in disk.listdir(ARCHIVE) if name.endswith(".log")] == []
        # and nothing is beside what the commits name
        days = [name for name in disk.listdir(EVENTS) if name.startswith("day=")]
        written = [
            f"{EVENTS}/{day}/{segment}/part-0.parquet"
            for day in days
            for segment in disk.listdir(f"{EVENTS}/{day}")
        ]
        assert sorted(written) == sorted(table.files)
        assert len(disk.listdir(f"{EVENTS}/_state")) == 1
        assert EventTable(disk, EVENTS).update(ARCHIVE) == 0
        failed += ledger.failed
    assert failed > 4


def test_event_table_lists_what_is_missing_dropped_or_damaged() -> None:
    ledger = Ledger(1)
    log = ledger.log
    infos = []
    for number in range(6):
        ledger.pass_time(1)
        log.fill(3, key=b"a:1:0:%d-%%d" % number)
        infos.append(log.roll())
    ledger.archive.take(infos[:1])
    ledger.archive.skip(infos[1:2])
    ledger.archive.take(infos[2:])
    names = [f"{ARCHIVE}/{ArchivedSegment(info.number, info.crc32c).name}" for info in infos]
    log.disk.unlink(names[3])
    log.disk.truncate(names[4], infos[4].bytes - 1)
    table = EventTable(log.disk, EVENTS)
    assert table.update(ARCHIVE) == 9
    assert [(gap.first, gap.last, gap.reason) for gap in table.gaps] == [
        (2, 2, "not-linked"),
        (4, 4, "missing"),
        (5, 5, "damaged"),
    ]
    (gaps,) = log.disk.listdir(f"{EVENTS}/_gaps")
    assert [row["reason"] for row in rows(ledger, f"{EVENTS}/_gaps/{gaps}")] == [
        "not-linked",
        "missing",
        "damaged",
    ]
    assert table.gaps[0].first_us == infos[1].first_us
    ledger.pass_time(1)
    log.fill(3, key=b"a:1:0:again-%d")
    log.roll()
    ledger.archive_sealed()
    assert table.update(ARCHIVE) == 3
    assert len(table.gaps) == 3, "each gap once"
    assert log.disk.exists(f"{names[4]}.damaged")


def test_event_table_takes_only_the_rest_of_a_segment_that_grew() -> None:
    ledger = Ledger(1)
    log = ledger.log
    table = EventTable(log.disk, EVENTS)
    log.fill(3, key=b"a:1:0:%d")
    log.roll()
    ledger.archive_sealed()
    assert table.update(ARCHIVE) == 3
    # a time without an archive
    log.config.archive_dir = ""
    log.restart()
    log.fill(2, key=b"a:1:0:more-%d")
    log.config.archive_dir = ARCHIVE
    log.restart()
    ledger.open()
    ledger.archive_sealed()
    table = EventTable(log.disk, EVENTS)
    assert table.update(ARCHIVE) == 2
    assert [segment.number for segment in table.taken] == [1, 1]
    assert table.gaps == []
