"""Sync thread: one thread for all calls, which passes on errors and ends when it is closed."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from fastjournal.errors import LogFailedError
from fastjournald.group_commit.commit import SyncThread
from tests.unit.server_fixture import ServerFixture
from tests.unit.test_session_limits import set_

SILENCE_S = 60


def running() -> list[threading.Thread]:
    """The sync threads of this process."""
    return [thread for thread in threading.enumerate() if thread.name == "fastjournald-sync"]


@pytest.fixture
def thread() -> Iterator[SyncThread]:
    made = SyncThread()
    yield made
    made.close()
    assert not running()


async def test_sync_thread_runs_all_calls_and_is_not_this_one(thread: SyncThread) -> None:
    assert not running()
    idents: list[int] = []
    for _ in range(20):
        await thread.run(lambda: idents.append(threading.get_ident()))
    assert len(idents) == 20
    assert len(set(idents)) == 1
    assert idents[0] != threading.get_ident()
    assert [each.ident for each in running()] == idents[:1]


async def test_sync_thread_lets_other_tasks_go_on(thread: SyncThread) -> None:
    goes_on = threading.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(thread.run, lambda: goes_on.wait(SILENCE_S))
        await trio.testing.wait_all_tasks_blocked()
        goes_on.set()


@pytest.mark.parametrize("error", [LogFailedError("no", path="/log"), KeyError(1), SystemExit(3)])
async def test_sync_thread_passes_each_error_to_its_task_and_goes_on(
    thread: SyncThread, error: BaseException
) -> None:
    def fail() -> None:
        raise error

    for _ in range(2):
        with pytest.raises(type(error)) as raised:
            await thread.run(fail)
        assert raised.value is error
    done: list[bool] = []
    await thread.run(lambda: done.append(True))
    assert done


async def test_cancelled_task_waits_until_the_call_has_ended(thread: SyncThread) -> None:
    begun, goes_on = threading.Event(), threading.Event()
    ended: list[str] = []

    def hold() -> None:
        begun.set()
        assert goes_on.wait(SILENCE_S)
        ended.append("call")

    async def sync() -> None:
        await thread.run(hold)
        ended.append("task")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(sync)
        assert await trio.to_thread.run_sync(begun.wait, SILENCE_S)
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await trio.testing.wait_all_tasks_blocked()
            assert ended == []
            goes_on.set()
    assert ended == ["call", "task"]


async def test_thread_can_be_closed_twice_and_used_again(thread: SyncThread) -> None:
    thread.close()
    for _ in range(3):
        await thread.run(lambda: None)
        assert len(running()) == 1
        thread.close()
        thread.close()
        assert not running()


async def test_sync_thread_ends_with_a_server_that_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastjournald.group_commit.commit.INLINE_SECONDS_MAX", -1.0)
    fixture = ServerFixture()
    async with fixture.open():
        peer = await fixture.connect()
        assert (await peer.ask(set_(b"k"))).error == ""
        assert len(running()) == 1
    assert not running()
    assert fixture.writer.durable == fixture.writer.appended


async def test_sync_thread_ends_with_a_server_whose_disk_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fastjournald.group_commit.commit.INLINE_SECONDS_MAX", -1.0)
    fixture = ServerFixture()
    with pytest.RaisesGroup(LogFailedError, flatten_subgroups=True):
        async with fixture.open():
            peer = await fixture.connect()
            assert (await peer.ask(set_(b"k"))).error == ""
            fixture.disk.fail_at(1, "sync")
            await peer.send(set_(b"l"))
            assert await peer.reply() is None
    assert not running()
