"""Stages of a round of the poller, in which each of many clients sends one SET, and their times.

    python -m tests.bench.bench_rounds [--clients 50] [--rounds 600]

One process, real sockets over loopback, and no event loop: each client sends a SET with a URI and a
value of 100 bytes, then the poller takes one round (policy ``os``, the log in memory). The first
figure is the processor time of a round for each request, without a clock inside. For the second one
the functions in which stages begin are timed, without the stages inside them; these clocks cost up
to a microsecond a stage and request. The fastest round counts, stage by stage.

    receive    the system's call
    decode     bytes to requests
    session    turn budget, joining the shared batch, reply into the outbox, what follows the reply
    handle     the SETs in bulk: arguments, which write wins, entries, keys, queue of the domain
    record     log records: packed, summed, appended
    write      one call of the system
    send       the system's call
    poller     epoll, and all else of poller and transport
"""

from __future__ import annotations

import argparse
import gc
import select
import socket
import tempfile
import time
from collections import Counter
from types import SimpleNamespace
from typing import Any

from fastjournal.cmdlog.writer import SyncPolicy
from fastjournal.protocol import Flag, Function, Request, ServerConnection, encode_request
from fastjournald.group_commit.commit import GroupCommit
from fastjournald.net.plain_socket import PlainSocket
from fastjournald.net.polled_transport import PolledTransport
from fastjournald.net.poller import Poller
from fastjournald.net.session import Session
from fastjournald.net.shared_batch import SharedBatch
from tests.bench.bench_stages import HotPath, Stopwatch, now_us
from tests.bench.one_connection import BODY, SUCCESS_BYTES

DIRECTORY = "/dev/shm"


class TimedSocket(socket.socket):
    """A socket whose calls can be timed."""


class Clients:
    """A poller and its clients.

    Args:
        number: So many clients.
        path: Has the engine and the log.
    """

    def __init__(self, number: int, path: HotPath) -> None:
        shared = path.shared
        commit = GroupCommit(path.writer, SyncPolicy.OS)
        runtime: Any = SimpleNamespace(
            writer=path.writer,
            clock=SimpleNamespace(now_us=now_us),
            engine=shared.engine,
            turns=shared.turns,
            commit=commit,
            memory=shared.memory,
        )
        services: Any = SimpleNamespace(evict=None)
        nursery: Any = None
        self._poller = Poller(commit, SharedBatch(shared), now_us, shared.turns.is_alone)
        self._poller._epoll = self._epoll = select.epoll()
        self._sockets = []
        self._number = 0
        with socket.create_server(("127.0.0.1", 0)) as listener:
            for _ in range(number):
                client = socket.create_connection(listener.getsockname())
                accepted = TimedSocket(fileno=listener.accept()[0].detach())
                for each in (client, accepted):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                plain, session = PlainSocket(accepted), Session(shared)
                PolledTransport(session, plain, runtime, services, nursery, self._poller).begin()
                self._sockets.append(client)

    def round(self) -> int:
        """Return the nanoseconds of processor time of a round."""
        for client in self._sockets:
            client.sendall(self._set())
        began = time.thread_time_ns()
        self._poller._take_round(self._epoll)
        took = time.thread_time_ns() - began
        for client in self._sockets:
            assert len(client.recv(100)) == SUCCESS_BYTES
        return took

    def _set(self) -> bytes:
        self._number += 1
        number, now = self._number, now_us()
        key = b"example.org:128:%016d:%d" % (now, number)
        uri = b"https://example.org/some/page/%d.html" % number
        asked = Request(Function.SET, number & 0xFFFF, Flag.PERSIST, now, key, uri, 1, BODY)
        return encode_request(asked)


def time_stages(path: HotPath) -> Stopwatch:
    """Time the stages from now on."""
    stopwatch = Stopwatch()
    stopwatch.time("receive", TimedSocket, "recv")
    stopwatch.time("decode", ServerConnection, "receive_data")
    for name in ("receive_data", "join", "next_step"):
        stopwatch.time("session", Session, name)
    stopwatch.time("session", SharedBatch, "carry_out")
    stopwatch.time("handle", path.shared.engine, "handle_together")
    stopwatch.time("record", path.shared.engine.journal, "stored_new")
    stopwatch.time("write", GroupCommit, "settle_now")
    stopwatch.time("send", TimedSocket, "send")
    stopwatch.time("poller", Poller, "_take_round")
    return stopwatch


def main() -> None:
    """Measure, and print both figures."""
    parser = argparse.ArgumentParser(description="Time the stages of a round of the poller.")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=600)
    given = parser.parse_args()
    gc.disable()
    with tempfile.TemporaryDirectory(dir=DIRECTORY) as directory:
        path = HotPath(directory)
        clients = Clients(given.clients, path)
        fastest = min(clients.round() for _ in range(given.rounds)) / given.clients / 1000
        print(f"a request: {fastest:.2f} us")
        stopwatch, best = time_stages(path), Counter[str]()
        for _ in range(given.rounds):
            stopwatch.take()
            clients.round()
            for stage, spent in stopwatch.take().items():
                best[stage] = min(best[stage] or spent, spent)
    for stage, spent in best.items():
        print(f"{stage:10} {spent / given.clients / 1000:6.2f} us")
    print(f"{'all':10} {best.total() / given.clients / 1000:6.2f} us")


if __name__ == "__main__":
    main()
