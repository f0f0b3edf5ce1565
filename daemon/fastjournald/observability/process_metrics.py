"""Process metrics: processor time, memory, descriptors and start of the daemon, by /proc/self.

The collector of prometheus_client needs /proc/stat, which ``ProcSubset=pid`` of the systemd unit
hides: it then silently has no figures. The names of the metrics are those of that collector.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

_PAGE_BYTES = resource.getpagesize()


class ProcessFigures(msgspec.Struct, frozen=True):
    """Figures of the process at one moment; None: unknown."""

    cpu_seconds: float
    files_max: float
    memory_bytes: tuple[int, int] | None
    """Virtual and resident memory."""
    files: int | None
    """Open descriptors."""

    def collect(self, started: float | None) -> Iterator[Metric]:
        """Yield the figures that are known.

        Args:
            started: Start of the process, in seconds since 1970; None: not known.
        """
        yield CounterMetricFamily(
            "process_cpu_seconds", "Processor time of the process.", self.cpu_seconds
        )
        yield _gauge("max_fds", "Limit of open file descriptors.", self.files_max)
        if self.memory_bytes is not None:
            virtual, resident = self.memory_bytes
            yield _gauge("virtual_memory_bytes", "Virtual memory.", virtual)
            yield _gauge("resident_memory_bytes", "Resident memory.", resident)
        if self.files is not None:
            yield _gauge("open_fds", "Open file descriptors.", self.files)
        if started is not None:
            yield _gauge("start_time_seconds", "Start of the process since 1970.", started)


def process_figures() -> ProcessFigures:
    """Return the figures of this process. O(descriptors), for a thread: some ms with 10,000."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return ProcessFigures(
        cpu_seconds=usage.ru_utime + usage.ru_stime,
        files_max=float("inf") if files_max == resource.RLIM_INFINITY else files_max,
        memory_bytes=_memory_bytes(),
        files=_files(),
    )


def start_seconds() -> float | None:
    """Return when this process began, in seconds since 1970; None: unknown."""
    try:
        with open("/proc/self/stat", "rb") as file:
            # after the name, which may contain anything; proc(5) counts from 1, and 22 is starttime
            ticks = int(file.read().rpartition(b")")[2].split()[19])
    except OSError:
        return None
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age


def _memory_bytes() -> tuple[int, int] | None:
    try:
        with open("/proc/self/statm", "rb") as file:
            virtual, resident, *_ = file.read().split()
    except OSError:
        # no file can be opened: leave out one figure
        return None
    return int(virtual) * _PAGE_BYTES, int(resident) * _PAGE_BYTES


def _files() -> int | None:
    try:
        # without the descriptor of this listing
        return len(os.listdir("/proc/self/fd")) - 1
    except OSError:
        return None


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"process_{name}", text, value)
