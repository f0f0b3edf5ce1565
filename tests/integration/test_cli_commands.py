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
