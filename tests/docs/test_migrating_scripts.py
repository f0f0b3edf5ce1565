"""Scripts of docs/migrating.md: Redis lists and streams, moved into a real daemon."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from fastjournal.client import SyncClient
from tests.docs.pages import blocks
from tests.integration.daemon_process import DaemonProcess

PAGE = Path(__file__).parents[2] / "docs" / "migrating.md"
ADDRESS = "127.0.0.1:9923"
REDIS = shutil.which("redis-server")
START_S = 20.0


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path) as process:
        yield process


def fake_redis(_: Path) -> Iterator[Any]:
    import fakeredis  # takes a moment, for the one process that runs this test

    yield fakeredis.FakeRedis()


def real_redis(directory: Path) -> Iterator[Any]:
    import redis

    if REDIS is None:
        pytest.skip("redis-server is not installed here (Debian: apt install redis-server)")
    path = str(directory / "redis.sock")
    process = subprocess.Popen(
        [REDIS, "--port", "0", "--unixsocket", path, "--save", "", "--dir", str(directory)],
        stdout=subprocess.DEVNULL,
    )
    try:
        source = redis.Redis(unix_socket_path=path)
        deadline = time.monotonic() + START_S
        while True:
            try:
                source.ping()
                break
            except redis.ConnectionError:
                assert process.poll() is None
                assert time.monotonic() < deadline
        yield source
        source.close()
    finally:
        process.kill()
        process.wait()


@pytest.fixture(params=[fake_redis, real_redis], ids=["fake", "real"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Return a client of a Redis without data."""
    start: Callable[[Path], Iterator[Any]] = request.param
    yield from start(tmp_path)


def scripts(address: str) -> list[str]:
    """Return the two Python blocks of the section about Redis, for a daemon elsewhere."""
    section = PAGE.read_text(encoding="utf-8").partition("\n## Redis")[2].partition("\n## ")[0]
    found = [block for language, block in blocks(section) if language == "python"]
    assert len(found) == 2
    assert all(ADDRESS in block for block in found)
    return [block.replace(ADDRESS, address) for block in found]


def fill(source: Any) -> None:
    """Make a list of two items, and a stream of four: one done, one pending."""
    for body in ("first", "second"):
        source.lpush("emails", body)
    source.xgroup_create("jobs", "workers", id="0", mkstream=True)
    for number in range(4):
        source.xadd("jobs", {"job": f"job {number}"}, id=f"{1000 + number}-0")
    (_, taken), *_ = source.xreadgroup("workers", "one", {"jobs": ">"}, count=2)
    source.xack("jobs", "workers", taken[0][0])


def test_import_by_scripts_moves_what_redis_has_not_done(
    daemon: DaemonProcess, source: Any
) -> None:
    fill(source)
    names: dict[str, Any] = {}
    with mock.patch("redis.Redis", return_value=source):
        for script in scripts(daemon.address):
            exec(script, names)
        # the list is gone from its place; the stream can be moved again
        exec(scripts(daemon.address)[1], names)
    with SyncClient(daemon.address) as client:
        emails = [job.value for job in client.next("emails", count=9)]
        jobs = [job.value for job in client.next("jobs", count=9)]
    assert emails == [b"first", b"second"]
    assert jobs == [b"job 1", b"job 2", b"job 3"]
    assert source.lrange("emails-moved", 0, -1) == [b"second", b"first"]


def test_import_by_scripts_runs_again_behind_workers_that_completed_some_items(
    daemon: DaemonProcess, source: Any
) -> None:
    fill(source)
    names: dict[str, Any] = {}
    with (
        mock.patch("redis.Redis", return_value=source),
        SyncClient(daemon.address) as client,
    ):
        for script in scripts(daemon.address):
            exec(script, names)
        # as if the first run had stopped before it removed the list
        source.rename("emails-moved", "emails")
        for domain in ("emails", "jobs"):
            job = client.next(domain)
            client.delete(job.pairs[0].key, token=job.token)
        for script in scripts(daemon.address):
            exec(script, names)
        assert [pair.value for pair in client.next("emails", count=9)] == [b"second"]
        assert [pair.value for pair in client.next("jobs", count=9)] == [b"job 2", b"job 3"]
    assert not source.exists("emails")


def test_import_by_scripts_reads_all_pages_of_pending_entries(
    daemon: DaemonProcess, source: Any
) -> None:
    fill(source)
    source.xreadgroup("workers", "one", {"jobs": ">"})
    of_list, of_stream = scripts(daemon.address)
    assert of_stream.count("10_000") == 1
    names: dict[str, Any] = {}
    with mock.patch("redis.Redis", return_value=source):
        for script in (of_list, of_stream.replace("10_000", "1")):
            exec(script, names)
    with SyncClient(daemon.address) as client:
        jobs = [job.value for job in client.next("jobs", count=9)]
    assert jobs == [b"job 1", b"job 2", b"job 3"]
