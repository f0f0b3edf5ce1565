"""Real daemons that are killed, damaged and starved: promises 1, 2, 3, 5 and 6."""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from fastjournal.cmdlog.format.layout import SEGMENT_HEADER
from fastjournal.cmdlog.recovery.scan import scan_segment
from fastjournal.protocol.constants import Flag, Function
from fastjournal.testing.workq_rules import assert_workq_accepts
from tests.integration.daemon_process import DaemonProcess
from tests.integration.job_ledger import SHARED_URIS, Bookkeeping, produce, work
from tests.integration.raw_client import (
    SILENCE_S,
    RawClient,
    build,
    run_to_its_end,
    set_request,
)
from tests.integration.test_daemon_compaction import Churn, verify
from tests.integration.worker_process import wait_until

KILLS = 12


def test_kills_lose_nothing_acknowledged_and_complete_nothing_twice(tmp_path: Path) -> None:
    draw = random.Random(5)
    with DaemonProcess(tmp_path, "--cmdlog-seg-size", "60000") as daemon:
        books = Bookkeeping(lambda: RawClient(daemon.address))
        producers = [books.run(produce, seed) for seed in range(3)]
        workers = [books.run(work, seed) for seed in range(2)]
        for _ in range(KILLS):
            books.wait_told(draw.randint(1, 600))
            daemon.kill()
            daemon.start()
            books.started()
        books.wait_told(200)
        books.producing = False
        for thread in producers:
            thread.join(SILENCE_S)
        books.drain()
        books.working = False
        for thread in workers:
            thread.join(SILENCE_S)
        assert not books.problems
        # a worker can be done before the producer has written down that it got OK
        assert not books.lost
        assert not books.doubled
        assert len(books.completed) > 100
        assert len(books.newest) == SHARED_URIS
        assert not books.lost_uris
        assert daemon.stop() == 0
    assert_workq_accepts(tmp_path / "log")
    assert "Traceback" not in daemon.said()


def test_daemon_that_is_a_second_one_on_the_log_ends_with_75(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path) as daemon:
        code, said = run_to_its_end(tmp_path)
        assert code == 75
        assert "log-locked" in said
        assert "Traceback" not in said
        with RawClient(daemon.address) as client:
            assert client.ask(set_request(b"a:1:0:x")).code == ""
        assert daemon.stop() == 0


def entries_of(daemon: DaemonProcess, count: int = 60) -> list[int]:
    """Start a daemon and return which of the entries it has."""
    with daemon:
        with RawClient(daemon.address) as client:
            client.send(*(build(Function.GET, b"a:1:0:%d" % number) for number in range(count)))
            found = [number for number in range(count) if client.reply().code == ""]
        assert daemon.stop() == 0
    return found


def test_failed_write_ends_the_daemon_and_no_client_gets_ok(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path) as daemon:
        resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (100_000, 100_000))
        acknowledged: list[int] = []
        with RawClient(daemon.address) as client, RawClient(daemon.address) as other:
            for window in range(0, 2000, 50):
                numbers = range(window, window + 50)
                with suppress(OSError):
                    client.send(*(set_request(b"a:1:0:%d" % n, b"v" * 100) for n in numbers))
                    other.send(set_request(b"b:1:0:%d" % window, b"w" * 100))
                try:
                    for number in numbers:
                        assert client.reply().code == ""
                        acknowledged.append(number)
                    assert other.reply().code == ""
                except (EOFError, OSError):
                    break
            else:
                pytest.fail("the daemon went on after a write that cannot have worked")
        assert daemon.wait() == 74
        said = daemon.said()
        assert "log-failed" in said
        assert "File too large" in said
        assert "Traceback" not in said
    assert len(acknowledged) > 100
    again = DaemonProcess(tmp_path)
    found = entries_of(again, 2000)
    assert set(acknowledged) <= set(found)
    assert found == list(range(len(found)))


OPTIONS = ("--cmdlog-seg-size", "65536", "--cmdlog-clean-int", "50", "--tombstone-ttl", "1")
LIVES = 3
TORN = SEGMENT_HEADER[:1] + b"\1 a write that was cut off"
VALUE = b"v" * 500
ENTRIES = 400


def kill_at(daemon: DaemonProcess, come: Callable[[], bool], delay_s: float) -> bool:
    """Start a daemon, and kill it when something has come, or is ready; then after a delay.

    Returns:
        Whether it was killed before it took requests.
    """
    daemon.launch()
    wait_until(lambda: bool(come() or daemon.is_ready))
    time.sleep(delay_s)
    ready = daemon.is_ready
    daemon.kill()
    return not ready


def more_files(log: Path, pattern: str, number: int = 1) -> Callable[[], bool]:
    """Return whether there are so many more such files than now."""
    before = len(list(log.glob(pattern)))
    return lambda: len(list(log.glob(pattern))) >= before + number


def test_kills_during_the_start_lose_nothing(tmp_path: Path) -> None:
    draw = random.Random(7)
    churn = Churn()
    early = 0
    daemon = DaemonProcess(tmp_path, *OPTIONS)
    log = daemon.log_path
    for _ in range(LIVES):
        with daemon, RawClient(daemon.address) as client:
            if churn.told:
                churn.check(client)
            for _ in range(4):
                churn.turn(client)
        for _ in range(3):
            last = max(log.glob("[0-9]*.log"))
            last.write_bytes(last.read_bytes() + TORN)
            begun = more_files(log, draw.choice(("*.torn-*", "*.rw")))
            early += kill_at(daemon, begun, draw.choice((0, 0, 0.002, 0.1)))
        verify(log, killed=True)
    with daemon:
        with RawClient(daemon.address) as client:
            churn.check(client)
        assert daemon.stop() == 0
    assert early, "every start was done before it was killed"
    assert "Traceback" not in daemon.said()
    assert any(TORN in path.read_bytes() for path in log.glob("*.torn-*"))
    verify(log)
    assert_workq_accepts(log)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[Path, bytes], set[int]]:
    """A log with damage in several segments; the damaged bytes by segment, and what is lost."""
    directory = tmp_path_factory.mktemp("damaged")
    with DaemonProcess(directory, "--cmdlog-seg-size", "16384") as daemon:
        with RawClient(daemon.address) as client:
            for number in range(ENTRIES):
                key = b"kept/%d" % number
                assert client.ask(build(Function.SET, key, VALUE, flags=Flag.PERSIST)).code == ""
        assert daemon.stop() == 0
    lost, bad = set(), {}
    for path in sorted(daemon.log_path.glob("*.log"))[1:-1]:
        data = bytearray(path.read_bytes())
        start, _, end = list(scan_segment(bytes(data)).spans())[5]
        lost.add(int(bytes(data[start:end]).partition(b"kept/")[2].partition(b"\xc0")[0]))
        data[end - 100] ^= 1
        bad[Path(path.name)] = bytes(data[start:end])
        path.write_bytes(data)
    assert len(bad) > 5
    return daemon.log_path, bad, lost
