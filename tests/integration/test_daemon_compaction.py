"""A real daemon cleans its log while clients are at work, and is killed meanwhile."""

from __future__ import annotations

import json
import random
import re
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fastjournal.clock import unique_timestamp
from fastjournal.protocol.constants import Flag, Function
from fastjournal.testing.workq_rules import assert_workq_accepts
from tests.integration.daemon_process import DaemonProcess
from tests.integration.programs import installed, run_program
from tests.integration.raw_client import SILENCE_S, RawClient, build, set_request
from tests.integration.worker_process import wait_until

if TYPE_CHECKING:
    pass

OPTIONS = ("--cmdlog-seg-size", "65536", "--cmdlog-clean-int", "50")
OF_A_CRASH = {"leftover", "empty", "torn", "unfinished"}
"""Findings that a kill may leave behind, and that the next start deals with."""
KEPT = 100
WINDOW = 50
KILLS = 5


class Churn:
    """Sets values anew, and does jobs; keeps a ledger of what got OK.

    Args:
        seed: Seed of the values and keys.
    """

    def __init__(self, seed: int = 1) -> None:
        self.draw = random.Random(seed)
        self.number = 0
        self.told: dict[bytes, bytes] = {}
        """Key to the newest value that got OK."""
        self.asked: dict[bytes, set[bytes]] = {}
        """Key to values that were sent later, perhaps in vain."""

    def turn(self, client: RawClient) -> None:
        """Set some values, and put, take and complete some jobs."""
        requests = []
        for _ in range(WINDOW):
            self.number += 1
            key = b"kept/%d" % self.draw.randrange(KEPT)
            value = b"%d:" % self.number + b"v" * 300
            self.asked.setdefault(key, set()).add(value)
            requests.append(build(Function.SET, key, value, flags=Flag.PERSIST | Flag.OVERWRITE))
        client.send(*requests)
        for request in requests:
            assert client.reply().code == ""
            self.told[request.key] = request.value
            self.asked[request.key] = {
                value for value in self.asked[request.key] if number(value) > number(request.value)
            }
        client.send(
            *(set_request(b"d:1:0:%d" % unique_timestamp(), b"j" * 100) for _ in range(WINDOW))
        )
        for _ in range(WINDOW):
            assert client.reply().code == ""
        done = client.ask(build(Function.NEXT, b"d", count=WINDOW, timeout=60_000_000))
        assert done.pairs
        client.send(
            *(
                build(Function.DELETE, pair.key, flags=Flag.WORKED_ON, timeout=done.timeout)
                for pair in done.pairs
            )
        )
        for _ in done.pairs:
            assert client.reply().code == ""

    def check(self, client: RawClient) -> None:
        """Assert that every acknowledged value is there, or a newer one that was sent."""
        assert self.told
        for key, value in list(self.told.items()):
            reply = client.ask(build(Function.GET, key, flags=Flag.DATA))
            assert reply.pairs, key
            found = reply.pairs[0].value
            assert found == value or found in self.asked[key]
            self.told[key] = found
            self.asked[key] = set()


def number(value: bytes) -> int:
    return int(value.partition(b":")[0])


def statistics(client: RawClient) -> dict[str, Any]:
    reply = client.ask(build(Function.STATS))
    assert reply.pairs
    found = json.loads(reply.pairs[0].value)
    assert isinstance(found, dict)
    return found


def outcomes(daemon: DaemonProcess) -> set[str]:
    return set(re.findall(r"event=cleaned segment=\S+ outcome='(\w+)", daemon.said()))


@contextmanager
def churning(daemon: DaemonProcess, churn: Churn) -> Iterator[None]:
    """Churn in the background, until the block ends or the daemon is gone."""
    stop = threading.Event()
    problems: list[BaseException] = []

    def body() -> None:
        try:
            with RawClient(daemon.address) as client:
                while not stop.is_set():
                    churn.turn(client)
        except (OSError, EOFError):
            pass
        except AssertionError as error:
            problems.append(error)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(SILENCE_S)
    assert not thread.is_alive()
    assert not problems


def wait_until_small(client: RawClient, bytes_max: int) -> None:
    deadline = time.monotonic() + SILENCE_S
    while (size := statistics(client)["log_bytes"]) > bytes_max:
        assert time.monotonic() < deadline, f"the log keeps {size} bytes"
        # nothing tells when a cleaning has ended
        time.sleep(0.05)


def verify(path: Path, *, killed: bool = False) -> None:
    """Nothing is wrong with a log, but what a kill may leave."""
    done = run_program(
        [installed("fj-cli"), "log", "verify", str(path)],
        capture_output=True,
        text=True,
        timeout=SILENCE_S,
    )
    found = {json.loads(line)["kind"] for line in done.stdout.splitlines() if line[:1] == "{"}
    assert found <= (OF_A_CRASH if killed else set()), done.stdout
    assert done.returncode == bool(found), done.stdout + done.stderr


def test_compaction_shrinks_the_log_and_a_restart_finds_the_same(tmp_path: Path) -> None:
    churn = Churn()
    daemon = DaemonProcess(tmp_path, *OPTIONS, "--tombstone-ttl", "1", "--http", "127.0.0.1:0")
    with daemon:
        with RawClient(daemon.address) as client:
            written = 0
            while written < 1_500_000:
                churn.turn(client)
                written += WINDOW * 900
            # 40,000 bytes are live
            wait_until_small(client, 300_000)
            churn.check(client)
            assert statistics(client)["log_segments"] < 30
        address = re.findall(r"event=ready listen=\S+ http=(\S+)", daemon.said())[-1]
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=SILENCE_S) as answer:
            figures = answer.read().decode()
        freed = re.search(r"^fastjournal_log_freed_bytes_total (\S+)$", figures, re.MULTILINE)
        assert freed is not None
        assert float(freed[1]) > 300_000
        assert 'fastjournal_log_cleaned_total{outcome="removed"}' in figures
        assert daemon.stop() == 0
    assert "removed" in outcomes(daemon)
    assert "Traceback" not in daemon.said()
    verify(tmp_path / "log")
    assert_workq_accepts(tmp_path / "log")
    with daemon, RawClient(daemon.address) as client:
        churn.check(client)
        assert statistics(client)["entries"] == len(churn.told)


def test_kills_during_compaction_lose_nothing(tmp_path: Path) -> None:
    draw = random.Random(3)
    churn = Churn()
    with DaemonProcess(tmp_path, *OPTIONS, "--tombstone-ttl", "1") as daemon:
        for _ in range(KILLS):
            with churning(daemon, churn):
                goal = churn.number + draw.randint(1000, 3000)
                wait_until(lambda goal=goal: churn.number >= goal)
                daemon.kill()
            verify(tmp_path / "log", killed=True)
            daemon.start()
            with RawClient(daemon.address) as client:
                churn.check(client)
        assert daemon.stop() == 0
    assert outcomes(daemon) & {"removed", "moved", "rewritten"}
    assert "Traceback" not in daemon.said()
    assert_workq_accepts(tmp_path / "log")


SATURATING_CLIENTS = 6
SATURATING_BATCHES = 4
SATURATING_SEGMENT_BYTES = 64 * 1024
LOOK_S = 0.01
"""From a look at the log to the next: the looks are not to be the load."""


def saturate(address: str, number: int, mixed: bool) -> None:
    """Overwrite a few keys in pipelined batches as fast as it goes."""
    draw = random.Random(number)
    with RawClient(address) as client:
        for _ in range(SATURATING_BATCHES):
            requests = []
            for _ in range(200):
                size = draw.choice((10, 300, 3000)) if mixed else 200
                key = b"s/%d/%d" % (number, draw.randrange(40))
                flags = Flag.PERSIST | Flag.OVERWRITE
                requests.append(build(Function.SET, key, b"v" * size, flags=flags))
            client.send(*requests)
            for _ in requests:
                assert client.reply().code == ""


@pytest.mark.parametrize("mixed", [False, True])
def test_backpressure_bounds_the_log_of_a_saturated_daemon(tmp_path: Path, mixed: bool) -> None:
    segment = SATURATING_SEGMENT_BYTES
    options = ("--cmdlog-seg-size", str(segment), "--http", "127.0.0.1:0")
    with DaemonProcess(tmp_path, *options) as daemon, ThreadPoolExecutor() as pool:
        working = [
            pool.submit(saturate, daemon.address, number, mixed)
            for number in range(SATURATING_CLIENTS)
        ]
        most = 0.0
        with RawClient(daemon.address) as client:
            while wait(working, LOOK_S).not_done:
                found = statistics(client)
                live = found["log_live_bytes"] + segment
                most = max(most, found["log_bytes"] / live)
                # a reader waits for nobody
                assert client.ask(build(Function.GET, b"s/0/0", flags=Flag.DATA)).code in (
                    "",
                    "not-found",
                )
        for each in working:
            each.result()
        assert most <= 4
        address = re.findall(r"event=ready listen=\S+ http=(\S+)", daemon.said())[-1]
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=SILENCE_S) as answer:
            figures = answer.read().decode()
        assert re.search(r"^fastjournal_writers_waits_total [1-9]", figures, re.MULTILINE)
        assert re.search(r"^fastjournal_writers_waiting 0", figures, re.MULTILINE)
        assert daemon.stop() == 0
    assert "event=writers-slowed" in daemon.said()
    verify(tmp_path / "log")
