"""Replies that are lost after the daemon has carried the request out: one effect, a clear end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fastjournal import CannotConnectError, Reconnect, RefusedError, SyncClient
from fastjournal.protocol import Function
from tests.integration.both_clients import KINDS, connected
from tests.integration.cli_process import Cli
from tests.integration.cutting_proxy import CuttingProxy
from tests.integration.daemon_process import DaemonProcess
from tests.integration.worker_process import add, results

QUICK = Reconnect(first_pause=0.001, longest_pause=0.01, patience=30)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    directory = tmp_path_factory.mktemp("lost-replies")
    with DaemonProcess(directory, "--listen", f"unix:{directory}/socket") as daemon:
        yield daemon


@pytest.fixture
def client(daemon: DaemonProcess) -> Iterator[SyncClient]:
    with SyncClient(daemon.address) as client:
        yield client
        client.purge("d")


@pytest.mark.parametrize("kind", KINDS)
async def test_lease_survives_a_touch_whose_reply_was_lost(
    daemon: DaemonProcess, client: SyncClient, kind: str
) -> None:
    [key] = add(client, "one")
    with CuttingProxy(daemon.address, Function.TOUCH, Function.TOUCH) as proxy:
        async with connected(kind, proxy.address, reconnect=QUICK) as worker:
            first = (await worker.next("d", lease=60)).token
            second = await worker.touch(key, first, ttl=120)
            assert second == client.entry_stats(key).worked_on_until_us > first
            # the repeat has changed nothing: the first one has, twice where two were lost
            assert proxy.asked.count(Function.TOUCH) == 3
            third = await worker.touch(key, second, ttl=180)
            with pytest.raises(RefusedError, match="lease-lost"):
                await worker.touch(key, first, ttl=240)
            await worker.delete(key, token=third)
    assert client.domain_stats("d").entries == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("function", "attempts"), [(Function.DELETE, None), (Function.RELEASE, 1), (Function.BURY, 0)]
)
async def test_end_of_a_job_whose_reply_was_lost_has_one_effect(
    daemon: DaemonProcess, client: SyncClient, kind: str, function: Function, attempts: int | None
) -> None:
    [key] = add(client, "one")
    with CuttingProxy(daemon.address, function) as proxy:
        async with connected(kind, proxy.address, reconnect=QUICK) as worker:
            token = (await worker.next("d", lease=60)).token
            if function == Function.DELETE:
                await worker.delete(key, token=token)
            elif function == Function.RELEASE:
                await worker.release(key, token, error="no route", delay=600)
            else:
                with pytest.raises(RefusedError) as caught:
                    await worker.bury(key, token=token, reason="bad")
                assert (caught.value.code, caught.value.maybe_done) == ("lease-lost", True)
        assert proxy.asked.count(function) == 2
        assert not proxy.to_cut
    if attempts is None:
        assert client.domain_stats("d").entries == 0
    else:
        stats = client.entry_stats(key)
        assert stats.attempts == attempts
        assert (stats.last_error, stats.buried_reason) in (("no route", None), (None, "bad"))
        client.delete(key)


@pytest.mark.parametrize(
    ("command", "ended"),
    [("sleep 2.2", "done"), ("sleep 2.2; exit 4", "buried")],
)
def test_worker_whose_replies_are_lost_works_once_and_keeps_its_lease(
    daemon: DaemonProcess, client: SyncClient, tmp_path: Path, command: str, ended: str
) -> None:
    [key] = add(client, "one")
    lost_before = client.daemon_stats().leases_lost
    functions = (Function.TOUCH, Function.DELETE, Function.RELEASE, Function.BURY)
    with CuttingProxy(daemon.address, *functions) as proxy:
        cli = Cli(tmp_path, proxy.address)
        limit = ("--max-attempts", "1") if ended == "buried" else ()
        options = ("--count", "1", "--lease", "1s", "--retry-delay", "1h", *limit, "--json")
        script = f"echo x >> {tmp_path}/runs; {command}"
        done = cli("next", "d", *options, "--exec", "sh", "-c", script)
        assert Function.TOUCH not in proxy.to_cut
        assert proxy.asked.count(Function.TOUCH) >= 2
    assert done.returncode == 0, done.stderr
    assert results(done.stderr) == [ended]
    assert (tmp_path / "runs").read_text() == "x\n"
    assert client.daemon_stats().leases_lost == lost_before
    if ended == "done":
        assert client.domain_stats("d").entries == 0
    else:
        stats = client.entry_stats(key)
        if ended == "failed":
            assert (stats.attempts, stats.state) == (1, "delayed")
        else:
            assert (stats.buried_reason, stats.state) == ("exit 4", "buried")
        client.delete(key)


def test_lease_lasts_as_long_as_a_later_extension_asks_after_a_shorter_one_was_lost(
    daemon: DaemonProcess, client: SyncClient
) -> None:
    [key] = add(client, "one")
    with (
        CuttingProxy(daemon.address, Function.TOUCH) as proxy,
        SyncClient(proxy.address, reconnect=None) as worker,
    ):
        for job in worker.jobs("d", wait=None, lease=60, renew=False):
            with pytest.raises(CannotConnectError):
                job.extend(30)
            assert not proxy.to_cut
            shortened = client.entry_stats(key).worked_on_until_us
            assert shortened != job.token
            worker.connect()
            job.extend(3600)
            assert client.entry_stats(key).worked_on_until_us == job.token
            assert job.token > shortened + 3000 * 1_000_000
            assert not job.is_over(worker.now_s() + 3500)
            # the lease that stands is what counts, also where less was asked for again
            job.extend(30)
            assert job.is_over(worker.now_s() + 31)
    assert client.domain_stats("d").entries == 0
