"""SET beside beanstalkd's put, NEXT + complete beside its reserve + delete, in one run.

    python -m tests.bench.bench_beanstalkd

Both on this machine, on /var/tmp, each write synced before it is answered (``beanstalkd -f 0``,
``--cmdlog-sync always``), one connection over loopback, bodies of 100 bytes. A SET carries a URI
of its own, which beanstalkd has nothing for. Rounds of the two alternate, so that a machine whose
speed drifts does not favour one; the ratio is that of the medians, and of each pair of rounds.
beanstalkd is Debian's package; where it is missing, only our own figures are printed.
"""

from __future__ import annotations

import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from fastjournal.client.core.address import parse_address
from fastjournal.protocol import ClientConnection, Flag, Function, Reply, Request, encode_request
from tests.integration.daemon_process import DaemonProcess

ROUNDS = 5
WINDOW = 256
"""Requests that are sent before the first reply is awaited."""
BATCH = 64
"""Entries of one NEXT."""
OURS = 40_960
"""Entries of one round of ours."""
THEIRS = 5_120
"""Jobs of one round of beanstalkd, which is that much slower."""
BODY = b"x" * 100
SUCCESS_BYTES = 17
DELETE = Function.DELETE.value
WORKED_ON = Flag.WORKED_ON.value
DIRECTORY = "/var/tmp"
"""On a disk: /tmp often is in memory, where a sync costs nothing."""


class Ours:
    """One connection to a ``fastjournald``."""

    def __init__(self, address: str) -> None:
        target = parse_address(address)
        self._socket = socket.create_connection((target.host, target.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._serial = 0

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def windows(self, count: int, window: int = WINDOW) -> list[bytes]:
        """Encode SETs, each of a resource of its own, in windows of so many."""
        now = time.time_ns() // 1000
        frames = []
        for _ in range(count):
            self._serial += 1
            number = self._serial
            frames.append(
                encode_request(
                    Request(
                        Function.SET.value,
                        number & 0xFFFF,
                        Flag.PERSIST.value,
                        now - count + number % count,
                        b"example.org:128:%016d:%d" % (now, number),
                        b"https://example.org/some/page/%d.html" % number,
                        1,
                        BODY,
                    )
                )
            )
        return [b"".join(frames[at : at + window]) for at in range(0, count, window)]

    def put(self, count: int, window: int = WINDOW) -> float:
        """Return SETs a second; each window is answered before the next one is sent."""
        windows = self.windows(count, window)
        started = time.perf_counter()
        for frames in windows:
            self._socket.sendall(frames)
            missing = window * SUCCESS_BYTES
            while missing:
                missing -= len(self._socket.recv(missing))
        return count / (time.perf_counter() - started)

    def take(self, count: int, batch: int = BATCH) -> float:
        """Return entries leased and completed a second: one NEXT, then their DELETEs at once."""
        connection = ClientConnection()
        ask = encode_request(Request(Function.NEXT.value, 0, Flag.DATA.value, count=batch))
        done = 0
        started = time.perf_counter()
        self._socket.sendall(ask)
        while done < count:
            for reply in self._replies(connection):
                if reply.error:
                    raise RuntimeError(reply.error)
                if reply.pairs is not None:
                    done += len(reply.pairs)
                    now, token = time.time_ns() // 1000, reply.timeout
                    frames = [
                        encode_request(Request(DELETE, 1, WORKED_ON, now, pair.key, timeout=token))
                        for pair in reply.pairs
                    ]
                    frames.append(ask)
                    self._socket.sendall(b"".join(frames))
        self._drain(connection)
        return count / (time.perf_counter() - started)

    def take_singly(self, count: int) -> float:
        """Return entries leased and completed a second, each request alone: NEXT, then DELETE."""
        connection = ClientConnection()
        ask = encode_request(Request(Function.NEXT.value, 0, Flag.DATA.value, count=1))
        started = time.perf_counter()
        for _ in range(count):
            reply = self._answer(connection, ask)
            assert reply.pairs, "there is work"
            now, key, token = time.time_ns() // 1000, reply.pairs[0].key, reply.timeout
            complete = Request(DELETE, 1, WORKED_ON, now, key, timeout=token)
            reply = self._answer(connection, encode_request(complete))
            assert not reply.error, reply.error
        return count / (time.perf_counter() - started)

    def _answer(self, connection: ClientConnection, request: bytes) -> Reply:
        self._socket.sendall(request)
        while not (replies := self._replies(connection)):
            pass
        return replies[0]

    def _replies(self, connection: ClientConnection) -> list[Reply]:
        connection.receive_data(self._socket.recv(1 << 18))
        return connection.next_events()

    def _drain(self, connection: ClientConnection) -> None:
        """Wait for the reply to the last NEXT, which finds nothing."""
        while not any(reply.pairs == [] for reply in self._replies(connection)):
            pass


class Theirs:
    """One connection to a ``beanstalkd -f 0``."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb")

    def put(self, count: int) -> float:
        """Return puts a second."""
        window = b"put 128 0 60 %d\r\n%b\r\n" % (len(BODY), BODY) * WINDOW
        started = time.perf_counter()
        for _ in range(count // WINDOW):
            self._socket.sendall(window)
            for _ in range(WINDOW):
                self._file.readline()
        return count / (time.perf_counter() - started)

    def take(self, count: int) -> float:
        """Return jobs reserved and deleted a second: as ours, in batches of 64."""
        started = time.perf_counter()
        for _ in range(count // BATCH):
            self._socket.sendall(b"reserve\r\n" * BATCH)
            ids = []
            for _ in range(BATCH):
                _, number, size = self._file.readline().split()
                self._file.read(int(size) + 2)
                ids.append(number)
            self._socket.sendall(b"".join(b"delete %b\r\n" % number for number in ids))
            for _ in range(BATCH):
                self._file.readline()
        return count / (time.perf_counter() - started)


def main() -> None:
    """Run the rounds and print medians and ratios."""
    with tempfile.TemporaryDirectory(dir=DIRECTORY) as name:
        directory = Path(name)
        with DaemonProcess(directory) as daemon:
            ours = Ours(daemon.address)
            peer = shutil.which("beanstalkd")
            if peer is None:
                print("beanstalkd is not installed (apt-get install beanstalkd): no ratios")
                measure(ours, None)
                return
            port = free_port()
            (directory / "beanstalkd").mkdir()
            command = [peer, "-f", "0", "-b", directory / "beanstalkd", "-l", "127.0.0.1"]
            process = subprocess.Popen([*command, "-p", str(port)])
            try:
                measure(ours, retry(lambda: Theirs(port)))
            finally:
                process.terminate()
                process.wait()


def measure(ours: Ours, theirs: Theirs | None) -> None:
    """Alternate rounds of both, and print."""
    figures: dict[str, list[float]] = {"SET": [], "NEXT": [], "put": [], "reserve": []}
    for number in range(ROUNDS + 1):
        round_figures = {"SET": ours.put(OURS), "NEXT": ours.take(OURS)}
        if theirs is not None:
            round_figures |= {"put": theirs.put(THEIRS), "reserve": theirs.take(THEIRS)}
        if number:  # the first warms up
            for what, figure in round_figures.items():
                figures[what].append(figure)
    report("SET with URI, windows of 256", figures["SET"], "put", figures["put"])
    report("NEXT of 64 + completes", figures["NEXT"], "reserve + delete", figures["reserve"])


def report(what: str, ours: list[float], other: str, theirs: list[float]) -> None:
    """Print one comparison."""
    print(f"{what}: {statistics.median(ours):,.0f}/s (min {min(ours):,.0f}, max {max(ours):,.0f})")
    if theirs:
        print(
            f"beanstalkd -f 0, {other}: {statistics.median(theirs):,.0f}/s "
            f"(min {min(theirs):,.0f}, max {max(theirs):,.0f})"
        )
        pairs = [mine / his for mine, his in zip(ours, theirs, strict=True)]
        ratio = statistics.median(ours) / statistics.median(theirs)
        print(f"ratio {ratio:.1f} (pair by pair: min {min(pairs):.1f}, max {max(pairs):.1f})")


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def retry(connect: Callable[[], Theirs]) -> Theirs:
    """Connect, as soon as somebody listens."""
    deadline = time.monotonic() + 10
    while True:
        try:
            return connect()
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


if __name__ == "__main__":
    main()
