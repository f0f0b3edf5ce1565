"""Promise 5, exhaustively: the whole daemon is run by a script, and every call of its disk fails.

``main`` itself runs, with its sockets, sessions, group commits and exit codes, on a disk in memory:
only signals are replaced. The script starts on what a crash left, sets from two clients at once,
works, rolls segments, takes a snapshot, prunes another and stops. The n-th call of the disk fails,
for every n there is. Short writes are among it: a write that fails has written any part.
"""

from __future__ import annotations

import errno
import gc
import resource
import signal
import sys
from collections.abc import Iterator
from functools import partial
from itertools import count, pairwise

import pytest
import trio

from fastjournal.clock import SystemClock, unique_timestamp
from fastjournal.protocol import ClientConnection, Flag, Function, encode_request
from fastjournal.protocol.messages import Reply, Request
from fastjournal.testing.disk import SimulatedDisk
from fastjournal.testing.workq_rules import assert_workq_accepts
from fastjournald.config.options import Config
from fastjournald.main import main
from fastjournald.recovery.recover import recover_engine
from fastjournald.server import Server
from tests.property.subject import request

LOG = "/log"
LEASE_US = 3_600_000_000
WINDOW = 6
CRASHES = 3
"""Power losses looked at after each end."""

HINTS = {errno.EIO: "restore on another disk", errno.ENOSPC: "free some space"}
ACTIONS = {
    *("create", "create directory", "link to", "list", "lock", "open", "read", "read free space"),
    *("remove", "remove directory", "rename to", "sync", "sync directory", "truncate", "write"),
}
"""Names of the calls of a disk in errors; the script makes all of them."""


class Books:
    """Record of the requests and of the replies to them."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        """Key -> value of every SET that was sent."""
        self.kept: set[bytes] = set()
        """Keys whose SET got OK, and that nobody asked to delete since."""
        self.gone: set[bytes] = set()
        """Keys whose DELETE got OK."""
        self.leases: dict[bytes, int] = {}
        """Key to token, of work that nobody asked to end since."""
        self.snapshot = ""
        """The error of the snapshot."""

    def ask(self, asked: Request) -> None:
        """A request is sent."""
        if asked.function == Function.SET:
            self.values[asked.key] = asked.value
        elif asked.function == Function.DELETE:
            self.kept.discard(asked.key)
            self.leases.pop(asked.key, None)

    def hear(self, asked: Request, reply: Reply) -> None:
        """A reply has come."""
        if asked.function == Function.SNAPSHOT:
            self.snapshot = reply.error
            return
        assert reply.error == ""
        if asked.function == Function.SET:
            self.kept.add(asked.key)
        elif asked.function == Function.DELETE:
            self.gone.add(asked.key)
        else:
            self.leases |= {pair.key: reply.timeout or 0 for pair in reply.pairs or ()}

    def copy(self) -> Books:
        """Return books that go on from here."""
        books = Books()
        books.values, books.kept = dict(self.values), set(self.kept)
        books.gone, books.leases = set(self.gone), dict(self.leases)
        return books

    def assert_kept(self, disk: SimulatedDisk, *, repair: bool) -> None:
        """A daemon that starts on this disk has all that got OK, and nothing half."""
        config = Config(cmdlog_path=LOG, repair=repair)
        settings = config.settings()
        engine, writer = recover_engine(disk, config, settings, SystemClock(), seed=b"restart!")
        engine.check()
        found = {key: engine.store.find(key) for key in self.values}
        for key, entry in found.items():
            assert entry is None or entry.value == self.values[key]
        for key in self.kept:
            assert found[key] is not None, f"{key!r} was told to be safe"
        for key in self.gone:
            assert found[key] is None, f"{key!r} was told to be gone"
        for key, token in self.leases.items():
            entry = found[key]
            assert entry is not None
            assert entry.token == token
        writer.close()
        names = [name for name in disk.listdir(LOG) if name.endswith(".log")]
        assert_workq_accepts(disk.read(f"{LOG}/{name}") for name in names)


class Peer:
    """One connection; a lost one raises ``EOFError``."""

    def __init__(self, stream: trio.SocketStream, books: Books) -> None:
        self._stream = stream
        self._books = books
        self._connection = ClientConnection()

    async def ask(self, *requests: Request) -> list[Reply]:
        """Send requests in one piece and return their replies."""
        replies = []
        for asked in requests:
            self._books.ask(asked)
        try:
            await self._stream.send_all(b"".join(map(encode_request, requests)))
            for asked in requests:
                while not isinstance(event := self._connection.next_event(), Reply):
                    data = await self._stream.receive_some()
                    if not data:
                        raise EOFError
                    self._connection.receive_data(data)
                self._books.hear(asked, event)
                replies.append(event)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise EOFError from error
        return replies


class Script:
    """Requests of the clients in one life of the daemon."""

    def __init__(self, books: Books, life: int) -> None:
        self.books = books
        self._life = life
        self._serial = count()

    def sets(self) -> list[Request]:
        """Return some SETs with keys and URIs of their own."""
        requests = []
        for _ in range(WINDOW):
            number = next(self._serial)
            key = b"a:1:0:%d-%02d" % (self._life, number)
            value = b"%d" % number * 400
            requests.append(
                request(Function.SET, key, value, uri=b"u" + key, flags=Flag.PERSIST, at=self.at())
            )
        return requests

    def at(self) -> int:
        """Return this instant."""
        return unique_timestamp()

    async def run(self, address: str) -> None:
        """Do everything once; stop where the connection is lost."""
        host, _, port = address.rpartition(":")
        try:
            async with (
                await trio.open_tcp_stream(host, int(port)) as one,
                await trio.open_tcp_stream(host, int(port)) as two,
            ):
                await self._work(Peer(one, self.books), Peer(two, self.books))
        except* (EOFError, OSError):
            pass

    async def _work(self, one: Peer, two: Peer) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(one.ask, *self.sets()))
            nursery.start_soon(partial(two.ask, *self.sets()))
        (leased,) = await one.ask(
            request(Function.NEXT, b"a", count=4, timeout=LEASE_US, at=self.at())
        )
        done = [pair.key for pair in leased.pairs or ()][:2]
        token = leased.timeout
        await one.ask(
            *(
                request(
                    Function.DELETE,
                    key,
                    flags=Flag.WORKED_ON | Flag.PERSIST,
                    timeout=token,
                    at=self.at(),
                )
                for key in done
            )
        )
        await two.ask(*self.sets())
        await one.ask(request(Function.SNAPSHOT, count=1, at=self.at()))
        await one.ask(*self.sets())


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The daemon sets what belongs to a process."""
    # thousands of tests stay frozen, which no other collection of this process has to look at
    monkeypatch.setattr(gc, "freeze", lambda: None)
    numbers = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)
    handlers = {number: signal.getsignal(number) for number in numbers}
    switching = sys.getswitchinterval()
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
    sys.setswitchinterval(switching)
    resource.setrlimit(resource.RLIMIT_NOFILE, files)
    gc.enable()


def run_daemon(
    monkeypatch: pytest.MonkeyPatch, disk: SimulatedDisk, script: Script, *options: str
) -> int:
    """Run the daemon and the script to their ends; return the exit code."""

    async def serve(server: Server, *_: object) -> None:
        stopped = trio.Event()

        async with trio.open_nursery() as nursery:

            async def play(address: str) -> None:
                await script.run(address)
                stopped.set()

            def ready(addresses: list[str]) -> None:
                nursery.start_soon(play, addresses[0])

            await server.run(ready, stopped.wait)

    monkeypatch.setattr("fastjournald.main.OsDisk", lambda: disk)
    monkeypatch.setattr("fastjournald.main._serve", serve)
    with pytest.raises(SystemExit) as caught:
        main(
            [
                *("--cmdlog-path", LOG, "--listen", "127.0.0.1:0"),
                *("--cmdlog-seg-size", "4096", *options),
            ]
        )
    assert isinstance(caught.value.code, int)
    return caught.value.code


def contents(disk: SimulatedDisk, path: str) -> dict[str, bytes]:
    """Return all that a start finds below a directory."""
    found: dict[str, bytes] = {}
    for name in disk.listdir(path):
        below = f"{path}/{name}"
        found |= contents(disk, below) if disk.is_directory(below) else {below: disk.read(below)}
    return found | {path: b""}


def different(disks: list[SimulatedDisk]) -> list[SimulatedDisk]:
    """Return one of those disks each on which a start finds the same."""
    return list({tuple(sorted(contents(disk, LOG).items())): disk for disk in disks}.values())


def change(disk: SimulatedDisk, name: str, data: bytes, *, at: int | None = None) -> None:
    """Write a file anew, with other bytes from ``at`` on (None: behind the end)."""
    path = f"{LOG}/{name}"
    before = b""
    if disk.exists(path):
        before = disk.read(path)
        disk.unlink(path)
    at = len(before) if at is None else at
    file = disk.create(path)
    file.write(before[:at] + data + before[at + len(data) :])
    file.sync()
    disk.sync_directory(LOG)


def left_behind(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> tuple[SimulatedDisk, Books, tuple[str, ...]]:
    """Return a disk on which a daemon lived and was interrupted, its books, and options."""
    disk, books = SimulatedDisk(), Books()
    assert run_daemon(monkeypatch, disk, Script(books, 1)) == 0
    assert books.snapshot == ""
    names = [name for name in disk.listdir(LOG) if name.endswith(".log")]
    assert len(names) > 2
    change(disk, f"{names[0]}.rw", b"half a segment")
    disk.mkdir(f"{LOG}/snapshots/20200101T000000.000000Z.partial")
    change(disk, "snapshots/20200101T000000.000000Z.partial/MANIFEST.json", b"{")
    if what == "a torn tail":
        change(disk, names[-1], b"\1\0\0torn")
        return disk, books, ()
    if what == "an empty segment":
        change(disk, f"{int(names[-1][:9]) + 1:09d}.log", b"wqwq\0\0\0\1")
        return disk, books, ()
    # the record of an entry that nobody worked on loses its value
    data = disk.read(f"{LOG}/{names[1]}")
    key = next(key for key in sorted(books.kept) if b"u" + key in data)
    change(disk, names[1], b"?", at=data.index(b"u" + key) + 40)
    del books.values[key]
    books.kept.discard(key)
    return disk, books, ("--repair",)


@pytest.mark.parametrize("what", ["a torn tail", "an empty segment", "damage"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_disk_call_that_fails_never_loses_an_acknowledged_change(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, what: str, error: int
) -> None:
    before, before_books, options = left_behind(monkeypatch, what)
    failed = set()
    without_copy = 0
    for number in count(1):
        disk, books = before.kill(number), before_books.copy()
        disk.fail_at(number, error=error)
        caplog.clear()
        code = run_daemon(monkeypatch, disk, Script(books, 2), *options)
        name = errno.errorcode[error]
        if disk.calls.total() < number:
            assert code == 0
            assert name not in caplog.text
            break
        said = next((line for line in caplog.messages if name in line), "")
        failed |= {action for action in ACTIONS if f"cannot {action}:" in said}
        failed |= {action for action in ACTIONS if f"cannot {action} /" in said}
        if not said:
            # a start without room for a copy of the last segment, or of torn bytes, goes on
            assert (code, error) == (0, errno.ENOSPC)
            without_copy += 1
        elif code == 0:
            # a snapshot that fails is no failure of the log
            assert said.startswith(("event=snapshot-failed ", "event=snapshot-not-removed "))
            assert bool(books.snapshot) == said.startswith("event=snapshot-failed ")
        else:
            assert code == 74
            assert said.startswith("event=failed code=log-failed ")
            assert LOG in said
            assert HINTS[error] in said
        for after in different([disk.kill(), *(disk.crash(seed) for seed in range(CRASHES))]):
            books.assert_kept(after, repair=bool(options))
    assert len(books.kept) > len(before_books.kept)
    rare = {"truncate"} if what != "a torn tail" else set()
    assert failed == ACTIONS - rare, number
    assert without_copy <= 8, "calls for copies"


@pytest.mark.parametrize("part", range(4))
def test_disk_that_is_full_at_any_byte_ends_the_daemon_or_nothing_is_written_to_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, part: int
) -> None:
    before, before_books, _ = left_behind(monkeypatch, "a torn tail")
    used = 2**40
    before.capacity_bytes = used
    used -= before.free_space(LOG).bytes
    codes = []
    for room in range(part * 37, 30_000, 4 * 37):
        disk, books = before.kill(room), before_books.copy()
        disk.capacity_bytes = used + room
        caplog.clear()
        codes.append(run_daemon(monkeypatch, disk, Script(books, 2), "--min-free-bytes", "0"))
        if codes[-1] == 0:
            if not books.snapshot and "event=snapshot-not-removed" not in caplog.text:
                break
        else:
            assert codes[-1] == 74
            assert "(ENOSPC)" in caplog.text
            assert HINTS[errno.ENOSPC] in caplog.text
        for after in different([disk.kill(), disk.crash(room)]):
            after.capacity_bytes = None
            books.assert_kept(after, repair=False)
    # the less room there is, the sooner it ends
    assert codes[0] == 74
    assert codes[-1] == 0
    assert all(earlier >= later for earlier, later in pairwise(codes) if later == 0 or earlier)
