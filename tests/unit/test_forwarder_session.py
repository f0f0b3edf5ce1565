"""The forwarder's shell in this process: what wakes it, a daemon that says nothing."""

from __future__ import annotations

import itertools
import select
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio

from fastjournal.client.core.address import parse_servers
from fastjournal.errors import SpoolFailedError
from fastjournal.protocol import Flag, Function, Pair, Reply, Request, encode_reply
from fastjournal.spool import DeadDirectory, Kind, Reason, SlotReader, Spool, spool_status, wake
from fastjournal.spool.format import encode_record
from fastjournal.testing.ledger import Ledger
from fastjournal.testing.scripted_daemon import Answer, ScriptedDaemon
from fj_forwarder import delivery, forwarder
from fj_forwarder.forwarder import Forwarder, ForwarderSettings, WakeSource, WakeSources
from fj_forwarder.sending import delivery_engine
from tests.unit.spool_files import a_forwarder


def readable(source: WakeSource, timeout_s: float = 60) -> bool:
    return bool(select.select([source.descriptor], [], [], timeout_s)[0])


def test_append_makes_both_sources_readable_and_draining_ends_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake, "GATHER_S", 0.0)
    with WakeSources(str(tmp_path)) as watch, Spool(tmp_path) as spool:
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


def test_writer_that_does_not_ping_is_seen_by_inotify(tmp_path: Path) -> None:
    with WakeSources(str(tmp_path)) as watch:
        (tmp_path / "20261120T080000Z.fjs").write_bytes(b"x")
        ping, inotify = watch.sources
        assert readable(inotify)
        assert not readable(ping, 0)


async def test_daemon_that_owes_replies_and_says_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_engine, "NO_PROGRESS_US_MAX", 100_000)
    ledger = Ledger()

    def answer(request: Request) -> Answer:
        return [] if daemon.connections < 3 else ledger.answer(request)

    with Spool(tmp_path) as spool:
        keys = {spool.append(domain="d") for _ in range(3)}
    with ScriptedDaemon(answer) as daemon:
        await a_forwarder(tmp_path, daemon).run()
        assert daemon.connections >= 3
    assert set(ledger.applied) == keys
    assert spool_status(tmp_path).pending == 0


@pytest.mark.parametrize("step_us", [30_000, 100_000, 40_000_000])
async def test_waiting_for_a_delayed_record_that_comes_due_between_two_looks_at_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_us: int
) -> None:
    """Each look at the clock is ``step_us`` later, so a record comes due at any moment."""
    looks = itertools.count(1_795_161_600_000_000, step_us)
    monkeypatch.setattr(Forwarder, "_now_us", lambda _: next(looks))
    refusals = iter(["locked"] * 6)
    ledger = Ledger(refuse=lambda request: next(refusals, None))
    with Spool(tmp_path) as spool:
        keys = {spool.append(domain="d") for _ in range(4)}
    with ScriptedDaemon(ledger.answer) as daemon:
        run = a_forwarder(tmp_path, daemon, once=False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run.run)
            await trio.to_thread.run_sync(ledger.wait_applied, keys)
            nursery.cancel_scope.cancel()


async def test_notifications_and_strange_replies_do_no_harm(tmp_path: Path) -> None:
    def answer(request: Request) -> Answer:
        notification = Reply(request.identifier, Flag.LISTEN, pairs=[Pair(b"k")])
        return [notification, Reply(0, error="bad-request"), Reply(request.identifier)]

    with Spool(tmp_path) as spool:
        for _ in range(3):
            spool.append(domain="d")
    with ScriptedDaemon(answer) as daemon:
        run = a_forwarder(tmp_path, daemon)
        await run.run()
        assert len(daemon.requests) == 3
    assert (run.done, run.dead) == (3, 0)
    assert spool_status(tmp_path).pending == 0


async def test_daemon_that_speaks_something_else_is_left_and_nothing_is_erased(
    tmp_path: Path,
) -> None:
    def answer(request: Request) -> Answer:
        if daemon.connections < 2:
            return [b"HTTP/1.1 400 Bad Request\r\n\r\n"]
        return [Reply(request.identifier)]

    with Spool(tmp_path) as spool:
        spool.append(domain="d")
    with ScriptedDaemon(answer) as daemon:
        run = a_forwarder(tmp_path, daemon)
        await run.run()
        assert (daemon.connections, run.done) == (2, 1)


def refuse_bad(request: Request) -> str | None:
    return "bad-value" if request.value == b"bad" else None


def spool_some(directory: Path) -> set[bytes]:
    """Spool a request that is refused, one that is none, and three good ones; return the latter."""
    with Spool(directory) as spool:
        spool.append(domain="d", value=b"bad")
        (path,) = directory.glob("*.fjs")
        with path.open("ab") as file:
            file.write(encode_record(b"no request"))
        return {spool.append(domain="d", value=b"good") for _ in range(3)}


async def test_dead_letter_that_cannot_be_written_stays_and_holds_up_nothing(
    tmp_path: Path,
) -> None:
    good = spool_some(tmp_path)
    (tmp_path / "dead").touch()
    ledger = Ledger(refuse=refuse_bad)
    with ScriptedDaemon(ledger.answer) as daemon:
        with pytest.raises(SpoolFailedError, match="dead"):
            await a_forwarder(tmp_path, daemon).run()
        assert set(ledger.applied) == good
        assert pending_in_slots(tmp_path) == 2
        (tmp_path / "dead").unlink()
        await a_forwarder(tmp_path, daemon).run()
    assert spool_status(tmp_path).pending == 0
    codes = sorted(piece.reason.code for piece in DeadDirectory(tmp_path).list() if piece.reason)
    assert codes == ["bad-request", "bad-value"]
    assert set(ledger.applied) == good


def pending_in_slots(directory: Path) -> int:
    """Pending records; the whole status cannot be had while dead/ is no directory."""
    (path,) = directory.glob("*.fjs")
    with SlotReader(str(path)) as reader:
        return sum(piece.kind is Kind.PENDING for piece in reader.read(100))


async def test_dead_letter_that_could_not_be_written_is_when_that_works_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool_some(tmp_path)
    failures = [2]
    put = DeadDirectory.put

    def fail_twice(dead: DeadDirectory, raw: bytes, reason: Reason) -> str:
        if failures[0]:
            failures[0] -= 1
            raise SpoolFailedError("cannot put aside")
        return put(dead, raw, reason)

    monkeypatch.setattr(DeadDirectory, "put", fail_twice)
    for module in (delivery, delivery):
        monkeypatch.setattr(module, "RESCAN_US", 1)
    # without the last try at the end: it has to happen before
    monkeypatch.setattr(delivery.Delivery, "finish", lambda _: None)
    with ScriptedDaemon(Ledger(refuse=refuse_bad).answer) as daemon:
        run = a_forwarder(tmp_path, daemon, once=False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run.run)
            with trio.fail_after(60):
                while run.dead < 2:  # noqa: ASYNC110 - nothing tells
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
    assert failures == [0]
    assert (spool_status(tmp_path).dead, spool_status(tmp_path).pending) == (2, 0)


REFUSALS = ["read-only", "busy", "auth-failed", "shutting-down"]


def both(tmp_path: Path, *daemons: ScriptedDaemon, once: bool) -> ForwarderSettings:
    servers = parse_servers(*(daemon.address for daemon in daemons))
    return ForwarderSettings(spool=str(tmp_path), servers=servers, once=once, seed=1)


def hang(request: Request) -> Answer:
    return []


def swallow(request: Request) -> Answer:
    return [Reply(request.identifier)] if request.function == Function.NOP else []


def answer_nobody(request: Request) -> Answer:
    return [Reply(request.identifier ^ 0x8000)]


@dataclass
class Trickle:
    """Sends a reply byte by byte, and never all of it."""

    left: threading.Event = field(default_factory=threading.Event)

    def __call__(self, request: Request) -> Answer:
        reply = encode_reply(Reply(request.identifier, pairs=[Pair(b"k", value=bytes(60_000))]))
        for byte in reply[:-1]:
            if self.left.wait(0.01):
                return
            yield bytes([byte])


@pytest.mark.parametrize("fault", ["hang", "swallow", "answer-nobody", "trickle"])
async def test_daemon_without_progress_is_left_for_the_next_server_and_no_record_is_suspect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    monkeypatch.setattr(delivery_engine, "NO_PROGRESS_US_MAX", 300_000)
    trickle, second = Trickle(), Ledger()
    faults = {"hang": hang, "swallow": swallow, "answer-nobody": answer_nobody, "trickle": trickle}
    with Spool(tmp_path) as spool:
        keys = {spool.append(domain="d") for _ in range(20)}
    with ScriptedDaemon(faults[fault]) as one, ScriptedDaemon(second.answer) as two:
        with trio.fail_after(60):
            await Forwarder(both(tmp_path, one, two, once=True)).run()
        trickle.left.set()
        assert one.requests
    assert set(second.applied) == keys
    assert spool_status(tmp_path).pending == 0
    assert "ends the connection" not in caplog.text


async def test_single_daemon_that_swallows_records_is_asked_again_and_no_record_is_suspect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(delivery_engine, "NO_PROGRESS_US_MAX", 100_000)
    ledger = Ledger()

    def answer(request: Request) -> Answer:
        return ledger.answer(request) if daemon.connections > 4 else swallow(request)

    with Spool(tmp_path) as spool:
        keys = {spool.append(domain="d") for _ in range(20)}
    with ScriptedDaemon(answer) as daemon, trio.fail_after(60):
        await a_forwarder(tmp_path, daemon).run()
    assert set(ledger.applied) == keys
    assert set(ledger.times_applied.values()) == {1}
    assert "ends the connection" not in caplog.text


async def test_late_look_at_the_progress_waits_for_replies_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process stood still for an hour, with requests in flight: the daemon is well."""
    clock_us, looked = 1_795_161_600_000_000, threading.Event()

    def look(run: Forwarder) -> float:
        left_s = seconds_left(run)
        if left_s < 0:
            looked.set()
        return left_s

    def answer(request: Request) -> Answer:
        nonlocal clock_us, is_late
        if not is_late:
            clock_us, is_late = clock_us + 3_600_000_000, True
        assert looked.wait(60)
        return ledger.answer(request)

    ledger, is_late = Ledger(), False
    monkeypatch.setattr(Forwarder, "_now_us", lambda _: clock_us)
    seconds_left = Forwarder._seconds_left
    monkeypatch.setattr(Forwarder, "_seconds_left", look)
    monkeypatch.setattr(delivery_engine, "NO_PROGRESS_US_MAX", 10_000)
    monkeypatch.setattr(forwarder, "LATE_SECONDS", 60.0)
    with Spool(tmp_path) as spool:
        spool.append(domain="d")
    with ScriptedDaemon(answer) as daemon, trio.fail_after(60):
        run = a_forwarder(tmp_path, daemon)
        await run.run()
        assert (daemon.connections, run.done) == (1, 1)


@pytest.mark.parametrize("code", REFUSALS)
async def test_daemon_that_refuses_everything_is_left_for_the_next_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setattr(delivery_engine, "NO_PROGRESS_US_MAX", 200_000)
    first, second = Ledger(refuse=lambda _: code), Ledger()
    with Spool(tmp_path) as spool:
        keys = {spool.append(domain="d") for _ in range(5)}
    with ScriptedDaemon(first.answer) as one, ScriptedDaemon(second.answer) as two:
        await Forwarder(both(tmp_path, one, two, once=True)).run()
        assert (one.connections, two.connections) == (1, 1)
    assert first.seen > 1, "left at the first refusal"
    assert set(second.applied) == keys
    assert spool_status(tmp_path).pending == 0


async def test_forwarder_stays_with_a_server_that_takes_and_comes_back_when_it_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_engine, "NO_PROGRESS_US_MAX", 200_000)
    refusing = {"first"}
    ledgers = {
        name: Ledger(refuse=lambda _, name=name: "read-only" if name in refusing else None)
        for name in ("first", "second")
    }
    with (
        ScriptedDaemon(ledgers["first"].answer) as one,
        ScriptedDaemon(ledgers["second"].answer) as two,
        Spool(tmp_path) as spool,
    ):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Forwarder(both(tmp_path, one, two, once=False)).run)
            for now_refusing, taker in (("first", "second"), ("", "second"), ("second", "first")):
                refusing.clear()
                refusing.add(now_refusing)
                key = spool.append(domain="d")
                await trio.to_thread.run_sync(ledgers[taker].wait_applied, [key])
            nursery.cancel_scope.cancel()
        assert (one.connections, two.connections) == (2, 1)
