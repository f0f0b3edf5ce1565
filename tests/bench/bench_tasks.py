"""Processor time of a task beside that of a bare job: enqueue, lease, run, complete.

    python -m tests.bench.bench_tasks [--jobs N] [--rounds N]

A daemon runs beside, without syncs. In each round this process enqueues the same jobs and works
them off eight at a time, first as bare jobs (``client.enqueue`` and a loop over jobs with an empty
coroutine), then as tasks: an async function, and a sync one in threads. The figure of a kind is the
processor time of this process for each job, all of its threads included.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import anyio

from fastjournal import Client, Job
from fastjournal.client import Call, Written, calls
from fastjournal.tasks import Tasks
from fastjournal.tasks.worker import Worker, WorkerOptions
from tests.integration.daemon_process import DaemonProcess

CONCURRENCY = 8
AT_ONCE = 500


def bare_call(number: int) -> Call[Written]:
    value = '{"fj":1,"task":"work","args":{"order_id":%d,"to":"ann@example.org"},"headers":{}}'
    return calls.enqueue("bare", value % number)


async def nothing(_job: Job) -> None:
    """Do a bare job."""


def applications() -> dict[str, Tasks]:
    """Return an application for each kind of function."""
    waiting, threads = Tasks(queue="async"), Tasks(queue="threads")

    @waiting.task(name="async")
    async def work(order_id: int, to: str) -> None: ...

    @threads.task(name="threads")
    def block(order_id: int, to: str) -> None: ...

    return {"async": waiting, "threads": threads}


async def enqueue(client: Client, call: Callable[[int], Call[Written]], jobs: int) -> None:
    for start in range(0, jobs, AT_ONCE):
        await client.call_many([call(number) for number in range(start, start + AT_ONCE)])


async def measure(address: str, jobs: int, rounds: int) -> dict[str, list[float]]:
    """Return microseconds of a job of each kind, of each round."""
    found: dict[str, list[float]] = {"bare": [], "async": [], "threads": []}
    apps = applications()
    async with Client(address) as client:

        async def one(kind: str) -> float:
            began = time.process_time()
            if kind == "bare":
                await enqueue(client, bare_call, jobs)
                done = await client.jobs("bare", count=CONCURRENCY, wait=None).run(nothing)
                assert done == jobs
            else:
                [task] = apps[kind].by_name.values()
                await enqueue(client, lambda n: task.call(order_id=n, to="ann@example.org"), jobs)
                options = WorkerOptions(concurrency=CONCURRENCY, burst=True)
                worker = Worker(apps[kind], options)
                await worker.work(client)
            return (time.process_time() - began) / jobs * 1e6

        for number in range(rounds + 1):
            for kind, figures in found.items():
                figure = await one(kind)
                if number:  # the first warms up
                    figures.append(figure)
        for kind in apps:
            stats = await client.domain_stats(kind)
            assert stats.waiting == 0, "all were done"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="fj-") as name,
        DaemonProcess(
            Path(name), "--cmdlog-sync", "os", "--listen", f"unix:{name}/socket"
        ) as daemon,
    ):
        found = anyio.run(measure, daemon.address, options.jobs, options.rounds)
    bare = found["bare"]
    for kind, figures in found.items():
        spread = f"({min(figures):.1f}, {max(figures):.1f})"
        more = [figure - other for figure, other in zip(figures, bare, strict=True)]
        print(f"{kind:8} {statistics.median(figures):6.1f} us {spread:16}", end="")
        print(
            f" more than bare: {statistics.median(more):6.1f} us ({min(more):.1f}, {max(more):.1f})"
        )


if __name__ == "__main__":
    main()
