"""Log metrics: group commit, segments, disk, compaction and the archive of sealed segments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from fastjournald.compaction.policy import excess
from fastjournald.observability.metric_values import histogram, labelled_counter
from fastjournald.runtime import Runtime


def log_metrics(runtime: Runtime, gauges: Mapping[str, int]) -> Iterator[Metric]:
    """Yield metrics of group commit, segments, disk and compaction.

    Args:
        runtime: The daemon's parts.
        gauges: Gauges of the daemon by name, as STATS gives them.
    """
    commit, counters = runtime.commit, runtime.counters
    yield histogram(
        "fastjournal_commit_bytes",
        "Histogram of bytes per write to the log (group commit).",
        commit.batch_bytes,
        1,
    )
    yield histogram(
        "fastjournal_sync_seconds",
        "Histogram of the duration of a sync of the log.",
        commit.sync_us,
        1e-6,
    )
    yield GaugeMetricFamily(
        "fastjournal_sync_in_thread",
        "1 while syncs run in a thread because the disk is slow, 0 while in the event loop.",
        int(commit.estimate.in_thread),
    )
    for name, text in (
        ("log_bytes", "Bytes of all segments of the log."),
        ("log_live_bytes", "Bytes of the live records in the log: those that compaction keeps."),
        ("log_segments", "Segments of the log."),
        ("read_only", "1 while the disk is nearly full and new work is refused, else 0."),
    ):
        yield GaugeMetricFamily(f"fastjournal_{name}", text, gauges[name])
    yield from _disk_space(runtime)
    yield GaugeMetricFamily(
        "fastjournal_compaction_debt",
        "Part by which the log is larger than compaction leaves it; 0: it keeps up.",
        max(0.0, excess(runtime.engine.store, runtime.writer)),
    )
    yield from _write_stalls(runtime)
    yield labelled_counter(
        "fastjournal_log_cleaned",
        "Segments that compaction examined, by outcome.",
        ["outcome"],
        (((outcome,), count) for outcome, count in counters.compaction_outcomes.items()),
    )
    yield CounterMetricFamily(
        "fastjournal_log_freed_bytes",
        "Bytes that compaction freed.",
        counters.compaction_freed_bytes,
    )
    yield GaugeMetricFamily(
        "fastjournal_snapshot_entries",
        "Live entries of the last snapshot; 0: none was taken since the start.",
        counters.snapshot_entries,
    )
    yield GaugeMetricFamily(
        "fastjournal_snapshot_seconds",
        "Duration of the last snapshot, from its request on.",
        counters.snapshot_seconds,
    )


def _disk_space(runtime: Runtime) -> Iterator[Metric]:
    space = runtime.counters.disk_space
    if space is None:
        return
    yield GaugeMetricFamily(
        "fastjournal_disk_free_bytes",
        "Free bytes of the file system of the log, at the last look.",
        space.bytes,
    )
    if space.inodes is not None:
        yield GaugeMetricFamily(
            "fastjournal_disk_free_inodes",
            "Free inodes of the file system of the log, at the last look.",
            space.inodes,
        )


def _write_stalls(runtime: Runtime) -> Iterator[Metric]:
    pressure = runtime.backpressure
    yield GaugeMetricFamily(
        "fastjournal_writers_waiting",
        "Clients whose requests wait because the log is far larger than its live bytes.",
        pressure.waiting,
    )
    yield CounterMetricFamily(
        "fastjournal_writers_waits",
        "Number of waits of clients because of the size of the log.",
        pressure.waited,
    )
    yield CounterMetricFamily(
        "fastjournal_writers_waited_seconds",
        "Duration of these waits, in sum.",
        pressure.waited_seconds,
    )


def archive_metrics(runtime: Runtime) -> Iterator[Metric]:
    """Yield metrics of the archive of sealed segments; none without one."""
    archive = runtime.archive
    if archive is None:
        return
    waiting = archive.waiting(runtime.writer.sealed)
    for name, text, value in (
        ("segments", "Files in the archive of sealed segments.", archive.segments),
        ("bytes", "Bytes of these files.", archive.bytes),
        ("waiting_segments", "Sealed segments without a link so far.", len(waiting)),
    ):
        yield GaugeMetricFamily(f"fastjournal_archive_{name}", text, value)
    for name, text, value in (
        ("dropped_segments", "Segments that the bound removed.", archive.dropped),
        ("missed_segments", "Segments that were never archived.", archive.missed),
        ("failures", "Attempts to link or remove that failed.", archive.failures),
    ):
        yield CounterMetricFamily(f"fastjournal_archive_{name}", text, value)
