"""Real daemons that are killed while they start: while they replay, tidy up, repair, and clean."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fastjournal.cmdlog.format.layout import SEGMENT_HEADER
from fastjournal.cmdlog.recovery.scan import scan_segment
from fastjournal.protocol.constants import Flag, Function
from fastjournal.testing.workq_rules import assert_workq_accepts
from tests.integration.daemon_process import DaemonProcess
from tests.integration.raw_client import SILENCE_S, RawClient, build
from tests.integration.test_daemon_compaction import Churn, verify

OPTIONS = ("--cmdlog-seg-size", "65536", "--cmdlog-clean-int", "50", "--tombstone-ttl", "1")
LIVES = 3
KILLS = 7
TORN = SEGMENT_HEADER[:1] + b"\1 a write that was cut off"
VALUE = b"v" * 500
ENTRIES = 400


def kill_at(daemon: DaemonProcess, come: Callable[[], bool], delay_s: float) -> bool:
    """Start a daemon, and kill it when something has come, or is ready; then after a delay.

    Returns:
        Whether it was killed before it took requests.
    """
    daemon.launch()
    deadline = time.monotonic() + SILENCE_S
    while not (come() or daemon.is_ready):
        assert time.monotonic() < deadline, daemon.said()
        time.sleep(0.001)
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


def test_kills_during_a_repair_leave_what_another_repairs(
    damaged: tuple[Path, dict[Path, bytes], set[int]], tmp_path: Path
) -> None:
    source, bad, lost = damaged
    draw = random.Random(8)
    log = tmp_path / "log"
    shutil.copytree(source, log)
    early = 0
    daemon = DaemonProcess(tmp_path, "--cmdlog-seg-size", "16384", "--repair")
    for _ in range(KILLS):
        begun = more_files(log, "*.damaged-*", draw.randint(1, 3))
        early += kill_at(daemon, begun, draw.choice((0, 0, 0.002)))
        if draw.random() < 0.3:
            shutil.rmtree(log)
            shutil.copytree(source, log)
    with daemon:
        with RawClient(daemon.address) as client:
            client.send(*(build(Function.GET, b"kept/%d" % number) for number in range(ENTRIES)))
            missing = {number for number in range(ENTRIES) if client.reply().code == "not-found"}
        assert daemon.stop() == 0
    assert early, "every repair was done before it was killed"
    assert missing == lost
    for name, data in bad.items():
        assert data in [path.read_bytes() for path in log.glob(f"{name}.damaged-*")]
    assert "Traceback" not in daemon.said()
    verify(log)
    assert_workq_accepts(log)
