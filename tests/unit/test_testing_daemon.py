"""``FastjournalDaemon``: producers and workers of users in one process, with a moved clock."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from fastjournal.client import SyncClient
from fastjournal.clock import SystemClock, unique_timestamp
from fastjournal.errors import (
    BadRequestError,
    CannotConnectError,
    ConfigError,
    LeaseLostError,
    RefusedError,
)
from fastjournal.keys import build_journal_key
from fastjournal.spool import Spool
from fastjournald.testing import FastjournalDaemon
from tests.system.staging import ROOT

START = datetime(2030, 1, 1, tzinfo=UTC)
BACKENDS = ["trio", "asyncio"]


def key(name: str) -> bytes:
    return build_journal_key("mails", name, not_before_us=0)


def values(client: SyncClient) -> list[bytes]:
    return [bytes(pair.value) for pair in client.next("mails", count=10, lease=0)]


def test_testing_daemon_failed_job_backs_off_and_is_buried() -> None:
    with FastjournalDaemon(max_attempts=2, retry_delay=10) as daemon:
        client = daemon.sync_client()
        client.set(key("1"), b"m")
        failed = [job.fail("SMTP 550") for job in client.jobs("mails")]
        assert [attempt.buried for attempt in failed] == [False]
        daemon.advance(9)
        assert list(client.jobs("mails")) == []
        daemon.advance(1)
        failed = [job.fail("SMTP 550") for job in client.jobs("mails")]
        assert [attempt.buried for attempt in failed] == [True]
        assert client.domain_stats("mails").buried == 1


def test_testing_daemon_lease_ends_at_its_instant_however_far_the_clock_moves() -> None:
    with FastjournalDaemon(retry_delay=0) as daemon, daemon.sync_client() as client:
        client.set(key("1"), b"m")
        with client.jobs("mails", lease=60) as jobs:
            job = next(jobs)
            daemon.advance(timedelta(hours=5))
            with pytest.raises(LeaseLostError):
                job.complete()
        assert values(client) == [b"m"]


def test_testing_daemon_is_the_clock_of_clients_spools_and_stamps(tmp_path: Path) -> None:
    with FastjournalDaemon(start=START) as daemon:
        stamp = unique_timestamp()
        assert 0 < stamp - START.timestamp() * 1e6 < 1000
        daemon.advance(3600)
        assert unique_timestamp() - stamp >= 3600e6
        assert daemon.now - START >= timedelta(hours=1)
        with pytest.raises(BadRequestError, match="expires"):
            daemon.sync_client().set("plain", b"", expires=START.timestamp() + 10)
        spool = daemon.spool(tmp_path)
        spool.append(domain="mails", value=b"a", not_before=START + timedelta(hours=2))
        assert [path.name for path in tmp_path.glob("*2030*")] != []
    assert abs(unique_timestamp() / 1e6 - time.time()) < 60
    assert abs(SystemClock().now_us() / 1e6 - time.time()) < 60


def test_testing_daemon_forwards_what_is_new_in_a_spool(tmp_path: Path) -> None:
    with FastjournalDaemon() as daemon:
        client, spool = daemon.sync_client(), daemon.spool(tmp_path)
        spool.append(domain="mails", value=b"a")
        spool.append(domain="mails", value=b"b")
        assert daemon.forward(spool) == 2
        assert daemon.forward(spool) == 0
        assert values(client) == [b"a", b"b"]
        daemon.advance(7200)
        spool.append(domain="mails", value=b"c")
        assert daemon.forward(spool) == 1
        assert values(client) == [b"c"]


def test_testing_daemon_forward_raises_what_would_be_a_dead_letter(tmp_path: Path) -> None:
    with FastjournalDaemon(max_value=10) as daemon:
        spool = Spool(tmp_path)
        spool.append(domain="mails", value=b"x" * 11)
        spool.append(domain="mails", value=b"y")
        with pytest.raises(RefusedError) as error:
            daemon.forward(spool)
        assert error.value.code == "too-large"
        assert daemon.forward(spool) == 1
        assert values(daemon.sync_client()) == [b"y"]


def test_testing_daemon_sync_client_never_waits_and_moves_no_time() -> None:
    with FastjournalDaemon() as daemon:
        client = daemon.sync_client()
        before = daemon.now
        assert not client.next("mails", wait=3600)
        assert list(client.jobs("mails")) == []
        assert daemon.now - before < timedelta(seconds=1)
        threads = threading.active_count()
        client.set(key("1"), b"m")
        assert [threading.active_count() for _ in client.jobs("mails")] == [threads]


def test_testing_daemon_listen_of_a_sync_client_gives_changes_and_ends() -> None:
    with FastjournalDaemon() as daemon:
        client = daemon.sync_client()
        client.set("watched", b"1")
        with client.listen("watched") as listener:
            assert list(listener) == []
            client.set("watched", b"2", overwrite=True)
            assert [change.value for change in listener] == [b"2"]
            assert listener.wait(60) is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_testing_daemon_client_waits_until_work_comes_or_time_has_passed(backend: str) -> None:
    async def scenario(daemon: FastjournalDaemon) -> list[object]:
        done: list[object] = []
        async with daemon.client() as worker, daemon.client() as producer:

            async def work() -> None:
                done.append([pair.value for pair in await worker.next("mails", wait=3600)])
                done.append([pair.value for pair in await worker.next("mails", wait=60)])

            async with anyio.create_task_group() as group:
                group.start_soon(work)
                await anyio.wait_all_tasks_blocked()
                assert done == []
                await producer.set(key("1"), b"m")
                await anyio.wait_all_tasks_blocked()
                assert done == [[b"m"]]
                await anyio.to_thread.run_sync(daemon.advance, 61)
        return done

    with FastjournalDaemon() as daemon:
        assert anyio.run(scenario, daemon, backend=backend) == [[b"m"], []]


@pytest.mark.parametrize("backend", BACKENDS)
def test_testing_daemon_job_loop_of_a_client_works_off_delayed_jobs(backend: str) -> None:
    async def scenario(daemon: FastjournalDaemon) -> list[bytes]:
        done: list[bytes] = []
        async with daemon.client() as client:
            for number in range(100):
                at = daemon.now + timedelta(minutes=number)
                await client.set(build_journal_key("mails", str(number), not_before=at), b"m")
            async for job in client.jobs("mails", wait=0):
                done.append(job.value)
            daemon.advance(timedelta(hours=2))
            async for job in client.jobs("mails", wait=0, count=7):
                done.append(job.value)
        return done

    with FastjournalDaemon() as daemon:
        assert len(anyio.run(scenario, daemon, backend=backend)) == 100
        assert daemon.sync_client().domain_stats("mails").entries == 0


def test_testing_daemon_clock_set_back_says_what_to_do() -> None:
    with (
        FastjournalDaemon() as daemon,
        pytest.raises(BadRequestError, match="forward only") as error,
    ):
        daemon.advance(-5)
    assert "start" in str(error.value.hint)


def test_testing_daemon_bad_uses_say_what_to_do() -> None:
    with pytest.raises(TypeError, match=r"no option listen; it has: max_value,"):
        FastjournalDaemon(listen=["127.0.0.1:1"])
    with pytest.raises(ConfigError, match="max_attempts"):
        FastjournalDaemon(max_attempts=-1)
    with FastjournalDaemon() as daemon:
        with pytest.raises(RuntimeError, match="leave its block first"), FastjournalDaemon():
            pass
        client = daemon.sync_client()
        client.set(key("1"), b"m")
        for ask in (client.snapshot, client.remote_checkpoint, client.remote_handover):
            with pytest.raises(RefusedError, match="no log"):
                ask()
    with pytest.raises(CannotConnectError):
        client.next("mails")


def test_testing_daemon_plugin_runs_many_tests_and_loads_nothing_early(tmp_path: Path) -> None:
    """The engine is loaded by the first test that asks for the fixture."""
    (tmp_path / "test_users.py").write_text(
        """
import sys, pytest

def test_first():
    assert "fastjournald.engine" not in sys.modules
    assert "trio" not in sys.modules

@pytest.mark.parametrize("number", range(100))
def test_mail(fastjournal_daemon, number):
    client = fastjournal_daemon.sync_client()
    client.set("mails:1:0:a", b"m")
    fastjournal_daemon.advance(60)
    assert [job.value for job in client.jobs("mails")] == [b"m"]
"""
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "fastjournald.pytest_plugin"]
    alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ran = subprocess.run(
        [*command, "-p", "no:cacheprovider", "test_users.py"],
        cwd=tmp_path,
        env=alone,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "101 passed" in ran.stdout, ran.stdout + ran.stderr


def test_testing_daemon_plugin_is_found_by_its_entry_point(tmp_path: Path) -> None:
    """As an installed distribution says it, without an option of pytest."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found = declared["project"]["entry-points"]["pytest11"]
    information = tmp_path / "of_a_test-1.dist-info"
    information.mkdir()
    lines = ["[pytest11]", *(f"{name} = {module}" for name, module in found.items())]
    (information / "entry_points.txt").write_text("\n".join(lines))
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: of_a_test\nVersion: 1\n")
    (tmp_path / "test_users.py").write_text(
        "def test_it(fastjournal_daemon):\n    fastjournal_daemon.advance(1)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_users.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 passed" in ran.stdout, ran.stdout + ran.stderr


def test_testing_daemon_serves_threads_and_enqueues_once_by_queue() -> None:
    with FastjournalDaemon() as daemon:

        def produce() -> None:
            client = daemon.sync_client()
            for number in range(50):
                client.enqueue("mails", number, unique=str(number))

        threads = [threading.Thread(target=produce) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        done = sorted(job.decoded(int) for job in daemon.sync_client().jobs("mails", count=9))
        assert done == list(range(50))


def test_testing_daemon_delay_of_enqueue_is_by_its_clock() -> None:
    with FastjournalDaemon(start=START) as daemon:
        client = daemon.sync_client()
        client.enqueue("mails", b"m", delay=timedelta(hours=1))
        daemon.advance(3590)
        assert values(client) == []
        daemon.advance(11)
        assert values(client) == [b"m"]
