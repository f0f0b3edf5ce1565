"""Monitoring: alert rules and dashboard ask for metrics that a real daemon has.

promtool and Prometheus check them where they are installed (Debian: prometheus).
"""

from __future__ import annotations

import http.client
import json
import re
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fastjournal.client import SyncClient
from fastjournal.errors import RefusedError
from fastjournal.spool import Spool, read_forwarder_status
from tests.integration.daemon_process import START_S, DaemonProcess
from tests.integration.page_contents import get_page
from tests.integration.programs import forwarding

MONITORING = Path(__file__).resolve().parents[2] / "monitoring"
RULES = MONITORING / "alerts.yml"
DASHBOARD = MONITORING / "grafana-dashboard.json"
OPERATING = MONITORING.parent / "docs/operating.md"

PROMTOOL, PROMETHEUS = shutil.which("promtool"), shutil.which("prometheus")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="no promtool here: apt-get install prometheus"
)

METRIC = re.compile(r"\b((?:fastjournal|process)_\w+)(?:\{([^}]*)\})?")

FIRING = """
rule_files: [{rules}]
evaluation_interval: {step}m
tests:
  - interval: {step}m
    input_series:
{series}
    promql_expr_test:
      - expr: count by (alertname) (ALERTS{{alertstate="firing"}})
        eval_time: {minutes}m
        exp_samples: {samples}
"""

SERIES = {
    "FastjournalDown": ['up{job="fastjournal"} 0x70'],
    "FastjournalReadOnly": ["fastjournal_read_only 1x70"],
    "FastjournalOldestDue": ["fastjournal_oldest_due_seconds 3700+60x70"],
    "FastjournalLeasesLost": ["fastjournal_leases_lost_total 0+1x70"],
    "FastjournalBuriedGrow": ['fastjournal_entries{state="buried"} 0+2x70'],
    "FastjournalSyncSlow": [
        'fastjournal_sync_seconds_bucket{le="0.25"} 0+1x70',
        'fastjournal_sync_seconds_bucket{le="0.5"} 0+10x70',
        'fastjournal_sync_seconds_bucket{le="+Inf"} 0+10x70',
    ],
    "FastjournalRequestsSlow": [
        'fastjournal_request_seconds_bucket{function="set",le="0.262144"} 0+1x70',
        'fastjournal_request_seconds_bucket{function="set",le="0.524288"} 0+10x70',
        'fastjournal_request_seconds_bucket{function="set",le="+Inf"} 0+10x70',
        # a scan may take long
        'fastjournal_request_seconds_bucket{function="get",le="8.388608"} 0+10x70',
        'fastjournal_request_seconds_bucket{function="get",le="+Inf"} 0+10x70',
    ],
    "FastjournalEventLoopLate": [
        'fastjournal_event_loop_lag_seconds_bucket{le="0.1"} 0+1x70',
        'fastjournal_event_loop_lag_seconds_bucket{le="1"} 0+10x70',
        'fastjournal_event_loop_lag_seconds_bucket{le="+Inf"} 0+10x70',
    ],
    "FastjournalWritersWait": ["fastjournal_writers_waiting 3x70"],
    "FastjournalConnectionsRefused": ["fastjournal_connections_refused_total 0+1x70"],
    "FastjournalLogLinesDropped": ['fastjournal_log_lines_dropped_total{job="fastjournal"} 0+1x70'],
    "FastjournalClockBehind": ["fastjournal_clock_behind_seconds 9x70"],
    "FastjournalDescriptors": [
        'process_open_fds{job="fastjournal"} 95x70',
        'process_max_fds{job="fastjournal"} 100x70',
    ],
    "FastjournalArchiveGap": [
        "fastjournal_archive_dropped_segments_total 0+1x70",
        "fastjournal_archive_missed_segments_total 0x70",
    ],
    "FastjournalArchiveWaits": ["fastjournal_archive_waiting_segments 2x70"],
    # for two days and an hour more
    "FastjournalArchiveUnread": ["fastjournal_archive_segments 3+10x300"],
}
"""Series with which each alert fires: after an hour, or ten minutes before they end."""

STEP_MIN = {"FastjournalArchiveUnread": 10}
"""Minutes from a value to the next: days of them each minute take seconds to look at. Else 1."""

QUIET = {
    # read each night, when segments come all the time: never empty
    "read": "fastjournal_archive_segments 3+10x144 9+10x144 4+10x144",
    # a log without work for days, whose first segments have just come
    "new": "fastjournal_archive_segments 0x299 1+10x6",
}
"""Series of archives with which no alert fires, with a value each ten minutes."""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    directory = tmp_path_factory.mktemp("monitored")
    options = ("--http", "127.0.0.1:0", "--memory-limit", str(2**28))
    archive = ("--archive-dir", str(directory / "archive"))
    with DaemonProcess(directory, *options, *archive) as process:
        with closing(SyncClient(process.address)) as client:
            use(client)
        with socket.create_connection(split(process.address), START_S) as other:
            other.sendall(b"GET / HTTP/1.1\r\n\r\n")
            other.shutdown(socket.SHUT_WR)
            while other.recv(4096):
                pass
        yield process


@pytest.fixture(scope="module")
def forwarder(daemon: DaemonProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a forwarder that has sent a record, and return the address of its metrics."""
    directory = tmp_path_factory.mktemp("forwarded")
    with Spool(directory / "spool") as spool:
        spool.append(domain="spooled", value="x")
    with (
        (directory / "err").open("wb") as said,
        forwarding(directory / "spool", daemon.address, "--http", "127.0.0.1:0", stderr=said),
    ):
        deadline = time.monotonic() + START_S
        while (status := read_forwarder_status(directory / "spool")) is None or not status.done:
            assert time.monotonic() < deadline, (directory / "err").read_text()
            time.sleep(0.05)
        (address,) = re.findall(r"metrics: http://([^/]+)/", (directory / "err").read_text())
        yield address


def split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def use(client: SyncClient) -> None:
    """Let there be entries in every state, and an error."""
    for at in range(5):
        client.set(f"pages:1:0:{at}", "x")
    client.next("pages", count=2)
    client.bury("pages:1:0:4", reason="bad")
    with suppress(RefusedError):
        client.delete("pages:1:0:none")


def rules(file: Path = RULES) -> dict[str, str]:
    """Return the expressions of the alerts of a file, by name."""
    text = file.read_text(encoding="utf-8")
    found = re.findall(
        r"- alert: (\w+)\n +expr: (?:>-\n)?(.*?)(?=\n +(?:for|labels):)", text, re.DOTALL
    )
    return {name: " ".join(expression.split()) for name, expression in found}


def panels() -> dict[str, list[str]]:
    """Return the queries of the dashboard, by title."""
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return {
        panel["title"]: [target["expr"] for target in panel["targets"]]
        for panel in dashboard["panels"]
        if panel["type"] != "row"
    }


def queries() -> list[str]:
    return [*rules().values(), *(query for several in panels().values() for query in several)]


def test_monitoring_asks_for_metrics_that_a_scrape_has(
    daemon: DaemonProcess, forwarder: str
) -> None:
    served: dict[str, set[str]] = {}
    with urllib.request.urlopen(f"http://{forwarder}/metrics", timeout=START_S) as reply:
        scrapes = get_page(daemon, "/metrics")[1] + reply.read().decode()
    for family in text_string_to_metric_families(scrapes):
        for sample in family.samples:
            served.setdefault(sample.name, {"instance", "job"}).update(sample.labels)
    asked = set()
    for query in queries():
        by = [name for part in re.findall(r"by \(([\w, ]+)\)", query) for name in part.split(", ")]
        names = METRIC.findall(query)
        assert names or query == 'up{job="fastjournal"} == 0', query
        for name, labels in names:
            asked.add(name)
            used = {*re.findall(r"(\w+)=", labels), *by}
            assert used <= served.get(name, set()), (query, name)
    # what is counted and shown by state, domain, code or time is on the dashboard
    assert len(asked) > 40


def test_monitoring_has_what_the_documentation_recommends() -> None:
    assert set(rules()) == set(SERIES)
    text = OPERATING.read_text(encoding="utf-8")
    assert [name for name in rules() if f"`{name}`" not in text] == []


@needs_promtool
def test_monitoring_rules_are_valid() -> None:
    assert PROMTOOL is not None
    for command in (
        ("check", "rules", str(RULES)),
        ("check", "config", str(RULES.parent / "prometheus.yml")),
    ):
        done = subprocess.run([PROMTOOL, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
@pytest.mark.parametrize("alert", SERIES)
def test_monitoring_alert_fires_alone(alert: str, tmp_path: Path) -> None:
    check_firing(SERIES[alert], [alert], tmp_path / "test.yml", STEP_MIN.get(alert, 1))


@needs_promtool
@pytest.mark.parametrize("archive", QUIET)
def test_monitoring_alert_stays_silent_where_the_archive_is_read(
    archive: str, tmp_path: Path
) -> None:
    check_firing([QUIET[archive]], [], tmp_path / "test.yml", 10)


def check_firing(series: list[str], alerts: list[str], file: Path, step: int) -> None:
    """Check which alerts fire ten minutes before the end of series, of a value each step."""
    assert PROMTOOL is not None
    lines = [one.partition(" ") for one in series]
    minutes = {step * sum(map(int, re.findall(r"x(\d+)", values))) for _, _, values in lines}
    samples = [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in alerts]
    file.write_text(
        FIRING.format(
            rules=RULES,
            step=step,
            minutes=max(minutes) - 10,
            series="\n".join(
                f"      - series: '{name}'\n        values: '{values}'" for name, _, values in lines
            ),
            samples=json.dumps(samples),
        )
    )
    done = subprocess.run(
        [PROMTOOL, "test", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def ask(port: int, path: str) -> Any:
    """Return what the API of Prometheus says."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=START_S)) as connection:
        connection.request("GET", f"/api/v1/{path}")
        reply = json.loads(connection.getresponse().read())
    assert reply["status"] == "success", reply
    return reply["data"]
