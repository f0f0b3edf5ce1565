"""Standby: signals that meet a takeover, and what its end leaves to the node."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from fastjournal.clock import SystemClock
from fastjournal.errors import StoreUnavailableError
from fastjournal.remote.node import Node, Primary
from fastjournal.remote.objects import chunk_name, decode_chunk
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


def stopped_while(node: Node, run: Callable[[], Primary | None]) -> Callable[[], Primary | None]:
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
    won: list[Primary] = []
    run = node.run

    def noted() -> Primary | None:
        primary = run()
        assert primary is not None
        won.append(primary)
        return primary

    monkeypatch.setattr(node, "run", stopped_while(node, noted))
    assert await standby_of(node).run(set(), None) is None
    last = won[0].chunks.last
    assert decode_chunk(last, remote.store.objects[chunk_name(last)]).is_seal


async def test_signal_that_meets_a_takeover_ends_it_where_the_store_is_away(
    remote: Remote, disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = new_node(disk, remote.store)
    run = node.run

    def away(name: str, data: bytes) -> bool:
        raise StoreUnavailableError("the store does not answer")

    def won_and_away() -> Primary | None:
        primary = run()
        monkeypatch.setattr(remote.store, "create", away)
        return primary

    monkeypatch.setattr(node, "run", stopped_while(node, won_and_away))
    assert await standby_of(node).run(set(), None) is None
