"""``fj-cli list``, as it is installed, against a real daemon."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fastjournal.client import SyncClient
from tests.integration.cli_process import Cli
from tests.integration.daemon_process import DaemonProcess

DONE, REFUSED, USAGE = 0, 1, 2


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path_factory.mktemp("daemon")) as daemon:
        with SyncClient(daemon.address) as client:
            for number in range(30):
                client.set(f"k{number:02}", b"value %d" % number)
            client.set("a:1:0:x", "job", uri="https://example.org/")
            client.set(b"\xff\x1b", 7)
        yield daemon


@pytest.fixture
def cli(daemon: DaemonProcess, tmp_path: Path) -> Cli:
    return Cli(tmp_path, daemon.address)


def found(cli: Cli, *arguments: str) -> list[str]:
    return [fields["found"] for fields in cli.json("list", "--json", *arguments)]


def test_keys_of_a_prefix_a_range_and_an_expression_are_listed_in_byte_order(cli: Cli) -> None:
    assert found(cli, "--prefix", "k1") == [f"k1{digit}" for digit in range(10)]
    assert found(cli, "--from", "k07", "--to", "k09") == ["k07", "k08", "k09"]
    assert found(cli, "--to", "a:2") == ["a:1:0:x"]
    assert found(cli, "--regex", "[13]5$") == ["k15"]
    assert found(cli, "--prefix", "none") == []


def test_entries_are_listed_under_all_their_keys(cli: Cli) -> None:
    listed = cli.json("list", "--json")
    assert len(listed) == 33
    assert listed[0]["found"] == listed[0]["key"] == "a:1:0:x"
    uri = next(fields for fields in listed if fields.get("found") == "https://example.org/")
    assert (uri["key"], uri["uri"]) == ("a:1:0:x", "https://example.org/")
    assert listed[-1]["found_b64"] == "/xs="
    assert all("value" not in fields and "state" not in fields for fields in listed)


def test_values_and_metadata_come_when_asked_for(cli: Cli) -> None:
    (fields,) = cli.json("list", "--json", "--prefix", "k07", "--data", "--meta")
    assert (fields["value"], fields["state"], fields["attempts"]) == ("value 7", ["persistent"], 0)


def test_limit_is_kept_and_it_is_said_that_there_is_more(cli: Cli) -> None:
    done = cli("list", "--prefix", "k", "--limit", "3", "--json")
    assert (done.returncode, len(done.stdout.splitlines())) == (DONE, 3)
    assert b"there is more behind these 3" in done.stderr
    done = cli("list", "--prefix", "k", "--limit", "30", "--json")
    assert (len(done.stdout.splitlines()), done.stderr) == (30, b"")
    assert len(found(cli, "--prefix", "k", "--limit", "0")) == 30


def test_expression_that_is_malformed_is_refused_with_the_reason(cli: Cli) -> None:
    done = cli("list", "--regex", "(")
    assert done.returncode == REFUSED
    assert done.stderr.startswith(b"fj-cli: bad-regex: missing ): (")


def test_usage_of_two_ways_at_once_is_an_error(cli: Cli) -> None:
    done = cli("list", "--prefix", "a", "--regex", "b")
    assert done.returncode == USAGE
    assert b"exclude each other" in done.stderr
