"""Latency of requests by function: counted once a turn, from their receipt to their reply."""

from __future__ import annotations

import pytest

from fastjournal.protocol import Flag, Function
from fastjournald.histogram import Latencies
from fastjournald.net.session_steps import RECEIVE, RunScan
from fastjournald.net.shared_batch import SharedBatch
from tests.property.subject import request
from tests.unit.test_session_sans_io import (
    GET,
    NEXT,
    NOP,
    SCAN,
    WAITING,
    Client,
    Daemon,
    encode,
    set_,
)


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()


@pytest.fixture
def client(daemon: Daemon) -> Client:
    return Client(daemon)


def end_turn(daemon: Daemon, now: float) -> dict[str, tuple[int, int]]:
    """Return number and sum of milliseconds of each function that was answered so far."""
    daemon.latencies.end_turn(now, daemon.writer.settled)
    return counted(daemon.latencies)


def counted(latencies: Latencies) -> dict[str, tuple[int, int]]:
    return {
        "other" if function < 0 else Function(function).name: (count, values.total // 1000)
        for function, values in latencies.by_function.items()
        if (count := values.cumulative()[-1])
    }


def test_latency_counts_every_request_of_a_batch_once(daemon: Daemon, client: Client) -> None:
    daemon.latencies.began = 1.0
    sets = [set_(b"a:1:0:%d" % at) for at in range(20)]
    delete = request(Function.DELETE, b"none")
    client.ask(*sets, GET, NEXT, NOP, NOP, delete, NOP, request(4711))
    assert end_turn(daemon, 1.25) == {
        "SET": (20, 5000),
        "GET": (1, 250),
        "NEXT": (1, 250),
        "NOP": (3, 750),
        "DELETE": (1, 250),
        "other": (1, 250),
    }
    daemon.latencies.began = 2.0
    client.ask(NOP)
    assert end_turn(daemon, 2.5)["NOP"] == (4, 1250)
    assert end_turn(daemon, 9.0)["NOP"] == (4, 1250)


def test_latency_runs_until_the_log_is_settled(daemon: Daemon, client: Client) -> None:
    assert client.run() is RECEIVE
    daemon.latencies.began = 1.0
    client.session.receive_data(encode(set_(b"k")))
    client.step()
    assert end_turn(daemon, 1.5) == {}
    daemon.latencies.began = 2.0
    assert end_turn(daemon, 2.5) == {}
    client.commit()
    assert end_turn(daemon, 4.0) == {"SET": (1, 3000)}


def test_latency_leaves_out_a_next_that_waits(daemon: Daemon, client: Client) -> None:
    client.ask(WAITING)
    daemon.set(set_(b"a:1:0:x"))
    client.run()
    assert end_turn(daemon, 1.0) == {}


def test_latency_of_a_scan_runs_to_its_end(daemon: Daemon, client: Client) -> None:
    daemon.latencies.began = 1.0
    step = client.send(encode(NOP, SCAN, NOP))
    assert isinstance(step, RunScan)
    assert end_turn(daemon, 1.5) == {"NOP": (1, 500)}
    daemon.latencies.began = 2.0
    client.scan(step)
    assert client.run() is RECEIVE
    assert end_turn(daemon, 3.0) == {"NOP": (2, 2500), "GET": (1, 2000)}


def test_latency_counts_a_shared_batch_together(daemon: Daemon) -> None:
    clients = [Client(daemon) for _ in range(3)]
    together = SharedBatch(daemon.shared)
    daemon.latencies.began = 1.0
    for at, each in enumerate(clients):
        assert each.run() is RECEIVE
        each.session.on_first_request = None
        asked = request(Function.SET, b"a:1:0:%d" % at, b"v", flags=Flag.PERSIST)
        each.session.receive_data(encode(asked))
        assert each.session.join(together)
    assert together.carry_out(daemon.now) == set()
    daemon.commit()
    assert end_turn(daemon, 2.0) == {"SET": (3, 3000)}


def test_latency_keeps_turns_apart_whose_syncs_are_under_way() -> None:
    latencies = Latencies([1, 2])
    for turn in range(3):
        latencies.began = float(turn)
        latencies.answered.append((10 * turn + 10, latencies.began, 1, 1))
        latencies.answered.append((10 * turn + 10, latencies.began - 5, 2, 1))
        latencies.end_turn(turn + 0.5, settled=0)
    latencies.end_turn(10.0, settled=20)
    assert len(latencies.answered) == 2
    assert latencies.by_function[1].total == 10_000_000 + 9_000_000
    latencies.end_turn(20.0, settled=30)
    assert not latencies.answered
    assert latencies.by_function[1].cumulative()[-1] == 3
    assert latencies.by_function[2].total == (15 + 14 + 23) * 1_000_000
