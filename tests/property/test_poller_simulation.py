"""Lost wake-ups of the poller: every client gets every reply, whatever the others do."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest
import trio

from tests.property.polled_clients import KINDS, Clients, PolledServer
from tests.unit.server_fixture import SILENCE_S

SEEDS = 12
CLIENTS = 12
ROUNDS = 3


pytestmark = pytest.mark.usefixtures("native")


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_poller_wakes_every_client_for_every_reply(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = Random(seed)
    policy = draw.choice(("always", "always", "interval", "os"))
    server = PolledServer(seed, monkeypatch, cmdlog_sync=policy)
    clients = Clients(seed, server, ROUNDS)
    kinds = [*KINDS, *draw.choices(KINDS, k=CLIENTS - len(KINDS))]
    draw.shuffle(kinds)
    async with server.open():
        with trio.fail_after(SILENCE_S):
            async with trio.open_nursery() as nursery:
                for kind in kinds:
                    nursery.start_soon(partial(kind, clients))
        await server.check_idle()
    assert len(clients.replies) == len(KINDS)
