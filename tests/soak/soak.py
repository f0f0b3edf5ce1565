"""Load a real daemon for as long as one likes: ``python -m tests.soak.soak --seconds 3600``.

Producers, workers that die, random requests of every function and hostile clients share one daemon
with small segments. Held to at the end, and told each minute (or tenth of the time):

- every SET of a job that got OK is completed once, and delivered to nobody afterwards;
- nobody completes a job with a token that is over;
- of closed connections nothing is left, neither they nor what they listened to;
- every request gets an answer that its function may give;
- memory is flat: the most of the last third of the time is at most the most of the third before it
  and ``GROWTH_BYTES_MAX``. The load keeps a bounded state in the daemon (few keys, few jobs, few
  tombstones), which is complete in the first third; so a leak of 100 bytes a request would show
  after some ten thousand requests.

``--spool`` soaks the spool, the forwarder and the daemon instead, with kills: ``spool_soak.py``.
``--failover`` soaks two daemons with a remote log, with kills and faulty networks:
``failover_soak.py``.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
from pathlib import Path

import trio

from tests.integration.daemon_process import DaemonProcess
from tests.soak.failover_soak import run_failover
from tests.soak.load import Load
from tests.soak.spool_soak import run_spool

OPTIONS = (
    *("--cmdlog-seg-size", str(1024 * 1024)),
    *("--cmdlog-clean-int", "5000"),
    *("--max-inflight", str(1024 * 1024)),
    *("--request-timeout", "2"),
    *("--send-timeout", "5"),
    *("--idle-timeout", "60"),
    *("--tombstones-max", "5000"),
    *("--tombstone-ttl", "60"),
)

GROWTH_BYTES_MAX = 8 * 1024 * 1024
"""Between two thirds of the time: what differs from one moment to another, which is --max-inflight
and 128 KiB for each of 15 clients, 3 MB; that the values of all keys, 6 MB on average, are 1 MB
more or less; and the allocator's part of it."""

WINDOWS_MIN = 12


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def grown_bytes(sizes: list[int]) -> int:
    """Return by how much the last third of the sizes is above the third before it."""
    third = len(sizes) // 3
    return max(sizes[-third:]) - max(sizes[-2 * third : -third])


async def soak(daemon: DaemonProcess, seconds: float, seed: int) -> tuple[Load, list[int]]:
    """Load a daemon for so long; return what was counted, and its memory from time to time."""
    load = Load(daemon.address, seed)
    windows = max(WINDOWS_MIN, round(seconds / 60))
    sizes: list[int] = []
    async with trio.open_nursery() as nursery:
        load.start(nursery)
        answers = 0
        for window in range(windows):
            most = 0
            for _ in range(10):
                await trio.sleep(seconds / windows / 10)
                most = max(most, resident_bytes(daemon.pid))
            sizes.append(most)
            print(
                f"{(window + 1) * seconds / windows:7.0f} s {load.answers - answers:8,} answers, "
                f"{most / 1e6:6.1f} MB, {len(load.owed):5} owed, {load.completed:8,} completed, "
                f"{load.died:4} workers died",
                flush=True,
            )
            answers = load.answers
        load.done.set()
    await load.drain()
    return load, sizes


def run(seconds: float, seed: int, *options: str) -> str:
    """Soak a new daemon with these options; return what is wrong, empty where nothing is."""
    with tempfile.TemporaryDirectory() as directory:
        daemon = DaemonProcess(Path(directory), *OPTIONS, *options, own_interpreter=True)
        with daemon:
            load, sizes = trio.run(soak, daemon, seconds, seed)
            status = daemon.stop()
        print(", ".join(f"{code}: {count:,}" for code, count in load.codes.most_common()))
        if status:
            return f"the daemon ended with {status}: {daemon.said()[-2000:]}"
        if "Traceback" in daemon.said():
            return daemon.said()[-2000:]
    if grown_bytes(sizes) > GROWTH_BYTES_MAX:
        return f"memory grew by {grown_bytes(sizes):,} bytes: {sizes}"
    return ""


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description="Load a daemon, and watch its memory.")
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--memory-limit", default="0", help="of the daemon, in bytes")
    parser.add_argument("--spool", action="store_true", help="soak spool and forwarder instead")
    parser.add_argument("--failover", action="store_true", help="soak a remote log instead")
    parser.add_argument("--faults", type=int, default=1 << 30, help="of processes, at the most")
    given = parser.parse_args()
    if given.spool or given.failover:
        outcome = (
            run_failover(given.seconds, given.seed, given.faults)
            if given.failover
            else run_spool(given.seconds, given.seed)
        )
        print(outcome.line())
        sys.exit("\n".join(outcome.wrong) or None)
    wrong = run(given.seconds, given.seed, "--memory-limit", given.memory_limit)
    sys.exit(wrong or None)


if __name__ == "__main__":
    main()
