"""Kill a primary under load, and look what its standby serves: ``make demo-failover``.

Two daemons have one remote log, in an S3 server on this machine. Producers wait for each OK, and
note it. When enough is acknowledged, the primary is killed with SIGKILL; they go on with the
standby, without a line of their own about it. At the end every entry is worked off once, and the
ledger is compared: exit code 1 where an acknowledged entry is missing, or one comes twice.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from fastjournal import SyncClient, SyncJob
from tests.integration.daemon_process import DaemonProcess
from tests.integration.programs import installed
from tests.integration.s3_servers import BUCKET, s3_server

PRODUCERS = 8
WORKERS = 16
BEFORE, AFTER = 1_000, 1_000
"""Entries that are acknowledged before the kill, and behind it."""
DEADLINE_S = 60.0


class Producers:
    """Threads that set entries and wait for each OK.

    Args:
        servers: Addresses of both daemons.
    """

    def __init__(self, servers: str) -> None:
        self.acknowledged: dict[str, float] = {}
        """Page to when OK came, by ``time.monotonic``."""
        self.errors: list[Exception] = []
        self._servers = servers
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._produce, args=(number,)) for number in range(PRODUCERS)
        ]

    def __enter__(self) -> Producers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def wait(self, count: int) -> None:
        """Return when so many entries are acknowledged.

        Raises:
            TimeoutError: They are not.
        """

        def met() -> bool:
            if self.errors:
                raise self.errors[0]
            return len(self.acknowledged) >= count

        wait_until(met, f"an OK for {count} entries")

    def _produce(self, number: int) -> None:
        try:
            with SyncClient(self._servers, name=f"producer-{number}") as client:
                count = 0
                while not self._stop.is_set():
                    page = f"page-{number}-{count}"
                    client.enqueue("pages", page)
                    self.acknowledged[page] = time.monotonic()
                    count += 1
        except Exception as error:  # noqa: BLE001 - the main thread raises it
            self.errors.append(error)


def wait_until(met: Callable[[], bool], what: str) -> None:
    """Return when it is so; raise ``TimeoutError`` where that takes too long."""
    deadline = time.monotonic() + DEADLINE_S
    while not met():
        if time.monotonic() > deadline:
            raise TimeoutError(f"there is not {what}")
        time.sleep(0.01)


def worked_off(servers: str) -> Counter[str]:
    """Complete all entries by several workers; return how often each was delivered."""
    found: Counter[str] = Counter()

    def work(job: SyncJob) -> None:
        found[str(job.decoded())] += 1

    def work_off(number: int) -> None:
        with SyncClient(servers, name=f"worker-{number}") as client:
            client.jobs("pages", wait=0).run(work)

    with ThreadPoolExecutor(WORKERS) as threads:
        list(threads.map(work_off, range(WORKERS)))
    return found


def run(directory: Path, takeover_s: int) -> list[str]:
    """Play it, tell it, and return what is wrong."""
    with s3_server(), ExitStack() as running:
        nodes = []
        for name in ("a", "b"):
            place = directory / name
            place.mkdir()
            nodes.append(
                DaemonProcess(
                    place,
                    *("--listen", f"unix:{place}/socket", "--remote-node", name),
                    *("--remote-log", f"s3://{BUCKET}/demo"),
                    *("--takeover-after", str(takeover_s)),
                )
            )
            running.push(nodes[-1].__exit__)
        servers = ",".join(f"unix:{directory}/{name}/socket" for name in ("a", "b"))
        command = [installed("fj-cli"), "remote", "create", f"s3://{BUCKET}/demo"]
        subprocess.run(command, check=True)
        primary, standby = nodes
        primary.start()
        print("a is the primary")
        standby.launch()
        wait_until(lambda: "event=standby" in standby.said(), "a standby")
        print("b is the standby")
        with Producers(servers) as producers:
            producers.wait(BEFORE)
            primary.kill()
            killed, known = time.monotonic(), len(producers.acknowledged)
            print(f"{known} entries are acknowledged; a is killed with SIGKILL under load")
            producers.wait(known + PRODUCERS + AFTER)
        first = min(at for at in producers.acknowledged.values() if at > killed)
        print(f"b serves: {first - killed:.1f} s from the kill to the first OK")
        found = worked_off(servers)
    acknowledged = producers.acknowledged.keys()
    lost, doubled = (
        acknowledged - found.keys(),
        [page for page, times in found.items() if times > 1],
    )
    print(f"{len(acknowledged)} acknowledged, {len(lost)} lost, {len(doubled)} doubled")
    wrong = [f"{page} was acknowledged and is lost" for page in sorted(lost)]
    return wrong + [f"{page} was delivered twice" for page in doubled]


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--takeover-after", type=int, default=15, help="seconds")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fj-") as directory:
        wrong = run(Path(directory), options.takeover_after)
    for sentence in wrong:
        print(f"FAILED: {sentence}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
