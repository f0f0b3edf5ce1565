"""Monitoring: alert rules and dashboard ask for metrics that a real daemon has.

promtool and Prometheus check them where they are installed (Debian: prometheus).
"""

from __future__ import annotations

import http.client
import itertools
import json
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fastjournal.client import SyncClient, SyncJob
from fastjournal.errors import RefusedError
from fastjournal.spool import Spool, read_forwarder_status
from tests.docs.test_doc_links import anchors_of
from tests.integration.cli_process import Cli
from tests.integration.daemon_process import START_S, DaemonProcess
from tests.integration.page_contents import get_page, http_address
from tests.integration.programs import forwarding

MONITORING = Path(__file__).resolve().parents[2] / "monitoring"
RULES = MONITORING / "alerts.yml"
FORWARDER_RULES = MONITORING / "forwarder-alerts.yml"
OF_WORK = {
    *("FastjournalJobsFail", "FastjournalOldestWaiting", "FastjournalNotServed"),
    *("FastjournalQueueGrows", "FastjournalDeadLetters"),
}
"""Alerts about the jobs of a domain, each of which has a runbook."""
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
    "FastjournalJobsFail": [
        "fastjournal_attempts_failed_total 0+2x70",
        "fastjournal_leases_lost_total 0x70",
        'fastjournal_domain_attempts_failed_total{domain="mails"} 0+2x70',
        'fastjournal_domain_leases_lost_total{domain="mails"} 0x70',
        'fastjournal_domain_jobs_completed_total{domain="mails"} 0+6x70',
    ],
    "FastjournalOldestWaiting": [
        'fastjournal_domain_oldest_waiting_seconds{domain="mails"} 86000+60x70'
    ],
    "FastjournalNotServed": [
        'fastjournal_domain_oldest_due_seconds{domain="mails"} 0+60x70',
        'fastjournal_domain_worked_on_entries{domain="mails"} 0x70',
        'fastjournal_domain_paused{domain="mails"} 0x70',
        'fastjournal_domain_job_waited_seconds_count{domain="mails"} 7x70',
    ],
    "FastjournalQueueGrows": ['fastjournal_domain_due_entries{domain="mails"} 0+50x70'],
    "FastjournalDeadLetters": [
        "fastjournal_jobs_buried_total 0x30 20x40",
        'fastjournal_domain_jobs_buried_total{domain="mails"} 0x30 20x40',
    ],
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
    "FastjournalRemoteNoPrimary": [
        'fastjournal_remote_role{role="primary",instance="a",job="fastjournal"} 0x70',
        'fastjournal_remote_role{role="primary",instance="b",job="fastjournal"} 0x70',
    ],
    "FastjournalRemoteFailover": [
        'fastjournal_remote_takeovers_total{cause="silence"} 0x55 1x15',
        'fastjournal_remote_takeovers_total{cause="restart"} 0x70',
    ],
    "FastjournalRemoteLag": ["fastjournal_remote_lag_seconds 0+60x70"],
    "FastjournalRemoteStoreFails": [
        'fastjournal_remote_requests_total{kind="create",result="unavailable"} 0+10x70',
        'fastjournal_remote_requests_total{kind="create",result="ok"} 0+900x70',
    ],
    "FastjournalRemoteSlow": [
        'fastjournal_remote_request_seconds_bucket{le="0.5"} 0+1x70',
        'fastjournal_remote_request_seconds_bucket{le="2.5"} 0+10x70',
        'fastjournal_remote_request_seconds_bucket{le="+Inf"} 0+10x70',
    ],
    "FastjournalRemoteCheckpointOld": ["fastjournal_remote_checkpoint_age_seconds 9000+60x70"],
    "FastjournalRemoteSegmentsMissing": ["fastjournal_remote_segments_missing_total 0x50 1x20"],
}
"""Series with which each alert fires: after an hour, or ten minutes before they end."""

STEP_MIN = {"FastjournalArchiveUnread": 10}
"""Minutes from a value to the next: days of them each minute take seconds to look at. Else 1."""

QUIET: dict[str, list[str]] = {
    "jobs of which few fail": [
        "fastjournal_attempts_failed_total 0+2x70",
        "fastjournal_leases_lost_total 0x70",
        'fastjournal_domain_attempts_failed_total{domain="mails"} 0+2x70',
        'fastjournal_domain_leases_lost_total{domain="mails"} 0x70',
        'fastjournal_domain_jobs_completed_total{domain="mails"} 0+9x70',
    ],
    "old failures at the first scrape": [
        "fastjournal_attempts_failed_total _x55 500x15",
        "fastjournal_leases_lost_total _x55 0x15",
        "fastjournal_jobs_buried_total _x55 500x15",
        'fastjournal_domain_attempts_failed_total{domain="mails"} _x55 500x15',
        'fastjournal_domain_leases_lost_total{domain="mails"} _x55 0x15',
        'fastjournal_domain_jobs_completed_total{domain="mails"} _x55 0x15',
        'fastjournal_domain_jobs_buried_total{domain="mails"} _x55 500x15',
    ],
    "paused domain": [
        'fastjournal_domain_oldest_due_seconds{domain="mails"} 0+40x70',
        'fastjournal_domain_worked_on_entries{domain="mails"} 0x70',
        'fastjournal_domain_paused{domain="mails"} 1x70',
        'fastjournal_domain_job_waited_seconds_count{domain="mails"} 7x70',
    ],
    "remote log whose primary restarts, and hands over": [
        'fastjournal_remote_role{role="primary",instance="a",job="fastjournal"} 1x50 _x5 0x15',
        'fastjournal_remote_role{role="primary",instance="b",job="fastjournal"} 0x55 1x15',
        'fastjournal_remote_takeovers_total{cause="seal",instance="b"} 0x55 1x15',
        'fastjournal_remote_takeovers_total{cause="silence",instance="b"} 0x70',
        'fastjournal_remote_lag_seconds{instance="b"} 5x70',
    ],
    "domain whose one worker is busy": [
        'fastjournal_domain_oldest_due_seconds{domain="mails"} 0+40x70',
        'fastjournal_domain_worked_on_entries{domain="mails"} 1x70',
        'fastjournal_domain_paused{domain="mails"} 0x70',
        'fastjournal_domain_job_waited_seconds_count{domain="mails"} 7x70',
    ],
    "many jobs at once, worked off since": [
        'fastjournal_domain_due_entries{domain="mails"} 0x10 9000-100x60'
    ],
}
"""Series with which no alert fires, with a value each minute."""

READ = {
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
    url = f"file://{directory}/store"
    assert Cli(directory, None)("remote", "create", url).returncode == 0
    with DaemonProcess(directory, *options, *archive, "--remote-log", url) as process:
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
    """Return the expressions of the rules of a file, by name; recorded ones have a colon in it."""
    text = file.read_text(encoding="utf-8")
    found = re.findall(
        r"- (?:alert|record): ([\w:]+)\n +expr: (?:>-\n)?(.*?)(?=\n +(?:for|labels|- \w+):|\n +#)",
        text,
        re.DOTALL,
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


@pytest.mark.parametrize("file", [RULES, FORWARDER_RULES], ids=lambda file: file.stem)
def test_runbook_of_an_alert_exists(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    alerts = re.split(r"- alert: (\w+)\n", text)[1:]
    found = {
        alert: re.findall(r'runbook_url: "(.*)"', about)
        for alert, about in zip(alerts[::2], alerts[1::2], strict=True)
    }
    assert {urls[0] for urls in found.values() if urls}
    for url in itertools.chain.from_iterable(found.values()):
        path, _, anchor = url.partition("#")
        page = MONITORING.parent / path
        assert page.is_file(), url
        assert not anchor or anchor in anchors_of(page), url
    of_work = {name for name in found if re.search("fastjournal.domain_", rules(file)[name])}
    assert of_work == (set() if file is FORWARDER_RULES else OF_WORK)
    assert [name for name in of_work if not found[name]] == []


def test_monitoring_has_what_the_documentation_recommends() -> None:
    alerts = [name for name in rules() if ":" not in name]
    assert set(alerts) == set(SERIES)
    text = OPERATING.read_text(encoding="utf-8")
    assert [name for name in alerts if f"`{name}`" not in text] == []


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
@pytest.mark.parametrize("archive", READ)
def test_monitoring_alert_stays_silent_where_the_archive_is_read(
    archive: str, tmp_path: Path
) -> None:
    check_firing([READ[archive]], [], tmp_path / "test.yml", 10)


@needs_promtool
@pytest.mark.parametrize("case", QUIET)
def test_monitoring_alert_of_work_stays_silent(case: str, tmp_path: Path) -> None:
    check_firing(QUIET[case], [], tmp_path / "test.yml", 1)


@needs_promtool
@pytest.mark.parametrize("outcome", ["attempts_failed", "jobs_buried"])
def test_monitoring_alert_fires_at_a_domain_that_is_new_and_fails_at_once(
    outcome: str, tmp_path: Path
) -> None:
    series = [f"fastjournal_{outcome}_total 0x49 50x21"]
    for name in ("attempts_failed", "leases_lost", "jobs_completed", "jobs_buried"):
        count = 50 if name == outcome else 0
        series.append(f'fastjournal_domain_{name}_total{{domain="mails"}} _x50 {count}x20')
    series += [
        f"fastjournal_{name}_total 0x70"
        for name in ("attempts_failed", "leases_lost")
        if name != outcome
    ]
    alert = "FastjournalJobsFail" if outcome == "attempts_failed" else "FastjournalDeadLetters"
    check_firing(series, [alert], tmp_path / "test.yml", 1)


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


@pytest.fixture
def prometheus(daemon: DaemonProcess, tmp_path: Path) -> Iterator[int]:
    """Run a Prometheus with the rules of monitoring/ that scrapes the daemon; return its port."""
    if PROMETHEUS is None:
        pytest.skip("no Prometheus here: apt-get install prometheus")
    port = free_port()
    host, http_port = http_address(daemon)
    file = tmp_path / "prometheus.yml"
    file.write_text(
        f"""
global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}
rule_files: [{RULES}]
scrape_configs:
  - job_name: fastjournal
    static_configs: [{{targets: ["{host}:{http_port}"]}}]
"""
    )
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(PROMETHEUS, f"--config.file={file}", f"--storage.tsdb.path={tmp_path}/data"),
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        yield port
    finally:
        process.terminate()
        process.wait(START_S)


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port: int = server.getsockname()[1]
        return port


def value_of(port: int, query: str) -> float | None:
    """Return the value of the first series that a query finds; None: none, or no answer yet."""
    try:
        found = ask(port, f"query?query={urllib.parse.quote(query)}")["result"]
    except (ConnectionRefusedError, ValueError):
        return None
    return float(found[0]["value"][1]) if found else None


def test_prometheus_fires_at_fifty_jobs_that_fail(daemon: DaemonProcess, prometheus: int) -> None:
    failed = "fastjournal_attempts_failed_total"
    deadline = time.monotonic() + 4 * START_S

    def wait(met: Callable[[], bool]) -> None:
        while not met():
            assert time.monotonic() < deadline
            time.sleep(0.2)

    wait(lambda: (value_of(prometheus, f"count_over_time({failed}[1m])") or 0) >= 2)
    with closing(SyncClient(daemon.address)) as client:
        for number in range(50):
            client.enqueue("mails", f"to {number}")

        def work(job: SyncJob) -> None:
            raise ConnectionError(f"SMTP 550 {job.decoded()}")

        assert client.jobs("mails").run(work, limit=50) == 50

    def firing() -> list[dict[str, Any]]:
        return [
            alert
            for alert in ask(prometheus, "alerts")["alerts"]
            if alert["labels"]["alertname"] == "FastjournalJobsFail" and alert["state"] == "firing"
        ]

    # a scrape amid the failures has fewer of them, and fires too: the next evaluations tell all
    wait(lambda: [float(alert["value"]) for alert in firing()] == [50])
    (alert,) = firing()
    assert alert["labels"]["domain"] == "mails"
    summary = alert["annotations"]["summary"]
    assert re.fullmatch(r"jobs of mails fail on \S+: 50 attempts in 15 minutes", summary)
