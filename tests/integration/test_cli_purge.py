"""``fj-cli purge`` and ``fj-cli limit``, as they are installed, against a real daemon."""

from __future__ import annotations

from fastjournal.client import SyncClient
from tests.integration.cli_process import Cli

DONE, REFUSED, USAGE, NOTHING = 0, 1, 2, 75


def test_purge_deletes_all_that_nobody_works_on(cli: Cli, client: SyncClient) -> None:
    for number in range(600):
        client.set(f"d:1:0:{number}", "")
    client.set("other:1:0:x", "")
    (leased,) = client.next("d")
    client.bury("d:1:0:5", reason="why")
    refused = cli("purge", "d")
    assert refused.returncode == USAGE
    assert b"--yes" in refused.stderr
    assert client.domain_stats("d").entries == 600
    assert cli.json("purge", "d", "--yes") == [{"purged": 599}]
    assert client.domain_stats("d").entries == 1
    assert client.domain_stats("other").entries == 1
    assert cli("purge", "d", "--yes").returncode == NOTHING
    assert leased.token is not None
    client.delete(leased.key, token=leased.token)


def test_limit_is_set_and_shown(cli: Cli, client: SyncClient) -> None:
    for given in (("--interval", "250ms", "--jobs", "2"), ("--lease", "5m", "--attempts", "3")):
        assert cli("limit", "host", *given).returncode == DONE
    limits = {"interval_us": 250_000, "jobs": 2, "lease_us": 300_000_000, "attempts": 3}
    assert cli.json("limit", "host") == [{"domain": "host", **limits}]
    assert cli("limit", "host", "--jobs", "0").returncode == DONE
    assert client.domain_stats("host").jobs_max == 0
    assert cli("limit", "a:b", "--jobs", "1").returncode == REFUSED
