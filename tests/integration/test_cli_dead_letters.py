"""fj-cli bury, kick, pause and resume, as they are installed, against a real daemon."""

from __future__ import annotations

from tests.integration.cli_process import Cli
from tests.integration.daemon_process import DaemonProcess

DONE, REFUSED, NOTHING_TO_DO = 0, 1, 75


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


def test_log_tells_of_burials_kicks_and_pauses(cli: Cli) -> None:
    (added,) = cli.json("set", "--domain", "d", "x")
    for arguments in (
        ("bury", added["key"], "--reason", "why"),
        ("kick", added["key"]),
        ("pause", "d", "1h"),
        ("resume", "d"),
    ):
        assert cli(*arguments).returncode == DONE
    (taken,) = cli.json("snapshot")
    records = cli.json("log", "dump", taken["path"])
    assert [r["failure"]["reason"] for r in records if "failure" in r] == ["why"]
    told = [r["operation"] for r in records if r.get("operation", {}).get("op") == "pause"]
    assert [pause["domain"] for pause in told] == ["d", "d"]
    assert told[0]["until"] > 0
    assert told[1]["until"] == 0
    entries = [r["entry"] for r in records if "entry" in r]
    assert [entry["key"] for entry in entries] == [added["key"]] * 2
    assert b"pause" in cli("log", "dump", taken["path"], "--table").stdout
