"""fj-cli: every function of the protocol from the command line, and what people read."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from fastjournal.client import SyncClient
from fastjournal.spool import Spool
from tests.integration.cli_process import TIMEOUT_S, Cli
from tests.integration.daemon_process import DaemonProcess
from tests.integration.programs import installed
from tests.integration.terminal import on_terminal as run_on_terminal
from tests.integration.worker_process import wait_until

DONE, REFUSED, USAGE, CANNOT_CONNECT = 0, 1, 2, 69
SECOND = 1_000_000


# --- data -----------------------------------------------------------------------------------------


def test_function_add_counts_and_prints_the_sum(cli: Cli) -> None:
    assert cli("add", "hits").returncode == REFUSED
    assert cli.json("add", "hits", "--create") == [{"key": "hits", "value": 1}]
    assert cli.json("add", "hits", "41")[0]["value"] == 42
    assert cli.json("add", "hits", "-2")[0]["value"] == 40
    assert cli("add", "hits", "2", "--table").stdout == b"42\n"
    cli("set", "ratio", "0.5", "--type", "float")
    assert cli.json("add", "ratio", "0.25")[0]["value"] == 0.75
    assert b"type-mismatch" in cli("add", "hits", "0.5").stderr
    assert b"'many' is no number" in cli("add", "hits", "many").stderr


def test_function_not_flips_a_flag_and_truncate_cuts_a_value(cli: Cli) -> None:
    cli("set", "flag", "false", "--type", "boolean")
    assert cli.json("not", "flag") == [{"key": "flag", "value": True}]
    assert cli("not", "flag", "--table").stdout == b"false\n"
    cli("set", "text", "abcdef")
    assert cli("truncate", "text", "3").returncode == DONE
    assert cli.json("get", "text")[0]["value"] == "abc"


def test_rename_and_link_change_the_keys_of_an_entry(cli: Cli) -> None:
    cli("set", "old", "v")
    assert cli("link", "old", "also").returncode == DONE
    assert cli("rename", "old", "new").returncode == DONE
    assert [cli.json("get", key)[0]["value"] for key in ("new", "also")] == ["v", "v"]
    assert cli("get", "old").returncode == REFUSED
    cli("set", "other", "w")
    assert b"exists" in cli("rename", "new", "other").stderr
    assert cli("rename", "new", "other", "--overwrite").returncode == DONE
    assert cli.json("get", "other")[0]["value"] == "v"


def test_function_touch_moves_the_expiry_or_renews_the_lease(cli: Cli) -> None:
    cli("set", "k", "v")
    assert cli("touch", "k", "1h").returncode == DONE
    left = cli.json("get", "k")[0]["expires_us"] - time.time_ns() // 1000
    assert 3500 * SECOND < left <= 3600 * SECOND
    cli("set", "--domain", "d", "v")
    (job,) = cli.json("next", "d", "--lease", "1m")
    (renewed,) = cli.json("touch", job["key"], "1h", "--token", str(job["token"]))
    assert renewed["token"] > job["token"] + 3000 * SECOND
    assert cli("delete", job["key"], "--token", str(renewed["token"])).returncode == DONE


def test_function_get_probes_leases_and_sets_the_expiry(cli: Cli) -> None:
    cli("set", "k", "value of k")
    (probe,) = cli.json("get", "k", "--probe")
    assert (probe["type"], "value" in probe) == ("string", False)
    assert "value of k" not in cli("get", "k", "--probe", "--table").stdout.decode()
    cli("get", "k", "--expires", "+1h")
    assert cli.json("get", "k")[0]["expires_us"] > time.time_ns() // 1000
    assert cli.json("get", "k", "--expires", "never")[0]["expires_us"] is None
    past = cli("get", "k", "--expires", "@0")
    assert past.returncode == USAGE
    assert b"before the year 2000" in past.stderr
    (leased,) = cli.json("get", "k", "--lease", "1m")
    assert leased["token"] == leased["worked_on_until_us"]
    assert cli("release", "k", str(leased["token"])).returncode == DONE
    for wrong in (("--raw", "--probe"), ("--lease", "1m", "--expires", "+1h")):
        assert cli("get", "k", *wrong).returncode == USAGE


NANOSECONDS = "1795876490891119000"


@pytest.mark.parametrize(
    ("value", "is_json"),
    [
        ({"to": "a@example.org"}, True),
        ([1, 2], True),
        ("{broken", False),
        ("[" * 100_000, False),
        ('{"a": 1}', True),
        (b'{"a": 1}', False),
        ("42", False),
        ("", False),
        (7, False),
    ],
    ids=range(9),
)
def test_function_get_tells_a_string_that_is_json(
    cli: Cli, client: SyncClient, value: Any, is_json: bool
) -> None:
    client.set("k", value)
    [found] = cli.json("get", "k")
    assert found.get("format") == ("json" if is_json else None)
    assert "format" not in cli.json("get", "k", "--probe")[0]
    table = cli("get", "k", "--table").stdout.decode()
    assert bool(re.search(r"^format +json$", table, re.MULTILINE)) == is_json


def test_set_refuses_an_instant_in_another_unit_in_any_spelling(cli: Cli) -> None:
    typed = f"pages:128:{NANOSECONDS}:x"
    refused = cli("set", typed, "v")
    assert refused.returncode == USAGE
    for word in (b"unit is microseconds, and this looks like nanoseconds", b"or --plain if it"):
        assert word in refused.stderr
    assert cli("get", typed).returncode == REFUSED
    for name, value in (("--not-before", NANOSECONDS), ("--expires", "1795876490891")):
        refused = cli("set", "--domain", "d", "v", name, f"@{value}")
        assert refused.returncode == USAGE
        assert b"the unit is seconds, and this looks like " in refused.stderr
    assert cli("set", typed, "v", "--plain").returncode == DONE
    assert cli("set", "pages:128:7:x", "v").returncode == DONE  # a number for the order of work
    assert [job["key"] for job in cli.json("next", "pages", "--count", "2")] == ["pages:128:7:x"]


def test_function_that_makes_a_key_refuses_one_that_looks_like_a_job(cli: Cli) -> None:
    cli("set", "k", "1", "--type", "integer")
    for command in (
        ("add", "pages:300:0:x", "1", "--create"),
        ("rename", "k", "pages:300:0:y"),
        ("link", "pages:300:0:y", "pages:300:0:z"),
    ):
        refused = cli(*command)
        assert refused.returncode == USAGE
        assert b"looks like a journal key" in refused.stderr
        assert b"or --plain if it is meant" in refused.stderr
        assert cli(*command, "--plain").returncode == DONE


def test_set_with_a_uri_alone_is_work_in_its_domain(cli: Cli) -> None:
    uri = "https://Example.org:8080/a"
    shown = cli("set", "--uri", uri, "--empty", "--table").stdout
    assert shown.startswith(b"example.org%3A8080:128:")
    assert cli("set", "--uri", uri, "-", "--priority", "3", stdin=b"page").returncode == DONE
    (job,) = cli.json("next")
    assert (job["domain"], job["uri"], job["value"], job["priority"]) == (
        "example.org%3A8080",
        uri,
        "page",
        3,
    )
    assert cli("set", "--uri", "mailto:a@example.org", "v").returncode == USAGE
    assert cli("set", "--priority", "3", "k", "v").returncode == USAGE


def test_set_with_a_unique_value_deduplicates_within_its_domain(
    cli: Cli, client: SyncClient, tmp_path: Path
) -> None:
    def outcome(*words: str) -> str:
        return str(cli.json("set", *words)[0]["outcome"])

    assert outcome("--domain", "mails", "--unique", "7", "one") == "new"
    assert outcome("--domain", "mails", "--unique", "7", "two", "--delay", "1h") == "replaced"
    assert outcome("--domain", "search", "--unique", "7", "three") == "new"
    both = cli("set", "--domain", "mails", "--uri", "u", "--unique", "7", "v")
    assert b"exclude each other" in both.stderr
    late = cli("set", "--domain", "mails", "--delay", "1h", "--not-before", "+1h", "v")
    assert b"exclude each other" in late.stderr
    spool = str(tmp_path / "spool")
    line = {"domain": "search", "unique": "7", "value": "four", "delay": 0.001}
    put = cli("spool", "put", spool, stdin=json.dumps(line).encode() + b"\n")
    assert put.returncode == DONE, put.stderr
    put = cli("spool", "put", spool, "five", "--domain", "search", "--unique", "8")
    assert put.returncode == DONE, put.stderr
    forwarder = [
        installed("fj-forwarder"),
        "--spool",
        spool,
        "--server",
        cli.environment["FASTJOURNAL_SERVER"],
    ]
    subprocess.run([*forwarder, "--once"], check=True, timeout=TIMEOUT_S)
    found = {job.unique: job.decoded() for job in client.next("search", count=9)}
    assert found == {b"7": "four", b"8": "five"}
    (delayed,) = client.prefix("mails:")
    assert (delayed.decoded(), delayed.unique) == ("two", b"7")


def test_set_under_a_whole_key_replaces_a_waiting_job_and_no_leased_one(
    cli: Cli, client: SyncClient
) -> None:
    key = "mails:003:0:daily"

    def outcome(*words: str) -> str:
        return str(cli.json("set", "--key", key, *words)[0]["outcome"])

    assert outcome("one", "--unique", "7") == "new"
    assert outcome("two", "--unique", "7") == "replaced"
    (job,) = client.next("mails", count=9)
    assert (job.key, job.decoded(), job.unique) == (key.encode(), "two", b"7")
    refused = cli("set", "--key", key, "three")
    assert refused.returncode == REFUSED
    assert b"worked-on" in refused.stderr
    assert b"fj-cli spool put DIR --key" in refused.stderr
    client.delete(job.key, token=job.token)
    assert outcome("four") == "new"
    (found,) = client.next("mails", count=9)
    assert found.decoded() == "four"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--queue", "q", "v"], b"--queue is excluded by --key"),
        (["--priority", "3", "v"], b"--priority is excluded by --key"),
        (["--id", "x", "v"], b"--id is excluded by --key"),
        (["--ttl", "1h", "v"], b"--ttl is excluded by --key"),
        (["--overwrite", "v"], b"--overwrite is excluded by --key"),
        (["k", "v"], b"too many arguments"),
        ([], b"give VALUE"),
        (["--uri", "u", "--unique", "7", "v"], b"exclude each other"),
    ],
)
def test_set_under_a_whole_key_refuses_its_parts(cli: Cli, words: list[str], text: bytes) -> None:
    refused = cli("set", "--key", "q:1:0:x", *words)
    assert (refused.returncode, text in refused.stderr) == (USAGE, True), refused.stderr


def test_queue_and_domain_are_two_names_of_one_option(cli: Cli) -> None:
    assert cli.json("set", "--queue", "q", "v")[0]["key"].startswith("q:128:")
    for words in (["--queue", "q", "--domain", "q"], ["--queue", "q", "--queue", "q"]):
        refused = cli("set", *words, "v")
        assert (refused.returncode, b"two names" in refused.stderr) == (USAGE, True)


def test_unique_value_is_shown_as_one_and_never_as_a_uri(
    cli: Cli, client: SyncClient, daemon: DaemonProcess
) -> None:
    written = client.enqueue("mails", "v", unique="order 7")
    key, uri = written.key.decode(), "unique:mails:order 7"
    (listed,) = cli.json("list", "--prefix", "mails:", "--meta")
    (got,) = cli.json("get", uri)
    (peeked,) = cli.json("peek", "mails")
    for fields in (listed, got, peeked):
        assert (fields["key"], fields["unique"], "uri" in fields) == (key, "order 7", False)
    for command in (("list", "--prefix", "mails:"), ("peek", "mails")):
        table = cli(*command, "--table").stdout.decode()
        assert "unique order 7" in table
        assert uri not in table
    (explained,) = cli.json("explain", uri)
    assert explained["unique"] == "order 7"
    assert "unique     order 7, in its queue" in cli("explain", key, "--table").stdout.decode()
    (stats,) = cli.json("stats", key)
    assert stats["unique"] == "order 7"
    echo = ("sh", "-c", 'echo "$FASTJOURNAL_UNIQUE,$FASTJOURNAL_URI"')
    done = cli("next", "mails", "--exec", *echo)
    assert done.stdout == b"order 7,\n", done.stderr
    dumped = cli("log", "dump", str(daemon.log_path), "--table").stdout.decode()
    assert "unique=order 7 " in dumped
    assert f"uri={uri}" not in dumped


def test_dead_letter_of_a_spool_shows_its_unique_value(cli: Cli, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    with Spool(spool) as writer:
        writer.append(queue="mails", unique="order 7", value="x" * 2_000_000)
    forward = ("--spool", str(spool), "--server", cli.environment["FASTJOURNAL_SERVER"], "--once")
    subprocess.run([installed("fj-forwarder"), *forward], check=True, timeout=TIMEOUT_S)
    (piece,) = cli.json("spool", "dead", "list", str(spool))
    assert (piece["code"], piece["unique"], "uri" in piece) == ("too-large", "order 7", False)
    assert b"unique order 7" in cli("spool", "dead", "list", str(spool), "--table").stdout
    assert (
        b"unique order 7"
        in cli("spool", "dead", "show", str(spool), piece["name"], "--table").stdout
    )


def test_set_with_a_uri_and_one_word_is_work_with_that_value(cli: Cli, client: SyncClient) -> None:
    uri = "https://q.example/1"
    for arguments in (("my value",), ("5", "--type", "integer"), ("a:b", "--priority", "3")):
        assert cli("set", "--uri", uri, *arguments).returncode == DONE
        (job,) = cli.json("next", "q.example", "--lease", "1m")
        assert (job["domain"], job["uri"], str(job["value"])) == ("q.example", uri, arguments[0])
        client.delete(job["key"], token=job["token"])
    # base64 is of names only
    coded = base64.b64encode(uri.encode()).decode()
    assert cli("set", "--b64", "--uri", coded, "my value").returncode == DONE
    assert cli.json("next", "q.example")[0]["value"] == "my value"


def test_set_with_a_uri_and_a_key_is_an_entry_under_that_key(cli: Cli) -> None:
    uri = "https://q.example/1"
    job = "pages:1:0:x"
    for number, (arguments, key, value) in enumerate(
        [
            ((job, "--empty"), job, ""),
            ((job, "v"), job, "v"),
            (("k", "v"), "k", "v"),
            (("m", ""), "m", ""),
        ]
    ):
        assert cli("set", *arguments, "--uri", f"{uri}{number}", "--overwrite").returncode == DONE
        assert [cli.json("get", key)[0][name] for name in ("uri", "value")] == [
            f"{uri}{number}",
            value,
        ]
    coded = [base64.b64encode(text.encode()).decode() for text in (job, f"{uri}9")]
    arguments = ("--b64", coded[0], "--uri", coded[1], "--empty", "--overwrite")
    assert cli("set", *arguments).returncode == DONE
    assert cli.json("get", job)[0]["uri"] == f"{uri}9"
    assert cli("set", "--plain", "word", "--uri", f"{uri}8", "--empty").returncode == DONE
    assert cli.json("get", "word")[0]["uri"] == f"{uri}8"
    refused = cli("set", "pages:300:0:x", "--uri", uri, "--empty")
    assert (refused.returncode, b"looks like a journal key" in refused.stderr) == (USAGE, True)


def test_error_of_a_command_names_the_option_that_is_meant(cli: Cli) -> None:
    (job,) = cli.json("set", "--domain", "q", "v")
    cli("bury", job["key"])
    for arguments, code, said in (
        (("add", "counter", "3"), REFUSED, "--create begins at 0"),
        (("get", job["key"], "--lease", "5m"), REFUSED, "fj-cli kick KEY"),
        (("kick", "q"), REFUSED, "fj-cli kick --domain q"),
        (("bury", job["key"], "no use"), USAGE, "--reason 'no use'"),
        (("lock", "k", "--timeout", "5s", "true"), USAGE, "--time is the length of the lock"),
        (("lock", "k", "--time", "5s", "true"), USAGE, "--time behind KEY"),
        (("lock", "k", "--"), USAGE, "CMD"),
        (("next", "q", "--exec", "--"), USAGE, "followed by the command"),
        (("next", "--lease", "500d"), USAGE, "lease 500d is over 366 days"),
        (("pause", "q", "9000h"), USAGE, "duration 9000h is over 366 days"),
        (("set", "k", "v", "--ttl", "0s"), USAGE, "--ttl is at least 1ms"),
        (("set", "k", "v", "--ttl", "10us"), USAGE, "--ttl is at least 1ms"),
    ):
        failed = cli(*arguments)
        assert (failed.returncode, said in failed.stderr.decode()) == (code, True), failed.stderr
    # a hint of one code is none of another
    cli("set", "text", "t")
    assert b"'fj-cli get' shows its type" in cli("add", "text").stderr


def test_command_behind_two_dashes_is_run(cli: Cli) -> None:
    cli("set", "k", "v")
    assert cli("lock", "k", "--", "sh", "-c", "echo held").stdout == b"held\n"
    cli("set", "--domain", "q", "value")
    assert cli("next", "q", "--exec", "--", "cat").stdout == b"value"


# --- lock -----------------------------------------------------------------------------------------


def ended(process: subprocess.Popen[bytes]) -> int:
    """Return the exit code of a process that ends by itself."""
    process.communicate(timeout=TIMEOUT_S)
    return process.returncode


def test_lock_is_held_and_renewed_while_a_command_runs(
    cli: Cli, client: SyncClient, tmp_path: Path
) -> None:
    cli("set", "k", "v")
    gate = f"touch {tmp_path}/began; while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; exit 7"
    holder = cli.start("lock", "--time", "1s", "k", "sh", "-c", gate)
    wait_until((tmp_path / "began").exists)
    first = client.entry_stats("k").locked_until_us
    wait_until(lambda: client.entry_stats("k").locked_until_us > first + SECOND)
    refused = cli("set", "k", "w", "--overwrite")
    assert (refused.returncode, refused.stderr[:16]) == (REFUSED, b"fj-cli: locked: ")
    assert b"locked" in cli("lock", "k", "true").stderr
    waiting = cli.start("lock", "--wait", "60s", "k", "echo", "mine")
    (tmp_path / "go").touch()
    assert ended(holder) == 7
    assert waiting.communicate(timeout=TIMEOUT_S)[0] == b"mine\n"
    assert cli("set", "k", "w", "--overwrite").returncode == DONE


@pytest.mark.parametrize("taken", [False, True])
def test_lock_that_ended_before_its_renewal_is_lost_and_ends_its_command(
    cli: Cli, client: SyncClient, tmp_path: Path, taken: bool
) -> None:
    cli("set", "k", "v")
    shell = f"echo $$ > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; exec sleep 600"
    holder = cli.start("lock", "--time", "1s", "k", "sh", "-c", shell)
    wait_until((tmp_path / "pid").exists)
    os.kill(holder.pid, signal.SIGSTOP)
    wait_until(lambda: not client.entry_stats("k").locked_until_us)
    if taken:
        with client.locked("k"):
            client.set("k", "w", overwrite=True)
    os.kill(holder.pid, signal.SIGCONT)
    _, stderr = holder.communicate(timeout=TIMEOUT_S)
    assert holder.returncode == REFUSED
    assert stderr.startswith(b"fj-cli: not-owner: this connection holds the lock no more (key 'k'")
    assert b"; the command was ended, because another may have had the entry" in stderr
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: not Path(f"/proc/{pid}").exists())
    assert not client.entry_stats("k").locked_until_us


def test_sigterm_to_a_lock_ends_what_its_command_started(
    cli: Cli, client: SyncClient, tmp_path: Path
) -> None:
    cli("set", "k", "v")
    inner = f"echo $$ > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; exec sleep 600"
    holder = cli.start("lock", "k", "sh", "-c", f"sh -c '{inner}'; touch {tmp_path}/next")
    wait_until((tmp_path / "pid").exists)
    pid = int((tmp_path / "pid").read_text())
    holder.send_signal(signal.SIGTERM)
    assert ended(holder) == 128 + signal.SIGTERM
    wait_until(lambda: not Path(f"/proc/{pid}").exists())
    assert not (tmp_path / "next").exists()
    wait_until(lambda: not client.entry_stats("k").locked_until_us)


# --- ping and bench -------------------------------------------------------------------------------


def test_ping_measures_round_trips_and_the_clock(cli: Cli) -> None:
    *trips, summary = cli.json("ping", "--count", "3", "--interval", "1ms")
    assert [trip["sequence"] for trip in trips] == [1, 2, 3]
    times = [trip["round_trip_us"] for trip in trips]
    assert summary == {
        "count": 3,
        "min_us": min(times),
        "max_us": max(times),
        "mean_us": sum(times) // 3,
    }
    assert all(abs(trip["clock_ahead_us"]) < TIMEOUT_S * SECOND for trip in trips)
    text = cli("ping", "--count", "1", "--table").stdout.decode()
    assert "round trip of 1: least " in text


def test_bench_measures_each_function_and_leaves_nothing(cli: Cli, client: SyncClient) -> None:
    cli("set", "--domain", "theirs", "v")
    *functions, jobs = cli.json("bench", "--count", "60", "--connections", "3")
    assert [line["function"] for line in functions] == ["set", "next", "delete"]
    assert functions[0]["count"] == 60
    for line in functions:
        assert 0 < line["p50_us"] <= line["p90_us"] <= line["p99_us"] <= line["max_us"]
    assert jobs["function"] == "job"
    assert [found.name for found in client.domains()] == [b"theirs"]
    assert client.daemon_stats().entries == 1
    assert "jobs in" in cli("bench", "--count", "5", "--table").stdout.decode()


def test_bench_that_is_interrupted_deletes_what_it_wrote(cli: Cli, client: SyncClient) -> None:
    bench = cli.start("bench", "--count", "10000000", "--connections", "4", "--json")
    wait_until(lambda: client.daemon_stats().entries)
    bench.send_signal(signal.SIGINT)
    output, stderr = bench.communicate(timeout=TIMEOUT_S)
    assert bench.returncode == 128 + signal.SIGINT, stderr.decode()
    assert b"ended by a signal" in stderr
    assert output.count(b"\n") >= 1
    assert client.daemon_stats().entries == 0


# --- what people and programs read ----------------------------------------------------------------


def test_error_is_json_where_json_is_asked_for(cli: Cli, tmp_path: Path) -> None:
    nobody = Cli(tmp_path, f"unix:{tmp_path}/nobody")
    for failing, arguments, error, code in (
        (cli, ("get", "nothing", "--json"), "not-found", REFUSED),
        (cli, ("get", "--json"), "usage", USAGE),
        (cli, ("touch", "k", "soon", "--json"), "usage", USAGE),
        (nobody, ("stats", "--json"), "cannot-connect", CANNOT_CONNECT),
    ):
        failed = failing(*arguments)
        assert failed.returncode == code
        fields = json.loads(failed.stderr)
        assert (fields["error"], fields["exit_code"]) == (error, code)
        assert fields["message"]
        if error == "not-found":
            assert (fields["key"], fields["address"]) == (
                "nothing",
                cli.environment["FASTJOURNAL_SERVER"],
            )


def test_error_of_a_lock_is_text_where_its_command_has_the_json_option(cli: Cli) -> None:
    failed = cli("lock", "nothing", "true", "--json")
    assert failed.returncode == REFUSED
    assert failed.stderr.startswith(b"fj-cli: not-found: ")


ROWS = {80: 24, 120: 40}
"""Rows of a terminal of so many columns."""


def on_terminal(cli: Cli, columns: int, *arguments: str) -> list[str]:
    """Return the lines that a command writes on a terminal of this size."""
    command, size = [installed("fj-cli"), *arguments], (columns, ROWS[columns])
    text = run_on_terminal(
        command, cli.environment | {"TERM": "dumb"}, size, stderr=subprocess.DEVNULL
    )
    return text.replace("\r\n", "\n").splitlines()
