"""Status of a running forwarder: status.json, fj-cli spool status, metrics and alert rules."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fastjournal.limits import FORWARDER_HTTP_CONNECTIONS_MAX, HTTP_HEAD_BYTES_MAX
from fastjournal.spool import Spool, read_forwarder_status
from fastjournal.spool.forwarder_status import ForwarderStatus
from fastjournal.testing.ledger import Ledger
from fastjournal.testing.scripted_daemon import ScriptedDaemon
from tests.integration.cli_process import Cli
from tests.integration.daemon_process import DaemonProcess
from tests.integration.programs import Program, command_with, forwarding, installed

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "monitoring/forwarder-alerts.yml"
PROMTOOL = shutil.which("promtool")
PATIENCE_S = 60


@contextmanager
def observed(spool: Path, server: str, command: Sequence[str] = ()) -> Iterator[Program]:
    """Run a forwarder with metrics that writes to ``forwarder.err`` beside its spool."""
    options = ("--seed", "1", "--http", "127.0.0.1:0")
    with (
        (spool.parent / "forwarder.err").open("ab") as said,
        forwarding(spool, server, *options, command=command, stderr=said) as process,
    ):
        yield process


def wait_for(spool: Path, wanted: Callable[[ForwarderStatus], object]) -> ForwarderStatus:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        status = read_forwarder_status(spool)
        if status is not None and wanted(status):
            return status
        assert time.monotonic() < deadline, status
        time.sleep(0.02)


def served(spool: Path) -> dict[tuple[str, str], float]:
    """Return the samples of a scrape, by name and server."""
    said = (spool.parent / "forwarder.err").read_text()
    (address,) = re.findall(r"metrics: (http://\S+)", said)
    with urllib.request.urlopen(address, timeout=PATIENCE_S) as reply:
        text = reply.read().decode()
    return {
        (sample.name, sample.labels.get("server", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_status_and_metrics_follow_what_a_forwarder_does(tmp_path: Path) -> None:
    spool = tmp_path / "s"
    ledger = Ledger(refuse=lambda request: REFUSED.get(request.key.rpartition(b":")[2]))
    with Spool(spool) as writer:
        for id in ("fine", "bad", "later"):
            writer.append(domain="d", id=id)
    (spool / "notes.txt").touch()
    (spool / "20261120T080000Z-new.fjs").write_bytes(b"fjsp\0\0\0\x02?")
    with observed(spool, f"unix:{tmp_path}/sock"):
        away = wait_for(spool, lambda status: status.last_error)
        assert (away.server, away.connected_us, away.pending) == (None, None, 3)
        assert away.oldest_slot is not None
        assert "cannot connect" in str(away.last_error)
        with ScriptedDaemon(ledger.answer, unix_path=f"{tmp_path}/sock") as daemon:
            there = wait_for(spool, lambda status: status.done and status.buried)
            assert (there.server, there.servers) == (daemon.address, [daemon.address])
            assert (there.done, there.dead, there.buried, there.delayed) == (1, 1, 1, 1)
            assert (there.pending, there.unread_bytes, there.slots) == (1, 0, 2)
            (waits,) = there.delayed_records
            assert (waits.slot, waits.code) == (there.oldest_slot, "locked")
            assert waits.offset > 8
            assert abs(waits.due_us - there.written_us) < 60_000_000
            said = (tmp_path / "forwarder.err").read_text()
            assert said.count("the daemon answers locked to the record at offset") == 1
            assert there.ignored_names == ["notes.txt"]
            assert there.left_out_names == ["20261120T080000Z-new.fjs"]
            assert there.oldest_pending_us is not None
            assert there.is_fresh(time.time_ns() // 1000)
            metrics = served(spool)
            check_commands(tmp_path, spool)
        assert metrics["fastjournal_forwarder_records_done_total", ""] == 1
        assert metrics["fastjournal_forwarder_dead_pieces", ""] == 1
        assert metrics["fastjournal_forwarder_connected", daemon.address] == 1
        assert metrics["fastjournal_forwarder_oldest_pending_seconds", ""] > 0
        check_rules({name for name, _ in metrics})


def test_status_counts_the_waiting_jobs_that_records_replaced(tmp_path: Path) -> None:
    spool = tmp_path / "s"
    daemon = DaemonProcess(tmp_path / "daemon")
    daemon.directory.mkdir()
    with daemon, Spool(spool) as writer:
        with observed(spool, daemon.address):
            for queue in ("mails", "mails", "invoices", "search"):
                writer.append(queue=queue, uri="order:7")
                writer.append(queue=queue, unique="7")
            status = wait_for(spool, lambda status: status.done == 8)
            assert (status.replaced, status.replaced_elsewhere) == (4, 2)
            shown = Cli(tmp_path, None)("spool", "status", str(spool), "--table").stdout.decode()
            assert re.search(r"replaced +4 waiting jobs, 2 of them in another queue", shown)
            said = (tmp_path / "forwarder.err").read_text()
            (address,) = re.findall(r"metrics: (http://\S+)", said)
            with urllib.request.urlopen(address, timeout=PATIENCE_S) as reply:
                scraped = reply.read().decode()
        for queue in ("same", "another"):
            name = "fastjournal_forwarder_jobs_replaced_total"
            assert f'{name}{{queue="{queue}"}} 2.0' in scraped
        said = (tmp_path / "forwarder.err").read_text()
        assert said.count("a job of another queue: of a URI one job waits, over all queues") == 1
        assert "stopped: 8 records done, 4 waiting jobs replaced (2 of another queue), 0 to" in said


REFUSED = {b"bad": "bad-key no such", b"later": "locked"}


def check_commands(home: Path, spool: Path) -> None:
    """Check what ``fj-cli spool status`` shows of that forwarder."""
    cli = Cli(home, None)
    done = cli("spool", "status", str(spool), "--json")
    assert done.returncode == 74, "a slot cannot be read"
    *_, sums = [json.loads(line) for line in done.stdout.splitlines()]
    assert (sums["forwarder"]["done"], sums["forwarder"]["fresh"]) == (1, True)
    shown = cli("spool", "status", str(spool), "--table").stdout.decode()
    assert re.search(r"daemon +unix:.*, since ", shown)
    assert re.search(r"delayed +1 \(\S+ at \d+: locked, \d+ tries, next ", shown)
    assert re.search(r"dead +1 \(1 were put there since the start\)", shown)
    looks = cli.json("spool", "status", str(spool), "--watch", "--interval", "10ms", "--count", "2")
    assert [look["forwarder"]["delayed"] for look in looks] == [1, 1]
    shown = cli("spool", "status", str(spool), "--watch", "--table", "--count", "1").stdout.decode()
    assert re.search(r"left out +1 \(20261120T080000Z-new.fjs\)", shown)


def check_rules(names: set[str]) -> None:
    """Check that the alert rules ask for metrics that a scrape has."""
    text = RULES.read_text(encoding="utf-8")
    expressions = re.findall(r"expr: (.*)", text)
    asked = {name for line in expressions for name in re.findall(r"fastjournal_\w+", line)}
    assert len(asked) == 9
    assert asked <= names


def test_status_file_that_cannot_be_written_is_named_once_and_ends_nothing(tmp_path: Path) -> None:
    spool = tmp_path / "s"
    (spool / "status.json").mkdir(parents=True)
    ledger = Ledger()
    with Spool(spool) as writer, ScriptedDaemon(ledger.answer) as daemon:
        with observed(spool, daemon.address):
            ledger.wait_applied([writer.append(domain="d")])
            done = Cli(tmp_path, None)("spool", "status", str(spool), "--table")
            assert b"status.json" in done.stderr
        said = (tmp_path / "forwarder.err").read_text()
    assert said.count("cannot write the status file") == 1


def test_status_file_is_no_link_fifo_or_other_json(tmp_path: Path) -> None:
    path, cli = tmp_path / "status.json", Cli(tmp_path, None)
    for put in (
        lambda: os.mkfifo(path),
        lambda: path.symlink_to("/etc/hostname"),
        lambda: path.write_bytes(b'{"pid": 1}'),
        lambda: path.write_bytes(b"\xff"),
    ):
        put()
        done = cli("spool", "status", str(tmp_path), "--json")
        assert b"status.json" in done.stderr
        assert json.loads(done.stdout)["forwarder"] is None
        path.unlink()


@pytest.mark.parametrize("address", ["0.0.0.0:9925", "127.0.0.1"])
def test_http_address_that_is_no_loopback_is_refused(tmp_path: Path, address: str) -> None:
    line = [installed("fj-forwarder"), "--spool", str(tmp_path / "s"), "--server", "unix:x"]
    process = Program([*line, "--http", address], stderr=subprocess.PIPE)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, b"loopback" in said) == (64, True), said
    assert not (tmp_path / "s").exists()


def test_http_address_of_other_machines_is_served_where_that_is_meant(tmp_path: Path) -> None:
    options = ("--http", "0.0.0.0:0", "--insecure")
    with (
        ScriptedDaemon(Ledger().answer) as daemon,
        (tmp_path / "err").open("wb") as said,
        forwarding(tmp_path / "s", daemon.address, *options, stderr=said),
    ):
        wait_for(tmp_path / "s", lambda _status: True)
        text = (tmp_path / "err").read_text()
        [port] = re.findall(r"metrics: http://0\.0\.0\.0:(\d+)/metrics", text)
        url = f"http://127.0.0.1:{port}/metrics"
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            assert b"fastjournal_forwarder_pending_records 0.0" in answer.read()


SERIES: dict[str, list[str]] = {
    "ForwarderDown": ['up{job="fj-forwarder"} 0x70'],
    "ForwarderStands": ["fastjournal_forwarder_status_timestamp_seconds 0x70"],
    "ForwarderNotConnected": [
        'fastjournal_forwarder_connected{instance="a",server="s"} 0x70',
        'fastjournal_forwarder_pending_records{instance="a"} 1x70',
    ],
    "ForwarderOldestPending": ["fastjournal_forwarder_oldest_pending_seconds 700x70"],
    "ForwarderLogLinesDropped": ['fastjournal_log_lines_dropped_total{job="fj-forwarder"} 0+1x70'],
    "ForwarderDeadLetters": ["fastjournal_forwarder_pieces_buried_total 0+1x70"],
    "ForwarderSuspects": ["fastjournal_forwarder_suspect_records 1x70"],
    "ForwarderSlotsLeftOut": ["fastjournal_forwarder_left_out_slots 2x70"],
    "ForwarderIgnoredFiles": ["fastjournal_forwarder_ignored_files 2x70"],
}
"""Series with which each alert fires after an hour."""


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool here: apt-get install prometheus")
def test_forwarder_alerts_fire_each_alone(tmp_path: Path) -> None:
    assert PROMTOOL is not None
    tests: list[dict[str, Any]] = []
    for alert, lines in SERIES.items():
        series = [line.rpartition(" ") for line in lines]
        tests.append(
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, _, values in series],
                "promql_expr_test": [
                    {
                        "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                        "eval_time": "62m",
                        "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1}],
                    }
                ],
            }
        )
    file = tmp_path / "test.yml"  # JSON is YAML
    file.write_text(
        json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests})
    )
    for command in (["check", "rules", str(RULES)], ["test", "rules", str(file)]):
        done = subprocess.run([PROMTOOL, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(re.findall(r"- alert: (\w+)", RULES.read_text())) == sorted(SERIES)
    text = (ROOT / "docs/operating.md").read_text(encoding="utf-8")
    assert [name for name in SERIES if f"`{name}`" not in text] == []


HELD = 40
SPARE = 8
"""Descriptors beside HTTP: a slot, a directory, a connection that is closed just now."""


def port_of(directory: Path) -> int:
    said = (directory / "forwarder.err").read_text()
    return int(said.partition("metrics: http://127.0.0.1:")[2].partition("/")[0])


def drip(clients: list[socket.socket]) -> list[socket.socket]:
    """Send a byte of a request line on each connection; return those that are open."""
    still = []
    for client in clients:
        try:
            client.send(b"G")
            still.append(client)
        except OSError:
            client.close()
    return still


def test_connections_that_drip_end_at_their_deadline_and_delay_no_record(tmp_path: Path) -> None:
    spool, quick = tmp_path / "s", command_with("fj-forwarder", HTTP_SECONDS_MAX=2)
    with (
        Spool(spool) as writer,
        ScriptedDaemon(Ledger().answer) as daemon,
        observed(spool, daemon.address, quick) as process,
    ):
        writer.append(domain="d", id="0")
        wait_for(spool, lambda status: status.done == 1)
        port = port_of(tmp_path)
        descriptors = Path(f"/proc/{process.pid}/fd")
        bound = len(os.listdir(descriptors)) + FORWARDER_HTTP_CONNECTIONS_MAX + SPARE
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(HELD)]
        written, metrics = 1, None
        deadline = time.monotonic() + PATIENCE_S
        while metrics is None:
            assert time.monotonic() < deadline, "no scrape while connections drip"
            clients = drip(clients)
            assert len(os.listdir(descriptors)) <= bound
            writer.append(domain="d", id=str(written))
            written += 1
            wait_for(spool, lambda status: status.done == written)  # noqa: B023 - called at once
            try:
                metrics = served(spool)
            except OSError:
                assert clients, "a scrape was refused though nobody holds a connection"
        assert metrics["fastjournal_forwarder_records_done_total", ""] > 1
        while clients:
            assert time.monotonic() < deadline, "a connection that drips outlives its deadline"
            clients = drip(clients)
            time.sleep(0.1)
    assert "Traceback" not in (tmp_path / "forwarder.err").read_text()


def answer_to(port: int, *parts: bytes) -> bytes:
    """Send these bytes, each part in a packet of its own, and return all that comes back."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in parts:
            client.sendall(part)
        answer = b""
        while data := client.recv(65536):
            answer += data
    return answer


def test_http_head_has_one_bound_however_it_is_cut(tmp_path: Path) -> None:
    spool = tmp_path / "s"
    begin = b"GET /metrics HTTP/1.1\r\nHost: here\r\nConnection: close\r\nx: "
    with observed(spool, "127.0.0.1:1"):
        wait_for(spool, lambda status: status.pid)
        port = port_of(tmp_path)
        bound = HTTP_HEAD_BYTES_MAX
        for size, status in ((bound, b"200"), (bound + 1, b"431"), (2 * bound, b"431")):
            head = begin + b"y" * (size - len(begin) - 4) + b"\r\n\r\n"
            for at in (1, len(begin), *range(size - 5, size + 1), bound - 1):
                answer = answer_to(port, head[:at], head[at:])
                assert answer.split(b" ", 2)[1] == status, (size, at)
            dripped = answer_to(port, head[:-40], *(bytes([byte]) for byte in head[-40:]))
            assert dripped.split(b" ", 2)[1] == status, size
        for large in (
            b"GET /" + b"x" * 900_000,
            b"GET /metrics HTTP/1.1\r\n" + b"a: b\r\n" * 150_000,
            b"GET /metrics HTTP/1.1\r\nx: " + b"y" * 60_000 + b"\r\n\r\n",
        ):
            assert answer_to(port, large).startswith(b"HTTP/1.1 431 Request Header Fields")
            assert served(spool)["fastjournal_log_lines_dropped_total", ""] == 0
    assert "Traceback" not in (tmp_path / "forwarder.err").read_text()


def test_metrics_have_the_format_and_the_compression_that_a_scraper_asks_for(
    tmp_path: Path,
) -> None:
    spool = tmp_path / "s"
    with observed(spool, "127.0.0.1:1"), ExitStack() as end:
        wait_for(spool, lambda status: status.pid)
        scraper = http.client.HTTPConnection("127.0.0.1", port_of(tmp_path), timeout=PATIENCE_S)
        end.enter_context(closing(scraper))

        def ask(method: str, path: str, **fields: str) -> tuple[int, dict[str, str], bytes]:
            # all on one connection
            scraper.request(method, path, headers=fields)
            response = scraper.getresponse()
            return response.status, dict(response.getheaders()), response.read()

        status, fields, plain = ask("GET", "/metrics")
        assert (status, fields["content-type"].partition(";")[0]) == (200, "text/plain")
        assert b"fastjournal_log_lines_dropped_total 0.0\n" in plain
        status, fields, packed = ask("GET", "/any", **{"Accept-Encoding": "gzip"})
        assert (status, fields["content-encoding"]) == (200, "gzip")
        assert b"fastjournal_log_lines_dropped_total 0.0\n" in gzip.decompress(packed)
        accept = "application/openmetrics-text;version=1.0.0"
        _, fields, text = ask("GET", "/metrics?name[]=none", Accept=accept)
        assert fields["content-type"].startswith("application/openmetrics-text; version=1.0.0")
        assert text == b"# EOF\n"
        for method in ("POST", "HEAD", "DELETE"):
            status, fields, text = ask(method, "/metrics")
            assert (status, fields["allow"]) == (405, "OPTIONS,GET")
            assert text.startswith(b"# HTTP 405") == (method != "HEAD")
        assert ask("OPTIONS", "/metrics")[::2] == (200, b"")
        assert ask("GET", "/favicon.ico")[::2] == (200, b"")


def test_scraper_that_asked_longest_ago_makes_room_for_the_next_one(tmp_path: Path) -> None:
    spool = tmp_path / "s"
    with observed(spool, "127.0.0.1:1"), ExitStack() as end:
        wait_for(spool, lambda status: status.pid)
        port = port_of(tmp_path)
        silent = [
            end.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE_S))
            for _ in range(FORWARDER_HTTP_CONNECTIONS_MAX + 3)
        ]
        for client in silent[:3]:
            assert client.recv(1) == b""
        assert served(spool)["fastjournal_log_lines_dropped_total", ""] == 0
