"""From a daemon to the report: the installed command, and the jobs against a ledger."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import google_crc32c
import msgspec
import pyarrow.parquet as pq
import pytest
from pyarrow import ArrowInvalid

import fastjournal.spark
from fastjournal.client import SyncClient
from fastjournal.cmdlog.archive import (
    FORMAT,
    VERSION,
    ArchivedSegment,
    ArchiveState,
    Gap,
    write_state,
)
from fastjournal.cmdlog.snapshot import MANIFEST_NAME
from fastjournal.disk import OsDisk
from fastjournal.errors import LogFailedError
from fastjournal.keys import build_journal_key
from fastjournal.spark.history.archive_taking import take_archive
from fastjournal.spark.history.days import begin_us
from fastjournal.spark.history.event_files import open_events
from fastjournal.spark.nightly import analysis_jobs
from fastjournal.spark.nightly.analysis_jobs import BACKLOG_NUMBERS
from fastjournal.spark.nightly.day_store import DayState, DayStore
from fastjournal.spark.nightly.preparation import Night
from fastjournal.spark.nightly.report.texts import count, duration
from fastjournal.spark.nightly.run import NightOutcome, run_night
from fastjournal.testing.logs import SegmentBuilder
from fj_cli.demo.history import ERROR, SLOW_US, HistoryLedger
from fj_cli.demo.players import load_changes
from tests.integration.browser import CHROMIUM
from tests.integration.daemon_process import DaemonProcess
from tests.integration.programs import installed, run_program
from tests.spark.java_machine import JavaMachine
from tests.spark.random_logs import by_position, replayed
from tests.spark.report_screenshots import DAY, SCREENS, UNTIL_US, look, simulate
from tests.spark.test_spark_views import as_told, read, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOUR = 3600 * 1_000_000
OPTIONS = ("--cmdlog-seg-size", "4096")
NEVER_US = 4_000_000_000_000_000
# Commands that Spark's start script calls; java is not among them.
TOOLS = (
    "bash",
    "sh",
    "dirname",
    "env",
    "cat",
    "ls",
    "ps",
    "uname",
    "nice",
    "chmod",
    "readlink",
    "id",
)

CHANGES = 1_500
DAYS = 7
DAMAGED = "20261101T000000.000000Z"
"""Snapshot beside that of the run, with a damaged manifest."""


class Played(NamedTuple):
    """The simulated weeks, and what the nightly run made of them."""

    ledger: HistoryLedger
    output: Path
    snapshot: str
    outcome: NightOutcome


@pytest.fixture(scope="module")
def played(java_machine: JavaMachine, tmp_path_factory: pytest.TempPathFactory) -> Played:
    # Spark and Hadoop take these characters for a glob, or for those of a URI
    directory = tmp_path_factory.mktemp("night[1]{a,b}")
    output = directory / "out *?%41 #"
    ledger, archive, snapshot = simulate(directory, load_changes()[-CHANGES:], DAYS)
    damaged = directory / "snapshots" / DAMAGED
    damaged.mkdir()
    (damaged / MANIFEST_NAME).write_text("{")

    def start() -> SparkSession:
        spark = java_machine.session()
        # a session of spark-submit has the zone of its machine
        spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
        return spark

    night = Night(DAY, DayStore(str(output)), str(output), str(archive), snapshot)
    return Played(ledger, output, snapshot, run_night(start, night))


def stored(played: Played, name: str, day: date = DAY) -> list[dict[str, Any]]:
    return list(pq.read_table(played.output / name / f"dt={day}").to_pylist())


def days_of(played: Played, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield day and row of a table, of all days."""
    for path in sorted((played.output / name).iterdir()):
        for row in pq.read_table(path).to_pylist():
            yield path.name.removeprefix("dt="), row


def percentile(values: list[int], share: float) -> int:
    return sorted(values)[math.ceil(share * len(values)) - 1]


def until_midnight(day: str) -> bool:
    """Whether a day of the ledger is over: only those have tables."""
    return day <= str(DAY)


def test_throughput_of_all_days_equals_the_ledger(played: Played) -> None:
    found: Counter[tuple[str, str, str]] = Counter()
    for day, row in days_of(played, "throughput"):
        assert day == str(row["minute"].date())
        found.update({(day, row["domain"], kind): row[kind] for kind in analysis_jobs.KINDS})
    expected = {key: n for key, n in played.ledger.events.items() if until_midnight(key[0])}
    assert +found == Counter(expected)
    assert {kind for _, _, kind in expected} >= {"set", "replaced", "leased", "lost", "failed"}
    # the sum over days, and the rest of the last night, is the whole
    assert sum(1 for _ in days_of(played, "hours")) > 24
    starts = {row["hour"] for _, row in days_of(played, "hours")} - {None}
    assert {start.minute for start in starts} == {0}, "hours of UTC, whatever the session's zone"
    counted = found.total() + sum(
        n for key, n in played.ledger.events.items() if not until_midnight(key[0])
    )
    assert counted == played.ledger.events.total()


def test_spark_percentiles_of_wait_and_run_times_equal_the_ledger(played: Played) -> None:
    ledger, seen = played.ledger, 0
    for day, row in days_of(played, "hours"):
        if not row["all_hours"] or row["all_domains"]:
            continue
        for name, values in (("wait", ledger.waits), ("run", ledger.runs)):
            own = values.get((day, row["domain"]), [])
            if own:
                seen += 1
                wanted = {
                    key: percentile(own, share) for key, share in analysis_jobs.PERCENTILES.items()
                }
                assert {key: row[f"{name}_{key}_us"] for key in wanted} == wanted
                assert row[f"{name}_max_us"] == max(own)
    assert seen > 2 * DAYS
    # hours and totals are the same events
    rows = stored(played, "hours")
    total = next(row for row in rows if row["all_domains"] and row["all_hours"])
    hours = [row for row in rows if row["all_domains"] and not row["all_hours"]]
    assert len(hours) > 5
    assert sum(row["leased"] for row in hours) == total["leased"]


def test_attempts_and_failures_equal_the_ledger(played: Played) -> None:
    ledger = played.ledger
    found = {
        (day, row["domain"], row["attempt"], kind): row[kind]
        for day, row in days_of(played, "attempts")
        for kind in analysis_jobs.LEASE_KINDS
        if row[kind]
    }
    assert found == {key: n for key, n in ledger.attempts.items() if until_midnight(key[0])}
    assert max(attempt for _, _, attempt, _ in found) > 2
    failures = {
        (day, row["domain"], row["reason"]): [row["count"], row["first_seen"], row["last_seen"]]
        for day, row in days_of(played, "failures")
        if row["event"] == "failed"
    }
    assert failures == {
        key: [len(times), instant(min(times)), instant(max(times))]
        for key, times in ledger.failures.items()
        if until_midnight(key[0])
    }
    assert failures


def instant(us: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)


def test_usage_of_uris_equals_the_ledger(played: Played) -> None:
    found = {(day, row["uri"]): row["set"] for day, row in days_of(played, "churn") if row["set"]}
    assert found == {key: n for key, n in played.ledger.changes.items() if until_midnight(key[0])}
    assert max(found.values()) > 1


def test_backlog_and_ages_at_the_snapshot_equal_the_ledger(played: Played) -> None:
    live = played.ledger.live
    expected: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    for work in live:
        row = expected[work.domain.decode(), work.priority]
        state = "buried" if work.buried else "worked_on" if work.lease_start else "waiting"
        row.update(entries=1, **{state: 1})
        if state == "waiting":
            row["due" if work.due <= UNTIL_US else "delayed"] += 1
    found = {
        (row["domain"], row["priority"]): Counter({key: row[key] for key in BACKLOG_NUMBERS})
        for row in stored(played, "backlog")
    }
    assert {key: +row for key, row in found.items()} == expected
    assert sum(row["due"] for row in found.values())
    waiting = [work for work in live if not work.buried and not work.lease_start]
    ages = stored(played, "ages")
    assert sum(row["due"] + row["delayed"] for row in ages) == len(waiting)
    young = [work for work in waiting if HOUR <= UNTIL_US - work.created < 6 * HOUR]
    assert young
    rows = [row for row in ages if row["age"] == "under 6 hours"]
    assert sum(row["due"] + row["delayed"] for row in rows) == len(young)
    starving = stored(played, "starving")
    oldest = max(UNTIL_US - work.due for work in waiting if work.due <= UNTIL_US)
    assert [row["domain"] for row in starving] == ["peps.python.org"]
    assert starving[0]["oldest_due_us"] == oldest
    assert starving[0]["leased"] == played.ledger.events[str(DAY), "peps.python.org", "leased"]


def test_backlog_counts_what_work_on_a_plain_entry_holds_back_as_delayed(
    spark: SparkSession,
) -> None:
    schema = (
        "domain STRING, priority INT, uri BINARY, state STRING, "
        "not_before BIGINT, worked_on_until BIGINT, created BIGINT"
    )
    entries = [
        (None, None, b"held", "worked_on", 0, 900, 1),
        ("web", 1, b"held", "waiting", 0, 0, 1),
        ("web", 1, b"free", "waiting", 0, 0, 1),
    ]
    table = analysis_jobs.journal(spark.createDataFrame(entries, schema), 500)
    (row,) = analysis_jobs.backlog(table).collect()
    assert (row["entries"], row["due"], row["delayed"]) == (2, 1, 1)


def test_log_size_and_dead_share_equal_the_snapshot(played: Played) -> None:
    rows = stored(played, "log")
    infos = played.ledger.segments
    # the header of a segment is no record
    sizes = {info.number: (info.bytes - 8, info.records) for info in infos}
    assert {row["segment"]: (row["bytes"], row["records"]) for row in rows} == sizes
    assert sum(row["live_records"] for row in rows) == len(played.ledger.live)
    assert 0 < sum(row["live_bytes"] for row in rows) < sum(row["bytes"] for row in rows)


def starving_headline(played: Played) -> str:
    (row,) = stored(played, "starving")
    return f"peps.python.org: nobody took its work after {row['last_leased']:%H:%M} on {DAY}"


def test_report_says_where_why_and_since_when_work_was_slow(played: Played) -> None:
    slow = {(one.domain, one.what): one for one in played.outcome.slow}
    one = slow["gohugo.io", "run"]
    since = instant(UNTIL_US - SLOW_US)
    assert one.since == since.date()
    assert one.since_hour is not None
    assert one.since_hour >= since.hour
    assert ("peps.python.org", "run") not in slow
    first = min(min(times) for times in played.ledger.failures.values())
    assert [cause.since for cause in one.causes if ERROR.decode() in cause.text] == [instant(first)]
    page = Path(played.outcome.report).read_text()
    runs = played.ledger.runs[str(DAY), "gohugo.io"]
    assert duration(percentile(runs, 0.9)) in page
    assert "gohugo.io: work took long" in page
    assert starving_headline(played) in page
    assert f"{DAMAGED}: the manifest cannot be read" in page
    assert "http-equiv" in page
    assert not {"<script", "<link", "<img", "url(", "@import"} & set(page.split())
    # one span without a gap, up to the instant of the snapshot
    (span,) = played.outcome.figures.spans
    assert (span.last_us, span.last_segment) == (UNTIL_US, len(played.ledger.segments))


@pytest.fixture(scope="module")
def seen(played: Played) -> dict[str, dict[str, Any]]:
    """The report as a browser has it, by screen."""
    if CHROMIUM is None:
        pytest.skip("no chromium here: apt-get install chromium")
    return look(Path(played.outcome.report))


def total_and_domains(played: Played) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the rows of the day for all domains, and for each, the largest one first."""
    rows = [row for row in stored(played, "hours") if row["all_hours"]]
    (total,) = (row for row in rows if row["all_domains"])
    domains = [row for row in rows if not row["all_domains"]]
    domains.sort(key=lambda row: -row["set"] - row["leased"] - row["completed"])
    return total, domains


def unsuccessful_of(ledger: HistoryLedger) -> int:
    """Return how many attempts of the day ended by an error, a lost lease or a burial."""
    failures = ("failed", "lost", "buried")
    return sum(
        n for (day, *_, kind), n in ledger.attempts.items() if day == str(DAY) and kind in failures
    )


def hours_of_all_domains(played: Played) -> dict[int, dict[str, Any]]:
    rows = (row for row in stored(played, "hours") if row["all_domains"] and not row["all_hours"])
    return {row["hour"].hour: row for row in rows}


def times(row: dict[str, Any], name: str) -> list[str]:
    """Return the texts of the percentiles of a row, and of its longest time."""
    return [duration(row[f"{name}_{key}_us"]) for key in (*analysis_jobs.PERCENTILES, "max")]


def test_report_in_a_browser_fits_its_screens_and_has_charts_with_marks(
    played: Played, seen: dict[str, dict[str, Any]]
) -> None:
    total, domains = total_and_domains(played)
    due = sum(row["due"] for row in stored(played, "backlog"))
    assert seen.keys() == SCREENS.keys()
    for name, page in seen.items():
        assert page["needed"] == page["width"] == SCREENS[name].width
        assert (page["beyond"], page["wide"]) == ([], [])
        charts = {chart["label"]: chart for chart in page["charts"]}
        assert len(charts) == 4 + 2 * len(domains)
        for chart in charts.values():
            assert 300 < chart["width"] <= page["width"], chart
            assert chart["marks"], chart
            assert chart["cut"] == [], chart
        assert charts["Completed work by hour"]["told"] == [
            f"{hour:02}: {row['completed']} completed"
            for hour, row in sorted(hours_of_all_domains(played).items())
            if row["completed"]
        ]
        assert dict(card.split("\n")[:2] for card in page["cards"]) == {
            "requests": count(total["set"]),
            "executions": count(total["completed"]),
            "requests saved": count(total["replaced"]),
            "wait, p90": duration(total["wait_p90_us"]),
            "run, p90": duration(total["run_p90_us"]),
            "attempts without success": count(unsuccessful_of(played.ledger)),
            "due and waiting": count(due),
        }
        slow = dict(text.split("\n", 1) for text in page["slow"])
        assert len(slow) == len(played.outcome.slow) + 1
        assert ERROR.decode() in slow["gohugo.io: work took long"]
        assert "Since: 2026-11-19" in slow["gohugo.io: work took long"]
        assert "were due" in slow[starving_headline(played)]


def test_events_of_days_are_read_from_their_files_on_this_machine(
    spark: SparkSession, played: Played
) -> None:
    spark.conf.set("fs.defaultFS", "hdfs://elsewhere.invalid")
    try:
        found = fastjournal.spark.events(spark, played.output, days=[DAY])
        files = found.inputFiles()
        days = {row.day for row in found.select("day").distinct().collect()}
    finally:
        spark.conf.unset("fs.defaultFS")
    assert days == {DAY}
    assert files
    assert [file for file in files if f"/events/day={DAY}/" not in file] == []
    assert fastjournal.spark.events(spark, played.output, days=[]).count() == 0
    assert fastjournal.spark.events(spark, played.output).where("day <> '2026-11-21'").count()


def test_events_of_a_place_without_any_are_an_error(
    spark: SparkSession, played: Played, tmp_path: Path
) -> None:
    (tmp_path / "events").mkdir()
    for place in (tmp_path / "gone", tmp_path, f"{played.output}/events", played.snapshot):
        with pytest.raises(LogFailedError, match=r"events: there are no events \(name the"):
            fastjournal.spark.events(spark, place)


def test_run_without_an_archive_computes_the_tables_of_its_snapshot(
    spark: SparkSession, played: Played, tmp_path: Path
) -> None:
    output = str(tmp_path / "out")
    outcome = run_night(lambda: spark, Night(DAY, DayStore(output), output, None, played.snapshot))
    assert Path(outcome.report).exists()
    backlog = pq.read_table(f"{output}/backlog/dt={DAY}").to_pylist()
    assert sum(row["entries"] for row in backlog) == len(played.ledger.live)


def test_run_again_changes_nothing_and_needs_no_spark(played: Played) -> None:
    def start() -> SparkSession:
        raise AssertionError("nothing has to be computed")

    before = {path: path.read_bytes() for path in played.output.rglob("*") if path.is_file()}
    night = Night(DAY, DayStore(str(played.output)), str(played.output))
    assert run_night(start, night).report == played.outcome.report
    after = {path: path.read_bytes() for path in played.output.rglob("*") if path.is_file()}
    assert after.keys() == before.keys()
    report = Path(played.outcome.report)
    assert {path for path in after if after[path] != before[path]} <= {report}


def test_report_is_written_for_each_day_whose_tables_were_computed(played: Played) -> None:
    reports = {path.stem for path in (played.output / "reports").iterdir()}
    assert reports == {path.stem for path in (played.output / "days").iterdir()}
    assert len(reports) == DAYS
    older = (played.output / "reports" / "2026-11-18.html").read_text()
    (total,) = (
        row
        for row in stored(played, "hours", date(2026, 11, 18))
        if row["all_hours"] and row["all_domains"]
    )
    assert f"requests<b>{count(total['set'])}</b>" in older
    assert "so the state of the entries is not known" in older


def test_report_of_an_older_day_is_written_again_where_a_gap_or_its_events_came_late(
    played: Played, tmp_path: Path
) -> None:
    def start() -> SparkSession:
        raise AssertionError("nothing has to be computed")

    output = tmp_path / "out"
    shutil.copytree(played.output, output)
    gap_day, crash_day = date(2026, 11, 18), date(2026, 11, 17)
    # an archive that names what it has dropped before the first segment
    archive = tmp_path / "archive"
    archive.mkdir()
    first = min(int(path.name[8:17]) for path in (output / "events").glob("*/*"))
    begin = begin_us(gap_day) + 6 * HOUR
    gap = Gap(first - 1, first - 1, 1, 9, begin, begin + 6 * HOUR, "dropped")
    write_state(OsDisk(), str(archive), ArchiveState(FORMAT, VERSION, first, None, (gap,)))
    # the run that computed the tables of this day was killed before it wrote the report
    description = output / "days" / f"{crash_day}.json"
    state = msgspec.json.decode(description.read_bytes(), type=DayState)
    description.write_bytes(msgspec.json.encode(msgspec.structs.replace(state, covered=None)))
    reports = sorted((output / "reports").iterdir())
    before = {path.stem: path.read_text() for path in reports}
    (output / "reports" / f"{crash_day}.html").write_text("old figures")

    night = Night(DAY, DayStore(str(output)), str(output), str(archive))
    run_night(start, night)
    after = {path.stem: path.read_text() for path in reports}
    assert "gap: dropped" in after[str(gap_day)]
    assert "The data covers 75.0 % of this day" in after[str(gap_day)]
    assert "old figures" not in after[str(crash_day)]
    changed = {day for day in after if after[day] != before[day]}
    assert changed == {str(gap_day), str(crash_day), str(DAY)}

    for path in reports:
        path.write_text("as it was")
    run_night(start, night)
    assert {path.stem for path in reports if path.read_text() != "as it was"} == {str(DAY)}

    # a segment that no archive names is told by the one behind it, until it comes
    number = sorted(int(path.name[8:17]) for path in (output / "events").glob("*/*"))[-1] - 1
    lost = list((output / "events").glob(f"*/segment-{number:09d}-*"))
    days = {path.parent.name.removeprefix("day=") for path in lost}
    for come in (False, True):
        for path in lost:
            kept = tmp_path / path.parent.name
            (kept if come else path).rename(path if come else kept)
        run_night(start, night)
        told = {path.stem for path in reports if "gap: missing" in path.read_text()}
        assert bool(told & days) != come
        assert come or str(DAY) in told


def test_run_that_prunes_events_keeps_tables_and_reports_of_their_days(
    played: Played, tmp_path: Path
) -> None:
    def start() -> SparkSession:
        raise AssertionError("nothing has to be computed")

    output = tmp_path / "out"
    shutil.copytree(played.output, output)
    archive = tmp_path / "archive"
    archive.mkdir()
    state = ArchiveState(FORMAT, VERSION, len(played.ledger.segments) + 1, None, ())
    write_state(OsDisk(), str(archive), state)
    night = Night(DAY, DayStore(str(output)), str(output), str(archive), keep_events=2)
    reports = sorted((output / "reports").iterdir())
    before = {path.stem: path.read_text() for path in reports}
    span = fastjournal.spark.event_span(output)
    assert span is not None
    for number in range(3):
        run_night(start, night)
        days = {path.name for path in (output / "events").iterdir()}
        assert days == {"day=2026-11-20", "day=2026-11-21", "day=2026-11-22"}
        # the history of the others is what their reports have shown
        after = {path.stem: path.read_text() for path in reports}
        assert {day for day in after if after[day] != before[day]} <= {str(DAY)}
        kept = fastjournal.spark.event_span(output)
        assert kept is not None
        assert (kept.first_us, kept.last_us) == (begin_us(date(2026, 11, 20)), span.last_us)
        assert kept.gaps == []
        if number == 1:
            # a segment of a pruned day is put back: the tables lack nothing of it
            for info in played.ledger.segments[:1]:
                name = f"{info.number:09d}-{info.crc32c:08x}.log"
                os.link(played.output.parent / "log" / info.name, archive / name)


def test_run_that_prunes_leaves_the_last_days_and_computes_no_older_ones(played: Played) -> None:
    def start() -> SparkSession:
        raise AssertionError("nothing has to be computed")

    night = Night(DAY, DayStore(str(played.output)), str(played.output), keep_days=2)
    for _ in range(2):
        run_night(start, night)
        left = {path.name for path in (played.output / "hours").iterdir()}
        assert left == {"dt=2026-11-20", "dt=2026-11-21"}
        assert len(list((played.output / "days").iterdir())) == 2


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A daemon that has had all kinds of work, and the snapshot that it took."""
    directory = tmp_path_factory.mktemp("daemon")
    with (
        DaemonProcess(directory, *OPTIONS, "--archive-dir", f"{directory}/archive") as daemon,
        SyncClient(daemon.address) as client,
    ):
        for number in range(40):
            key = build_journal_key("web", f"{number}", priority=number % 3)
            client.set(key, b"v" * number, uri=f"http://web/{number}")
        for number in range(5):
            later = build_journal_key("later", f"{number}", not_before_us=NEVER_US)
            client.set(later, b"later")
        client.set("plain", b"value")
        client.set("plain", b"other", overwrite=True)
        done = client.next("web", count=10, lease=HOUR / 1e6)
        assert done.token is not None
        for pair in done.pairs[:6]:
            client.delete(pair.key, token=done.token)
        client.release(done.pairs[6].key, done.token)
        # The page of a job that is worked on changes again.
        again = build_journal_key("web", "again")
        client.set(again, b"new", uri=done.pairs[7].uri)
        # the same where a plain entry is worked on
        client.set("page", b"old", uri="http://page")
        client.get("page", lease=HOUR / 1e6)
        client.set(build_journal_key("web", "page"), b"new", uri="http://page")
        client.delete(build_journal_key("web", "39", priority=0))
        stats = client.stats("web")
        snapshot = client.snapshot()
        yield daemon, Path(snapshot), stats


def test_entries_of_a_snapshot_equal_the_replay(spark: SparkSession, work: Any) -> None:
    _, snapshot, _ = work
    rows = rows_of(read(spark, snapshot, "entries", instants="us"))
    assert rows == as_told(replayed(snapshot))
    assert sum(row[-5] is not None for row in rows) == 2


def test_spark_nightly_command_runs_without_a_java_of_the_system(
    spark: SparkSession, work: Any, tmp_path: Path
) -> None:
    daemon, _, stats = work
    path = tmp_path / "bin"
    path.mkdir()
    for tool in TOOLS:
        found = next(
            (Path(place, tool) for place in os.defpath.split(":") if Path(place, tool).exists()),
            None,
        )
        if found is not None:
            (path / tool).symlink_to(found)
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("JAVA", "SPARK", "PYSPARK", "FASTJOURNAL"))
    }
    output = tmp_path / "out"
    code = "from fastjournal.spark.nightly import main; main()"
    archive = daemon.directory / "archive"
    options = ["--server", daemon.address, "--output", str(output), "--master", "local[2]"]
    options += ["--archive", str(archive), "--keep-snapshots", "1"]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *options],
        env={**environment, "PATH": str(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr[-3000:]) == (0, "")
    (snapshot,) = (daemon.log_path / "snapshots").iterdir()
    taken = datetime.strptime(snapshot.name, "%Y%m%dT%H%M%S.%fZ").replace(tzinfo=UTC)
    day = taken.date() - timedelta(days=1)
    report = Path(done.stdout.splitlines()[-1])
    assert report == output / "reports" / f"{day}.html"
    assert "snapshot of" in report.read_text()
    wide = {str(path) for path in (output, *output.rglob("*")) if path.stat().st_mode & 0o027}
    assert not wide, "readable by others than the log"
    backlog: dict[str, Counter[str]] = defaultdict(Counter)
    for row in pq.read_table(output / "backlog" / f"dt={day}").to_pylist():
        backlog[row["domain"]].update({name: row[name] for name in BACKLOG_NUMBERS})
    assert backlog["web"] == {name: stats[name] for name in BACKLOG_NUMBERS}
    assert backlog["later"]["delayed"] == 5
    entries = pq.read_table(output / "entries" / f"dt={day}", partitioning=None)
    assert by_position([tuple(row.values()) for row in entries.to_pylist()]) == replayed(snapshot)
    assert {path.name for path in output.iterdir()} >= {"events", "entries", "log", "starving"}

    # What happened, once, though compaction and other snapshots came in between.
    assert not list(archive.glob("*.log"))
    found = fastjournal.spark.events(spark, output).groupBy("event").count().collect()
    counts = {row["event"]: row["count"] for row in found}
    assert counts == {
        "set": 50,
        "replaced": 1,
        "leased": 11,
        "completed": 6,
        "returned": 1,
        "deleted": 1,
    }
    for history in (output, snapshot):
        view = read(spark, history, "events").groupBy("event").count()
        assert {row["event"]: row["count"] for row in view.collect()} == counts
    plain = pq.read_table(output / "events").to_pylist()
    assert Counter(row["event"] for row in plain) == counts


def test_error_while_spark_writes_is_one_sentence_with_the_table(
    java_machine: JavaMachine, tmp_path: Path
) -> None:
    output, file = tmp_path / "out", tmp_path / "file"
    file.touch()
    archive = tmp_path / "archive"
    with (
        DaemonProcess(tmp_path, "--archive-dir", str(archive)) as daemon,
        SyncClient(daemon.address) as client,
    ):
        client.set(build_journal_key("web", "1"), b"v")
        snapshot = client.snapshot()
    java_machine.session()
    java_machine.said()
    # a directory cannot be made below a file, whoever runs this
    code = (
        "from fastjournal.spark.nightly import analysis_jobs, main; "
        "uri = analysis_jobs.hadoop_uri; analysis_jobs.hadoop_uri = "
        f"lambda place: uri(place) if '/entries/' in place else 'file://{file}/table'; "
        "main()"
    )
    options = ["--archive", str(archive), "--output", str(output), "--master", "local[2]"]
    day = datetime.now(UTC).date() - timedelta(days=1)
    done = subprocess.run(
        [sys.executable, "-c", code, *options, "--snapshot", snapshot, "--date", str(day)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | java_machine.lend(),
    )
    assert (done.returncode, done.stdout) == (74, ""), done.stderr
    (said,) = done.stderr.splitlines()
    assert said.startswith(f"fj-nightly: {output}/nightly-staging/")
    assert ": Spark cannot write the table: " in said
    assert str(file) in said
    assert java_machine.said() == "", "of Java"


def test_archive_of_a_new_daemon_is_taken_on_the_first_night(
    java_machine: JavaMachine, tmp_path: Path
) -> None:
    archive, output = tmp_path / "archive", tmp_path / "out"
    with (
        DaemonProcess(tmp_path, "--archive-dir", str(archive)) as daemon,
        SyncClient(daemon.address) as client,
    ):
        for number in range(2):
            client.set(build_journal_key("web", f"{number}"), b"v")
        assert [path.name for path in archive.iterdir()] == ["append.lock"]
        options = ["--server", daemon.address, "--archive", str(archive), "--master", "local[2]"]
        done = run_program(
            [installed("fj-nightly"), *options, "--output", str(output)],
            capture_output=True,
            text=True,
            env=os.environ | java_machine.lend(),
        )
    assert (done.returncode, done.stderr, java_machine.said()) == (0, "", "")
    assert pq.read_table(output / "events")["event"].to_pylist() == ["set", "set"]


FAR_US = {"2300": 10_413_792_000_000_000, "11476": 300_000_000_000_000_000}
"""Instants that Python shows and pandas does not, and that neither does."""


def test_event_instants_behind_the_years_of_pandas_or_python_are_themselves_or_null(
    spark: SparkSession, tmp_path: Path
) -> None:
    segment = SegmentBuilder()
    for instant in FAR_US.values():
        segment.entry(b"web:001:%d:x" % instant, not_before=instant)
    archive = tmp_path / "archive"
    archive.mkdir()
    data = bytes(segment)
    (archive / ArchivedSegment(1, google_crc32c.value(data)).name).write_bytes(data)
    expected = [datetime(2300, 1, 1, tzinfo=UTC), None]
    view = spark.read.format("fastjournal").option("view", "events").load(str(archive))
    shown = [row.due for row in view.orderBy("offset").collect()]
    assert [one and one.replace(tzinfo=UTC) for one in shown] == expected
    # what Spark writes of a view, and what fj-nightly writes
    view.write.parquet(str(tmp_path / "written"))
    take_archive(OsDisk(), str(archive), open_events(str(tmp_path))[1])
    for place in ("written", "events"):
        table = pq.read_table(tmp_path / place, partitioning=None).sort_by("offset")
        assert table["due"].to_pylist() == expected
    stored = fastjournal.spark.events(spark, tmp_path).orderBy("offset")
    assert [row.due is None for row in stored.collect()] == [False, True]
    with (
        pytest.warns(UserWarning, match="out of bounds"),
        pytest.raises(ArrowInvalid, match="out of bounds"),
    ):
        stored.toPandas()
    micros = spark.read.format("fastjournal").options(view="events", instants="us")
    found: Any = micros.load(str(tmp_path)).orderBy("offset").toPandas()
    assert found["due"][0] == FAR_US["2300"]
    assert found["due"].isna().tolist() == [False, True]
