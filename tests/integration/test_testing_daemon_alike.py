"""``FastjournalDaemon`` answers the same calls as a daemon of its own, over a socket, does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import anyio
import pytest

from fastjournal.client import Client, SyncClient
from fastjournal.errors import ConfigError, FastjournalError
from fastjournal.tasks import Tasks
from fastjournald.testing import FastjournalDaemon
from tests.integration.daemon_process import DaemonProcess

STEPS = 400
NAMES = list("abcdef")


class Worker:
    """Draws calls, and notes what they give, but for instants."""

    def __init__(self, client: SyncClient, seed: int) -> None:
        self.client = client
        self.draw = Random(seed)
        self.leased: list[tuple[bytes, int]] = []
        self.given: list[object] = []

    def run(self) -> list[object]:
        for _ in range(STEPS):
            try:
                self.given.append(self.step())
            except FastjournalError as error:
                self.given.append(error.code)
        return self.given

    def step(self) -> object:
        draw, client = self.draw, self.client
        queue, name = draw.choice(("mails", "search")), draw.choice(NAMES)
        match draw.randrange(9):
            case 0 | 1:
                named = {draw.choice(("uri", "unique")): name}
                written = client.enqueue(queue, name, **named)  # type: ignore[arg-type] # names
                return str(written.outcome)
            case 2:
                whole = f"{queue}:{draw.randrange(3)}:0:{name}"
                return str(client.enqueue(queue, name, key=whole).outcome)
            case 3 | 4:
                jobs = client.next(queue, count=draw.randrange(1, 3))
                self.leased += [(job.key, jobs.token or 0) for job in jobs.pairs]
                return [(bytes(job.value), job.uri) for job in jobs.pairs]
            case 5 if self.leased:
                key, token = self.leased.pop(draw.randrange(len(self.leased)))
                client.release(key, token, error=draw.choice((None, "SMTP 550")))
            case 6 if self.leased:
                key, token = self.leased.pop(draw.randrange(len(self.leased)))
                client.delete(key, token=token)
            case 7 if self.leased:
                key, token = self.leased.pop(draw.randrange(len(self.leased)))
                client.bury(key, token, reason="no such mailbox")
            case _:
                stats = client.domain_stats(queue)
                return stats.entries, stats.due, stats.delayed, stats.worked_on, stats.buried
        return None


@pytest.mark.parametrize("seed", range(3))
def test_testing_daemon_answers_as_a_daemon_over_a_socket(seed: int, tmp_path: Path) -> None:
    with FastjournalDaemon(max_attempts=2, retry_delay=0) as daemon:
        found = Worker(daemon.sync_client(), seed).run()
    options = ("--max-attempts", "2", "--retry-delay", "0", "--cmdlog-sync", "os")
    with DaemonProcess(tmp_path, *options) as process, SyncClient(process.address) as client:
        assert found == Worker(client, seed).run()
    assert len({repr(one) for one in found}) > 20


def test_testing_daemon_keeps_clients_without_an_address_from_a_real_one(
    daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTJOURNAL_SERVER", daemon.address)
    app = Tasks(queue="mails")

    @app.task
    def send(number: int) -> None: ...

    async def ask() -> None:
        async with Client() as client:
            await client.set("k", b"v")

    early = SyncClient()
    send.enqueue(number=1)  # connects
    advice = r"with app\.using\(daemon\.sync_client\(\)\)'.* app\.using\(fastjournal_daemon\."
    calls: list[Callable[[], object]] = [
        lambda: send.enqueue(number=2),
        lambda: anyio.run(partial(send.aenqueue, number=2)),
        lambda: early.set("k", b"v"),
        lambda: SyncClient().set("k", b"v"),
        lambda: anyio.run(ask),
    ]
    with FastjournalDaemon() as fake:
        for call in calls:
            with pytest.raises(ConfigError, match=advice):
                call()
        with app.using(fake.sync_client()):
            send.enqueue(number=3)
        assert app.run_pending(fake) == 1
        with SyncClient(daemon.address) as named:
            assert named.domain_stats("mails").entries == 1
            assert not list(named.prefix("k"))
    send.enqueue(number=4)
    early.set("k", b"v")
    assert early.domain_stats("mails").entries == 2
    early.close()
    assert app._own is not None
    app._own[1].close()
