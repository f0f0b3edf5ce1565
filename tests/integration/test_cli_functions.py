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

import pytest

from fastjournal.client import SyncClient
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


@pytest.mark.parametrize("key", ["pages:300:0:x", "pages:1:123456789012345678901:x"])
def test_set_refuses_a_key_that_looks_like_a_job_and_is_none(cli: Cli, key: str) -> None:
    refused = cli("set", key, "v")
    assert refused.returncode == USAGE
    assert b"looks like a journal key" in refused.stderr
    assert cli("get", key).returncode == REFUSED
    assert cli("set", key, "v", "--plain").returncode == DONE
    assert cli.json("get", key)[0]["state"] == ["persistent"]


NANOSECONDS = "1795876490891119000"


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


def test_set_that_never_expires_ends_an_expiry(cli: Cli) -> None:
    cli("set", "k", "v", "--expires", "+1h")
    assert cli.json("get", "k")[0]["expires_us"] is not None
    assert cli("set", "k", "v", "--expires", "never", "--overwrite").returncode == DONE
    assert cli.json("get", "k")[0]["expires_us"] is None


def test_set_takes_keys_that_are_jobs_or_do_not_look_like_one(cli: Cli) -> None:
    for key in ("pages:1:0:x", "user:7", "a:1:2", "https://example.org:80/", "k"):
        assert cli("set", key, "v").returncode == DONE


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


def test_stats_of_a_domain_have_the_words_of_other_tables(cli: Cli) -> None:
    cli("set", "--domain", "q", "v")
    cli("next", "q")
    lines = cli("stats", "q", "--table").stdout.decode().splitlines()[1:]
    table = dict(line.split(None, 1) for line in lines)
    assert table["leased"] == "1"
    assert not {"worked_on", "interval", "jobs", "jobs_max", "oldest_due"}.intersection(table)
    (fields,) = cli.json("stats", "q")
    assert (fields["worked_on"], fields["interval_us"], fields["jobs_max"]) == (1, 0, 0)
    cli("limit", "q", "--jobs", "3")
    lines = cli("stats", "q", "--table").stdout.decode().splitlines()
    assert ["jobs", "3"] in [line.split() for line in lines]
    assert "  interval  no limit\n" in cli("limit", "q", "--table").stdout.decode()


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


def test_lock_that_is_lost_ends_its_command(
    cli: Cli, daemon: DaemonProcess, tmp_path: Path
) -> None:
    cli("set", "k", "v")
    shell = f"echo $$ > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; exec sleep 600"
    holder = cli.start("lock", "--time", "1s", "k", "sh", "-c", shell)
    wait_until((tmp_path / "pid").exists)
    daemon.kill()
    assert ended(holder) in (REFUSED, CANNOT_CONNECT)
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: not Path(f"/proc/{pid}").exists())


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


def test_sigterm_to_a_lock_ends_its_command_and_frees_the_entry(
    cli: Cli, client: SyncClient, tmp_path: Path
) -> None:
    cli("set", "k", "v")
    holder = cli.start("lock", "k", "sh", "-c", f"touch {tmp_path}/began; exec sleep 600")
    wait_until((tmp_path / "began").exists)
    holder.send_signal(signal.SIGTERM)
    assert ended(holder) == 128 + signal.SIGTERM
    wait_until(lambda: not client.entry_stats("k").locked_until_us)


def test_lock_is_renewed_after_ctrl_c_while_its_command_goes_on(
    cli: Cli, client: SyncClient, tmp_path: Path
) -> None:
    cli("set", "k", "v")
    shell = (
        f"trap 'touch {tmp_path}/heard' INT; touch {tmp_path}/began;"
        f" while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; exit 7"
    )
    holder = cli.start("lock", "--time", "1s", "k", "sh", "-c", shell)
    wait_until((tmp_path / "began").exists)
    holder.send_signal(signal.SIGINT)
    wait_until((tmp_path / "heard").exists)
    first = client.entry_stats("k").locked_until_us
    wait_until(lambda: client.entry_stats("k").locked_until_us > first + SECOND)
    (tmp_path / "go").touch()
    assert ended(holder) == 7


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


def test_ping_without_a_daemon_is_exit_69(tmp_path: Path) -> None:
    assert Cli(tmp_path, f"unix:{tmp_path}/nobody")("ping").returncode == CANNOT_CONNECT


@pytest.mark.parametrize("connections", ["1", "3"])
def test_bench_measures_each_function_and_leaves_nothing(
    cli: Cli, client: SyncClient, connections: str
) -> None:
    cli("set", "--domain", "theirs", "v")
    *functions, jobs = cli.json("bench", "--count", "60", "--connections", connections)
    assert [line["function"] for line in functions] == ["set", "next", "delete"]
    assert functions[0]["count"] == 60
    for line in functions:
        assert 0 < line["p50_us"] <= line["p90_us"] <= line["p99_us"] <= line["max_us"]
    assert jobs["function"] == "job"
    assert [found.name for found in client.domains()] == [b"theirs"]
    assert client.daemon_stats().entries == 1
    assert "jobs in" in cli("bench", "--count", "5", "--table").stdout.decode()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_bench_that_is_interrupted_deletes_what_it_wrote(
    cli: Cli, client: SyncClient, number: signal.Signals
) -> None:
    bench = cli.start("bench", "--count", "10000000", "--connections", "4", "--json")
    wait_until(lambda: client.daemon_stats().entries)
    bench.send_signal(number)
    output, stderr = bench.communicate(timeout=TIMEOUT_S)
    assert bench.returncode == 128 + number, stderr.decode()
    assert b"ended by a signal" in stderr
    assert output.count(b"\n") >= 1
    assert client.daemon_stats().entries == 0


# --- what people and programs read ----------------------------------------------------------------


def test_stats_of_a_domain_that_has_nothing_says_so(cli: Cli) -> None:
    empty = cli("stats", "nothing", "--table")
    assert empty.returncode == DONE
    assert b"the domain nothing has no entries" in empty.stderr
    cli("set", "--domain", "d", "v")
    assert cli("stats", "d", "--table").stderr == b""


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


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (("touch", "k", "0", "--token", "5"), "write it like 90s"),
        (("next", "--lease", "500d"), "write it like 90s"),
        (("set", "k", "v", "--expires", "2020-01-01"), "write a later one, like 2030"),
        (("set", "k", "v", "--expires", "1990-01-01"), "write a later one, like 2030"),
        (("set", "--domain", "d", "--not-before", "1970-01-02"), "write a later one, like 2030"),
        (("set", "--domain", "d", "--not-before", "@5"), "write a later one, like 2030"),
        (("set", "--domain", "d", "--not-before", "@1795161600000"), "write an earlier one"),
        (
            ("spool", "put", "/proc/none", "--domain", "d", "--not-before", "@5"),
            "write a later one",
        ),
        (("get", "k", "--expires", "@1795161600000"), "write an earlier one"),
    ],
)
def test_error_about_a_time_advises_for_the_command_line(
    cli: Cli, arguments: tuple[str, ...], advice: str
) -> None:
    failed = cli(*arguments)
    assert failed.returncode == USAGE
    assert advice in failed.stderr.decode()
    assert b"timedelta" not in failed.stderr
    assert advice in json.loads(cli(*arguments, "--json").stderr)["hint"]


def test_stats_in_json_name_every_instant_with_its_unit(cli: Cli) -> None:
    cli("set", "--domain", "d", "v", "--expires", "+1h")
    (job,) = cli.json("next", "d")
    cli("pause", "d", "1h")
    assert cli.json("stats", job["key"])[0]["state"] == cli.json("explain", job["key"])[0]["state"]
    found = [*cli.json("stats", "d"), *cli.json("stats", job["key"]), *cli.json("domains"), job]
    now = time.time_ns() // 1000
    for fields in found:
        for name, value in fields.items():
            if isinstance(value, int) and not isinstance(value, bool) and value > now // 2:
                assert name.endswith("_us") or name == "token", (name, value)


ROWS = {80: 24, 120: 40}
"""Rows of a terminal of so many columns."""


def on_terminal(cli: Cli, columns: int, *arguments: str) -> list[str]:
    """Return the lines that a command writes on a terminal of this size."""
    command, size = [installed("fj-cli"), *arguments], (columns, ROWS[columns])
    text = run_on_terminal(
        command, cli.environment | {"TERM": "dumb"}, size, stderr=subprocess.DEVNULL
    )
    return text.replace("\r\n", "\n").splitlines()


@pytest.mark.parametrize("columns", [80, 120])
def test_table_fits_the_terminal_and_breaks_no_key(cli: Cli, columns: int) -> None:
    uri = "https://example.org/" + "a" * 60
    (added,) = cli.json("set", "--domain", "pages", "--uri", uri, "value")
    cli("set", "--domain", "other", "value")
    cli("pause", "other", "1h")
    cli("limit", "pages", "--interval", "2s", "--jobs", "3")
    long = {added["key"], uri}
    shown = {}
    for arguments in (("list", "--meta", "--data"), ("peek", "pages"), ("domains",), ("stats",)):
        lines = shown[arguments[0]] = on_terminal(cli, columns, *arguments)
        wide = [line for line in lines if len(line) > columns]
        assert all(any(key in line for key in long) for line in wide), wide
    for name in ("list", "peek"):
        text = "\n".join(shown[name])
        assert added["key"] in text
        assert uri in text
    assert any("in 1 h" in line for line in shown["domains"]), shown["domains"]
    get = "\n".join(on_terminal(cli, columns, "get", added["key"]))
    assert "due" in get
    assert " ago)" in get
    cli("next", "pages")
    get = "\n".join(on_terminal(cli, columns, "get", added["key"]))
    assert "leased until " in get
    assert "(in 5 m)" in get


def test_table_of_usual_domains_is_a_table_at_80_columns(cli: Cli) -> None:
    for domain in ("news", "peps.python.org", "shop"):
        cli("set", "--domain", domain, "value")
    head, _, *rows = (line for line in on_terminal(cli, 80, "domains") if line.strip())
    assert head.split() == ["domain", "due", "delayed", "leased", "buried", "oldest", "due"]
    assert [row.split()[:3] for row in rows] == [
        ["news", "1", "0"],
        ["peps.python.org", "1", "0"],
        ["shop", "1", "0"],
    ]


@pytest.mark.parametrize("columns", ROWS)
def test_table_of_each_command_fits_the_terminal(
    cli: Cli, daemon: DaemonProcess, tmp_path: Path, columns: int
) -> None:
    uri = "https://example.org/" + "a" * 60
    (added,) = cli.json("set", "--domain", "pages", "--uri", uri, "value")
    key, spool = added["key"], str(tmp_path / "spool")
    cli("spool", "put", spool, "--uri", uri, "value")
    cli("limit", "pages", "--interval", "2s", "--jobs", "3", "--attempts", "5")
    for arguments in (
        ("explain", key),
        ("stats",),
        ("stats", "pages"),
        ("stats", key),
        ("limit", "pages"),
        ("ping", "--count", "2", "--interval", "1ms"),
        ("bench", "--count", "20", "--connections", "2"),
        ("spool", "status", spool),
        ("log", "stat", str(daemon.log_path)),
        ("next", "pages"),
        ("touch", "--token", "1", key, "1m"),
        ("bury", key),
        ("kick", key),
    ):
        lines = on_terminal(cli, columns, *arguments)
        # a long word, such as a key, may be wider: it is never broken
        wide = [line for line in lines if len(line) > columns and len(line.split()) > 2]
        assert not wide, (arguments, wide)
        assert not [line for line in lines if line.startswith("{")], "a table, and no JSON"


def test_bench_whose_daemon_dies_names_the_domain_that_may_be_left(
    cli: Cli, daemon: DaemonProcess, client: SyncClient
) -> None:
    bench = cli.start("bench", "--count", "10000000", "--table")
    wait_until(lambda: any(d.name.startswith(b"bench-") for d in client.domains()))
    daemon.kill()
    stderr = bench.communicate(timeout=TIMEOUT_S)[1].decode()
    assert bench.returncode == CANNOT_CONNECT
    daemon.start()
    found = re.search(r"entries may be left: fj-cli (purge bench-[0-9a-f]{8} --yes)\n", stderr)
    assert found is not None, stderr
    assert cli(*found[1].split()).returncode in (DONE, 75)
