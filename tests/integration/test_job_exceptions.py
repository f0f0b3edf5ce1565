"""Job whose body is left by an exception of any kind: it fails, is released, or stays leased.

It is completed only by a body that returns, whatever the exception says of itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import pytest
import trio

from fastjournal import Client, Job, SyncClient, SyncJob
from fastjournal.errors import RefusedError
from fastjournal.limits import REASON_BYTES_MAX
from tests.integration.daemon_process import DaemonProcess
from tests.integration.two_jobs import key_of

DAY_S = 86_400


class NoSuchArgumentError(Exception):
    """Error whose text fails as a program's own may."""

    def __str__(self) -> str:
        return str(self.args[1])


class NoTextError(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]  # noqa: PLE0307 - the fault of the error


class BrokenStr(str):
    """Text whose methods fail."""

    def __format__(self, _spec: str) -> str:
        raise RuntimeError("format")

    def __len__(self) -> int:
        raise RuntimeError("len")

    def encode(self, *_: object) -> NoReturn:
        raise RuntimeError("encode")


class BrokenStrError(Exception):
    def __str__(self) -> str:
        return BrokenStr("a text")


class RecursiveError(Exception):
    def __str__(self) -> str:
        return f"{self}"


class Nameless(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override] # the fault
        raise RuntimeError("no name")


class NamelessError(Exception, metaclass=Nameless):
    __module__ = None  # type: ignore[assignment] # the fault
    __qualname__ = "\udcff"


class LyingError(BaseException):
    """No Exception, which fails where it is asked for its class."""

    @property
    def __class__(self) -> type:
        raise RuntimeError("no class")


class InterruptedTextError(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


class ExitingTextError(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


FAILED = "<exception str() failed>"

ERRORS: list[tuple[BaseException, str]] = [
    (NoSuchArgumentError("x"), f"NoSuchArgumentError: {FAILED}"),
    (NoTextError(), f"NoTextError: {FAILED}"),
    (InterruptedTextError(), f"InterruptedTextError: {FAILED}"),
    (ExitingTextError(), f"ExitingTextError: {FAILED}"),
    (RecursiveError(), f"RecursiveError: {FAILED}"),
    (BrokenStrError(), "BrokenStrError: a text"),
    (NamelessError("x"), "exception: x"),
    (ExceptionGroup("two", [NoSuchArgumentError("x"), NoTextError()]), "two (2 sub-exceptions)"),
    (ValueError("\udcff\0é"), "ValueError: \\udcff\0é"),
    (ValueError("é" * 5_000_000), "ValueError: é"),
]
"""Exceptions, with what the daemon keeps of each failed attempt."""

INTERRUPTIONS: list[BaseException] = [
    LyingError(),
    KeyboardInterrupt(),
    SystemExit(),
    GeneratorExit(),
    asyncio.CancelledError(),
    BaseExceptionGroup("both", [ValueError(), KeyboardInterrupt()]),
]
"""Exceptions that count as no failed attempt."""

Work = Callable[[str, BaseException], None]


def in_block(address: str, error: BaseException) -> None:
    with SyncClient(address) as client:
        jobs = client.jobs("d", wait=None, retry_delay=DAY_S)
        job = next(jobs)
        with contextlib.suppress(BaseException), job:
            raise error
        jobs.stop()
        assert list(jobs) == []


def in_loop(address: str, error: BaseException) -> None:
    with (
        SyncClient(address) as client,
        contextlib.suppress(BaseException),
        client.jobs("d", wait=None, retry_delay=DAY_S) as jobs,
    ):
        for _job in jobs:
            raise error


def in_run(address: str, error: BaseException) -> None:
    def work(_job: SyncJob) -> None:
        raise error

    with SyncClient(address) as client, contextlib.suppress(BaseException):
        client.jobs("d", wait=None, retry_delay=DAY_S).run(work, limit=1)


async def async_block(address: str, error: BaseException) -> None:
    async with Client(address) as client:
        jobs = client.jobs("d", wait=None, retry_delay=DAY_S)
        job = await anext(jobs)
        with contextlib.suppress(BaseException):
            async with job:
                raise error
        jobs.stop()
        assert [job async for job in jobs] == []


async def async_loop(address: str, error: BaseException) -> None:
    async with Client(address) as client:
        with contextlib.suppress(BaseException):
            async with client.jobs("d", wait=None, retry_delay=DAY_S) as jobs:
                async for _job in jobs:
                    raise error


async def async_run(address: str, error: BaseException) -> None:
    async def work(_job: Job) -> None:
        raise error

    async with Client(address) as client:
        await client.jobs("d", wait=None, retry_delay=DAY_S).run(work, limit=1)


def on_trio(work: Callable[[str, BaseException], Any]) -> Work:
    def run(address: str, error: BaseException) -> None:
        with contextlib.suppress(BaseException):
            trio.run(work, address, error)

    return run


def on_asyncio(work: Callable[[str, BaseException], Any]) -> Work:
    def run(address: str, error: BaseException) -> None:
        with contextlib.suppress(BaseException):
            asyncio.run(work(address, error))

    return run


WAYS: dict[str, Work] = {
    "block": in_block,
    "loop": in_loop,
    "run": in_run,
    "block on trio": on_trio(async_block),
    "loop on trio": on_trio(async_loop),
    "run on trio": on_trio(async_run),
    "block on asyncio": on_asyncio(async_block),
    "loop on asyncio": on_asyncio(async_loop),
    "run on asyncio": on_asyncio(async_run),
}


@pytest.mark.parametrize("way", WAYS)
def test_job_fails_by_an_exception_whatever_its_text_is(
    daemon: DaemonProcess, producer: SyncClient, way: str
) -> None:
    for error, reason in ERRORS:
        WAYS[way](daemon.address, error)
        stats = producer.explain(key_of("1"))
        assert (stats.state, stats.attempts) == ("delayed", 1), type(error)
        last_error = producer.entry_stats(key_of("1")).last_error or ""
        assert reason in last_error
        assert len(last_error.encode()) <= REASON_BYTES_MAX
        again(producer)


@pytest.mark.parametrize("way", WAYS)
def test_job_is_completed_by_no_interruption(
    daemon: DaemonProcess, producer: SyncClient, way: str
) -> None:
    for error in INTERRUPTIONS:
        WAYS[way](daemon.address, error)
        assert producer.entry_stats(key_of("1")).state in ("ready", "delayed"), type(error)
        again(producer)


def test_job_that_awaits_what_was_cancelled_fails_and_run_goes_on(
    daemon: DaemonProcess, producer: SyncClient
) -> None:
    async def await_cancelled() -> None:
        other = asyncio.ensure_future(asyncio.sleep(DAY_S))
        await asyncio.sleep(0)
        other.cancel()
        await other

    async def cancel_itself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    async def work_all(body: Callable[[], Awaitable[None]]) -> int:
        async def work(job: Job) -> None:
            if job.value == b"1":
                await body()

        async with Client(daemon.address) as client:
            return await client.jobs("d", wait=None, retry_delay=DAY_S).run(work)

    for body in (await_cancelled, cancel_itself):
        assert asyncio.run(work_all(body)) == 2, body
        failed = producer.entry_stats(key_of("1"))
        assert (failed.state, failed.attempts) == ("delayed", 1)
        assert "it awaited something that was cancelled" in (failed.last_error or "")
        with pytest.raises(RefusedError, match="not-found"):
            producer.entry_stats(key_of("2"))
        again(producer)


def again(producer: SyncClient) -> None:
    """Set the two jobs anew."""
    for name in ("1", "2"):
        with contextlib.suppress(Exception):
            producer.delete(key_of(name))
        producer.set(key_of(name), name)
