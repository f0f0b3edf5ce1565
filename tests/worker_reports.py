"""Reports of pytest-xdist's workers: none of a setup or teardown that passed and printed nothing.

A worker sends three reports for each test. To encode, send, decode and hand out one takes about a
quarter of a millisecond of processor time, and where a test passes only the middle one counts.
"""

from __future__ import annotations

from typing import Any

import pytest


def leave_out_idle_reports(config: pytest.Config) -> None:
    """Let this process send no report that the end of a run does not tell of, if it is a worker."""
    if not hasattr(config, "workerinput") or wants_all_reports(config):
        return
    manager = config.pluginmanager
    worker: Any = next(
        plugin for plugin in manager.get_plugins() if type(plugin).__name__ == "WorkerInteractor"
    )
    base: Any = type(worker)

    class FewReports(base):  # type: ignore[misc] # pytest-xdist has no module with its class
        @pytest.hookimpl
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if not is_idle(report):
                super().pytest_runtest_logreport(report)

    # pytest has the method of the class of before
    manager.unregister(worker)
    worker.__class__ = FewReports
    manager.register(worker)


def wants_all_reports(config: pytest.Config) -> bool:
    """Return whether an option tells the time of setups and teardowns too."""
    return config.getoption("durations") is not None or config.getoption("xmlpath") is not None


def is_idle(report: pytest.TestReport) -> bool:
    """Return whether a report says only that a setup or teardown passed."""
    return report.when != "call" and report.passed and not report.sections
