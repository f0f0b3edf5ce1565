"""Both clients against a real daemon: every method, and many requests in flight."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
import trio

from fastjournal import Client, RefusedError, SyncClient, build_journal_key
from fastjournal.client.core import calls
from fastjournal.errors import CannotConnectError
from fastjournal.protocol import ErrorCode, Function, Request, State
from tests.integration.daemon_process import DaemonProcess

S = 1_000_000


def refused(code: str) -> pytest.RaisesExc[RefusedError]:
    return pytest.RaisesExc(RefusedError, check=lambda error: error.code == code)


def test_blocking_client_has_every_method(daemon: DaemonProcess) -> None:
    with SyncClient(daemon.address) as client:
        assert client.nop() > datetime(2025, 1, 1, tzinfo=UTC)
        written = client.set("k", "one", ttl=60)
        entry = client.get("k", meta=True)
        assert entry.decoded() == "one"
        assert entry.meta is not None
        assert entry.meta.timestamp_us == written.timestamp_us
        assert entry.meta.state == State.PERSISTENT
        assert client.get("k", data=False).value == b""
        assert client.set("k", "one", timestamp_us=written.timestamp_us) == written
        with refused("exists"):
            client.set("k", "two")
        with refused("stale"):
            client.set("k", "two", overwrite=True, timestamp_us=written.timestamp_us - 1)
        client.touch("k", ttl=120)
        touched = client.get("k", meta=True).meta
        assert touched is not None
        assert touched.expires_us > entry.meta.expires_us
        client.delete("k")
        with refused("not-found"):
            client.get("k")

        key = build_journal_key("d", "1")
        client.set(key, b"work", uri="uri:1")
        (job,) = client.next("d", lease=60, meta=True)
        assert (job.key, job.uri, job.value) == (key, b"uri:1", b"work")
        assert job.token is not None
        token = client.touch(key, job.token, ttl=90)
        assert token is not None
        assert token > job.token
        with refused("lease-lost"):
            client.delete(key, token=job.token)
        with refused("worked-on"):
            client.get("uri:1", skip_worked_on=True)
        client.release(key, token)
        leased = client.get("uri:1", lease=60)
        assert leased.token is not None
        client.release(key, leased.token, delay=3600)
        nothing = client.next("d")
        assert (len(nothing), nothing.token) == (0, None)
        assert nothing.next_at_us is not None
        assert client.stats("d")["delayed"] == 1
        assert client.stats()["entries"] == 1
        assert client.stats("uri:1", data=True)
        assert Path(client.snapshot(), "MANIFEST.json").exists()
        assert client.request(Request(Function.NOP)).error == ""


def test_next_that_deletes_leaves_nothing(daemon: DaemonProcess) -> None:
    with SyncClient(daemon.address) as client:
        client.set(build_journal_key("d", "1"), b"work")
        (job,) = client.next(delete=True)
        assert (job.value, job.token) == (b"work", None)
        assert client.stats()["entries"] == 0


def test_pipeline_of_thousands_is_answered_in_order(daemon: DaemonProcess) -> None:
    with SyncClient(daemon.address) as client:
        many = [calls.set_(build_journal_key("d", b"%d" % n), b"%d" % n) for n in range(5000)]
        results = client.call_many(many)
        assert not [result for result in results if isinstance(result, RefusedError)]
        values = client.call_many(calls.get(call.request.key) for call in many)
        assert [not isinstance(v, RefusedError) and v.value for v in values] == [
            b"%d" % n for n in range(5000)
        ]


async def test_trio_client_shares_work_between_its_tasks_and_none_is_done_twice(
    daemon: DaemonProcess,
) -> None:
    done: list[bytes] = []
    async with Client(daemon.address) as client:

        async def work() -> None:
            while jobs := (await client.next("d", count=3, wait=0.2)).pairs:
                for job in jobs:
                    await client.delete(job.key, token=job.token)
                    done.append(job.value)

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(work)
            for n in range(200):
                await client.set(build_journal_key("d", b"%d" % n), b"%d" % n)
        assert (await client.stats())["entries"] == 0
        assert (await client.stats())["connections"] == 1
    assert sorted(done, key=int) == [b"%d" % n for n in range(200)]


async def test_next_that_is_cancelled_leaves_no_lease_behind(daemon: DaemonProcess) -> None:
    async with Client(daemon.address) as client:
        with trio.move_on_after(0.05):
            await client.next("d", wait=600)
        await client.set(build_journal_key("d", "1"), b"work")
        # The daemon hands it to the NEXT that nobody waits for, and gets it back.
        with trio.fail_after(60):
            jobs = await client.next("d", wait=50)
        assert [job.value for job in jobs] == [b"work"]


async def ask_without_end(client: Client) -> None:
    while True:
        await client.nop()


async def test_quit_ends_a_waiting_next_and_then_the_connection(daemon: DaemonProcess) -> None:
    async with Client(daemon.address, reconnect=None) as client:
        found: list[int] = []

        async def wait_for_work() -> None:
            found.append(len(await client.next(wait=600)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_work)
            await client.nop()
            await client.call(calls.quit_())
        assert found == [0]
        with trio.fail_after(60), pytest.raises(CannotConnectError):
            await ask_without_end(client)


async def test_daemon_that_stops_answers_the_next_that_waits(daemon: DaemonProcess) -> None:
    async with Client(daemon.address) as client, trio.open_nursery() as nursery:
        errors: list[str] = []

        async def wait_for_work() -> None:
            try:
                await client.next(wait=600)
            except (RefusedError, CannotConnectError) as error:
                errors.append(error.code)

        nursery.start_soon(wait_for_work)
        await client.nop()
        assert await trio.to_thread.run_sync(daemon.stop) == 0
        with trio.fail_after(60):
            while not errors:  # noqa: ASYNC110 - what is awaited happens in another process
                await trio.sleep(0.01)
    assert errors == [ErrorCode.SHUTTING_DOWN]
