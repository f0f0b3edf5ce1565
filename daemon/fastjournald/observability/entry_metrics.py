"""Entry metrics: entries by state, their domains and leases, and the value cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from fastjournal.limits import METRICS_DOMAINS_MAX
from fastjournald.engine.handlers.stats import oldest_due
from fastjournald.engine.value_memory import memory_bytes
from fastjournald.observability.domain_totals import Totals
from fastjournald.observability.metric_values import histogram
from fastjournald.runtime import Runtime


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
    """Yield gauges of the domains with most entries: each is a time series in a database."""
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
        # one that has gone since is empty
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
