"""Ledger of a client over virtual weeks of a real daemon: each event counts once, or a gap has it.

The daemon compacts as eagerly as it can, its clock jumps from day to day, it is killed, and so is
``fj-nightly``, at random; its publication of tables and that of reports are cut once.
"""

from __future__ import annotations

import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow.parquet as pq
import pytest

from fastjournal.client import SyncClient
from fastjournal.clock import SystemClock
from fastjournal.cmdlog.snapshot import read_manifest
from fastjournal.disk import OsDisk
from fastjournal.keys import build_journal_key
from fastjournal.spark.history.archive_taking import known_gaps, take_archive
from fastjournal.spark.history.coverage import MissingSegments, gaps_of
from fastjournal.spark.history.event_files import EventDirectory, open_events
from fastjournal.spark.nightly.analysis_jobs import KINDS
from fastjournal.spark.nightly.day_store import REPORTS, DayStore, StoredFile
from fastjournal.spark.nightly.preparation import Night
from fastjournal.spark.nightly.run import run_night
from tests.integration import shifted_daemon
from tests.integration.daemon_process import START_S, DaemonProcess
from tests.integration.programs import Program, installed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPTIONS = ("--cmdlog-seg-size", "4096", "--cmdlog-clean-int", "20", "--cmdlog-sync", "os")
DAYS = 9
AGO = 11
"""Days before this one on which the first one is: no day of the ledger is to come yet."""
NIGHTS = (2, 3, 6)
"""Days behind which fj-nightly runs, and is killed: at each of its ``points`` once."""
ROUNDS_MAX = 7
HOUR_S = 3600
OVERFLOW_BYTES = 12_000
OVERFLOWING_DAYS = 2


class Weeks:
    """A client with a ledger, and the daemon that it works with.

    Args:
        directory: For everything.
        monkeypatch: Gives this process the clock of the daemon, which refuses other timestamps.
    """

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.draw = random.Random(7)
        self.archive = directory / "archive"
        self.clock = directory / "clock"
        self.first = self.day = datetime.now(UTC).date() - timedelta(days=AGO)
        self.truth = Counter[tuple[str, str]]()
        """By UTC day and kind."""
        self.unsuccessful = Counter[str]()
        """Attempts that ended without success, by UTC day: each once, buried or not."""
        self.ended = Counter[str]()
        """Attempts that ended, by UTC day."""
        self.serial = 0
        self.leased = 0
        """Leases that nobody will end."""
        self.last_attempts = 0
        """Those of them behind which the entry is buried."""
        self._set_clock()
        monkeypatch.setattr(SystemClock, "now_us", lambda _: shifted_daemon.shifted(self.clock))
        self._directory = directory

    def daemon(self, *options: str) -> DaemonProcess:
        """Return a daemon on the log, that does not run yet."""
        return DaemonProcess(
            self._directory,
            *(*OPTIONS, "--archive-dir", str(self.archive), *options),
            command=(sys.executable, shifted_daemon.__file__, str(self.clock)),
        )

    def _set_clock(self) -> None:
        noon = datetime(self.day.year, self.day.month, self.day.day, 12, tzinfo=UTC)
        offset = int(noon.timestamp()) * 1_000_000 - time.time_ns() // 1000
        shifted_daemon.set_offset(self.clock, offset)

    def count(self, **events: int) -> None:
        self.truth.update({(str(self.day), kind): number for kind, number in events.items()})

    def end(self, number: int = 1, *, success: bool) -> None:
        """Count attempts that ended."""
        self.ended[str(self.day)] += number
        self.unsuccessful[str(self.day)] += 0 if success else number

    def next_day(self, client: SyncClient) -> None:
        """Let a night go by, in which all leases end."""
        self.day += timedelta(days=1)
        self._set_clock()
        self.count(lost=self.leased, buried=self.last_attempts)
        self.end(self.leased, success=False)
        self.leased = self.last_attempts = 0
        deadline = time.monotonic() + START_S
        while any(client.stats(domain)["worked_on"] for domain in ("web", "once")):
            assert time.monotonic() < deadline, "leases of the day before end"
            time.sleep(0.005)

    def work(self, client: SyncClient) -> None:
        """Work through a day, with a random part of each kind."""
        for _ in range(self.draw.randint(2, ROUNDS_MAX)):
            self._set(client, self.draw.randint(8, 16))
            # of each third request, an attempt that fails is the last one
            last = self.draw.random() < 0.33
            count = self.draw.randint(4, 12)
            bound = 1 if last else 0
            leased = client.next("web", count=count, lease=HOUR_S, attempts_max=bound)
            assert leased.token is not None
            self.count(leased=len(leased.pairs))
            keys = [pair.key for pair in leased.pairs]
            for key in keys:
                chance = self.draw.random()
                if chance < 0.6:
                    client.delete(key, token=leased.token)
                    self.count(completed=1)
                elif chance < 0.75:
                    client.release(key, leased.token, error="boom")
                    self.count(failed=1, buried=int(last))
                elif chance < 0.8:
                    client.release(key, leased.token)
                    self.count(returned=1)
                elif chance < 0.85:
                    # by its worker, or by an operator
                    client.bury(key, leased.token if chance < 0.825 else None)
                    self.count(buried=1)
                else:
                    self.leased += 1
                    self.last_attempts += int(last)
                    continue
                self.end(success=chance < 0.6 or 0.75 <= chance < 0.8)
            if self.draw.random() < 0.3:
                self.count(purged=client.purge("web", count=3))
        self._lose_last_attempts(client)
        # a dead letter that nobody works on
        self.serial += 1
        unwanted = build_journal_key("unwanted", f"{self.serial}")
        client.set(unwanted, b"v")
        client.bury(unwanted)
        self.count(set=1, buried=1)

    def _lose_last_attempts(self, client: SyncClient) -> None:
        """Leave the only attempts of some entries to the end of their leases."""
        if not self.truth[str(self.first), "limited"]:
            client.limit("once", attempts=1)
            self.count(limited=1)
        for _ in range(2):
            self.serial += 1
            client.set(build_journal_key("once", f"{self.serial}"), b"v")
        leased = client.next("once", count=2, lease=HOUR_S)
        self.count(set=2, leased=len(leased.pairs))
        self.leased += len(leased.pairs)
        self.last_attempts += len(leased.pairs)

    def _set(self, client: SyncClient, number: int) -> None:
        """Set new entries, one of which takes the place of another."""
        for _ in range(number):
            self.serial += 1
            key = build_journal_key("web", f"{self.serial}")
            client.set(key, b"v" * 200, uri=f"http://web/{self.serial}")
        self.serial += 1
        again = build_journal_key("web", f"{self.serial}")
        client.set(again, b"new", uri=f"http://web/{self.serial - 1}")
        self.count(set=number + 1, replaced=1)


def kill_when(arguments: list[str], reached: Callable[[], bool]) -> None:
    """Run ``fj-nightly`` and kill it at a point of its work."""
    with Program([installed("fj-nightly"), *arguments]) as process:
        deadline = time.monotonic() + START_S
        while not reached():
            assert process.poll() is None
            assert time.monotonic() < deadline, "it goes on"
            time.sleep(0.001)
        process.kill()


class CutError(Exception):
    """The run ends here, as by SIGKILL: nothing of it runs behind that."""


def cut_publication(patch: pytest.MonkeyPatch, folder: str) -> None:
    """Let a publication end behind the second of its moves into a directory of the output."""
    move, put, moved = DayStore._move, DayStore.put_report, list[str]()

    def count(directory: str) -> None:
        if directory == folder:
            if len(moved) > 1:
                raise CutError
            moved.append(directory)

    def cut_move(store: DayStore, table: str, day: str) -> list[StoredFile]:
        count(table)
        return move(store, table, day)

    def cut_put(store: DayStore, day: str, page: bytes) -> str:
        count(REPORTS)
        return put(store, day, page)

    patch.setattr(DayStore, "_move", cut_move)
    patch.setattr(DayStore, "put_report", cut_put)


def history(output: Path, archive: Path) -> tuple[EventDirectory, list[MissingSegments]]:
    """Return the events of an output, and their gaps."""
    events = open_events(str(output))[1]
    return events, gaps_of(events.segments(), *known_gaps(OsDisk(), str(archive)))


def points(table: Path, archive: Path) -> Iterator[Callable[[], bool]]:
    """Yield points of the work of a night: while it writes, while it unlinks, before its tables."""

    def names() -> set[Path]:
        return set(archive.glob("*.log"))

    def written() -> int:
        return len(list(table.glob("day=*/*")))

    def has_more(before: int) -> bool:
        return written() > before + 3

    def lacks_some(there: set[Path]) -> bool:
        return not there <= names()

    def lacks_all(there: set[Path]) -> bool:
        return not there & names()

    while True:
        yield partial(has_more, written())
        yield partial(lacks_some, names())
        yield partial(lacks_all, names())


def counts_of(table: Path) -> Counter[tuple[str, str]]:
    """Count the rows of a table of events by UTC day and kind, as any reader of Parquet does."""
    rows = pq.read_table(table, columns=["day", "event"]).to_pylist()
    return Counter((str(row["day"]), row["event"]) for row in rows)


def test_event_counts_equal_the_ledger_over_weeks_whatever_is_killed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weeks, output = Weeks(tmp_path, monkeypatch), tmp_path / "out"
    table = output / "events"
    when = points(table, weeks.archive)
    arguments = ["--output", str(output), "--archive", str(weeks.archive)]
    with weeks.daemon() as daemon:
        client = SyncClient(daemon.address)
        for day in range(DAYS):
            weeks.work(client)
            if weeks.draw.random() < 0.4:
                client.close()
                daemon.kill()
                daemon.start()
                client = SyncClient(daemon.address)
            if day in NIGHTS:
                kill_when([*arguments, "--date", str(weeks.day)], next(when))
            weeks.next_day(client)
        last = weeks.day - timedelta(days=1)
        snapshot = client.snapshot()
        night = Night(last, DayStore(str(output)), str(output), str(weeks.archive), snapshot)
        for folder in ("attempts", REPORTS):
            with monkeypatch.context() as patch:
                cut_publication(patch, folder)
                with pytest.raises(CutError):
                    run_night(lambda: spark, night)
            # some days are new, and no description names what another day has not yet
            assert list((output / folder).iterdir())
            states = DayStore(str(output)).states()
            whole = {day for day, state in states.items() if state.history is not None}
            assert whole
            assert (len(whole) == DAYS) == (folder == REPORTS)
        # the snapshot of the day has its tables now, so fj-nightly takes none
        run_night(lambda: spark, msgspec.structs.replace(night, snapshot=None))
        assert counts_of(table) == weeks.truth
        assert history(output, weeks.archive)[1] == []
        client.close()
    assert_tables_have(weeks.truth, output, last)
    assert_reports_tell(weeks, output, last)
    overflow(weeks, output)


def assert_tables_have(truth: Counter[tuple[str, str]], output: Path, last: date) -> None:
    """Assert that the tables of all days that are over have the counts of the ledger."""
    found = Counter[tuple[str, str]]()
    for path in (output / "throughput").iterdir():
        day = path.name.removeprefix("dt=")
        for row in pq.read_table(path).to_pylist():
            found.update({(day, kind): row[kind] for kind in KINDS})
    assert +found == {
        (day, kind): number
        for (day, kind), number in truth.items()
        if day <= str(last) and kind in KINDS
    }
    assert {kind for _, kind in +found} == {
        *("set", "replaced", "leased", "completed", "failed"),
        *("returned", "lost", "buried", "purged"),
    }


def assert_reports_tell(weeks: Weeks, output: Path, last: date) -> None:
    """Assert that the report of each day has the attempts without success of the ledger."""
    told = {
        path.stem: re.findall(
            r"attempts without success<b>([0-9,]+)</b><small>([0-9.]+%) of all", path.read_text()
        )
        for path in (output / "reports").iterdir()
    }
    days = sorted(day for day in weeks.ended if day <= str(last))
    assert told == {
        day: [(f"{weeks.unsuccessful[day]:,}", f"{weeks.unsuccessful[day] / weeks.ended[day]:.1%}")]
        for day in days
    }
    assert all(0 < weeks.unsuccessful[day] < weeks.ended[day] for day in days[1:])


def overflow(weeks: Weeks, output: Path) -> None:
    """Work with an archive that is too small; the segments that the events lack are named."""
    first = weeks.day
    with (
        weeks.daemon("--archive-bytes-max", str(OVERFLOW_BYTES)) as daemon,
        SyncClient(daemon.address) as client,
    ):
        for _ in range(OVERFLOWING_DAYS):
            weeks.work(client)
            weeks.next_day(client)
        snapshot = client.snapshot()
    take_archive(OsDisk(), str(weeks.archive), open_events(str(output))[1])
    events, (gap,) = history(output, weeks.archive)
    told = read_manifest(OsDisk(), snapshot).archive_gaps
    assert [(one.first, one.last, one.reason) for one in told] == [(gap.first, gap.last, "dropped")]
    assert [found[:2] for found in gaps_of(events.segments())] == [gap[:2]], "the chain tells it"
    taken = {segment.number for segment in events.segments()}
    gone = set(range(gap.first, gap.last + 1))
    assert not taken & gone
    assert taken | gone == set(range(1, max(taken) + 1)), "each segment is in, or named"
    found = counts_of(output / "events")
    whole = {key: number for key, number in weeks.truth.items() if key[0] < str(first)}
    assert {key: number for key, number in found.items() if key[0] < str(first)} == whole
    lacking = weeks.truth - found
    assert {"set", "leased", "completed", "failed"} <= {kind for _, kind in lacking}
    assert found - weeks.truth == Counter(), "the gap makes no other event of any"
