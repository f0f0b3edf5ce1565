"""fj-cli on keys that are no text: base64 goes out in JSON, and comes in by --b64."""

from __future__ import annotations

import base64

import pytest

from fastjournal.client import SyncClient
from tests.integration.cli_process import Cli
from tests.integration.daemon_process import DaemonProcess

DONE, REFUSED, USAGE = 0, 1, 2
URI = b"\xff\0uri"


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_job_whose_names_are_no_text_goes_through_its_life(cli: Cli) -> None:
    domain = b64(b"\xff")
    (added,) = cli.json(
        "set", "--b64", "--domain", domain, "--uri", b64(URI), "--id", b64(b"\0"), "v"
    )
    key = added["key_b64"]
    (job,) = cli.json("next", domain, "--b64")
    assert (job["key_b64"], job["uri_b64"], job["domain_b64"]) == (key, b64(URI), domain)
    token = str(job["token"])
    for command in (
        ("release", key, token),
        ("bury", key),
        ("kick", key),
        ("bury", key),
        ("kick", "--domain", domain),
        ("pause", domain, "1h"),
        ("resume", domain),
        ("stats", domain),
        ("stats", key),
    ):
        assert cli(*command, "--b64").returncode == DONE, command
    assert cli.json("get", "--b64", b64(URI))[0]["key_b64"] == key
    found = cli.json("list", "--b64", "--prefix", domain)
    assert [entry["found_b64"] for entry in found] == [b64(URI), key]
    assert len(cli.json("list", "--b64", "--from", b64(URI), "--to", b64(URI))) == 1
    assert cli("delete", "--b64", key).returncode == DONE
    assert cli("get", "--b64", key).returncode == REFUSED


def test_key_that_is_plain_and_a_value_that_is_not_decoded(cli: Cli, daemon: DaemonProcess) -> None:
    assert cli("set", b64(b"a\0b"), "YQ==", "--b64").returncode == DONE
    with SyncClient(daemon.address) as client:
        assert client.get(b"a\0b").value == b"YQ=="


@pytest.mark.parametrize("word", ["!", "a", "YQ", "YQ==\n="])
def test_key_that_is_no_base64_is_bad_usage(cli: Cli, word: str) -> None:
    refused = cli("get", "--b64", word)
    assert refused.returncode == USAGE
    assert b"is no base64" in refused.stderr
