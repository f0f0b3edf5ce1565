"""fj-cli, as it is installed, against a real daemon: every subcommand that talks to one."""

from __future__ import annotations

import json
import re
import socket
import time
from pathlib import Path

import pytest

from fastjournal.client import SyncClient
from tests.integration.cli_process import Cli
from tests.integration.daemon_process import DaemonProcess
from tests.integration.programs import installed
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
    assert re.search(rb"ask again at .*\(in [45] m\)", nothing.stderr)
    lost = cli("delete", job["key"], "--token", str(job["token"] + 1))
    assert lost.returncode == REFUSED
    assert lost.stderr.startswith(b"fj-cli: lease-lost: ")
    assert cli("delete", job["key"], "--token", str(job["token"])).returncode == DONE
    gone = cli("get", job["key"])
    assert (gone.returncode, gone.stdout) == (REFUSED, b"")
    assert gone.stderr.startswith(b"fj-cli: not-found: ")


def test_release_returns_an_entry_at_once_or_after_its_delay(cli: Cli) -> None:
    cli.json("set", "--domain", "d", "x")
    (job,) = cli.json("next")
    assert cli("release", job["key"], str(job["token"])).returncode == DONE
    (job,) = cli.json("next")
    assert cli("release", job["key"], str(job["token"]), "--delay", "1h").returncode == DONE
    assert cli("next").returncode == NOTHING_TO_DO
    assert cli("release", job["key"], str(job["token"])).returncode == REFUSED


def test_next_takes_several_of_any_domain_and_deletes_where_asked(cli: Cli) -> None:
    for domain in ("a", "a", "b"):
        cli.json("set", "--domain", domain, domain)
    jobs = cli.json("next", "--count", "2", "--delete")
    assert sorted(job["domain"] for job in jobs) == ["a", "b"]
    assert all("token" not in job for job in jobs)
    assert cli("get", jobs[0]["key"]).returncode == REFUSED
    assert cli("next", "b").returncode == NOTHING_TO_DO
    assert len(cli.json("next", "a", "--count", "9")) == 1


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


def test_next_delivers_nothing_before_its_start(cli: Cli) -> None:
    cli.json("set", "--domain", "d", "--not-before", "+1h", "--id", "later", "x")
    assert cli("next", "d").returncode == NOTHING_TO_DO
    begun = "2020-01-01T00:00Z"
    (added,) = cli.json("set", "--domain", "d", "--not-before", begun, "--id", "i", "x")
    assert added["key"] == "d:128:1577836800000000:i"
    (job,) = cli.json("next", "d")
    assert job["id"] == "i"


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


def test_raw_writes_the_bytes_and_nothing_else(cli: Cli) -> None:
    cli.json("set", "k", "-", stdin=bytes(range(256)))
    assert cli("get", "k", "--raw").stdout == bytes(range(256))


def test_key_that_is_not_utf_8_can_be_used(cli: Cli) -> None:
    (added,) = cli.json("set", b"\xfe\xff", "v")
    assert added["key_b64"] == "/v8="
    assert cli.json("get", b"\xfe\xff")[0]["value"] == "v"


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


def test_stats_of_the_daemon_a_domain_and_an_entry(cli: Cli) -> None:
    (added,) = cli.json("set", "--domain", "d", "x")
    cli.json("set", "plain", "x")
    (daemon,) = cli.json("stats")
    assert (daemon["entries"], daemon["due"], daemon["domains"]) == (2, 1, 1)
    assert cli.json("stats", "d")[0]["waiting"] == 1
    assert cli.json("stats", added["key"])[0] != daemon
    assert cli("stats", "plain", "--entry").returncode == DONE
    assert b"entries" in cli("stats", "--table").stdout
    assert cli("stats", "no:1:1:such").returncode == REFUSED


def test_snapshot_is_whole_and_can_be_dumped(cli: Cli, daemon: DaemonProcess) -> None:
    (added,) = cli.json("set", "--domain", "d", "--uri", "u", "payload")
    (taken,) = cli.json("snapshot")
    path = taken["path"]
    verified = cli("log", "verify", path)
    assert (verified.returncode, verified.stdout) == (DONE, b"")
    assert b"is whole: 1 segment" in verified.stderr
    records = cli.json("log", "dump", path)
    entries = [record["entry"] for record in records if "entry" in record]
    assert [(e["key"], e["uri"], e["value"]) for e in entries] == [
        (added["key"], "u", "payload"),
    ]
    table = cli("log", "dump", path, "--table").stdout.decode()
    assert f"{added['key'][:40]}" in table
    assert len(table.splitlines()) == len(records)


def test_snapshot_removes_older_ones_where_it_is_told_how_many_to_keep(cli: Cli) -> None:
    first, second = (Path(cli.json("snapshot")[0]["path"]) for _ in range(2))
    kept = Path(cli("snapshot", "--keep", "2", "--table").stdout.decode().strip())
    assert sorted(first.parent.iterdir()) == sorted([second, kept])
    assert cli("snapshot", "--keep", "0").returncode == USAGE


def test_tables_are_for_people_and_json_is_for_programs(cli: Cli) -> None:
    cli.json("set", "k", "a\x1b[2Jb")
    for arguments in (["get", "k"], ["stats"]):
        table = cli(*arguments, "--table").stdout.decode()
        assert "{" not in table
        assert "\x1b[2J" not in table
        assert len(cli.json(*arguments)) == 1
    cli.json("set", "--domain", "d", "--uri", "https://a/", "work")
    table = cli("next", "d", "--table").stdout.decode()
    assert "https://a/" in table
    assert "(in 5 m), token" in table


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
    config = Path(cli.environment["XDG_CONFIG_HOME"], "fastjournal", "fj-cli.toml")
    config.parent.mkdir(parents=True)
    config.write_text(f'server = "{address}"\n')
    assert cli("stats").returncode == DONE


@pytest.mark.parametrize(
    "arguments",
    [
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
        ["resume"],
        ["release", "k"],
        ["release", "k", "x"],
        ["--server", "nowhere", "stats"],
        ["spool", "status", "/no/such/directory"],
        ["log", "dump", "/no/such/directory"],
        ["log", "verify", __file__],
    ],
)
def test_usage_that_is_wrong_is_exit_2_and_says_why(tmp_path: Path, arguments: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        done = Cli(tmp_path, f"127.0.0.1:{server.getsockname()[1]}")(*arguments)
    assert done.returncode == USAGE
    assert done.stderr
    assert b"Traceback" not in done.stderr
    assert done.stdout == b""
