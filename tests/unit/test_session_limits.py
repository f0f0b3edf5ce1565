"""Sessions of a server in this process, over loopback, on a disk that does what the test wants."""

from __future__ import annotations

import json
import math
import socket
import struct
import threading
from itertools import chain
from typing import Any

import pytest
import trio
import trio.testing
from click.testing import CliRunner

from fastjournal import Client, SyncClient, limits
from fastjournal.cmdlog.format.layout import SegmentInfo
from fastjournal.errors import LogFailedError
from fastjournal.protocol import encode_request
from fastjournal.protocol.constants import QUERY_SHIFT, Flag, Function, Query
from fastjournal.protocol.messages import Reply, Request
from fastjournald.engine.key_filter import LongMatches
from fastjournald.tasks.free_space import may_rewrite, room_bytes
from fj_cli.cli import cli
from tests.property.subject import START, request
from tests.unit.server_fixture import LOG, SILENCE_S, Peer, ServerFixture

pytestmark = pytest.mark.usefixtures("native", "transport")


def set_(key: bytes, **fields: Any) -> Request:
    return request(Function.SET, key, b"v", flags=Flag.PERSIST, **fields)


def listen(domain: bytes, **fields: Any) -> Request:
    return request(Function.NEXT, domain, flags=Flag.LISTEN, **fields)


NOP = request(Function.NOP)


async def test_full_disk_makes_it_read_only_and_room_writable_again() -> None:
    async with ServerFixture().open() as fixture:
        peer, waiting = await fixture.connect(), await fixture.connect()
        assert (await peer.ask(set_(b"a:1:0:x"))).code == ""
        leased = await peer.ask(request(Function.NEXT, b"a"))
        assert (await waiting.ask(listen(b"b"), NOP)).code == ""
        ballast = fixture.disk.create("/ballast")
        ballast.write(bytes((1 << 20) - (1 << 18)))
        fixture.server.free_space.check()
        assert fixture.engine.context.read_only
        assert (await peer.ask(set_(b"b:1:0:y"))).code == "read-only"
        assert (await peer.ask(request(Function.NEXT, b"a"))).code == "read-only"
        done = request(Function.DELETE, b"a:1:0:x", flags=Flag.WORKED_ON, timeout=leased.timeout)
        assert (await peer.ask(done)).code == ""
        fixture.disk.unlink("/ballast")
        fixture.server.free_space.check()
        assert not fixture.engine.context.read_only
        assert (await peer.ask(set_(b"b:1:0:y"))).code == ""
        assert (await waiting.reply()).pairs


@pytest.mark.parametrize(("linked", "share"), [(False, 0.5), (True, 0)])
def test_compaction_may_use_a_part_of_the_reserve_where_that_frees_more(
    linked: bool, share: float
) -> None:
    """A snapshot and the archive link a segment: its copy frees nothing then."""
    fixture = ServerFixture()
    runtime = fixture.server.runtime
    fixture.disk.create(f"{LOG}/000000009.log").write(b"x")
    if linked:
        fixture.disk.mkdir(f"{LOG}/snapshots/1")
        fixture.disk.link(f"{LOG}/000000009.log", f"{LOG}/snapshots/1/000000009.log")
    info = SegmentInfo(9, 1 << 20, 0, None, None, 1)
    room = room_bytes(runtime, fixture.disk.free_space(LOG))

    def may(live_bytes: int) -> bool:
        runtime.engine.journal.usage.live[9] = live_bytes
        return may_rewrite(runtime, info)

    allowed = room + round(share * runtime.config.min_free_bytes)
    assert may(room)
    # most segments fit: their links are of no concern
    assert fixture.disk.calls["link_count"] == 0
    assert may(allowed)
    assert not may(allowed + 1)
    assert may(0)


@pytest.mark.parametrize(
    ("free", "linked", "allowed"),
    [
        (limits.FREE_INODES_MIN, True, True),
        (limits.FREE_INODES_MIN - 1, False, True),
        (limits.FREE_INODES_MIN - 1, True, False),
        (2, False, True),
        # the copy would take the last one, which a segment of those who finish work needs
        (1, False, False),
    ],
)
def test_compaction_goes_on_with_few_inodes_where_that_takes_none(
    free: int, linked: bool, allowed: bool
) -> None:
    fixture = ServerFixture()
    runtime = fixture.server.runtime
    fixture.disk.create(f"{LOG}/000000009.log").write(b"x")
    if linked:
        fixture.disk.mkdir(f"{LOG}/snapshots/1")
        fixture.disk.link(f"{LOG}/000000009.log", f"{LOG}/snapshots/1/000000009.log")
    leave_inodes(fixture, free)
    info = SegmentInfo(9, 1 << 20, 0, None, None, 1)
    runtime.engine.journal.usage.live[9] = 1000
    assert may_rewrite(runtime, info) is allowed
    runtime.engine.journal.usage.live[9] = 0
    assert may_rewrite(runtime, info)


def leave_inodes(fixture: ServerFixture, number: int) -> None:
    fixture.disk.inodes_max = 1 << 20
    free = fixture.disk.free_space(LOG).inodes
    assert free is not None
    fixture.disk.inodes_max -= free - number


async def test_disk_with_few_inodes_makes_it_read_only_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with ServerFixture().open() as fixture:
        peer = await fixture.connect()
        leave_inodes(fixture, limits.FREE_INODES_MIN)
        fixture.server.free_space.check()
        assert (await peer.ask(set_(b"b:1:0:y"))).code == ""
        leave_inodes(fixture, limits.FREE_INODES_MIN - 1)
        fixture.server.free_space.check()
        assert (await peer.ask(set_(b"b:1:0:z"))).code == "read-only"
        assert "inodes" in fixture.server.unready()
        free = fixture.disk.free_space(LOG)
        assert fixture.server.runtime.counters.disk_space == free
        (said,) = (line for line in caplog.messages if "event=read-only" in line)
        assert f"free_bytes={free.bytes} " in said
        assert "free_inodes=63 reason='fewer than 64 inodes are free'" in said
        leave_inodes(fixture, limits.FREE_INODES_MIN)
        fixture.server.free_space.check()
        assert (await peer.ask(set_(b"b:1:0:z"))).code == ""
        assert fixture.server.unready() == ""


@pytest.mark.parametrize("short", ["bytes", "inodes"])
async def test_snapshots_never_take_the_reserve_of_those_who_finish_work(short: str) -> None:
    async with ServerFixture().open() as fixture:
        peer = await fixture.connect()
        assert (await peer.ask(set_(b"a:1:0:x"))).code == ""
        leased = await peer.ask(request(Function.NEXT, b"a"))
        if short == "bytes":
            free = fixture.disk.free_space(LOG).bytes - fixture.config.min_free_bytes
            fixture.disk.create("/ballast").write(bytes(free - 2000))
        else:
            leave_inodes(fixture, limits.FREE_INODES_MIN + 8)
        answers = []
        for _ in range(20):
            fixture.clock.instant_us += 1
            answers.append((await peer.ask(request(Function.SNAPSHOT, count=24))).code)
        assert answers[0] == ""
        assert answers[-1] == "read-only"
        assert set(answers) == {"", "read-only"}
        taken = answers.count("")
        assert len(fixture.disk.listdir(f"{LOG}/snapshots")) == taken
        space = fixture.disk.free_space(LOG)
        # one more than there was room for, since it is not known before what one takes
        assert space.bytes > fixture.config.min_free_bytes - 4096
        assert space.inodes is None or space.inodes > limits.FREE_INODES_MIN - 5
        done = request(Function.DELETE, b"a:1:0:x", flags=Flag.WORKED_ON, timeout=leased.timeout)
        assert (await peer.ask(done)).code == ""


async def test_daemon_is_read_only_before_the_first_request_where_the_disk_is_full() -> None:
    fixture = ServerFixture()
    fixture.disk.create("/ballast").write(bytes((1 << 20) - (1 << 18) + 1))
    read_only: list[bool] = []
    async with trio.open_nursery() as nursery:

        def note(_addresses: list[str]) -> None:
            read_only.append(fixture.engine.context.read_only)

        nursery.start_soon(fixture.server.run, note, fixture.stopped.wait)
        fixture.stopped.set()
    assert read_only == [True]


async def test_read_only_daemon_hands_out_what_became_due_when_there_is_room() -> None:
    async with ServerFixture().open() as fixture:
        peer, waiting = await fixture.connect(), await fixture.connect()
        assert (await peer.ask(set_(b"a:1:%d:x" % (START + 1000)))).code == ""
        assert (await waiting.ask(listen(b"a"), NOP)).code == ""
        fixture.disk.create("/ballast").write(bytes((1 << 20) - (1 << 18) + 1))
        fixture.server.free_space.check()
        fixture.clock.instant_us += 2000
        assert (await peer.ask(NOP)).code == ""
        fixture.disk.unlink("/ballast")
        fixture.server.free_space.check()
        assert (await waiting.reply()).pairs


@pytest.mark.parametrize("call", ["write", "sync"])
async def test_log_failure_ends_the_server_and_no_client_gets_ok(call: str) -> None:
    fixture = ServerFixture()
    answers: list[Reply | None] = []

    async def try_to_set(number: int) -> None:
        peer = await fixture.connect()
        await peer.send(*(set_(b"a:1:0:%d-%d" % (number, n)) for n in range(5)))
        try:
            while True:
                reply = await peer.reply()
                answers.append(reply)
                if reply is None:
                    return
        except trio.BrokenResourceError:
            answers.append(None)

    failed = False
    try:
        async with fixture.open(), trio.open_nursery() as clients:
            fixture.disk.fail_at(1, call)
            for number in range(10):
                clients.start_soon(try_to_set, number)
            await trio.sleep(SILENCE_S)
    except* LogFailedError:
        failed = True
    assert failed
    assert not any(answers)


async def test_next_that_is_read_while_the_server_stops_is_told_so() -> None:
    async with ServerFixture().open() as fixture:
        peer, late = await fixture.connect(), await fixture.connect()
        assert (await peer.ask(listen(b"a"), NOP)).code == ""
        assert (await late.ask(NOP)).code == ""
        fixture.stopped.set()
        assert (await peer.reply()).code == "shutting-down"
        assert (await late.ask(listen(b"a"))).code == "shutting-down"
        for client in (peer, late):
            assert await client.reply() is None


async def test_client_that_has_asked_nothing_makes_room_for_a_newcomer() -> None:
    async with ServerFixture(max_connections=3).open() as fixture:
        one = await fixture.connect()
        assert (await one.ask(NOP)).code == ""
        silent = [await fixture.connect() for _ in range(2)]
        # half a request shows nothing
        await silent[1].stream.send_all(encode_request(NOP)[:-1])
        await trio.testing.wait_all_tasks_blocked(0.05)
        for peer in silent:
            assert (await (await fixture.connect()).ask(NOP)).code == ""
            assert await ended(peer)
        assert fixture.server.runtime.counters.connections_closed["made-room"] == 2
        assert (await (await fixture.connect()).reply()).code == "busy"
        assert (await one.ask(NOP)).code == ""


async def ended(peer: Peer) -> bool:
    """Whether the server closes."""
    try:
        return await peer.reply() is None
    except trio.BrokenResourceError:
        return True


async def test_connections_over_the_limit_are_told_busy_and_many_more_just_end() -> None:
    async with ServerFixture(max_connections=2).open() as fixture:
        inside = [await fixture.connect() for _ in range(2)]
        for peer in inside:
            assert (await peer.ask(NOP)).code == ""
        told = []
        outside = [await fixture.connect() for _ in range(100)]
        for peer in outside:
            try:
                told.append(await peer.reply())
            except trio.BrokenResourceError:
                told.append(None)
        busy = [reply for reply in told if reply is not None]
        assert 1 <= len(busy) <= 100
        assert {reply.code for reply in busy} == {"busy"}
        for peer in inside:
            assert (await peer.ask(NOP)).code == ""


def hold_matches(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Hold matches that take long; return what tells that one has begun, and what lets it go on."""
    begun, goes_on = threading.Event(), threading.Event()
    run = LongMatches.run

    def held(matches: LongMatches) -> None:
        begun.set()
        assert goes_on.wait(SILENCE_S)
        run(matches)

    monkeypatch.setattr(LongMatches, "run", held)
    return begun, goes_on


SLOW_SCAN = request(
    Function.GET, b"(a{1,30}){1,30}[0-9]+b$", flags=Flag.DATA | Query.REGEX << QUERY_SHIFT, count=0
)


async def test_scan_with_matches_that_take_long_goes_on_while_a_thread_matches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fixture = ServerFixture()
    begun, goes_on = hold_matches(monkeypatch)
    async with fixture.open():
        busy, other = await fixture.connect(), await fixture.connect()
        keys = [b"a" * 100 + b"%d" % number + b"b" * (number % 2) for number in range(40)]
        for key in keys:
            assert (await busy.ask(set_(key))).error == ""
        await busy.send(SLOW_SCAN, NOP)
        assert await trio.to_thread.run_sync(begun.wait, SILENCE_S)
        assert (await other.ask(NOP)).error == ""
        goes_on.set()
        assert {pair.key for pair in (await busy.reply()).pairs or ()} == set(keys[1::2])
        assert await busy.reply() is not None


EXPENSIVE = request(
    Function.GET, b"a(a|b){700}z", flags=Flag.DATA | Query.REGEX << QUERY_SHIFT, count=0
)


async def set_many(peer: Peer) -> list[bytes]:
    """SET keys with which EXPENSIVE takes long, and return other ones."""
    for number in range(40):
        assert (await peer.ask(set_(b"a" * 200 + b"%d" % number))).error == ""
    plain = [b"b%d" % number for number in range(5)]
    for key in plain:
        assert (await peer.ask(set_(key))).error == ""
    return plain


async def wait_scans(fixture: ServerFixture, number: int) -> None:
    with trio.fail_after(SILENCE_S):
        while fixture.server.runtime.counters.scans != number:  # noqa: ASYNC110 - a figure of metrics
            await trio.sleep(0.001)


@pytest.mark.parametrize("end", ["close", "reset"])
async def test_scan_of_a_client_that_has_gone_takes_no_turn_from_the_others(
    monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    fixture = ServerFixture()
    begun, goes_on = hold_matches(monkeypatch)
    matched: list[bytes] = []
    held = LongMatches.run

    def run(matches: LongMatches) -> None:
        matched.append(matches._filter.expression or b"")
        held(matches)

    monkeypatch.setattr(LongMatches, "run", run)
    async with fixture.open():
        peer, last = await fixture.connect(), await fixture.connect()
        await set_many(peer)
        gone = [await fixture.connect() for _ in range(20)]
        await peer.send(EXPENSIVE)
        assert await trio.to_thread.run_sync(begun.wait, SILENCE_S)
        for each in gone:
            await each.send(request(Function.GET, b"x" + EXPENSIVE.key, flags=EXPENSIVE.flags))
        await wait_scans(fixture, 1 + len(gone))
        await last.send(EXPENSIVE)
        await wait_scans(fixture, 2 + len(gone))
        for each in gone:
            if end == "reset":
                linger = struct.pack("ii", 1, 0)
                each.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            each.stream.socket.close()
        goes_on.set()
        assert await last.reply() is not None
        assert matched[:2] == [EXPENSIVE.key] * 2
        await wait_scans(fixture, 0)
        # one that has closed may only have ended its requests, and waits for replies
        assert len(matched) == 2 + (len(gone) if end == "close" else 0)


async def test_scan_that_holds_much_ends_its_page_where_others_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fastjournal.limits.SCANS_MAX", 1)
    monkeypatch.setattr(limits, "SCAN_HELD_BYTES_MAX", 1000)
    monkeypatch.setattr(limits, "SCAN_OTHERS_WORK", math.inf)
    monkeypatch.setattr("fastjournald.admission.turn_budget.SLICE_WORK", 100)
    fixture = ServerFixture()
    everything = request(Function.GET, b"k", uri=b"l", count=0)

    async def pages(peer: Peer) -> list[list[bytes]]:
        reply = await peer.ask(everything)
        found = [[pair.key for pair in reply.pairs or ()]]
        while reply.cursor is not None:
            reply = await peer.ask(
                request(Function.GET, reply.cursor, flags=Query.CURSOR << QUERY_SHIFT)
            )
            assert reply.error == ""
            found.append([pair.key for pair in reply.pairs or ()])
        return found

    async with fixture.open():
        peers = [await fixture.connect() for _ in range(3)]
        keys = [b"k%04d" % number for number in range(2000)]
        for key in keys:
            assert (await peers[0].ask(request(Function.SET, key, b"v"))).error == ""
        assert await pages(peers[0]) == [keys]
        found: list[list[list[bytes]]] = []

        async def note(peer: Peer) -> None:
            found.append(await pages(peer))

        with trio.fail_after(SILENCE_S):
            async with trio.open_nursery() as nursery:
                for peer in peers:
                    nursery.start_soon(note, peer)
        assert all(list(chain.from_iterable(each)) == keys for each in found)
        assert max(len(each) for each in found) > 3


async def test_clients_and_fj_cli_follow_the_cursors_of_short_pages_and_of_empty_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As beside others: a page has a few keys, and those of a rare match have none."""
    monkeypatch.setattr(limits, "SCAN_OTHERS_WORK", 0)
    monkeypatch.setattr(limits, "SCAN_SHARED_PAGE_WORK", 1)
    monkeypatch.setattr(limits, "SCAN_STEP_WORK", 8)
    monkeypatch.setattr("fastjournald.admission.turn_budget.SLICE_WORK", 8)
    fixture = ServerFixture()
    keys = [b"k%03d" % number for number in range(150)]
    rare = keys[::100]

    def ask_in_a_thread(address: str) -> None:
        with SyncClient(address) as client:
            assert [entry.key for entry in client.prefix("k")] == keys
            assert [entry.key for entry in client.regex("00$")] == rare
        for arguments, found in ((["--prefix", "k"], keys), (["--regex", "00$"], rare)):
            command = ["--server", address, "list", *arguments, "--json"]
            listed = CliRunner().invoke(cli, command, catch_exceptions=False)
            lines = map(json.loads, listed.stdout.splitlines())
            assert [line["key"].encode() for line in lines] == found

    async with fixture.open():
        peer = await fixture.connect()
        for key in keys:
            assert (await peer.ask(request(Function.SET, key, b"v"))).error == ""
        host, port = peer.stream.socket.getpeername()
        address = f"{host}:{port}"
        asked = fixture.engine.counters.requests
        async with Client(address) as client:
            assert [entry.key async for entry in client.prefix("k")] == keys
            assert (pages := asked[Function.GET]) > len(keys) / 5
            assert [entry.key async for entry in client.regex("00$")] == rare
            assert asked[Function.GET] > pages + 2 * len(rare), "some pages are empty"
            async with client.mirror("k") as copy:
                assert list(copy) == keys
        await trio.to_thread.run_sync(ask_in_a_thread, address)
