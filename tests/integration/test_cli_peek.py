"""``fj-cli peek``, as it is installed, against a real daemon: what NEXT then delivers."""

from __future__ import annotations

from fastjournal.client import SyncClient
from fastjournal.clock import SystemClock
from tests.integration.cli_process import Cli

DONE, REFUSED, USAGE, NOTHING_TO_DO = 0, 1, 2, 75
HOUR_S = 3600


def test_peek_shows_in_the_order_of_work_what_next_hands_out_then(
    cli: Cli, client: SyncClient
) -> None:
    now_us = SystemClock().now_us()
    for key in ("d:9:5:not-padded", "d:10:4:c", "d:010:3:b", "d:2:7:later", "d:2:6:first"):
        client.set(key, key, uri=f"uri of {key}")
    client.set(f"d:0:{now_us + HOUR_S * 1_000_000}:not-yet", "")
    client.set("d:0:1:buried", "")
    client.bury("d:0:1:buried")
    client.set("d:0:1:delayed", "")
    (taken,) = client.next("d")
    assert taken.token is not None
    client.release(taken.key, taken.token, delay=HOUR_S)
    client.set("d:0:1:worked-on", "", uri="twice")
    client.next("d")
    client.set("d:0:2:its-uri-is-worked-on", "", uri="twice")
    client.set("d:0:3:locked", "")
    client.lock("d:0:3:locked")
    client.set("plain", "")
    client.link("plain", "d:0:0:a-link-to-a-plain-value")
    client.link("d:10:4:c", "d:1:0:a-link-to-work")
    client.set("other:0:0:x", "")
    seen = cli.json("peek", "d", "--count", "9")
    assert [entry["key"] for entry in seen] == [
        "d:2:6:first",
        "d:2:7:later",
        "d:9:5:not-padded",
        "d:010:3:b",
        "d:10:4:c",
    ]
    assert seen[0]["value"] == "d:2:6:first"
    assert (seen[0]["uri"], seen[0]["state"]) == ("uri of d:2:6:first", ["persistent", "journal"])
    assert [entry["key"] for entry in cli.json("peek", "d")] == ["d:2:6:first"]
    assert [entry.key.decode() for entry in client.next("d", count=9)] == [e["key"] for e in seen]
    nothing = cli("peek", "d")
    assert (nothing.returncode, nothing.stdout) == (NOTHING_TO_DO, b"")


def test_peek_without_a_domain_shows_the_turns_of_all(cli: Cli, client: SyncClient) -> None:
    for key in ("a:1:0:x", "a:1:0:y", "b:2:0:x", "c:1:0:x"):
        client.set(key, "")
    client.pause("c", HOUR_S)
    assert client.next("").pairs[0].key == b"a:1:0:x"
    seen = [entry["key"] for entry in cli.json("peek", "--count", "9")]
    assert seen == ["b:2:0:x", "a:1:0:y"]
    assert [entry.key.decode() for entry in client.next("", count=9)] == seen


def test_peek_changes_nothing_and_tells_when_something_will_be_due(
    cli: Cli, client: SyncClient
) -> None:
    client.set("d:1:0:x", "v", ttl=HOUR_S)
    before = client.get("d:1:0:x", data=False, meta=True).meta
    assert cli.json("peek", "d")[0]["value"] == "v"
    (entry,) = client.peek("d", data=False, meta=True)
    assert entry.meta == before
    client.next("d", lease=HOUR_S)
    nothing = cli("peek", "d")
    assert (nothing.returncode, nothing.stdout) == (NOTHING_TO_DO, b"")
    assert b"nothing is due; ask again at " in nothing.stderr
    assert b"(in 1h)" in nothing.stderr


def test_peek_of_what_is_no_domain_is_refused(cli: Cli) -> None:
    refused = cli("peek", "d:1:1:x")
    assert refused.returncode == REFUSED
    assert b"bad-key" in refused.stderr
    for count in ("0", "501"):
        assert cli("peek", "d", "--count", count).returncode == USAGE
