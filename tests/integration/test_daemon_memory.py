"""A real daemon whose values do not fit into memory."""

from __future__ import annotations

import fcntl
import random
import re
import resource
import select
import signal
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from fastjournal.limits import KEY_BYTES_MAX, NEXT_VALUE_BYTES_MAX
from fastjournal.protocol import Request, encode_request
from fastjournal.protocol.constants import QUERY_SHIFT, Flag, Function, Query, ValueType
from fastjournald.config.options import PROGRAM_BYTES
from fastjournald.tables.value_cache import ENTRY_BYTES
from tests.integration.daemon_process import START_S, DaemonProcess
from tests.integration.raw_client import RawClient, build, set_request
from tests.integration.test_daemon_http import HTTP
from tests.integration.test_daemon_http import figures as samples
from tests.integration.worker_process import wait_until

ENTRIES_BYTES = 8 * 2**20
LIMIT = PROGRAM_BYTES + ENTRIES_BYTES
VALUE_BYTES = 20_000
NUMBER = 10 * ENTRIES_BYTES // VALUE_BYTES
"""Ten times as many values as there is memory for."""

WINDOW = 40
IN_FLIGHT_BYTES = 16 * 2**20
"""Memory of one connection, of two of the largest replies, of a segment in compaction, and what
the allocator keeps of all that."""

OPTIONS = ("--memory-limit", str(LIMIT), "--cmdlog-seg-size", "2097152", "--http", "127.0.0.1:0")


def value(number: int, size: int = VALUE_BYTES) -> bytes:
    """Another one for each number."""
    return random.Random(number).randbytes(size)


def key(number: int) -> bytes:
    return b"d%d:1:0:%d" % (number % 50, number)


def figures(daemon: DaemonProcess) -> dict[str, float]:
    address = re.findall(r"event=ready .* http=(\S+)", daemon.said())[-1]
    with urllib.request.urlopen(f"http://{address}/metrics") as page:
        lines = page.read().decode().splitlines()
    return {line.split()[0]: float(line.split()[1]) for line in lines if line[0] != "#"}


def fill(client: RawClient, numbers: range) -> None:
    for first in range(numbers.start, numbers.stop, WINDOW):
        some = range(first, min(first + WINDOW, numbers.stop))
        uris = (b"https://example.org/%d" % number for number in some)
        client.send(
            *(
                set_request(key(number), value(number), uri=uri)
                for number, uri in zip(some, uris, strict=True)
            )
        )
        assert all(client.reply().error == "" for _ in some)


def assert_resident_within_the_limit(daemon: DaemonProcess) -> None:
    found = figures(daemon)
    index_bytes = ENTRY_BYTES * NUMBER
    resident = found["process_resident_memory_bytes"]
    assert resident <= LIMIT + index_bytes / 4 + IN_FLIGHT_BYTES
    assert found["fastjournal_entries_memory_bytes"] <= ENTRIES_BYTES
    assert found["fastjournal_cold_values"] > NUMBER * 0.8


def test_memory_stays_in_its_limit_with_ten_times_as_many_values(
    tmp_path: Path,
) -> None:
    with DaemonProcess(tmp_path, *OPTIONS, own_interpreter=True) as daemon:
        with RawClient(daemon.address) as client:
            fill(client, range(NUMBER))
            assert_resident_within_the_limit(daemon)
            for number in random.Random(1).sample(range(NUMBER), 500):
                pairs = client.ask(build(Function.GET, key(number), flags=Flag.DATA)).pairs
                assert pairs
                assert pairs[0].value == value(number)
            assert_resident_within_the_limit(daemon)
            assert figures(daemon)["fastjournal_values_read_total"] > 400
        daemon.kill()
        daemon.start()
        assert_resident_within_the_limit(daemon)
        with RawClient(daemon.address) as client:
            left = set(range(NUMBER))
            while left:
                asked = build(Function.NEXT, b"", flags=Flag.DATA, count=WINDOW)
                reply = client.ask(asked)
                assert reply.pairs
                for pair in reply.pairs:
                    number = int(pair.key.rpartition(b":")[2])
                    assert pair.value == value(number)
                    left.remove(number)
                client.send(
                    *(
                        build(
                            Function.DELETE, pair.key, flags=Flag.WORKED_ON, timeout=reply.timeout
                        )
                        for pair in reply.pairs
                    )
                )
                assert all(client.reply().error == "" for _ in reply.pairs)
            found = figures(daemon)
        assert found["fastjournal_cold_values"] == 0
        assert found["fastjournal_values_not_readable_total"] == 0
        assert found["process_resident_memory_bytes"] <= LIMIT + IN_FLIGHT_BYTES


@contextmanager
def opening_hangs(path: Path) -> Iterator[None]:
    """Let whoever opens a file wait until the block ends, by a lease of the system on it."""
    # the system asks for the end of the lease by this signal, which would end the process
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    try:
        with path.open("r+b") as file:
            try:
                fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            except OSError as error:
                pytest.skip(f"no leases on this file system: {error}")
            yield
    finally:
        signal.signal(signal.SIGIO, before)


def test_disk_read_that_hangs_holds_up_nobody_else(tmp_path: Path) -> None:
    with (
        DaemonProcess(tmp_path, "--memory-limit", "1") as daemon,
        RawClient(daemon.address) as waits,
        RawClient(daemon.address) as works,
    ):
        assert not waits.ask(set_request(b"a:1:0:cold", value(1))).error
        assert not waits.ask(build(Function.NOP)).error
        # sealed, so that nobody but a reader opens it
        assert not waits.ask(build(Function.SNAPSHOT)).error
        (path,) = daemon.log_path.glob("*.log")
        with opening_hangs(path):
            waits.send(build(Function.GET, b"a:1:0:cold", flags=Flag.DATA))
            for number in range(100):
                assert not works.ask(set_request(b"b:1:0:%d" % number)).error
            assert works.ask(build(Function.NEXT, b"b", count=100)).pairs
            assert select.select([waits.socket], [], [], 0)[0] == [], "the read still hangs"
        (pair,) = waits.reply().pairs or ()
        assert pair.value == value(1)


MEMORY_WINDOW = 100
MIB = 2**20
TOLERANCE = 0.25
TOMBSTONES_BYTES = 32 * MIB

Load = Callable[[DaemonProcess, ExitStack], None]


def long_key(*numbers: int) -> bytes:
    """Another key of the greatest length for other numbers, without a colon."""
    return b"-".join(b"%d" % number for number in numbers).ljust(KEY_BYTES_MAX, b".")


def resident(daemon: DaemonProcess) -> int:
    pages = Path(f"/proc/{daemon.pid}/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()


def counted(daemon: DaemonProcess) -> dict[str, float]:
    """Return the daemon's figures of its memory, by kind, once it is idle.

    All changes are matched then, and the key index has no key of a deleted entry: notifications and
    tombstones may have the same key object.
    """
    deadline = time.monotonic() + START_S
    while True:
        found = samples(daemon)
        kinds = {
            name.removeprefix("fastjournal_memory_bytes{").removesuffix("}"): value
            for name, value in found.items()
            if name.startswith("fastjournal_memory_bytes")
        }
        if not kinds["unmatched"] and not kinds["index"]:
            return kinds
        assert time.monotonic() < deadline
        # a scrape is more work than what it waits for
        time.sleep(0.1)


def connect(daemon: DaemonProcess, stack: ExitStack, number: int = 1) -> list[RawClient]:
    return [stack.enter_context(RawClient(daemon.address)) for _ in range(number)]


def ask_all(client: RawClient, requests: Iterable[Request]) -> None:
    """Send many requests, and see that each succeeds."""
    window: list[Request] = []

    def answered() -> None:
        client.send(*window)
        for _ in window:
            assert client.reply().code in ("", "not-found")
        window.clear()

    for request in requests:
        window.append(request)
        if len(window) == MEMORY_WINDOW:
            answered()
    answered()


# --- the worst of each kind -----------------------------------------------------------------------


def tombstones(daemon: DaemonProcess, stack: ExitStack) -> None:
    """Deletions of what is not there: more than the bound, which holds."""
    (client,) = connect(daemon, stack)
    ask_all(client, (build(Function.DELETE, long_key(number)) for number in range(10_000)))


def waits(daemon: DaemonProcess, stack: ExitStack) -> None:
    """NEXTs that wait, each for a domain of its own, with a value as long as there may be."""
    options = b'{"attempts": 3}'.ljust(NEXT_VALUE_BYTES_MAX)
    for number, client in enumerate(connect(daemon, stack, 100)):
        for at in range(64):
            asked = build(
                Function.NEXT, long_key(number, at), options, flags=Flag.LISTEN, identifier=at
            )
            asked.value_type = ValueType.STRING
            client.send(asked)
        assert client.ask(build(Function.NOP)).code == ""


def pauses(daemon: DaemonProcess, stack: ExitStack) -> None:
    (client,) = connect(daemon, stack)
    hour = 3600 * 1_000_000
    asked = (build(Function.PAUSE, long_key(number), ttl=hour) for number in range(7000))
    ask_all(client, asked)


def entries(daemon: DaemonProcess, stack: ExitStack) -> None:
    """Fill the daemon with 60,000 entries first."""
    (client,) = connect(daemon, stack)
    ask_all(client, (build(Function.SET, b"%d" % number, b"") for number in range(60_000)))


def locks(daemon: DaemonProcess, stack: ExitStack) -> None:
    for number, client in enumerate(connect(daemon, stack, 60)):
        hour = 3600 * 1_000_000
        first = number * 1000
        keys = (b"%d" % at for at in range(first, first + 1000))
        ask_all(client, (build(Function.LOCK, key, timeout=hour) for key in keys))


def ranges(daemon: DaemonProcess, stack: ExitStack) -> None:
    for number, client in enumerate(connect(daemon, stack, 4)):
        ask_all(
            client,
            (
                build(
                    Function.GET,
                    long_key(number, at),
                    uri=long_key(number, at, at),
                    flags=Flag.LISTEN,
                    count=1,
                    identifier=at,
                )
                for at in range(1000)
            ),
        )


def expressions(daemon: DaemonProcess, stack: ExitStack) -> None:
    """Expressions whose automata take all the memory that they may, once a key has come."""
    regex = Flag.LISTEN | Query.REGEX << QUERY_SHIFT
    clients = connect(daemon, stack, 2)
    for number, client in enumerate(clients):
        for at in range(220):
            expression = b"%d-%d|(a|b)*a(a|b){170}c" % (number, at)
            asked = build(Function.GET, expression, flags=regex, identifier=at)
            assert client.ask(asked).code == ""
    chance = random.Random(1)
    key = bytes(chance.choices(b"ab", k=600))
    assert clients[0].ask(build(Function.SET, key, b"")).code == ""


def single_keys(daemon: DaemonProcess, stack: ExitStack) -> None:
    """Subscriptions to keys that are gone again."""
    (writer,) = connect(daemon, stack)
    for number, client in enumerate(connect(daemon, stack, 8)):
        keys = [long_key(number, at) for at in range(1000)]
        ask_all(writer, (build(Function.SET, key, b"") for key in keys))
        ask_all(
            client,
            (
                build(Function.GET, key, flags=Flag.LISTEN, identifier=at)
                for at, key in enumerate(keys)
            ),
        )
        ask_all(writer, (build(Function.DELETE, key, flags=Flag.OVERWRITE) for key in keys))
        for _ in keys:
            assert client.reply().code == "not-found"
        # idle once, so that the memory of the deleted keys in the index is used again
        counted(daemon)


def news(daemon: DaemonProcess, stack: ExitStack) -> None:
    """Changes whose notifications wait for a client that does not read."""
    (writer,) = connect(daemon, stack)
    for number in range(2):
        slow = stack.enter_context(RawClient(daemon.address, receive_bytes=4096))
        bounds = b"%d-" % number, b"%d." % number
        asked = build(Function.GET, bounds[0], uri=bounds[1], flags=Flag.LISTEN, count=1)
        assert slow.ask(asked).code == ""
        keys = [long_key(number, at) for at in range(3800)]
        for at in range(0, len(keys), MEMORY_WINDOW):
            some = keys[at : at + MEMORY_WINDOW]
            ask_all(writer, (build(Function.SET, key, b"") for key in some))
            ask_all(writer, (build(Function.DELETE, key, flags=Flag.OVERWRITE) for key in some))


def connections(daemon: DaemonProcess, stack: ExitStack) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    # so many that what the start has left free hardly counts
    for client in connect(daemon, stack, 2700):
        assert client.ask(build(Function.NOP)).code == ""


def inflight(daemon: DaemonProcess, stack: ExitStack) -> None:
    """Requests that are not whole."""
    whole = encode_request(build(Function.SET, b"k", bytes(900_000)))
    for client in connect(daemon, stack, 50):
        client.socket.sendall(whole[:800_000])
    wait_until(lambda: counted(daemon)["inflight"] >= 39_500_000)


def nothing(daemon: DaemonProcess, stack: ExitStack) -> None:
    """Nothing is there before."""


@pytest.mark.parametrize(
    ("kind", "before", "load", "at_least"),
    [
        ("tombstones", nothing, tombstones, 30 * MIB),
        ("waits", nothing, waits, 25 * MIB),
        ("pauses", nothing, pauses, 25 * MIB),
        ("locks", entries, locks, 15 * MIB),
        ("subscriptions", nothing, ranges, 30 * MIB),
        ("subscriptions", nothing, expressions, 30 * MIB),
        ("subscriptions", nothing, single_keys, 25 * MIB),
        ("news", nothing, news, 25 * MIB),
        ("connections", nothing, connections, 15 * MIB),
        ("inflight", nothing, inflight, 30 * MIB),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_memory_of_each_kind_is_what_the_metrics_say(
    tmp_path: Path, kind: str, before: Load, load: Load, at_least: int
) -> None:
    options = (*HTTP, "--tombstones-bytes-max", str(TOMBSTONES_BYTES), "--cmdlog-sync", "os")
    with DaemonProcess(tmp_path, *options) as daemon, ExitStack() as stack:
        (client,) = connect(daemon, stack)
        # what is loaded and allocated once
        ask_all(client, [build(Function.SET, b"warm", bytes(100_000))])
        ask_all(client, [build(Function.DELETE, b"warm", flags=Flag.OVERWRITE)])
        before(daemon, stack)
        said = counted(daemon)
        resident_before = resident(daemon)
        load(daemon, stack)
        grown = {name: size - said[name] for name, size in counted(daemon).items()}
        growth = resident(daemon) - resident_before
        assert grown[kind] >= at_least
        total = sum(grown.values())
        assert abs(growth - total) <= TOLERANCE * total, f"{growth / total:.2f} {grown}"
        if kind == "tombstones":
            assert counted(daemon)[kind] <= TOMBSTONES_BYTES


def test_memory_of_tombstones_is_bounded_at_a_start(tmp_path: Path) -> None:
    """But for those of one segment, which go when it is replayed."""
    most = (
        2 * TOMBSTONES_BYTES
    )  # a start takes some memory of its own, which has to be little of it
    options = (*HTTP, "--tombstones-bytes-max", str(most), "--cmdlog-sync", "os")
    options += ("--cmdlog-seg-size", str(4 * MIB))
    with DaemonProcess(tmp_path, *options) as daemon:
        said = counted(daemon)
        resident_before = resident(daemon)
        with RawClient(daemon.address) as client:
            keys = map(long_key, range(20_000))
            ask_all(client, (build(Function.DELETE, key, flags=Flag.PERSIST) for key in keys))
        assert daemon.stop() == 0
        daemon.start()
        grown = sum(counted(daemon).values()) - sum(said.values())
        growth = resident(daemon) - resident_before
        assert 60 * MIB < grown <= most
        assert abs(growth - grown) <= TOLERANCE * grown, f"{growth / grown:.2f}"
