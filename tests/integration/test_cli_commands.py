"""fj-cli, as it is installed, against a real daemon: every subcommand that talks to one."""

from __future__ import annotations

import base64
import json
import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastjournal.client import SyncClient
from fastjournal.clock import SystemClock
from fj_cli.cli import COMMANDS
from fj_cli.examples import EXAMPLES
from fj_cli.main import run
from tests.integration.cli_process import Cli
from tests.integration.daemon_process import DaemonProcess
from tests.integration.programs import installed, run_program
from tests.integration.terminal import on_terminal

DONE, REFUSED, USAGE, CANNOT_CONNECT, NOTHING_TO_DO = 0, 1, 2, 69, 75


def test_job_goes_from_set_through_next_to_completion(cli: Cli) -> None:
    (added,) = cli.json("set", "--domain", "pages", "--uri", "https://a/", "--priority", "7", "hi")
    (job,) = cli.json("next", "pages", "--lease", "5m")
    assert (job["key"], job["uri"], job["value"], job["priority"], job["attempts"]) == (
        added["key"],
        "https://a/",
        "hi",
        7,
        0,
    )
    assert job["not_before_us"] == added["timestamp_us"]
    assert job["token"] > added["timestamp_us"]
    nothing = cli("next", "pages")
    assert (nothing.returncode, nothing.stdout) == (NOTHING_TO_DO, b"")
    assert re.search(rb"ask again at .*\(in [45]m\)", nothing.stderr)
    lost = cli("delete", job["key"], "--token", str(job["token"] + 1))
    assert lost.returncode == REFUSED
    assert lost.stderr.startswith(b"fj-cli: lease-lost: ")
    assert cli("delete", job["key"], "--token", str(job["token"])).returncode == DONE
    gone = cli("get", job["key"])
    assert (gone.returncode, gone.stdout) == (REFUSED, b"")
    assert gone.stderr.startswith(b"fj-cli: not-found: ")


def test_next_waits_for_work_that_comes_later(cli: Cli, daemon: DaemonProcess) -> None:
    waiting = cli.start("next", "late", "--wait", "60s", "--json")
    with SyncClient(daemon.address) as client:
        while client.stats()["connections"] < 2:
            time.sleep(0.01)
        client.set("late:1:1:x", b"here")
    output, _ = waiting.communicate(timeout=60)
    assert waiting.returncode == DONE
    assert json.loads(output)["value"] == "here"
    assert cli("next", "late", "--wait", "20ms").returncode == NOTHING_TO_DO


@pytest.mark.parametrize(
    ("arguments", "stdin", "type_", "value"),
    [
        (["text"], b"", "string", "text"),
        (["-"], b"\xff\0", "buffer", "/wA="),
        (["--empty"], b"unread", "buffer", ""),
        (["--empty", "--type", "string"], b"", "string", ""),
        (["--type", "integer", "--", "-42"], b"", "integer", -42),
        (["--type", "float", "2.5"], b"", "float", 2.5),
        (["--type", "boolean", "yes"], b"", "boolean", True),
        (["--type", "void"], b"", "void", None),
        (["--type", "string", "-"], "ü".encode(), "string", "ü"),
    ],
)
def test_value_of_each_type_is_stored_and_shown(
    cli: Cli, arguments: list[str], stdin: bytes, type_: str, value: object
) -> None:
    options, words = (arguments[:-1], arguments[-1:]) if arguments else ([], [])
    if {"void", "--empty"} & set(arguments):
        options, words = arguments, []
    if "--" in options:
        cli.json("set", "--type", "integer", "--", "k", *words, stdin=stdin)
    else:
        cli.json("set", *options, "k", *words, stdin=stdin)
    (entry,) = cli.json("get", "k")
    assert entry["type"] == type_
    assert entry.get("value", entry.get("value_b64")) == value


def test_set_says_when_a_key_is_taken_and_overwrites_when_told(cli: Cli) -> None:
    cli.json("set", "k", "1")
    taken = cli("set", "k", "2")
    assert taken.returncode == REFUSED
    assert taken.stderr.startswith(b"fj-cli: exists: ")
    cli.json("set", "k", "2", "--overwrite", "--expires", "+1h", "--ttl", "1h")
    (entry,) = cli.json("get", "k")
    assert entry["value"] == "2"
    assert entry["ttl_us"] == 3_600_000_000
    assert entry["expires_us"] > entry["written_us"]
    assert entry["state"] == ["persistent"]
    cli.json("set", "m", "v", "--no-persist")
    assert cli.json("get", "m")[0]["state"] == []


def test_table_is_chosen_on_a_terminal_and_json_elsewhere(cli: Cli) -> None:
    shown = on_terminal([installed("fj-cli"), "stats"], cli.environment)
    assert "entries " in shown
    assert "{" not in shown
    assert cli("stats").stdout.startswith(b'{"entries":0')


def test_connection_that_nobody_accepts_is_exit_69_and_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    cli = Cli(tmp_path, address)
    for arguments in (["next"], ["get", "k"], ["snapshot"]):
        done = cli(*arguments)
        assert done.returncode == CANNOT_CONNECT
        assert done.stderr.count(b"\n") == 1
        assert address.encode() in done.stderr
        assert b"check that fastjournald is running there" in done.stderr


def test_server_option_wins_over_the_environment_on_either_side(cli: Cli) -> None:
    address = cli.environment["FASTJOURNAL_SERVER"]
    cli.environment["FASTJOURNAL_SERVER"] = "127.0.0.1:1"
    assert cli("stats").returncode == CANNOT_CONNECT
    assert cli("--server", address, "stats").returncode == DONE
    assert cli("stats", "--server", address).returncode == DONE
    del cli.environment["FASTJOURNAL_SERVER"]
    config = Path(cli.environment["XDG_CONFIG_HOME"], "fastjournal", "client.toml")
    config.parent.mkdir(parents=True)
    config.write_text(f'server = "{address}"\n')
    assert cli("stats").returncode == DONE


WRONG_USAGE: list[list[str]] = [
    ["no-such-command"],
    ["next", "--lease", "soon"],
    ["next", "--count", "0"],
    ["next", "--jobs", "2"],
    ["next", "--retry-delay", "1s"],
    ["next", "--exec"],
    ["next", "--exec", "no-such-program-anywhere"],
    ["next", "--delete", "--exec", "true"],
    ["next", "--lease", "999ms", "--exec", "true"],
    ["set"],
    ["set", "a", "b", "c"],
    ["set", "--domain", "d", "a", "b"],
    ["set", "--domain", "a:b"],
    ["set", "--domain", "d", "--priority", "256"],
    ["set", "k", "--not-before", "now"],
    ["set", "k", "--id", "x"],
    ["set", "k", "x", "--type", "integer"],
    ["set", "k", "x", "--type", "void"],
    ["get", "k" * 4097],
    ["get"],
    ["bury"],
    ["bury", "k", "--token", "x"],
    ["kick"],
    ["kick", "k", "--domain", "d"],
    ["kick", "k", "--all"],
    ["kick", "--domain", "d", "--all", "--count", "2"],
    ["pause", "d"],
    ["pause", "d", "soon"],
    ["pause", "d", "1h", "2h"],
    ["pause", "d", "1h", "--all"],
    ["pause", "", "1h"],
    ["pause"],
    ["resume"],
    ["resume", "d", "--all"],
    ["release", "k"],
    ["release", "k", "x"],
    ["--server", "nowhere", "stats"],
    ["spool", "status", "/no/such/directory"],
    ["log", "dump", "/no/such/directory"],
    ["log", "verify", __file__],
]


def test_usage_that_is_wrong_is_exit_2_and_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("FASTJOURNAL_SERVER", f"127.0.0.1:{server.getsockname()[1]}")
        for arguments in WRONG_USAGE:
            assert run(arguments) == USAGE, arguments
            shown = capsys.readouterr()
            assert (bool(shown.err), shown.out) == (True, ""), arguments


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


HOUR_S = 3600


def test_domains_are_listed_with_their_counts(cli: Cli, client: SyncClient) -> None:
    assert cli.json("domains") == []
    for key in ("mail:1:0:x", "pages:1:0:x", "pages:1:0:y", "pages:1:0:z"):
        client.set(key, "")
    client.next("pages")
    client.bury("pages:1:0:z", reason="why")
    client.pause("mail", HOUR_S)
    client.limit("host", interval=2, jobs=3)
    host, mail, pages = cli.json("domains")
    assert [found["domain"] for found in (host, mail, pages)] == ["host", "mail", "pages"]
    assert (host["entries"], host["interval_us"], host["jobs_max"]) == (0, 2_000_000, 3)
    assert mail["paused_until_us"] == client.domain_stats("mail").paused_until_us > 0
    counts = ("entries", "waiting", "due", "worked_on", "buried")
    assert [pages[name] for name in counts] == [3, 1, 1, 1, 1]
    shown = cli("domains", "--table").stdout.decode()
    assert "pages" in shown
    assert "2s" in shown


HOST, SHOWN = "example.org%3A8080", "example.org:8080"


def test_domain_of_a_host_with_a_port_is_shown_and_taken_as_people_write_it(
    cli: Cli, client: SyncClient
) -> None:
    for path in "ab":
        cli("set", "--uri", f"http://Example.org:8080/{path}", "x")
    assert [found["domain"] for found in cli.json("domains")] == [HOST]
    for words in (("domains",), ("domains", SHOWN), ("stats", SHOWN), ("limit", SHOWN)):
        table = cli(*words, "--table").stdout.decode()
        assert SHOWN in table, words
        assert "%3A" not in table
    assert cli.json("next", SHOWN)[0]["domain"] == HOST
    assert cli("pause", SHOWN, "1h").returncode == 0
    assert client.domain_stats(HOST).paused_until_us
    explained = cli("explain", "http://Example.org:8080/b", "--table").stdout.decode()
    assert f"the domain {SHOWN} is paused" in explained
    assert f"fj-cli resume {SHOWN}" in explained
    assert cli("resume", SHOWN).returncode == 0
    client.bury(client.peek(HOST)[0].key, reason="no")
    assert SHOWN in cli("dead", "list", "--table", "--queue", SHOWN).stdout.decode()
    assert f" {SHOWN} " in cli("workers", "--table", "--queue", SHOWN).stdout.decode()
    # any other name with a colon is a key, and bytes in base64 are what they are
    client.set("user:42", "x")
    assert cli.json("stats", "user:42")[0]["keys"] == ["user:42"]
    coded = base64.b64encode(SHOWN.encode()).decode()
    assert cli("pause", coded, "1h", "--b64").returncode == 1
    assert cli("next", "a:b").returncode == 1


def test_domains_of_a_prefix_page_by_page(cli: Cli, client: SyncClient) -> None:
    names = [f"{letter}{number:03d}" for letter in "ab" for number in range(300)]
    for name in names:
        client.set(f"{name}:1:0:x", "", persist=False)
    assert [found["domain"] for found in cli.json("domains", "--limit", "0")] == names
    assert [found["domain"] for found in cli.json("domains", "b29")] == names[-10:]
    few = cli("domains", "a", "--limit", "2")
    assert few.stdout.count(b"\n") == 2
    assert b"there is more behind these 2" in few.stderr
    assert cli("domains", "a299", "--limit", "1").stderr == b""
    assert cli("domains", "--limit", "-1").returncode == USAGE
    none = cli("domains", "nobody")
    assert (none.returncode, none.stdout) == (DONE, b"")


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
    assert cli("purge", "d", "--yes").returncode == NOTHING_TO_DO
    assert leased.token is not None
    client.delete(leased.key, token=leased.token)


def test_limit_is_set_and_shown(cli: Cli, client: SyncClient) -> None:
    for given in (("--interval", "250ms", "--jobs", "2"), ("--lease", "5m", "--attempts", "3")):
        assert cli("limit", "host", *given).returncode == DONE
    limits = {"interval_us": 250_000, "jobs": 2, "lease_us": 300_000_000, "attempts": 3}
    assert cli.json("limit", "host") == [{"domain": "host", **limits}]
    assert cli("limit", "host", "--jobs", "0").returncode == DONE
    assert client.domain_stats("host").jobs_max == 0
    assert cli("limit", "host", "--attempts", "-1").returncode == DONE
    assert cli.json("limit", "host")[0]["attempts"] == 0
    assert cli("limit", "host", "--attempts", "-2").returncode == USAGE
    assert cli("limit", "a:b", "--jobs", "1").returncode == REFUSED


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


def test_peek_and_next_of_several_domains_agree(cli: Cli, client: SyncClient) -> None:
    for key in ("a:1:0:x", "a:1:0:y", "b:2:0:x", "c:1:0:x", "crawl/d:1:0:x"):
        client.set(key, "")

    def keys(*words: str) -> list[str]:
        return [entry["key"] for entry in cli.json(*words, "--count", "9")]

    assert keys("peek", "b", "a") == ["b:2:0:x", "a:1:0:x", "a:1:0:y"]
    assert keys("peek", "a", "b", "--ordered") == ["a:1:0:x", "a:1:0:y", "b:2:0:x"]
    assert keys("peek", "--prefix", "c") == ["c:1:0:x", "crawl/d:1:0:x"]
    assert cli("peek", "a", "--ordered").returncode == USAGE
    assert cli("peek", "a", "--prefix", "c").returncode == USAGE
    assert keys("next", "b", "a") == ["b:2:0:x", "a:1:0:x", "a:1:0:y"]
    assert cli("peek", "a", "b").returncode == NOTHING_TO_DO


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


def test_bury_with_a_token_keeps_an_entry_from_next_until_it_is_kicked(cli: Cli) -> None:
    cli.json("set", "--domain", "d", "x")
    (job,) = cli.json("next")
    wrong = cli("bury", job["key"], "--token", str(job["token"] + 1))
    assert wrong.returncode == REFUSED
    assert wrong.stderr.startswith(b"fj-cli: lease-lost: ")
    buried = cli("bury", job["key"], "--token", str(job["token"]), "--reason", "no such page")
    assert (buried.returncode, buried.stdout) == (DONE, b"")
    assert cli.json("stats", job["key"])[0]["buried_reason"] == "no such page"
    assert cli("next").returncode == NOTHING_TO_DO
    assert cli.json("kick", job["key"]) == [{"kicked": 1}]
    assert cli("kick", job["key"]).returncode == NOTHING_TO_DO
    assert cli.json("next")[0]["key"] == job["key"]


def test_domain_is_kicked_one_by_one_some_or_all(cli: Cli) -> None:
    for number in range(6):
        (added,) = cli.json("set", "--domain", "d", "--priority", str(number), "x")
        assert cli("bury", added["key"]).returncode == DONE
    assert cli.json("kick", "--domain", "d") == [{"kicked": 1}]
    assert cli.json("next", "d")[0]["priority"] == 0
    assert cli.json("kick", "--domain", "d", "--count", "2") == [{"kicked": 2}]
    assert cli.json("stats", "d")[0]["buried"] == 3
    told = cli("kick", "--domain", "d", "--all", "--table")
    assert (told.returncode, told.stdout, told.stderr) == (DONE, b"", b"3 kicked\n")
    assert cli("kick", "--domain", "d", "--all").returncode == NOTHING_TO_DO


def test_kick_of_a_whole_domain_takes_as_many_requests_as_it_needs(cli: Cli) -> None:
    size = str(900_000)
    for number in range(10):
        key = f"d:1:0:{number}"
        cli.json("set", key, "-", stdin=bytes(int(size)))
        assert cli("bury", key).returncode == DONE
    assert cli.json("kick", "--domain", "d", "--all") == [{"kicked": 10}]
    assert cli.json("stats", "d")[0]["due"] == 10


def test_pause_of_a_domain_delivers_nothing_until_it_is_resumed(
    cli: Cli, daemon: DaemonProcess
) -> None:
    cli.json("set", "--domain", "d", "x")
    assert cli("pause", "d", "1h").returncode == DONE
    nothing = cli("next", "d")
    assert nothing.returncode == NOTHING_TO_DO
    assert b"(in 1h)" in nothing.stderr
    assert cli.json("stats", "d")[0]["paused_until_us"] > 0
    daemon.kill()
    daemon.start()
    cli.environment["FASTJOURNAL_SERVER"] = daemon.address
    assert cli("next").returncode == NOTHING_TO_DO
    assert cli("resume", "d").returncode == DONE
    (job,) = cli.json("next", "d")
    assert cli("release", job["key"], str(job["token"])).returncode == DONE
    assert cli("pause", "d", "1h").returncode == DONE
    assert cli("pause", "d", "0").returncode == DONE
    assert len(cli.json("next", "d")) == 1


def test_pause_of_a_domain_that_nobody_knows_is_set_with_a_note(cli: Cli) -> None:
    said = cli("pause", "newsleter", "1h")
    assert said.returncode == DONE
    assert said.stderr == (
        b"fj-cli: there is no domain newsleter now: no entry, limit or worker ('fj-cli domains'"
        b" lists them); the pause is set\n"
    )
    assert cli.json("stats", "newsleter")[0]["paused_until_us"] > 0
    cli.json("set", "--domain", "newsletter", "x")
    assert cli("limit", "slow", "--jobs", "1").returncode == DONE
    for domain, length in (("newsletter", "5"), ("slow", "5"), ("newsleter", "5"), ("none", "0")):
        assert cli("pause", domain, length).stderr == b""


def test_pause_all_delivers_nothing_until_all_is_resumed(cli: Cli, daemon: DaemonProcess) -> None:
    cli.json("set", "--domain", "d", "--uri", "u", "x")
    assert cli("pause", "--all").returncode == DONE
    assert cli("next").stderr == b"nothing is due\n"
    peeked = cli("peek", "d", "--json")
    assert b"paused until without end" in peeked.stderr
    assert b"d:128:" in peeked.stdout
    daemon.kill()
    daemon.start()
    cli.environment["FASTJOURNAL_SERVER"] = daemon.address
    cli.json("set", "--domain", "new", "y")
    assert cli("next", "new").returncode == NOTHING_TO_DO
    assert b"all domains are paused" in cli("explain", "u").stdout
    assert b"fj-cli resume --all" in cli("explain", "u", "--log", str(daemon.log_path)).stdout
    assert cli("resume", "--all").returncode == DONE
    assert len(cli.json("next", "--count", "2")) == 2
    assert cli("pause", "--all", "1h").returncode == DONE
    assert b"(in 1h)" in cli("next").stderr


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("fj-cli pe", ["peek"]),
        ("fj-cli log ver", ["verify"]),
        ("fj-cli set --over", ["--overwrite"]),
        ("fj-cli set --type bu", ["buffer"]),
    ],
)
def test_subcommands_options_and_choices_are_completed(words: str, offered: list[str]) -> None:
    environment = {
        **os.environ,
        "_FJ_CLI_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    answer = subprocess.run(
        [installed("fj-cli")], env=environment, capture_output=True, text=True, check=False
    )
    assert [line.partition(",")[2] for line in answer.stdout.splitlines()] == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_line_of_the_help_gives_a_script_for_each_shell(shell: str) -> None:
    environment = {**os.environ, "_FJ_CLI_COMPLETE": f"{shell}_source"}
    script = subprocess.run(
        [installed("fj-cli")], env=environment, capture_output=True, text=True, check=False
    )
    assert f"_FJ_CLI_COMPLETE={shell}_complete" in script.stdout
    assert script.stderr == ""


def completed(environment: dict[str, str], words: str) -> list[str]:
    """Return what a shell would offer behind these words; ``_`` stands for nothing yet."""
    environment = {
        **environment,
        "_FJ_CLI_COMPLETE": "bash_complete",
        "COMP_WORDS": words.replace("_", ""),
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    answer = subprocess.run(
        [installed("fj-cli")], env=environment, capture_output=True, text=True, check=False
    )
    assert answer.stderr == ""
    return [line.partition(",")[2] for line in answer.stdout.splitlines() if line]


def test_completion_offers_the_domains_of_the_daemon(cli: Cli, client: SyncClient) -> None:
    strange = ("pa;reboot", "pa`id`", "pa$(id)", "pa>x", "pa*", "pa'", "--yes")
    for domain in ("pages", "parts", "mails", "with space", *strange):
        client.set(f"{domain}:1:0:x", "v")
    assert completed(cli.environment, "fj-cli next pa") == ["pages", "parts"]
    assert completed(cli.environment, "fj-cli purge _") == ["mails", "pages", "parts"]
    assert completed(cli.environment, "fj-cli set --domain ma") == ["mails"]


def test_completion_without_a_daemon_offers_nothing_and_says_nothing(cli: Cli) -> None:
    environment = cli.environment | {"FASTJOURNAL_SERVER": "unix:/no/such/socket"}
    assert completed(environment, "fj-cli next pa") == []


def words_of_shell(line: str) -> list[str]:
    """Return the words that a shell makes of a line of one command."""
    printed = subprocess.run(
        ["sh", "-c", f"printf '%s\\0' {line}"], stdout=subprocess.PIPE, text=True, check=True
    )
    return printed.stdout.split("\0")[:-1]


def test_command_examples_of_the_help_run_in_their_order(cli: Cli) -> None:
    programs = os.path.dirname(installed("fj-cli"))
    environment = cli.environment | {"PATH": f"{programs}:/usr/bin:/bin"}
    for name, lines in EXAMPLES.items():
        shown = cli(*name.split(), "--help").stdout.decode()
        assert f"Examples:\n    {lines[0]}" in shown
        for line in lines:
            program, *words = words_of_shell(line)
            assert program == "fj-cli"
            ran = run_program(
                [installed(program), *words], env=environment, capture_output=True, text=True
            )
            assert ran.returncode in (0, 75), (line, ran.stderr)
    without = {
        "release",
        "watch",
        "export",
        "import",
        "spool",
        "log",
        "token",
        "demo",
        "top",
        "remote",
    }
    assert COMMANDS.keys() - {name.partition(" ")[0] for name in EXAMPLES} <= without


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path_factory.mktemp("daemon")) as filled:
        with SyncClient(filled.address) as client:
            for number in range(30):
                client.set(f"k{number:02}", b"value %d" % number)
            client.set("a:1:0:x", "job", uri="https://example.org/")
            client.set(b"\xff\x1b", 7)
        yield filled


@pytest.fixture
def listing(filled: DaemonProcess, tmp_path: Path) -> Cli:
    return Cli(tmp_path, filled.address)


def found(listing: Cli, *arguments: str) -> list[str]:
    return [fields["found"] for fields in listing.json("list", "--json", *arguments)]


def test_keys_of_a_prefix_a_range_and_an_expression_are_listed_in_byte_order(listing: Cli) -> None:
    assert found(listing, "--prefix", "k1") == [f"k1{digit}" for digit in range(10)]
    assert found(listing, "--from", "k07", "--to", "k09") == ["k07", "k08", "k09"]
    assert found(listing, "--to", "a:2") == ["a:1:0:x"]
    assert found(listing, "--regex", "[13]5$") == ["k15"]
    assert found(listing, "--prefix", "none") == []


def test_entries_are_listed_under_all_their_keys(listing: Cli) -> None:
    listed = listing.json("list", "--json")
    assert len(listed) == 33
    assert listed[0]["found"] == listed[0]["key"] == "a:1:0:x"
    uri = next(fields for fields in listed if fields.get("found") == "https://example.org/")
    assert (uri["key"], uri["uri"]) == ("a:1:0:x", "https://example.org/")
    assert listed[-1]["found_b64"] == "/xs="
    assert all("value" not in fields and "state" not in fields for fields in listed)


def test_values_and_metadata_come_when_asked_for(listing: Cli) -> None:
    (fields,) = listing.json("list", "--json", "--prefix", "k07", "--data", "--meta")
    assert (fields["value"], fields["state"], fields["attempts"]) == ("value 7", ["persistent"], 0)


def test_limit_is_kept_and_it_is_said_that_there_is_more(listing: Cli) -> None:
    done = listing("list", "--prefix", "k", "--limit", "3", "--json")
    assert (done.returncode, len(done.stdout.splitlines())) == (DONE, 3)
    assert b"there is more behind these 3" in done.stderr
    done = listing("list", "--prefix", "k", "--limit", "30", "--json")
    assert (len(done.stdout.splitlines()), done.stderr) == (30, b"")
    assert len(found(listing, "--prefix", "k", "--limit", "0")) == 30


def test_expression_that_is_malformed_is_refused_with_the_reason(listing: Cli) -> None:
    done = listing("list", "--regex", "(")
    assert done.returncode == REFUSED
    assert done.stderr.startswith(b"fj-cli: bad-regex: missing ): (")


def test_usage_of_two_ways_at_once_is_an_error(listing: Cli) -> None:
    done = listing("list", "--prefix", "a", "--regex", "b")
    assert done.returncode == USAGE
    assert b"exclude each other" in done.stderr


def test_next_of_several_domains_in_turns_in_order_and_by_prefix(cli: Cli) -> None:
    for key in ("a:1:0:1", "b:1:0:1", "a:1:0:2", "b:1:0:2", "crawl/x:1:0:1", "other:1:0:1"):
        assert cli("set", key, "v").returncode == 0
    for key in (b"b:1:0:1", b"b:1:0:2"):
        assert key in cli("next", "b", "a", "--ordered", "--delete").stdout
    done = cli("next", "a", "b", "--count", "2", "--exec", "printenv", "FASTJOURNAL_KEY")
    assert done.stdout.split() == [b"a:1:0:1", b"a:1:0:2"]
    done = cli("next", "--prefix", "crawl/", "--exec", "printenv", "FASTJOURNAL_KEY")
    assert done.stdout.split() == [b"crawl/x:1:0:1"]
    assert cli("next", "a", "b").returncode == 75
    for wrong in (("a", "--ordered"), ("a", "--prefix", "b")):
        assert cli("next", *wrong).returncode == 2
