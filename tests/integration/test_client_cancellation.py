"""Cancel scopes around and inside the trio client: cancelled at each checkpoint, no lease stays.

Each sweep runs the same program again and again against a real daemon, and cancels its scope when
the program's task has yielded for the first, the second, the third ... time, until it ends before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.abc
import trio.lowlevel
import trio.testing
from trio.testing import MockClock

from fastjournal import Client, Jobs, RefusedError, SyncClient, build_journal_key
from fastjournal.client.core import calls
from fastjournal.limits import CLIENT_LAST_WORDS_S, JOB_LEASE_S
from fastjournal.protocol import Function, Meta, Pair, Reply, Request
from fastjournal.testing.scripted_daemon import Answer, ScriptedDaemon
from tests.integration.daemon_process import DaemonProcess
from tests.integration.lasting_daemon import lasting_daemon

NAMES = ("1", "2", "3")


class CancelAtYield(trio.abc.Instrument):
    """Cancels a scope when the task that made this has yielded for the n-th time."""

    def __init__(self, n: int) -> None:
        self.scope = trio.CancelScope()
        self._task = trio.lowlevel.current_task()
        self._left = n

    @property
    def in_time(self) -> bool:
        return self._left <= 0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._task:
            self._left -= 1
            if self._left == 0:
                self.scope.cancel()


daemon = lasting_daemon()


def key_of(name: str) -> bytes:
    return build_journal_key("d", name)


def states(client: SyncClient) -> dict[str, str]:
    """Where the jobs stand; those that are done do not."""
    found = {}
    for name in NAMES:
        with contextlib.suppress(RefusedError):
            found[name] = client.entry_stats(key_of(name)).state
    return found


Program = Callable[[str, trio.CancelScope, list[str]], Awaitable[object]]
"""Gets the daemon's address, the scope to run in, and where to note whose body has ended."""


async def body(job: object, done: list[str]) -> None:
    await trio.lowlevel.checkpoint()
    await trio.lowlevel.checkpoint()
    done.append(job.value.decode())


async def scope_around_a_loop(address: str, scope: trio.CancelScope, done: list[str]) -> None:
    with scope:
        async with Client(address) as client:
            async for job in client.jobs("d", count=2, wait=None):
                await body(job, done)


async def scope_around_a_loop_that_waits(
    address: str, scope: trio.CancelScope, done: list[str]
) -> None:
    with scope:
        async with Client(address) as client:
            async for job in client.jobs("d", count=2, wait=0.02):
                await body(job, done)


async def scope_around_a_block_of_jobs(
    address: str, scope: trio.CancelScope, done: list[str]
) -> None:
    with scope:
        async with Client(address) as client, client.jobs("d", count=2, wait=None) as jobs:
            async for job in jobs:
                await body(job, done)


async def scope_around_a_block_of_one_job(
    address: str, scope: trio.CancelScope, done: list[str]
) -> None:
    with scope:
        async with Client(address) as client:
            async for job in client.jobs("d", wait=None):
                async with job:
                    await body(job, done)


async def scope_inside_the_client(address: str, scope: trio.CancelScope, done: list[str]) -> None:
    async with Client(address) as client:
        with scope:
            async for job in client.jobs("d", count=2, wait=None):
                await body(job, done)


async def scope_around_the_body(address: str, scope: trio.CancelScope, done: list[str]) -> None:
    async with Client(address) as client, client.jobs("d", count=3, wait=None) as jobs:
        async for job in jobs:
            with scope:
                async with job:
                    await body(job, done)
            break


async def scope_around_a_completion(address: str, scope: trio.CancelScope, done: list[str]) -> None:
    async with Client(address) as client:
        async for job in client.jobs("d", wait=None):
            with scope:
                done.append(job.value.decode())
                await job.complete()
            break


async def scope_around_many_calls(address: str, scope: trio.CancelScope, _done: list[str]) -> None:
    leased: list[Jobs | RefusedError] = []
    async with Client(address) as client:
        with scope:
            many = [calls.next_("d"), calls.next_("d"), calls.next_("none", wait=0.01)]
            leased = await client.call_many(many)
        for jobs in leased:
            assert isinstance(jobs, Jobs)
            for entry in jobs:
                await client.release(entry.key, entry.token or 0)


@pytest.mark.parametrize(
    "program",
    [
        scope_around_many_calls,
        scope_around_a_loop,
        scope_around_a_loop_that_waits,
        scope_around_a_block_of_jobs,
        scope_around_a_block_of_one_job,
        scope_inside_the_client,
        scope_around_the_body,
        scope_around_a_completion,
    ],
)
async def test_cancellation_at_every_checkpoint_leaves_no_lease_and_repeats_no_body(
    daemon: DaemonProcess, program: Program
) -> None:
    with SyncClient(daemon.address) as producer:
        for n in range(1, 500):
            for name in NAMES:
                producer.set(key_of(name), name, overwrite=True)
            cancel, done = CancelAtYield(n), list[str]()
            trio.lowlevel.add_instrument(cancel)
            with trio.fail_after(60):
                await program(daemon.address, cancel.scope, done)
            trio.lowlevel.remove_instrument(cancel)
            found = states(producer)
            assert set(found.values()) <= {"ready"}, f"cancelled at checkpoint {n}"
            assert set(done) == set(NAMES) - set(found), f"cancelled at checkpoint {n}"
            if not cancel.in_time:
                break
        assert not cancel.in_time, "the program never ends"


class Deaf:
    """Hands out two jobs, and answers nothing else but NOPs; tells when it gets ``awaited``."""

    def __init__(self, awaited: Function, tell: Callable[[], object]) -> None:
        self._awaited = awaited
        self._tell = tell

    def __call__(self, request: Request) -> Answer:
        if request.function == self._awaited:
            self._tell()
        if request.function == Function.NEXT and self._awaited != Function.NEXT:
            pairs = [Pair(b"d:1:1:%d" % n, meta=Meta()) for n in range(2)]
            return [Reply(request.identifier, timeout=7, pairs=pairs)]
        return [Reply(request.identifier)] if request.function == Function.NOP else []


async def ask_for_work(client: Client, _clock: MockClock) -> None:
    await client.next("d", wait=60)


async def finish_a_body(client: Client, _clock: MockClock) -> None:
    async for _job in client.jobs("d", count=2):
        await trio.lowlevel.checkpoint()


async def work_for_long(client: Client, clock: MockClock) -> None:
    async for _job in client.jobs("d", count=2):
        await trio.testing.wait_all_tasks_blocked()
        clock.jump(JOB_LEASE_S / 3)
        await trio.sleep_forever()


@pytest.mark.parametrize(
    ("work", "cancelled_at"),
    [
        (ask_for_work, Function.NEXT),
        (finish_a_body, Function.DELETE),
        (work_for_long, Function.TOUCH),
    ],
)
def test_cancellation_with_a_deaf_daemon_takes_a_client_a_few_seconds(
    work: Callable[[Client, MockClock], Awaitable[None]], cancelled_at: Function
) -> None:
    clock = MockClock()

    async def main() -> None:
        scope, token, cancelled_s = trio.CancelScope(), trio.lowlevel.current_trio_token(), []

        def cancel() -> None:
            clock.autojump_threshold = 0.05
            cancelled_s.append(trio.current_time())
            scope.cancel()

        script = Deaf(cancelled_at, lambda: token.run_sync_soon(cancel))
        with ScriptedDaemon(script) as daemon, scope:
            async with Client(daemon.address) as client:
                await work(client, clock)
        assert scope.cancelled_caught
        assert trio.current_time() - cancelled_s[0] <= 2 * CLIENT_LAST_WORDS_S

    trio.run(main, clock=clock)
