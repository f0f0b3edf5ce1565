"""Stages of a SET, a NEXT and a DELETE, and the time of each: the budget of the hot path.

    python -m tests.bench.bench_stages

One process without sockets and tasks: a session is given the bytes of a window, and the log is
written (policy ``os``) before the replies leave, as the daemon does it. A window is 256 SETs with a
URI and a value of 100 bytes, or a NEXT of 64, or the 64 DELETEs under its token. The functions in
which stages begin are timed, without what they call of other stages. A window is a few calls, so
the clock costs little. The fastest of all windows counts, stage by stage: other work on the machine
only adds.

    decode    bytes to requests
    handle    a SET: arguments, which write wins, the entry and its keys; NEXT: choice and leases;
              DELETE: the lease, removal from all indexes, tombstone
    record    log records: packed, summed, appended, taken up into the index of live records
    index     a SET: the queue of its domain
    reply     encoded
    session   batch of requests, turn budget, outbox
    write     checksum of the segment, one call of the system
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from fastjournal.cmdlog.writer import LogWriter, SyncPolicy
from fastjournal.disk import OsDisk
from fastjournal.protocol import ClientConnection, Flag, Function, Request, encode_request
from fastjournald.admission.memory_budget import MemoryBudget
from fastjournald.admission.turn_budget import TurnBudget
from fastjournald.engine import engine as engine_module
from fastjournald.engine.engine import Engine, Settings, new_journal
from fastjournald.engine.handlers import next as next_module
from fastjournald.histogram import Latencies
from fastjournald.net.session import Session
from fastjournald.net.session_steps import COMMIT, RECEIVE
from fastjournald.net.shared import Shared
from tests.bench.one_connection import BATCH, BODY, DIRECTORY, WINDOW

WINDOWS = 200
STAGES = ("decode", "handle", "record", "index", "reply", "session", "write")


class Stopwatch:
    """Time of each stage, without the stages inside it."""

    def __init__(self) -> None:
        self.spent: Counter[str] = Counter()
        """Nanoseconds by stage."""
        self._inside: list[int] = []
        """Time of the stages inside each one that is going on."""

    def time(self, stage: str, owner: object, name: str) -> None:
        """Time a function, in whose place stands another one from now on."""
        function: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **options: Any) -> Any:
            self._inside.append(0)
            began = time.perf_counter_ns()
            result = function(*args, **options)
            took = time.perf_counter_ns() - began
            self.spent[stage] += took - self._inside.pop()
            if self._inside:
                self._inside[-1] += took
            return result

        setattr(owner, name, timed)

    def take(self) -> Counter[str]:
        """Return what was spent since the last time."""
        spent, self.spent = self.spent, Counter()
        return spent


class NoBackpressure:
    """A log that never is too large."""

    closed = False
    look_at = 1 << 63

    def turn_over(self, size: int, unused: int = 0) -> None:
        """Nobody waits."""


class HotPath:
    """A session over an engine and a log, whose stages are timed."""

    def __init__(self, directory: str) -> None:
        settings = Settings()
        journal = new_journal(settings, lambda _data, _records, _now: 0, bytes(8))
        self.writer = writer = LogWriter(
            OsDisk(),
            directory,
            segment_bytes_max=1 << 26,
            sync=SyncPolicy.OS,
            active=None,
            sealed=[],
            segment_start=journal.log.segment_start,
        )
        journal.append_to(writer.append)
        engine = Engine(settings, journal)
        self.shared = Shared(
            engine=engine,
            log=writer,
            memory=MemoryBudget(1 << 28, engine.context.ration),
            turns=TurnBudget(engine.store),
            backpressure=NoBackpressure(),
            connections_closed=Counter(),
            protocol_errors=Counter(),
            latencies=Latencies(Function),
            after_requests=lambda _now: None,
            wake_tasks=lambda: None,
            release_undelivered=lambda _deliveries: None,
        )
        self._session = Session(self.shared)
        self._session.next_step(now_us())
        self.stopwatch = stopwatch = Stopwatch()
        stopwatch.time("session", self._session, "next_step")
        stopwatch.time("decode", self._session, "receive_data")
        stopwatch.time("handle", engine, "handle")
        stopwatch.time("handle", engine, "handle_bulk")
        stopwatch.time("record", journal, "stored_new")
        stopwatch.time("record", journal.leases, "leased")
        stopwatch.time("record", journal, "completed_all")
        stopwatch.time("index", engine.store, "insert_new")
        stopwatch.time("reply", engine_module, "encode_successes")
        stopwatch.time("reply", next_module, "encode_reply_to")
        stopwatch.time("write", writer, "write")

    def ask(self, data: bytes) -> bytes:
        """Return the replies to requests."""
        session = self._session
        sent = b""
        session.receive_data(data)
        while (step := session.next_step(now_us())) is not RECEIVE:
            if step is COMMIT:
                self.writer.write()
                session.batch.committed()
                sent += session.data_to_send(self.writer.settled, lambda: False)
                session.data_sent()
        return sent


def now_us() -> int:
    """Return the instant."""
    return time.time_ns() // 1000


def sets(window: int) -> bytes:
    """Return a window of SETs."""
    now = now_us()
    return b"".join(
        encode_request(
            Request(
                Function.SET,
                number,
                Flag.PERSIST,
                now - WINDOW + number,
                b"example.org:128:%016d:%d" % (now, window * WINDOW + number),
                b"https://example.org/some/page/%d.html" % (window * WINDOW + number),
                1,
                BODY,
            )
        )
        for number in range(WINDOW)
    )


def measure(path: HotPath) -> dict[str, Counter[str]]:
    """Return the nanoseconds of a SET, and of a job of a NEXT and a DELETE, by stage."""
    connection = ClientConnection()
    best: dict[str, Counter[str]] = {}

    def ask(name: str, number: int, data: bytes) -> Any:
        path.stopwatch.take()
        connection.receive_data(path.ask(data))
        for stage, spent in path.stopwatch.take().items():
            each = best.setdefault(name, Counter())
            each[stage] = min(each[stage] or spent, spent / number)
        replies = connection.next_events()
        assert not any(reply.error for reply in replies)
        return replies[0]

    for window in range(WINDOWS):
        ask("SET", WINDOW, sets(window))
    following = encode_request(Request(Function.NEXT, 0, Flag.DATA, count=BATCH))
    for _ in range(WINDOWS):
        work = ask("NEXT", BATCH, following)
        deletes = [
            Request(Function.DELETE, 1, Flag.WORKED_ON, now_us(), pair.key, timeout=work.timeout)
            for pair in work.pairs
        ]
        ask("DELETE", BATCH, b"".join(map(encode_request, deletes)))
    return best


def main() -> None:
    """Measure, and print a table."""
    gc.disable()
    with tempfile.TemporaryDirectory(dir=DIRECTORY) as directory:
        best = measure(HotPath(directory))
    print(f"| us | {' | '.join(best)} |\n|{' --- |' * (len(best) + 1)}")
    for stage in STAGES:
        print(f"| {stage} | {' | '.join(f'{best[name][stage] / 1000:.2f}' for name in best)} |")
    print(f"| all | {' | '.join(f'{sum(best[name].values()) / 1000:.2f}' for name in best)} |")


if __name__ == "__main__":
    main()
