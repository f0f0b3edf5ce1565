"""Metrics: the daemon's counters in the form that Prometheus reads.

Everything is counted where it happens, as plain integers; here they are only read. Figures over
all domains are computed in slices, so that a million domains do not hold up requests.
Requests, memory and event loop are here; entries, log and process have modules of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import trio
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from fastjournal.build_info import BuildInfo, build_info
from fastjournal.stderr_queue import bytes_waiting, lines_dropped
from fastjournald.observability.domain_totals import Totals, total
from fastjournald.observability.entry_metrics import entry_metrics, value_metrics
from fastjournald.observability.log_metrics import archive_metrics, log_metrics
from fastjournald.observability.metric_values import (
    function_name,
    histogram,
    labelled_counter,
    latency_histogram,
)
from fastjournald.observability.page_text import shown
from fastjournald.observability.process_metrics import (
    ProcessFigures,
    process_figures,
    start_seconds,
)
from fastjournald.observability.shared_totals import SharedTotals
from fastjournald.observability.time_slices import TimeSlices
from fastjournald.runtime import Runtime
from fastjournald.tables.locks import LOCK_BYTES

CONNECTION_BYTES = 6_000
"""Memory of a connection without TLS that waits for a request: session, transport, socket."""


class Metrics(Collector):
    """Reads the counters of a daemon.

    Args:
        runtime: The daemon's parts.
        one_at_a_time: Lock that everything shares which is made in slices; None: nothing else is.
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
            self._labels = await _labels(self._totals.largest.names())
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


async def _labels(names: list[bytes]) -> dict[bytes, str]:
    """Return names of domains as text, a slice at a time: one of 4 KiB takes some ms."""
    labels, slices = {}, TimeSlices()
    for name in names:
        labels[name] = shown(name)
        await slices.give_way()
    return labels
