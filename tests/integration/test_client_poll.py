"""Event loops of others: descriptors of a listener, of a call that waits and of a spool's watch."""

from __future__ import annotations

import ctypes
import os
import secrets
import select
import shutil
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trio

from fastjournal import (
    CannotConnectError,
    Change,
    Client,
    RefusedError,
    Spool,
    SpoolFailedError,
    SyncClient,
)
from fastjournal.client import calls
from fastjournal.protocol import Function, Reply, Request
from fastjournal.spool import inotify_watch, watch
from fastjournal.testing.scripted_daemon import Answer, Do, ScriptedDaemon
from tests.integration.daemon_process import DaemonProcess
from tests.integration.two_jobs import QUICK

WAIT_S = 60.0


def is_readable(source: object, timeout_s: float = WAIT_S) -> bool:
    """Whether poll, as another event loop, finds it readable in time."""
    poll = select.poll()
    poll.register(source, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def test_listener_is_readable_when_a_change_comes_and_also_after_a_restart(
    daemon: DaemonProcess, producer: SyncClient
) -> None:
    client = SyncClient(daemon.address, reconnect=QUICK)
    with client.listen(prefix="color:") as changes:
        assert not is_readable(changes, 0.01)
        descriptor = changes.fileno()
        for name in "abc":
            producer.set(f"color:{name}", "blue")
        seen: list[bytes] = []
        while len(seen) < 3:
            assert is_readable(changes)
            while (change := changes.wait(0)) is not None:
                seen.append(change.key)
        assert seen == [b"color:a", b"color:b", b"color:c"]
        daemon.kill()
        daemon.start()
        kinds: list[str] = []
        while "missed" not in kinds:
            # as an event loop does it: by the descriptor, or when it is time
            left_s = changes.look_again_s()
            is_readable(changes, WAIT_S if left_s is None else left_s)
            while (change := changes.wait(0)) is not None:
                kinds.append(change.kind)
        producer.set("color:d", "green")
        assert is_readable(changes)
        change = changes.wait(0)
        assert change is not None
        assert (change.key, changes.fileno()) == (b"color:d", descriptor)
    with pytest.raises(CannotConnectError):
        changes.fileno()


def test_poll_of_a_call_that_waits_tells_of_its_answer(
    daemon: DaemonProcess, producer: SyncClient
) -> None:
    with (
        SyncClient(daemon.address) as client,
        client.waiting(calls.next_("other", wait=WAIT_S)) as waiting,
    ):
        assert not is_readable(waiting, 0.05)
        assert (waiting.take(), waiting.done) == (None, False)
        assert 100 < (waiting.look_again_s() or 0) <= 120
        client.set("other:1:0:x", "work")  # the client itself is free
        assert is_readable(waiting)
        jobs = waiting.take()
        assert jobs is not None
        assert [job.value for job in jobs] == [b"work"]
    assert producer.entry_stats("other:1:0:x").state == "worked on"


@pytest.mark.parametrize("answered", [False, True])
def test_poll_of_a_call_that_waits_leases_nothing_for_a_program_that_left(
    daemon: DaemonProcess, producer: SyncClient, answered: bool
) -> None:
    with SyncClient(daemon.address) as client:
        with client.waiting(calls.next_("other", wait=WAIT_S)) as waiting:
            if answered:
                producer.set("other:1:0:x", "work")
                assert is_readable(waiting)
        if not answered:
            producer.set("other:1:0:x", "work")
    stats = producer.entry_stats("other:1:0:x")
    assert (stats.state, stats.attempts) == ("ready", 0)


def test_poll_of_a_call_that_waits_ends_with_its_connection_and_names_refusals() -> None:
    def answer(request: Request) -> Answer:
        if request.function == Function.NEXT:
            return [Do.CLOSE]
        return [Reply(request.identifier, error="not-found")]

    with ScriptedDaemon(answer) as daemon:
        client = SyncClient(daemon.address)
        with client.waiting(calls.next_(wait=WAIT_S)) as waiting:
            assert is_readable(waiting)
            with pytest.raises(CannotConnectError) as lost:
                waiting.take()
            assert (lost.value.maybe_done, lost.value.address) == (True, daemon.address)
        with client.waiting(calls.get("k")) as waiting:
            assert is_readable(waiting)
            with pytest.raises(RefusedError, match="not-found"):
                waiting.take()


def test_watch_of_a_spool_wakes_when_a_record_is_appended(tmp_path: Path) -> None:
    with Spool(tmp_path / "spool") as spool, watch(spool.directory) as changes:
        assert not is_readable(changes, 0)
        (tmp_path / "spool" / "status.json").write_text("{}")
        assert changes.wait(0) is False, "it is no slot"
        for _ in range(2):  # the second one creates no file
            spool.append(uri="https://example.org/")
            assert is_readable(changes)
            assert changes.wait(0) is True
            assert changes.wait(0) is False
        timer = threading.Timer(0.05, spool.append, kwargs={"uri": "https://example.org/"})
        timer.start()
        assert changes.wait() is True
        begun_s = time.monotonic()
        assert changes.wait(0.02) is False
        assert time.monotonic() - begun_s >= 0.02
        timer.join()


def exchanged(one: Path, other: Path) -> None:
    """Exchange two names at once, as no call of Python does."""
    libc = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(one), os.fsencode(other)
    assert libc.renameat2(-100, names[0], -100, names[1], 2) == 0, os.strerror(ctypes.get_errno())


@pytest.mark.parametrize(
    "how", ["renamed", "renamed and back", "deleted", "held and deleted", "replaced", "its parent"]
)
def test_watch_of_a_spool_that_is_made_anew_wakes_again(tmp_path: Path, how: str) -> None:
    directory, aside = tmp_path / "parent" / "spool", tmp_path / "aside"
    directory.mkdir(parents=True)
    held = -1
    with watch(directory) as changes:
        for _ in range(2):  # and so it does after it
            if how == "renamed":
                directory.rename(tmp_path / f"{aside}-{secrets.token_hex(4)}")
            elif how == "renamed and back":
                directory.rename(aside)
                aside.rename(directory)
            elif how == "deleted":
                shutil.rmtree(directory)
            elif how == "held and deleted":  # the system tells of it when it is closed
                held = os.open(directory, os.O_RDONLY)
                shutil.rmtree(directory)
            elif how == "replaced":
                aside.mkdir()
                exchanged(directory, aside)
                shutil.rmtree(aside)
            else:
                directory.parent.rename(tmp_path / f"{aside}-{secrets.token_hex(4)}")
            directory.mkdir(parents=True, exist_ok=True)
            assert changes.wait(0) is True, "there may be records by now"
            with Spool(directory) as spool:
                spool.append(uri="https://example.org/")
                assert is_readable(changes)
                assert changes.wait(WAIT_S) is True
            while changes.wait(0):
                pass
            if held >= 0:
                os.close(held)
                assert changes.wait(0) is False, "the end of the former one is no news"


@pytest.mark.parametrize("how", ["renamed", "deleted"])
def test_watch_of_a_spool_that_is_away_raises_until_it_is_back(tmp_path: Path, how: str) -> None:
    directory = tmp_path / "spool"
    directory.mkdir()
    with watch(directory) as changes:
        if how == "renamed":
            directory.rename(tmp_path / "aside")
        else:
            directory.rmdir()
        assert is_readable(changes)
        for timeout in (WAIT_S, 0, None):
            with pytest.raises(SpoolFailedError, match="check that the directory"):
                changes.wait(timeout)
        directory.mkdir()
        assert changes.wait() is True
        assert changes.wait(0) is False
        with Spool(directory) as spool:
            spool.append(uri="https://example.org/")
        assert changes.wait(WAIT_S) is True


def test_watch_of_a_spool_notices_without_an_event_that_its_path_leads_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inotify_watch, "CHECK_S", 0.01)
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "spool").symlink_to("one")
    with watch(tmp_path / "spool") as changes:
        assert changes.wait(0.05) is False

        def retarget() -> None:
            (tmp_path / "link").symlink_to("other")
            (tmp_path / "link").rename(tmp_path / "spool")

        timer = threading.Timer(0.05, retarget)
        timer.start()
        assert changes.wait() is True
        timer.join()
        with Spool(tmp_path / "other") as spool:
            spool.append(uri="https://example.org/")
        assert changes.wait(WAIT_S) is True


def told(change: Change) -> tuple[str, bytes, bytes]:
    return str(change.kind), change.key, change.value


async def test_listen_to_every_kind_of_query_shows_its_changes(daemon: DaemonProcess) -> None:
    async with Client(daemon.address) as client, Client(daemon.address) as other:
        for query in ({"key": "a1"}, {"prefix": "a"}, {"start": "a", "end": "b"}, {"regex": "^a."}):
            async with client.listen(**query) as changes:
                with trio.fail_after(60):
                    await other.set("a1", b"one")
                    assert told(await anext(changes)) == ("set", b"a1", b"one")
                    await client.set("c", b"elsewhere")
                    await other.set("a1", b"two", overwrite=True)
                    assert told(await anext(changes)) == ("set", b"a1", b"two")
                    await client.delete("a1", overwrite=True)
                    assert told(await anext(changes)) == ("gone", b"a1", b"")
            await client.delete("c", overwrite=True)
        await other.set("a1")
        assert await client.nop() > datetime(2025, 1, 1, tzinfo=UTC)


def test_listen_goes_on_in_a_parent_whose_forked_child_leaves_the_block(
    daemon: DaemonProcess,
) -> None:
    with (
        SyncClient(daemon.address) as other,
        SyncClient(daemon.address).listen(prefix="a") as changes,
    ):
        child = os.fork()
        if child == 0:
            try:
                changes.__exit__()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        other.set("a1", b"one")
        assert select.select([changes], [], [], 60)[0]
        change = changes.wait(0)
        assert change is not None
        assert told(change) == ("set", b"a1", b"one")
