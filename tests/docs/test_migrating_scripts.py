"""Scripts of docs/migrating.md: Redis lists and streams, moved into a real daemon."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from fastjournal.client import SyncClient
from tests.docs.pages import blocks
from tests.integration.daemon_process import DaemonProcess

PAGE = Path(__file__).parents[2] / "docs" / "migrating.md"
ADDRESS = "127.0.0.1:9923"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path) as process:
        yield process


def scripts(address: str) -> list[str]:
    """Return the two Python blocks of the section about Redis, for a daemon elsewhere."""
    section = PAGE.read_text(encoding="utf-8").partition("\n## Redis")[2].partition("\n## ")[0]
    found = [block for language, block in blocks(section) if language == "python"]
    assert len(found) == 2
    assert all(ADDRESS in block for block in found)
    return [block.replace(ADDRESS, address) for block in found]


def test_import_by_scripts_moves_what_redis_has_not_done(daemon: DaemonProcess) -> None:
    import fakeredis  # takes a moment, for the one process that runs this test

    source = fakeredis.FakeRedis()
    for body in ("first", "second"):
        source.lpush("emails", body)
    source.xgroup_create("jobs", "workers", id="0", mkstream=True)
    for number in range(4):
        source.xadd("jobs", {"job": f"job {number}"}, id=f"{1000 + number}-0")
    (_, taken), *_ = source.xreadgroup("workers", "one", {"jobs": ">"}, count=2)
    source.xack("jobs", "workers", taken[0][0])
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
