"""The forwarder's shell in this process: what wakes it, a daemon that says nothing."""

from __future__ import annotations

import select
from pathlib import Path

import pytest

from fastjournal.client.address import parse_address
from fastjournal.protocol import Flag, Pair, Reply, Request
from fastjournal.spool import Spool, spool_status
from fastjournal.testing.ledger import Ledger
from fastjournal.testing.scripted_daemon import Answer, ScriptedDaemon
from fj_forwarder import forwarder
from fj_forwarder.forwarder import Forwarder, Settings
from fj_forwarder.watch import Source, Watch


def readable(source: Source, timeout_s: float = 60) -> bool:
    return bool(select.select([source.descriptor], [], [], timeout_s)[0])


def test_an_append_makes_both_sources_readable_and_draining_ends_that(tmp_path: Path) -> None:
    with Watch(str(tmp_path)) as watch, Spool(tmp_path) as spool:
        spool.append(domain="d")
        assert len(watch.sources) == 2
        for source in watch.sources:
            assert readable(source)
            source.drain()
            assert not readable(source, 0)
            source.drain()
        spool.append(domain="d")
        assert all(readable(source) for source in watch.sources)
    assert not (tmp_path / "wake").exists()


def test_a_writer_that_does_not_ping_is_seen_by_inotify(tmp_path: Path) -> None:
    with Watch(str(tmp_path)) as watch:
        (tmp_path / "20261120T080000Z.fjs").write_bytes(b"x")
        ping, inotify = watch.sources
        assert readable(inotify)
        assert not readable(ping, 0)


def settings(tmp_path: Path, daemon: ScriptedDaemon) -> Settings:
    servers = (parse_address(daemon.address),)
    return Settings(spool=str(tmp_path), servers=servers, once=True, seed=1)


async def test_a_daemon_that_owes_replies_and_says_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarder, "SILENCE_SECONDS_MAX", 0.1)
    ledger = Ledger()

    def answer(request: Request) -> Answer:
        return [] if daemon.connections < 3 else ledger.answer(request)

    with Spool(tmp_path) as spool:
        keys = {spool.append(domain="d") for _ in range(3)}
    with ScriptedDaemon(answer) as daemon:
        await Forwarder(settings(tmp_path, daemon)).run()
        assert daemon.connections >= 3
    assert set(ledger.applied) == keys
    assert spool_status(tmp_path).pending == 0


async def test_notifications_and_strange_replies_do_no_harm(tmp_path: Path) -> None:
    def answer(request: Request) -> Answer:
        notification = Reply(request.identifier, Flag.LISTEN, pairs=[Pair(b"k")])
        return [notification, Reply(0, error="bad-request"), Reply(request.identifier)]

    with Spool(tmp_path) as spool:
        for _ in range(3):
            spool.append(domain="d")
    with ScriptedDaemon(answer) as daemon:
        run = Forwarder(settings(tmp_path, daemon))
        await run.run()
        assert len(daemon.requests) == 3
    assert (run.done, run.dead) == (3, 0)
    assert spool_status(tmp_path).pending == 0


async def test_a_daemon_that_speaks_something_else_is_left_and_nothing_is_erased(
    tmp_path: Path,
) -> None:
    def answer(request: Request) -> Answer:
        if daemon.connections < 2:
            return [b"HTTP/1.1 400 Bad Request\r\n\r\n"]
        return [Reply(request.identifier)]

    with Spool(tmp_path) as spool:
        spool.append(domain="d")
    with ScriptedDaemon(answer) as daemon:
        run = Forwarder(settings(tmp_path, daemon))
        await run.run()
        assert (daemon.connections, run.done) == (2, 1)
