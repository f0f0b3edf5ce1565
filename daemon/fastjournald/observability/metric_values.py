"""Metric values: labels of functions, and histograms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from fastjournal.protocol import Function
from fastjournald.histogram import Histogram, Latencies


def function_name(function: int) -> str:
    """Return the label of a function; ``unknown`` where it has no name."""
    return Function(function).name.lower() if function >= 0 else "unknown"


def histogram(name: str, text: str, values: Histogram, unit: float) -> Metric:
    """Return a histogram; its values are multiples of ``unit``."""
    return HistogramMetricFamily(name, text, _buckets(values, unit), values.total * unit)


def latency_histogram(name: str, text: str, latencies: Latencies) -> Metric:
    """Return a histogram for each function that was asked for: others would be series of zeros."""
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
