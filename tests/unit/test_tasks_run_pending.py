"""Runs of tasks in the process of a test: calls, failures, back-off, middleware, bad jobs."""

from __future__ import annotations

import asyncio
import contextvars
import json
import re
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest

from fastjournal.errors import BadRequestError
from fastjournal.loglines import LineFormatter
from fastjournal.tasks import Middleware, TaskRun, Tasks, current_run
from fastjournal.tasks.execution import ThreadCall
from fastjournald.testing import FastjournalDaemon


class Order(msgspec.Struct):
    number: int

    def __post_init__(self) -> None:
        _ = {1: "one"}[self.number]


@pytest.fixture
def daemon() -> Iterator[FastjournalDaemon]:
    with FastjournalDaemon(retry_delay=10) as daemon:
        yield daemon


@pytest.fixture
def app(daemon: FastjournalDaemon) -> Tasks:
    return Tasks(producer=daemon.sync_client())


def buried(daemon: FastjournalDaemon, queue: str = "default") -> list[str]:
    """Return the reasons of the dead letters."""
    client = daemon.sync_client()
    found = []
    for entry in client.prefix(f"{queue}:"):
        stats = client.entry_stats(entry.key)
        if stats.state == "buried":
            found.append(stats.buried_reason or "")
    return found


def test_sync_and_async_tasks_run_and_what_they_enqueue_runs_too(
    app: Tasks, daemon: FastjournalDaemon
) -> None:
    done: list[object] = []

    @app.task
    def first(number: int) -> None:
        done.append((number, threading.get_ident()))
        if number:
            first.enqueue(number=number - 1)

    @app.task(queue="other")
    async def second(text: str) -> None:
        await anyio.lowlevel.checkpoint()
        done.append(text)
        await third.aenqueue()

    @app.task(queue="other")
    async def third() -> None:
        done.append(current_run().message.task.rpartition(".")[2])

    first.enqueue(number=2)
    second.enqueue(text="a")
    second.enqueue(text="later", delay=60)
    assert app.run_pending(daemon) == 5
    here = threading.get_ident()
    assert [each for each in done if isinstance(each, tuple)] == [(n, here) for n in (2, 1, 0)]
    assert [each for each in done if isinstance(each, str)] == ["a", "third"]
    assert app.run_pending(daemon.sync_client()) == 0
    daemon.advance(61)
    assert app.run_pending(daemon) == 2
    with pytest.raises(BadRequestError, match="no task runs here"):
        current_run()


def test_pending_tasks_run_within_a_test_that_is_async(
    app: Tasks, daemon: FastjournalDaemon
) -> None:
    done: list[str] = []

    @app.task
    async def work() -> None:
        await anyio.lowlevel.checkpoint()
        done.append("async")

    @app.task
    def block() -> None:
        done.append("sync")

    async def test() -> None:
        await work.aenqueue()
        await block.aenqueue()
        assert app.run_pending(daemon) == 2

    asyncio.run(test())
    assert done == ["async", "sync"]


def test_failed_runs_back_off_and_the_last_one_buries(
    app: Tasks, daemon: FastjournalDaemon
) -> None:
    attempts: list[tuple[int, bool]] = []

    @app.task(retries=2, retry_delay=[60, 600])
    def send(order_id: int) -> None:
        run = current_run()
        attempts.append((run.attempt, run.is_last))
        raise OSError(f"SMTP 550 for {order_id}")

    send.enqueue(order_id=7)
    assert app.run_pending(daemon) == 1
    daemon.advance(59)
    assert app.run_pending(daemon) == 0
    daemon.advance(1)
    assert app.run_pending(daemon) == 1
    daemon.advance(599)
    assert app.run_pending(daemon) == 0
    daemon.advance(1)
    with pytest.raises(OSError, match="SMTP 550 for 7"):
        app.run_pending(daemon, raise_errors=True)
    assert attempts == [(1, False), (2, False), (3, True)]
    [reason] = buried(daemon)
    assert reason.startswith("OSError: SMTP 550 for 7\n")
    assert "in send" in reason
    daemon.advance(86_400)
    assert app.run_pending(daemon) == 0


@pytest.mark.parametrize(
    ("retry_delay", "delays"),
    [
        (60, [60, 60, 60]),
        ([1, 5], [1, 5, 5]),
        (range(1, 3), [1, 2, 2]),
        (lambda attempt: 100 * 2**attempt, [200, 400, 800]),
        (None, [10, 20, 40]),  # the daemon's
        (lambda attempt: 1 // 0, [10, 20, 40]),  # it fails: the daemon's
        (lambda attempt: -attempt, [10, 20, 40]),
        (lambda attempt: "soon", [10, 20, 40]),
    ],
)
def test_retry_delay_is_fixed_a_list_or_computed(
    app: Tasks, daemon: FastjournalDaemon, retry_delay: Any, delays: list[int]
) -> None:
    @app.task(retry_delay=retry_delay)
    def work() -> None:
        raise ValueError

    work.enqueue()
    assert app.run_pending(daemon) == 1
    for delay in delays:
        daemon.advance(delay - 0.01)
        assert app.run_pending(daemon) == 0
        daemon.advance(0.02)
        assert app.run_pending(daemon) == 1


def test_retries_0_is_one_run_and_none_is_as_the_daemon_says() -> None:
    app = Tasks()

    @app.task(retries=0)
    def once() -> None:
        raise ValueError("once")

    @app.task
    def often() -> None:
        raise ValueError("often")

    with FastjournalDaemon(max_attempts=3, retry_delay=1) as daemon:
        with app.using(daemon.sync_client()):
            once.enqueue()
            often.enqueue()
        runs = 0
        for _ in range(5):
            runs += app.run_pending(daemon)
            daemon.advance(100)
        assert runs == 1 + 3
        assert sorted(each.partition("\n")[0] for each in buried(daemon)) == [
            "ValueError: often",
            "ValueError: once",
        ]
        # the last run has failed, too
        client = daemon.sync_client()
        stats = client.domain_stats("default")
        assert (stats.attempts_failed, stats.jobs_buried) == (4, 2)
        keys = [entry.key for entry in client.prefix("default:")]
        assert sorted(client.entry_stats(key).attempts for key in keys) == [1, 3]


def test_dead_letter_that_is_retried_has_all_its_runs_again(
    app: Tasks, daemon: FastjournalDaemon
) -> None:
    ran = []

    @app.task(retries=1, retry_delay=1)
    def work() -> None:
        ran.append(1)
        raise OSError("SMTP 451")

    work.enqueue()
    for runs in (2, 4):
        for _ in range(3):
            app.run_pending(daemon)
            daemon.advance(10)
        assert len(ran) == runs
        assert len(buried(daemon)) == 1
        assert daemon.sync_client().kick_domain("default", count=10) == 1


def test_job_whose_workers_were_lost_too_often_is_buried_unrun(
    app: Tasks, daemon: FastjournalDaemon
) -> None:
    ran = []

    @app.task(retries=1)
    def work() -> None:
        ran.append(1)

    work.enqueue()
    for _ in range(2):  # workers that die with it
        assert len(daemon.sync_client().next("default", lease=10)) == 1
        daemon.advance(1000)
    assert app.run_pending(daemon) == 0
    assert ran == []
    [reason] = buried(daemon)
    assert reason == (
        "no-more-retries: 2 runs failed, or were lost with their worker, and the task has retries=1"
    )


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"\x80\x04pickle", "bad-message: no message of a task: .*give that a queue of its own"),
        (7, "bad-message: no message of a task: its value is no text"),
        (
            '{"fj":1,"task":"nobody","args":{}}',
            "unknown-task: there is no task 'nobody' in this worker .*it has .*work: kick the job",
        ),
        ('{"fj":1,"task":"work","args":{"number":"x"}}', "bad-arguments: .*`int`, got `str`"),
        ('{"fj":1,"task":"work","args":{}}', "bad-arguments: .*missing required field `number`"),
        ('{"fj":1,"task":"work","args":{"number":1,"x":2}}', "bad-arguments: .*unknown field `x`"),
        ('{"fj":9,"task":"work","args":{}}', "bad-message: message of version 9"),
    ],
)
def test_job_that_is_no_run_is_buried_with_its_reason(
    app: Tasks, daemon: FastjournalDaemon, value: Any, reason: str
) -> None:
    done = []

    @app.task(name="work")
    def work(number: int) -> None:
        done.append(number)

    daemon.sync_client().enqueue("default", value)
    work.enqueue(number=3)
    assert app.run_pending(daemon) == 1
    assert done == [3]
    [found] = buried(daemon)
    assert re.match(reason, found), found


def test_job_is_buried_whose_type_of_argument_fails_in_its_own_way(
    app: Tasks, daemon: FastjournalDaemon
) -> None:
    @app.task(name="work")
    def work(order: Order) -> None:
        raise AssertionError

    value = '{"fj":1,"task":"work","args":{"order":{"number":2}}}'
    daemon.sync_client().enqueue("default", value)
    assert app.run_pending(daemon) == 0
    assert buried(daemon)[0].startswith("bad-arguments: wrong arguments for task work: KeyError(2)")


def test_exit_and_cancellation_within_a_task_are_failures(
    app: Tasks, daemon: FastjournalDaemon
) -> None:
    @app.task(retries=0)
    def leave() -> None:
        raise SystemExit(3)

    @app.task(retries=0)
    async def cancel() -> None:
        await anyio.lowlevel.checkpoint()
        raise asyncio.CancelledError

    @app.task(retries=0)
    def skip() -> None:
        pytest.skip("no Exception, as time-outs of some libraries")

    leave.enqueue()
    cancel.enqueue()
    skip.enqueue()
    assert app.run_pending(daemon) == 3
    reasons = sorted(buried(daemon))
    assert [each.partition("\n")[0] for each in reasons] == [
        "RuntimeError: the task cancelled itself",
        "RuntimeError: the task ended with Skipped",
        "RuntimeError: the task ended with SystemExit(3)",
    ]
    for reason, place in zip(reasons, ("in cancel", "in skip", "in leave"), strict=True):
        assert place in reason


def test_async_task_has_failed_at_its_timeout(app: Tasks, daemon: FastjournalDaemon) -> None:
    @app.task(retries=0, timeout=0.01)
    async def wait() -> None:
        await anyio.sleep_forever()

    wait.enqueue()
    assert app.run_pending(daemon) == 1
    assert buried(daemon)[0].startswith("TimeoutError: the timeout of 0.01 s is over")


def test_async_task_that_swallows_its_timeout_has_failed(
    app: Tasks, daemon: FastjournalDaemon
) -> None:
    @app.task(retries=0, timeout=0.01)
    async def wait() -> str:
        with suppress(BaseException):
            await anyio.sleep_forever()
        return "done"

    wait.enqueue()
    assert app.run_pending(daemon) == 1
    assert buried(daemon)[0].startswith("TimeoutError: the timeout of 0.01 s is over")


def test_task_that_enqueues_itself_for_ever_ends_the_test(
    app: Tasks, daemon: FastjournalDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastjournal.tasks.execution._RUNS_MAX", 20)

    @app.task
    def again() -> None:
        again.enqueue()

    again.enqueue()
    with pytest.raises(BadRequestError, match=r"over 20 runs.*does a task enqueue itself"):
        app.run_pending(daemon)


# --- interruption of threads ------------------------------------------------------------------


def test_interrupt_ends_a_function_between_two_steps_and_runs_its_finally() -> None:
    began, left = threading.Event(), []

    def work() -> None:
        try:
            while True:
                began.set()
        finally:
            left.append(1)

    call, caught = ThreadCall(work), []

    def body() -> None:
        with pytest.raises(TimeoutError, match="over") as error:
            call()
        caught.append(error.value)

    thread = threading.Thread(target=body)
    thread.start()
    began.wait()
    call.interrupt(TimeoutError("over"))
    call.interrupt(TimeoutError("a second one changes nothing"))
    thread.join()
    assert left == [1]
    assert len(caught) == 1


def test_interrupt_that_the_function_swallows_is_a_failure_all_the_same() -> None:
    began = threading.Event()

    def work() -> None:
        with suppress(BaseException):
            while True:
                began.set()

    call = ThreadCall(work)
    interrupting = threading.Thread(
        target=lambda: (began.wait(), call.interrupt(TimeoutError("over")))
    )
    interrupting.start()
    with pytest.raises(TimeoutError, match="over"):
        call()
    interrupting.join()


def test_interrupt_before_the_call_leaves_the_function_uncalled_and_one_behind_it_no_trace() -> (
    None
):
    done: list[int] = []
    early, late = ThreadCall(lambda: done.append(1)), ThreadCall(lambda: done.append(2))
    early.interrupt(TimeoutError("early"))
    with pytest.raises(TimeoutError, match="early"):
        early()
    late()
    late.interrupt(TimeoutError("late"))
    assert sum(range(10_000)) == 49_995_000  # steps of this thread, in which nothing is raised
    assert done == [2]


# --- middleware -------------------------------------------------------------------------------

place: contextvars.ContextVar[str] = contextvars.ContextVar("place", default="")


class Noted(Middleware):
    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self.log = log

    @contextmanager
    def around(self, run: TaskRun) -> Iterator[None]:
        self.log.append(f"+{self.name}")
        token = place.set(f"{place.get()}{self.name}")
        try:
            yield
        finally:
            place.reset(token)
            self.log.append(f"-{self.name}")


class NotedAsync:
    """Middleware needs no base class."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self.log = log

    @asynccontextmanager
    async def around(self, run: TaskRun) -> AsyncIterator[None]:
        await anyio.lowlevel.checkpoint()
        self.log.append(f"+{self.name}")
        token = place.set(f"{place.get()}{self.name}")
        try:
            yield
        finally:
            await anyio.lowlevel.checkpoint()
            place.reset(token)
            self.log.append(f"-{self.name}")


def test_middleware_is_entered_in_order_and_left_in_reverse(daemon: FastjournalDaemon) -> None:
    log: list[str] = []
    kinds = [Noted("a", log), NotedAsync("b", log), Noted("c", log)]
    app = Tasks(producer=daemon.sync_client(), middleware=kinds)

    @app.task
    async def wait() -> None:
        log.append(place.get())

    @app.task
    def block() -> None:
        log.append(place.get())

    wait.enqueue()
    assert app.run_pending(daemon) == 1
    assert log == ["+a", "+b", "+c", "abc", "-c", "-b", "-a"]
    log.clear()
    block.enqueue()  # those of a thread are within
    assert app.run_pending(daemon) == 1
    assert log == ["+b", "+a", "+c", "bac", "-c", "-a", "-b"]


@pytest.mark.parametrize("is_async", [False, True])
def test_hooks_before_after_and_on_failure(
    app: Tasks, daemon: FastjournalDaemon, is_async: bool
) -> None:
    log: list[str] = []

    def hook(name: str) -> Callable[..., Any]:
        def note(run: TaskRun, error: Exception | None = None) -> None:
            log.append(f"{name} {run.attempt} {error!r}" if error else f"{name} {run.attempt}")

        async def note_async(run: TaskRun, error: Exception | None = None) -> None:
            await anyio.lowlevel.checkpoint()
            note(run, error)

        return note_async if is_async else note

    app.before(hook("before"))
    app.after(hook("after"))
    app.on_failure(hook("failure"))

    @app.task(retries=1, retry_delay=1)
    def work() -> None:
        if current_run().attempt == 1:
            raise ValueError("first")

    work.enqueue()
    app.run_pending(daemon)
    assert log == ["before 1", "failure 1 ValueError('first')"]
    daemon.advance(2)
    app.run_pending(daemon)
    assert log[2:] == ["before 2", "after 2"]


def test_exception_of_a_hook_is_a_failure_of_the_run(app: Tasks, daemon: FastjournalDaemon) -> None:
    ran = []

    @app.before
    def refuse(run: TaskRun) -> None:
        raise PermissionError(run.message.headers["user"])

    @app.task(retries=0)
    def work() -> None:
        ran.append(1)

    work.enqueue(headers={"user": "ann"})
    app.run_pending(daemon)
    assert ran == []
    assert buried(daemon)[0].startswith("PermissionError: ann")


def test_middleware_that_suppresses_an_exception_completes_the_job(
    daemon: FastjournalDaemon,
) -> None:
    class Ignore:
        @contextmanager
        def around(self, run: TaskRun) -> Iterator[None]:
            with suppress(KeyError):
                yield

    app = Tasks(producer=daemon.sync_client(), middleware=[Ignore()])

    @app.task(retries=0)
    def work() -> None:
        raise KeyError

    work.enqueue()
    assert app.run_pending(daemon, raise_errors=True) == 1
    assert buried(daemon) == []
    assert daemon.sync_client().domain_stats("default").waiting == 0


def test_base_class_of_middleware_adds_nothing(daemon: FastjournalDaemon) -> None:
    app = Tasks(producer=daemon.sync_client(), middleware=[Middleware()])
    done = []

    @app.task
    def work() -> None:
        done.append(current_run().message.headers)

    work.enqueue()
    assert app.run_pending(daemon) == 1
    assert done == [{}]


def test_application_without_tasks_has_nothing_to_run(daemon: FastjournalDaemon) -> None:
    assert Tasks().run_pending(daemon) == 0


def test_failed_run_is_one_bounded_line_of_the_log_without_frames_of_python(
    app: Tasks, daemon: FastjournalDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(name="parse")
    def parse(text: str) -> None:
        json.loads(text)

    @app.task(name="long")
    def long() -> None:
        raise ValueError("a\nb" * 5000)

    parse.enqueue("{")
    long.enqueue()
    assert app.run_pending(daemon) == 2
    lines = [LineFormatter().format(record) for record in caplog.records]
    first, second = (line for line in lines if "event=run-failed" in line)
    assert re.search(
        r"^event=run-failed task=parse key=b'default:\S+' attempt=1"
        r" error=.JSONDecodeError: Expecting .* at='test_tasks_run_pending\.py:\d+ parse'$",
        first,
    )
    assert "ValueError: a\\nba\\nb" in second
    assert "\n" not in first + second
    assert len(second) < 2000


def test_code_behind_a_run_can_be_traced() -> None:
    """As by a debugger, and by a tool that measures what tests cover."""
    code = """
import sys
from fastjournal.tasks import Tasks
from fastjournald.testing import FastjournalDaemon
with FastjournalDaemon() as daemon:
    app = Tasks(producer=daemon.sync_client())
    app.task(name="work")(lambda: None).enqueue()
    assert app.run_pending(daemon) == 1
sys.settrace(lambda *_: None)
def traced(): return "traced"
print(traced())
"""
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "traced\n", done.stderr
