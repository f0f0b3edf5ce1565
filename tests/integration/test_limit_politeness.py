"""LIMIT as politeness per host: no two workers break it, whatever happens to them or the daemon.

Sixteen workers share fifty domains. Some of them die with leases, and the daemon is killed and
started again. Every delivery that a worker got is held against the interval and the bound
on jobs of its domain, by the daemon's own clock.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fastjournal import SyncClient
from fastjournal.protocol.constants import Function, ValueType
from fastjournal.protocol.messages import Request
from tests.integration.cli_process import Cli
from tests.integration.daemon_process import DaemonProcess
from tests.integration.raw_client import build

NOTHING_TO_DO = 75
PATIENCE_S = 120.0
"""Far longer than the work takes, so that a loaded machine fails no test."""


def limit(domain: bytes, value: bytes) -> Request:
    request = build(Function.LIMIT, domain, value)
    request.value_type = ValueType.STRING
    return request


@pytest.mark.parametrize("by", ["limit", "default", "pop"])
def test_limit_interval_that_runs_outlives_compaction_and_a_restart(
    tmp_path: Path, by: str
) -> None:
    options = ("--cmdlog-seg-size", "65536", "--cmdlog-clean-int", "50")
    options += ("--listen", f"unix:{tmp_path}/socket")
    if by == "default":
        options += ("--default-interval", "600")
    with DaemonProcess(tmp_path, *options) as daemon:
        cli = Cli(tmp_path, daemon.address)
        if by != "default":
            assert cli("limit", "h", "--interval", "600s").returncode == 0
        for name in ("one", "two"):
            assert cli("set", f"h:128:0:{name}", "v").returncode == 0
        take = ("--delete",) if by == "pop" else ("--exec", "true")
        assert cli("next", "h", *take, "--count", "1").returncode == 0
        with SyncClient(daemon.address) as client:
            before = client.explain("h:128:0:two")
            first = min(daemon.log_path.glob("*.log"))
            deadline = time.monotonic() + PATIENCE_S
            for number in range(10**6):
                if number > 60 and not first.exists():
                    break
                assert time.monotonic() < deadline, "the log was not compacted"
                client.set(f"k{number % 3}", bytes(60_000), overwrite=True)
        daemon.kill()
        daemon.start()
        assert cli("next", "h").returncode == NOTHING_TO_DO
        with SyncClient(daemon.address) as client:
            after = client.explain("h:128:0:two")
    assert after.domain_waits_until_us == before.domain_waits_until_us > before.now_us
    assert after.domain_delivered_us == before.domain_delivered_us > 0
