"""Metrics: the daemon's counters in the form that Prometheus reads.

The parts of the daemon count, in plain integers; this module only reads. Figures over all domains
are computed in time slices, so a million domains delay no request. Functions yield the metrics by
subject: requests, connections, entries, jobs, log, archive, values, memory, event loop. Those of
the process are in ``process_metrics``.

The module has over 600 lines, because it is the one list of what the daemon exports: a metric is a
few lines of name, text and source.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

import trio
from prometheus_client import generate_latest
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
from fastjournal.remote.node import TAKEOVER_CAUSES
from fastjournal.stderr_queue import bytes_waiting, lines_dropped
from fastjournald.compaction.policy import excess
from fastjournald.engine.handlers.stats import oldest_in
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
from fastjournald.tables.job_counts import JobCounts
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
        self._shared_totals = SharedTotals(partial(total, runtime.engine, runtime.clock.now_us))
        self._totals = Totals()
        self._labels: dict[bytes, str] = {}
        """By name of a domain."""
        self._domains: list[bytes] = []
        """Domains with series of their own."""
        self._one_at_a_time = one_at_a_time or trio.Lock()
        self._process_figures: ProcessFigures | None = None
        self._process_started = start_seconds()

    async def text(self) -> bytes:
        """Return all figures in Prometheus' text format."""
        async with self._one_at_a_time:
            self._totals = await self._shared_totals.get()
            self._process_figures = await trio.to_thread.run_sync(process_figures)
            pairs = self._runtime.engine.counters.replaced
            self._domains = self._domains_apart()
            names = {name for pair in pairs for name in pair}.union(self._domains)
            self._labels = await _labels(names)
            return await metrics_text(self.collect())

    def _domains_apart(self) -> list[bytes]:
        """Return the domains with series of their own, those with most entries first."""
        scheduler = self._runtime.engine.store.scheduler
        most = scheduler.job_counts.most(METRICS_DOMAINS_MAX)
        return list(dict.fromkeys([*self._totals.largest.names(), *most]))

    def collect(self) -> Iterator[Metric]:
        """Yield every figure."""
        runtime = self._runtime
        gauges = runtime.engine.context.gauges(runtime.clock.now_us())
        yield from self._requests()
        yield from self._connections(gauges)
        yield from entry_metrics(runtime, self._totals)
        labels = {name: self._labels[name] for name in self._domains}
        yield from domain_metrics(runtime, labels)
        yield from job_metrics(runtime, labels)
        yield from log_metrics(runtime, gauges)
        yield from archive_metrics(runtime)
        yield from remote_metrics(runtime)
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
            "1, with version, commit and Python of fastjournal, and whether native leaves run.",
            labels=list(BuildInfo._fields),
        )
        build.add_metric(list(build_info()), 1)
        yield build


class _Family(Collector):
    """One metric, or some series of it.

    Args:
        metric: The metric.
    """

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        """Yield it."""
        yield self._metric


async def metrics_text(metrics: Iterable[Metric]) -> bytes:
    """Return metrics as text, a slice at a time; successive ones of one name share its head."""
    parts: list[bytes] = []
    last, slices = "", TimeSlices()
    for metric in metrics:
        text = generate_latest(_Family(metric))
        if metric.name == last:
            _help, _type, text = text.split(b"\n", 2)
        last = metric.name
        parts.append(text)
        await slices.give_way()
    return b"".join(parts)


async def _labels(names: Iterable[bytes]) -> dict[bytes, str]:
    """Return names of domains as text, a slice at a time: one of 4 KiB takes some ms."""
    labels, slices = {}, TimeSlices()
    for name in names:
        labels[name] = shown(name)
        await slices.give_way()
    return labels


# --- by subject ---------------------------------------------------------------------------------


def entry_metrics(runtime: Runtime, totals: Totals) -> Iterator[Metric]:
    """Yield metrics of entries and domains.

    Args:
        runtime: The daemon's parts.
        totals: Figures of all domains.
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
        store.rules.pauses.domains,
    )
    yield GaugeMetricFamily(
        "fastjournal_all_paused",
        "1 while PAUSE stops the deliveries of all domains.",
        int(store.rules.pauses.everything_until > 0),
    )
    now = runtime.clock.now_us()
    yield GaugeMetricFamily(
        "fastjournal_oldest_due_seconds",
        "Time since the oldest unleased entry became due; 0: none is due.",
        _age(totals.oldest_due_us, now),
    )
    yield GaugeMetricFamily(
        "fastjournal_oldest_waiting_seconds",
        "Time since the oldest waiting entry was asked for, failed or not; 0: none waits.",
        _age(totals.oldest_asked_us, now),
    )
    yield GaugeMetricFamily(
        "fastjournal_tombstones", "Tombstones in memory.", len(store.tombstones)
    )


def domain_metrics(runtime: Runtime, labels: Mapping[bytes, str]) -> Iterator[Metric]:
    """Yield gauges of some domains only: each is a time series of Prometheus.

    Args:
        runtime: The daemon's parts.
        labels: Names of these domains as text.
    """
    domains = runtime.engine.store.scheduler.domains
    now = runtime.clock.now_us()
    gauges = [
        GaugeMetricFamily(f"fastjournal_domain_{name}", f"{text}, by domain.", labels=["domain"])
        for name, text in (
            ("waiting_entries", "Entries due or delayed"),
            ("due_entries", "Entries that NEXT may deliver now"),
            ("worked_on_entries", "Leased entries"),
            ("buried_entries", "Dead letters"),
            ("paused", "1 while the domain is paused, else 0"),
            ("oldest_due_seconds", "Time since the oldest entry became due; 0: none is due"),
            ("oldest_waiting_seconds", "Time since the oldest waiting entry was asked for; or 0"),
        )
    ]
    for name, label in labels.items():
        domain = domains.get(name)
        # a domain that was removed since then is empty
        figures: tuple[float, ...] = (0, 0, 0, 0, 0, 0, 0)
        if domain is not None:
            due = len(domain.ready)
            oldest = oldest_in(domain, now)
            ages = _age(oldest.due, now), _age(oldest.asked, now)
            paused = domain.paused_until > now
            waiting = due + len(domain.delayed)
            figures = (waiting, due, domain.worked_on, domain.buried, paused, *ages)
        for gauge, figure in zip(gauges, figures, strict=True):
            gauge.add_metric([label], figure)
    yield from gauges


_OUTCOMES = (
    ("jobs_completed", "Jobs that their worker completed, or that NEXT popped"),
    ("attempts_failed", "Attempts that a worker ended with an error"),
    ("leases_lost", "Leases that ended by time, without completion or release"),
    ("jobs_buried", "Jobs that became dead letters"),
)


def job_metrics(runtime: Runtime, labels: Mapping[bytes, str]) -> Iterator[Metric]:
    """Yield what became of jobs, and how long they waited and ran: of all, and of some domains."""
    store = runtime.engine.store
    table = store.scheduler.job_counts
    total = table.total()
    apart = [(label, table.by_domain.get(name) or JobCounts()) for name, label in labels.items()]
    for name, text in _OUTCOMES:
        # plain entries are no jobs, but their leases end as well
        count = store.leases.lost if name == "leases_lost" else _outcome(total, name)
        yield CounterMetricFamily(f"fastjournal_{name}", f"{text}.", count)
        yield labelled_counter(
            f"fastjournal_domain_{name}",
            f"{text}, by domain.",
            ["domain"],
            (((label,), _outcome(counts, name)) for label, counts in apart),
        )
    for name, text in (
        ("waited", "time from due to delivery"),
        ("run", "time from delivery to completion"),
    ):
        of_all = _buckets_and_sum(total, name)
        text = f"Histogram of the {text}"
        yield HistogramMetricFamily(f"fastjournal_job_{name}_seconds", f"{text}.", *of_all)
        for label, counts in apart or ((None, total),):
            # one at a time: a name of 4 KiB in fourteen series takes more than a millisecond
            family = HistogramMetricFamily(
                f"fastjournal_domain_job_{name}_seconds", f"{text}, by domain.", labels=["domain"]
            )
            if label is not None:
                family.add_metric([label], *_buckets_and_sum(counts, name))
            yield family


def _outcome(counts: JobCounts, name: str) -> int:
    return {
        "jobs_completed": counts.completed,
        "attempts_failed": counts.attempts_failed,
        "leases_lost": counts.leases_lost,
        "jobs_buried": counts.buried,
    }[name]


_JOB_BUCKETS_STEP = 3
"""Every third power of two is a bound: each is a time series for each domain."""


def _buckets_and_sum(counts: JobCounts, name: str) -> tuple[list[tuple[str, float]], float]:
    values = counts.waited_us if name == "waited" else counts.run_us
    *bounded, above = _buckets(values, 1e-6)
    return [*bounded[::_JOB_BUCKETS_STEP], above], values.total * 1e-6


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


def remote_metrics(runtime: Runtime) -> Iterator[Metric]:
    """Yield metrics of the remote log; none without one."""
    remote, counters = runtime.remote, runtime.counters
    if remote is None:
        return
    yield from role_metrics("primary", remote.epoch, remote.lag_us, remote.primary.cause)
    yield GaugeMetricFamily(
        "fastjournal_remote_lag_bytes", "Bytes of the log that are not stored.", remote.lag_bytes
    )
    yield histogram(
        "fastjournal_remote_request_seconds",
        "Histogram of the duration of a request that stores a chunk.",
        remote.request_us,
        1e-6,
    )
    yield labelled_counter(
        "fastjournal_remote_requests",
        "Requests of the object store, by kind and result: ok, unavailable or refused.",
        ["kind", "result"],
        sorted(remote.requests.items()),
    )
    yield GaugeMetricFamily(
        "fastjournal_remote_checkpoint_age_seconds",
        "Time since the newest checkpoint.",
        max(0, runtime.clock.now_us() - counters.checkpoint_us) / 1e6,
    )
    yield CounterMetricFamily(
        "fastjournal_remote_segments_missing",
        "Segments that were missing in the object store, and were uploaded again.",
        counters.segments_missing,
    )


def role_metrics(role: str, epoch: int, lag_us: int, cause: str = "") -> Iterator[Metric]:
    """Yield the metrics that a primary and a standby have.

    Args:
        role: ``primary`` or ``standby``.
        epoch: Newest epoch that is known.
        lag_us: Age of the oldest change that is not stored, or of what a standby has read.
        cause: Why this process took over; empty: it has not.
    """
    roles = GaugeMetricFamily(
        "fastjournal_remote_role", "1 for the role of this node, else 0.", labels=["role"]
    )
    for name in ("primary", "standby"):
        roles.add_metric([name], int(name == role))
    yield roles
    yield GaugeMetricFamily(
        "fastjournal_remote_epoch", "Newest epoch of the remote log; 0: none is known.", epoch
    )
    yield GaugeMetricFamily(
        "fastjournal_remote_lag_seconds",
        "Age of the oldest change that is not stored; of a standby: of what it has read.",
        lag_us / 1e6,
    )
    yield labelled_counter(
        "fastjournal_remote_takeovers",
        "Takeovers by this process, by cause: restart, seal of another node, or its silence.",
        ["cause"],
        (((name,), int(name == cause)) for name in TAKEOVER_CAUSES),
    )


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
