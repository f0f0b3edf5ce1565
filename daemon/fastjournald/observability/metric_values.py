"""Metric values: labels of functions, and histograms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from fastjournal.protocol import Function
from fastjournald.histogram import Histogram


def function_name(function: int) -> str:
    """Return the label of a function; ``unknown`` where it has no name."""
    return Function(function).name.lower() if function >= 0 else "unknown"


def histogram(name: str, text: str, values: Histogram, unit: float) -> Metric:
    """Return a histogram; its values are multiples of ``unit``."""
    *bounded, count = values.cumulative()
    buckets = [(f"{2**at * unit:.9g}", float(number)) for at, number in enumerate(bounded)]
    return HistogramMetricFamily(
        name, text, [*buckets, ("+Inf", float(count))], values.total * unit
    )


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
