"""Standby: signals that meet a takeover, and what its end leaves to the node."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import pytest

from fastjournal.clock import SystemClock
from fastjournal.errors import StoreUnavailableError
from fastjournal.remote.node import Node, Primary, StoppedError
from fastjournal.remote.objects import chunk_name, decode_chunk
from fastjournal.remote.writer import RemoteAck
from fastjournal.testing.disk import SimulatedDisk
from fastjournald.config.options import Config
from fastjournald.config.socket_activation import NO_SOCKETS
from fastjournald.net.credentials import Security
from fastjournald.standby import Standby
from tests.unit.test_remote_node import Remote, disk, new_node, remote

__all__ = ["disk", "remote"]


def standby_of(node: Node) -> Standby:
    return Standby(node, Config(), SystemClock(), Security(), NO_SOCKETS)


async def test_requests_behind_a_takeover_are_repeated(
    remote: Remote, disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = new_node(disk, remote.store)
    primary = await standby_of(node).run(set(), None)
    assert primary is not None
    create, tries = remote.store.create, 0

    def fails_once(name: str, data: bytes) -> bool:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise StoreUnavailableError("the store does not answer")
        return create(name, data)

    monkeypatch.setattr(remote.store, "create", fails_once)
    with node.beating(primary) as look:
        while primary.chunks.number < 3:
            look()
    node.store_log(primary, lambda: None)
    assert tries >= 3


def stopped_at_its_end(run: Callable[[], Primary | None], node: Node) -> Callable[[], object]:
    """Return ``run``, with a SIGTERM that the daemon notes right before its end."""

    def stopped() -> Primary | None:
        primary = run()
        os.kill(os.getpid(), signal.SIGTERM)
        assert node._stop.wait(60)
        return primary

    return stopped


async def test_signal_that_meets_a_takeover_seals_the_epoch(
    remote: Remote, disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = new_node(disk, remote.store)
    monkeypatch.setattr(node, "run", stopped_at_its_end(node.run, node))
    primary = await standby_of(node).run(set(), None)
    assert primary is not None
    assert node.stops == [signal.SIGTERM]
    with pytest.raises(StoppedError), node.beating(primary) as look:
        look()
    assert is_sealed(remote, primary)


def is_sealed(remote: Remote, primary: Primary) -> bool:
    last = primary.chunks.last
    return decode_chunk(last, remote.store.objects[chunk_name(last)]).is_seal


def test_signal_during_the_replay_seals_the_epoch(remote: Remote, disk: SimulatedDisk) -> None:
    node = new_node(disk, remote.store)
    primary = node.run()
    assert primary is not None

    def replay() -> None:
        with node.beating(primary) as look:
            look()
            node.stops.append(signal.SIGTERM)
            while True:
                look()

    with pytest.raises(StoppedError):
        replay()
    assert is_sealed(remote, primary)


def test_signal_ends_no_replay_of_a_directory_that_has_acknowledged_more_than_is_stored(
    remote: Remote, disk: SimulatedDisk
) -> None:
    node = new_node(disk, remote.store, RemoteAck.ASYNC)
    primary = node.run()
    assert primary is not None
    node.stops.append(signal.SIGTERM)
    with node.beating(primary) as look:
        look()
    node.store_log(primary, lambda: None)
    assert not is_sealed(remote, primary), "the server does it"


@pytest.mark.parametrize("ack", list(RemoteAck))
@pytest.mark.parametrize("beats", [False, True], ids=["before a beat", "in a beat"])
def test_signal_during_the_replay_ends_it_where_the_store_is_away(
    remote: Remote,
    disk: SimulatedDisk,
    monkeypatch: pytest.MonkeyPatch,
    ack: RemoteAck,
    beats: bool,
) -> None:
    node = new_node(disk, remote.store, ack)
    primary = node.run()
    assert primary is not None
    asked = threading.Event()

    def away(name: str, data: bytes) -> bool:
        asked.set()
        raise StoreUnavailableError("the store does not answer")

    monkeypatch.setattr(remote.store, "create", away)

    def replay() -> None:
        with node.beating(primary):
            if beats:
                assert asked.wait(60)
            node.stops.append(signal.SIGTERM)
            if ack is RemoteAck.ASYNC:
                assert asked.wait(60)

    with pytest.raises(StoppedError):
        replay()
    assert not is_sealed(remote, primary)
