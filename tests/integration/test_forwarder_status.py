"""Status of a running forwarder: status.json, fj-cli spool status, metrics and alert rules."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fastjournal.spool import Spool, read_forwarder_status
from fastjournal.spool.forwarder_status import ForwarderStatus
from fastjournal.testing.ledger import Ledger
from fastjournal.testing.scripted_daemon import ScriptedDaemon
from tests.integration.cli_process import Cli
from tests.integration.programs import Program, installed

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "monitoring/forwarder-alerts.yml"
PROMTOOL = shutil.which("promtool")
PATIENCE_S = 60


@contextmanager
def forwarding(spool: Path, *options: str) -> Iterator[Program]:
    line = [installed("fj-forwarder"), "--spool", str(spool), "--seed", "1", *options]
    with (spool.parent / "forwarder.err").open("ab") as said:
        process = Program(line, stderr=said)
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()


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
    with forwarding(spool, "--server", f"unix:{tmp_path}/sock", "--http", "127.0.0.1:0"):
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
        with forwarding(spool, "--server", daemon.address):
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


@pytest.mark.parametrize("address", ["0.0.0.0:9925", "example.org:80", "127.0.0.1", "[::1]:x"])
def test_http_address_that_is_no_loopback_is_refused(tmp_path: Path, address: str) -> None:
    line = [installed("fj-forwarder"), "--spool", str(tmp_path / "s"), "--server", "unix:x"]
    process = Program([*line, "--http", address], stderr=subprocess.PIPE)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, b"loopback" in said) == (64, True), said
    assert not (tmp_path / "s").exists()


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
