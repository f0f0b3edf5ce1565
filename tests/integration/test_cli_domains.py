"""``fj-cli domains``, as it is installed, against a real daemon."""

from __future__ import annotations

from fastjournal.client import Client, SyncClient
from tests.integration.cli_process import Cli
from tests.integration.daemon_process import DaemonProcess

DONE, USAGE = 0, 2
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


async def test_domains_are_iterated_by_both_clients(
    daemon: DaemonProcess, client: SyncClient
) -> None:
    for number in range(5):
        client.set(f"d{number}:1:0:x", "")
    listed = list(client.domains("d", page=2))
    assert [stats.name for stats in listed] == [b"d%d" % number for number in range(5)]
    async with Client(daemon.address) as other:
        assert [stats.name async for stats in other.domains(page=2)] == [s.name for s in listed]
