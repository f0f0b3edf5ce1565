"""Metrics: the daemon's counters in the form that Prometheus reads.

The parts of the daemon count, in plain integers; this module only reads. Figures over all domains
are computed in time slices, so a million domains delay no request. Functions yield the metrics by
subject: requests, connections, entries, log, archive, values, memory, event loop. Those of the
process are in ``process_metrics``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

import trio
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from fastjournal.build_info import BuildInfo, build_info
from fastjournal.limits import METRICS_DOMAINS_MAX
from fastjournal.protocol import Function
from fastjournal.stderr_queue import bytes_waiting, lines_dropped
from fastjournald.compaction.policy import excess
from fastjournald.engine.handlers.stats import oldest_due
from fastjournald.engine.value_memory import memory_bytes
from fastjournald.histogram import Histogram, Latencies
from fastjournald.observability.domain_totals import SharedTotals, TimeSlices, Totals, total
from fastjournald.observability.page_text import shown
from fastjournald.observability.process_metrics import (
    ProcessFigures,
    process_figures,
    start_seconds,
)
from fastjournald.runtime import Runtime
from fastjournald.tables.locks import LOCK_BYTES

CONNECTION_BYTES = 6_000
"""Memory of a connection without TLS that waits for a request: session, transport, socket."""


class Metrics(Collector):
    """Reads the counters of a daemon.

    Args:
        runtime: The daemon's parts.
        one_at_a_time: Lock of all work in time slices; None: there is no other.
    """

    def __init__(self, runtime: Runtime, one_at_a_time: trio.Lock | None = None) -> None:
        self._runtime = runtime
        self._shared_totals = SharedTotals(partial(total, runtime.engine))
        self._totals = Totals()
        self._labels: dict[bytes, str] = {}
        """By name of a domain, for those of the totals."""
        self._one_at_a_time = one_at_a_time or trio.Lock()
        self._process_figures: ProcessFigures | None = None
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._process_started = start_seconds()

    async def text(self) -> bytes:
        """Return all figures in Prometheus' text format."""
        async with self._one_at_a_time:
            self._totals = await self._shared_totals.get()
            self._process_figures = await trio.to_thread.run_sync(process_figures)
            pairs = self._runtime.engine.counters.replaced
            names = {name for pair in pairs for name in pair}.union(self._totals.largest.names())
            self._labels = await _labels(names)
            return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield every figure."""
        runtime = self._runtime
        gauges = runtime.engine.context.gauges(runtime.clock.now_us())
        yield from self._requests()
        yield from self._connections(gauges)
        yield from entry_metrics(runtime, self._totals, self._labels)
        yield from log_metrics(runtime, gauges)
        yield from archive_metrics(runtime)
        yield from value_metrics(runtime)
        yield from self._memory(gauges)
        yield from self._event_loop(gauges)
        if self._process_figures is not None:
            yield from self._process_figures.collect(self._process_started)

    def _requests(self) -> Iterator[Metric]:
        runtime = self._runtime
        engine, counters = runtime.engine, runtime.counters
        requests = sorted(engine.counters.requests.items())
        errors = sorted(engine.counters.errors.items())
        yield labelled_counter(
            "fastjournal_requests",
            "Requests received, by function.",
            ["function"],
            (((function_name(number),), count) for number, count in requests),
        )
        yield labelled_counter(
            "fastjournal_request_errors",
            "Requests with an error reply, by function and error code.",
            ["function", "code"],
            (((function_name(number), code), count) for (number, code), count in errors),
        )
        yield labelled_counter(
            "fastjournal_replaced",
            "Waiting jobs that gave way, by their URI, to a job of another domain.",
            ["from", "to"],
            (
                ((self._labels[domain], self._labels[by]), count)
                for (domain, by), count in sorted(engine.counters.replaced.items())
                if domain in self._labels and by in self._labels
            ),
        )
        yield latency_histogram(
            "fastjournal_request_seconds",
            "Histogram of the latency of requests, by function: from arrival to reply.",
            counters.latencies,
        )

    def _connections(self, gauges: Mapping[str, int]) -> Iterator[Metric]:
        runtime = self._runtime
        engine, counters = runtime.engine, runtime.counters
        yield labelled_counter(
            "fastjournal_protocol_errors",
            "Connections ended because of malformed bytes, by error code.",
            ["code"],
            (((code,), count) for code, count in sorted(counters.protocol_errors.items())),
        )
        yield GaugeMetricFamily(
            "fastjournal_connections",
            "Connected clients.",
            gauges["connections"],
        )
        yield CounterMetricFamily(
            "fastjournal_connections_refused",
            "Connections refused above max-connections.",
            counters.connections_refused,
        )
        yield labelled_counter(
            "fastjournal_connections_closed",
            "Connections that the daemon closed, by reason: idle, slow, or too much memory.",
            ["reason"],
            (((reason,), count) for reason, count in sorted(counters.connections_closed.items())),
        )
        yield GaugeMetricFamily(
            "fastjournal_inflight_bytes",
            "Bytes held for connections: incomplete requests and unsent replies.",
            runtime.memory.bytes,
        )
        yield GaugeMetricFamily(
            "fastjournal_subscriptions",
            "Active subscriptions (LISTEN of SET and GET).",
            len(engine.subscriptions),
        )
        yield CounterMetricFamily(
            "fastjournal_subscriptions_ended",
            "Subscriptions that the daemon ended because they cost too much.",
            engine.subscriptions.too_costly,
        )
        yield CounterMetricFamily(
            "fastjournal_notifications",
            "Notifications sent to subscribers.",
            engine.notifications.sent,
        )

    def _memory(self, gauges: Mapping[str, int]) -> Iterator[Metric]:
        runtime = self._runtime
        engine = runtime.engine
        store, subscriptions, changes = engine.store, engine.subscriptions, engine.store.changes
        index = store.keys.index
        memory = GaugeMetricFamily(
            "fastjournal_memory_bytes",
            "Bounded memory by kind, as counted, without entries.",
            labels=["kind"],
        )
        for kind, size in (
            ("connections", CONNECTION_BYTES * gauges["connections"]),
            ("index", 0 if index is None else index.dead_bytes()),
            ("inflight", runtime.memory.bytes),
            ("limits", store.rules.limits.bytes + store.rules.limits.interval_bytes),
            ("locks", LOCK_BYTES * len(store.locks)),
            ("log-lines", bytes_waiting()),
            ("news", subscriptions.notifications_bytes),
            ("pauses", store.rules.pauses.bytes),
            ("subscriptions", subscriptions.subscriptions_bytes),
            ("tombstones", store.tombstones.bytes),
            ("unmatched", subscriptions.expressions.bytes + changes.bytes),
            ("waits", engine.waiters.bytes),
        ):
            memory.add_metric([kind], size)
        yield memory
        yield CounterMetricFamily(
            "fastjournal_log_lines_dropped",
            "Log lines dropped because standard error took no more.",
            lines_dropped(),
        )

    def _event_loop(self, gauges: Mapping[str, int]) -> Iterator[Metric]:
        counters = self._runtime.counters
        yield histogram(
            "fastjournal_event_loop_lag_seconds",
            "Histogram of the delay of a timer, measured four times a second.",
            counters.lag_us,
            1e-6,
        )
        yield histogram(
            "fastjournal_turn_seconds",
            "Histogram of turns of the event loop, from one poll of the sockets to the next.",
            counters.turn_us,
            1e-6,
        )
        yield histogram(
            "fastjournal_scan_slice_seconds",
            "Histogram of the time that a slice of a scan used the event loop.",
            counters.scan_slice_us,
            1e-6,
        )
        yield GaugeMetricFamily(
            "fastjournal_scans",
            "Scans that run or wait to begin.",
            counters.scans,
        )
        yield GaugeMetricFamily(
            "fastjournal_clock_behind_seconds",
            "Time by which the clock, which was set back, is behind the newest record of the log.",
            gauges["clock_behind_us"] / 1e6,
        )
        yield labelled_counter(
            "fastjournal_clock_steps",
            "Steps of the clock by more than a second, by direction: ahead, or back.",
            ["direction"],
            (((direction,), count) for direction, count in sorted(counters.clock_steps.items())),
        )
        yield CounterMetricFamily(
            "fastjournal_clock_moved_ends",
            "Leases, delays, pauses and expiries that end at another instant because it was set.",
            self._runtime.engine.context.ends_moved,
        )
        yield GaugeMetricFamily(
            "fastjournal_uptime_seconds",
            "Time since the log was replayed.",
            gauges["uptime_us"] / 1e6,
        )
        build = GaugeMetricFamily(
            "fastjournal_build_info",
            "1, with the version and commit of fastjournal, and the version of Python.",
            labels=list(BuildInfo._fields),
        )
        build.add_metric(list(build_info()), 1)
        yield build


async def _labels(names: Iterable[bytes]) -> dict[bytes, str]:
    """Return names of domains as text, a slice at a time: one of 4 KiB takes some ms."""
    labels, slices = {}, TimeSlices()
    for name in names:
        labels[name] = shown(name)
        await slices.give_way()
    return labels


# --- by subject ---------------------------------------------------------------------------------


def entry_metrics(
    runtime: Runtime, totals: Totals, labels: Mapping[bytes, str]
) -> Iterator[Metric]:
    """Yield metrics of entries, domains and leases.

    Args:
        runtime: The daemon's parts.
        totals: Figures of all domains.
        labels: Names of the largest domains as text.
    """
    store = runtime.engine.store
    entries = GaugeMetricFamily(
        "fastjournal_entries",
        "Entries by state; due and delayed ones wait, plain ones are in no queue.",
        labels=["state"],
    )
    counts = store.counts()
    entries.add_metric(["due"], counts.due)
    entries.add_metric(["delayed"], counts.delayed)
    entries.add_metric(["worked_on"], counts.leased)
    entries.add_metric(["buried"], counts.buried)
    entries.add_metric(["plain"], counts.plain)
    yield entries
    yield GaugeMetricFamily(
        "fastjournal_domains", "Domains with entries.", len(store.scheduler.domains)
    )
    yield GaugeMetricFamily(
        "fastjournal_paused_domains",
        "Paused domains, with entries or without.",
        len(store.rules.pauses),
    )
    now = runtime.clock.now_us()
    yield GaugeMetricFamily(
        "fastjournal_oldest_due_seconds",
        "Time since the oldest unleased entry became due; 0: none is due.",
        _age(totals.oldest_due_us, now),
    )
    yield from _domain_metrics(runtime, totals, labels, now)
    yield CounterMetricFamily(
        "fastjournal_leases_lost",
        "Leases that ended by time, without completion or release.",
        store.leases.lost,
    )
    yield GaugeMetricFamily(
        "fastjournal_tombstones", "Tombstones in memory.", len(store.tombstones)
    )


def _domain_metrics(
    runtime: Runtime, totals: Totals, labels: Mapping[bytes, str], now: int
) -> Iterator[Metric]:
    """Yield gauges of the domains with most entries only: each is a time series of Prometheus."""
    domains = runtime.engine.store.scheduler.domains
    gauges = [
        GaugeMetricFamily(
            f"fastjournal_domain_{name}",
            f"{text}, of the {METRICS_DOMAINS_MAX} domains with most entries.",
            labels=["domain"],
        )
        for name, text in (
            ("waiting_entries", "Entries due or delayed"),
            ("worked_on_entries", "Leased entries"),
            ("buried_entries", "Dead letters"),
            ("oldest_due_seconds", "Time since the oldest entry became due; 0: none is due"),
        )
    ]
    for name in totals.largest.names():
        domain = domains.get(name)
        # a domain that was removed since then is empty
        figures: tuple[float, ...] = (0, 0, 0, 0)
        if domain is not None:
            waiting = len(domain.ready) + len(domain.delayed)
            age = _age(oldest_due(domain), now)
            figures = (waiting, domain.worked_on, domain.buried, age)
        for gauge, figure in zip(gauges, figures, strict=True):
            gauge.add_metric([labels[name]], figure)
    yield from gauges


def value_metrics(runtime: Runtime) -> Iterator[Metric]:
    """Yield metrics of the value cache; none without ``--memory-limit``."""
    store, counters = runtime.engine.store, runtime.counters
    values = store.values
    if values is None:
        return
    yield GaugeMetricFamily(
        "fastjournal_entries_memory_bytes",
        "Estimated memory of entries.",
        memory_bytes(store),
    )
    yield GaugeMetricFamily(
        "fastjournal_entries_memory_limit_bytes",
        "Limit of the memory of entries: memory-limit without the program itself.",
        values.bytes_max,
    )
    yield GaugeMetricFamily("fastjournal_cold_values", "Evicted values: on disk only.", values.cold)
    for name, text, count in (
        ("evicted", "Values that left memory.", values.evicted),
        ("read", "Values that were read from the disk.", counters.values_read),
        ("not_readable", "Reads of a value that failed.", counters.values_unreadable),
    ):
        yield CounterMetricFamily(f"fastjournal_values_{name}", text, count)
    yield histogram(
        "fastjournal_value_read_seconds",
        "Histogram of the time that requests waited for values from disk.",
        counters.value_read_us,
        1e-6,
    )


def _age(instant: int | None, now: int) -> float:
    return 0.0 if instant is None else max(0, now - instant) / 1e6


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


# --- labels and histograms ----------------------------------------------------------------------


def function_name(function: int) -> str:
    """Return the label of a function; ``unknown`` where it has no name."""
    return Function(function).name.lower() if function >= 0 else "unknown"


def histogram(name: str, text: str, values: Histogram, unit: float) -> Metric:
    """Return a histogram; its values are multiples of ``unit``."""
    return HistogramMetricFamily(name, text, _buckets(values, unit), values.total * unit)


def latency_histogram(name: str, text: str, latencies: Latencies) -> Metric:
    """Return a histogram for each requested function: others would be series of zeros."""
    family = HistogramMetricFamily(name, text, labels=["function"])
    for function, values in sorted(latencies.by_function.items()):
        buckets = _buckets(values, 1e-6)
        if buckets[-1][1]:
            family.add_metric([function_name(function)], buckets, values.total * 1e-6)
    return family


def _buckets(values: Histogram, unit: float) -> list[tuple[str, float]]:
    """Return the cumulative counts of a histogram with their bounds."""
    *bounded, count = values.cumulative()
    buckets = [
        (f"{2**exponent * unit:.9g}", float(number))
        for exponent, number in enumerate(bounded, values.exponent_min)
    ]
    return [*buckets, ("+Inf", float(count))]


def labelled_counter(
    name: str,
    text: str,
    labels: Sequence[str],
    counts: Iterable[tuple[tuple[str, ...], int]],
) -> Metric:
    """Return a counter; ``counts`` has the values of its labels, with the count of each."""
    counter = CounterMetricFamily(name, text, labels=labels)
    for values, count in counts:
        counter.add_metric(values, count)
    return counter
