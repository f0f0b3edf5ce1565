"""What task queues for Python do, each tried from its package: the table of docs/comparison.md.

    python -m tests.bench.bench_task_queues [--only rq,arq] [--probes same,killed]
        [--postgres CONNINFO] [--seconds 700]

Each queue is installed in a virtual environment of its own (a package index is needed), in the
versions below, and runs with its defaults: a worker as its command starts it, Redis without a
configuration file. A probe enqueues jobs that write what they do into a file, and looks there.
procrastinate needs an empty database, which is emptied (``--postgres``). Redis and procrastinate's
database are left out where they are not there. ``--seconds`` bounds the wait for the second run of
a killed worker's job.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from tests.bench.peers.servers import free_port

SHORT_S = 4.0
"""Length of the job in the middle of which something happens."""

COMMON = """
import asyncio, os, time
def log(*words):
    with open("log", "a") as file:
        print(f"{time.time():.2f}", *words, file=file)
def ok(x): log("ok", x)
def fail(x): log("fail", x); raise RuntimeError("SMTP 550")
def short(x): log("begin", x); time.sleep(SHORT_S); log("end", x)
def typed(n: int): log("typed", n)
ADDRESS, PORT = os.environ["ADDRESS"], int(os.environ["ADDRESS"].rpartition(":")[2] or 0)
"""

ASYNC = """
async def ok(ctx, x): log("ok", x)
async def fail(ctx, x): log("fail", x); raise RuntimeError("SMTP 550")
async def short(ctx, x): log("begin", x); await asyncio.sleep(SHORT_S); log("end", x)
async def typed(ctx, n: int): log("typed", n)
async def tick(ctx): log("tick")
"""


EMPTIED = (
    "psycopg.connect(jobs.ADDRESS, autocommit=True)"
    ".execute('drop schema public cascade; create schema public')"
)


class Queue(msgspec.Struct, frozen=True):
    """A task queue: its packages, the module of its jobs, and the command of its worker."""

    packages: tuple[str, ...]
    jobs: str
    """``enqueue(name, arguments, key, delay)``, and what the worker needs."""
    worker: str
    periodic: str = ""
    """Command of a worker that also has a job each five seconds; two of them run."""
    on: str = "redis"
    is_async: bool = False
    """Its jobs are coroutine functions that take a context first."""


QUEUES = {
    "rq": Queue(
        ("rq==3.0.0",),
        """
        import datetime, redis, rq
        def enqueue(name, arguments, key, delay):
            queue = rq.Queue("mails", connection=redis.Redis(port=PORT))
            more = {"job_id": key, "unique": True} if key else {}
            if delay:
                after = datetime.timedelta(seconds=delay)
                return queue.enqueue_in(after, globals()[name], **arguments, **more)
            return queue.enqueue(globals()[name], **arguments, **more)
        """,
        "rq worker --url redis://{address} mails",
    ),
    "arq": Queue(
        ("arq==0.28.0",),
        """
        from arq import create_pool, cron
        from arq.connections import RedisSettings
        class Worker:
            functions, redis_settings = [ok, fail, short, typed], RedisSettings(port=PORT)
        class Periodic:
            functions, redis_settings = Worker.functions, Worker.redis_settings
            cron_jobs = [cron(tick, second=set(range(0, 60, 5)))]
        def enqueue(name, arguments, key, delay):
            async def send():
                pool = await create_pool(RedisSettings(port=PORT))
                return await pool.enqueue_job(name, _job_id=key, _defer_by=delay, **arguments)
            return asyncio.run(send())
        """,
        "arq jobs.Worker",
        "arq jobs.Periodic",
        is_async=True,
    ),
    "saq": Queue(
        ("saq[redis]==0.26.4", "typing_extensions"),
        """
        from saq import CronJob, Queue
        def made(): return Queue.from_url(f"redis://{ADDRESS}", name="mails")
        settings = {"queue": made(), "functions": [ok, fail, short, typed]}
        periodic = settings | {"cron_jobs": [CronJob(tick, cron="* * * * * */5")]}
        def enqueue(name, arguments, key, delay):
            async def send():
                queue = made()
                await queue.connect()
                more = {"key": key} if key else {}
                if delay: more["scheduled"] = time.time() + delay
                return await queue.enqueue(name, **arguments, **more)
            return asyncio.run(send())
        """,
        "saq jobs.settings",
        "saq jobs.periodic",
        is_async=True,
    ),
    "dramatiq": Queue(
        ("dramatiq[redis]==2.2.1",),
        """
        import dramatiq
        from dramatiq.brokers.redis import RedisBroker
        dramatiq.set_broker(RedisBroker(url=f"redis://{ADDRESS}"))
        ACTORS = {job.__name__: dramatiq.actor(job) for job in (ok, fail, short, typed)}
        def enqueue(name, arguments, key, delay):
            if key: raise NotImplementedError("no key")
            return ACTORS[name].send_with_options(
                kwargs=arguments, delay=delay and 1000 * delay)
        """,
        "dramatiq jobs",
    ),
    "celery": Queue(
        ("celery[redis]==5.7.0",),
        """
        from celery import Celery
        app = Celery("jobs", broker=f"redis://{ADDRESS}")
        TASKS = {job.__name__: app.task(job) for job in (ok, fail, short, typed)}
        @app.task
        def tick(): log("tick")
        app.conf.beat_schedule = {"tick": {"task": "jobs.tick", "schedule": 5.0}}
        def enqueue(name, arguments, key, delay):
            return TASKS[name].apply_async(kwargs=arguments, task_id=key, countdown=delay)
        """,
        "celery -A jobs worker -c 2 -l ERROR",
        "celery -A jobs worker -c 1 -l ERROR -B -s beat{number} -n w{number}@host",
    ),
    "procrastinate": Queue(
        ("procrastinate==3.10.0", "psycopg[binary]"),
        """
        import procrastinate
        app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=ADDRESS))
        TASKS = {job.__name__: app.task(job) for job in (ok, fail, short, typed)}
        @app.periodic(cron="* * * * * */5")
        @app.task
        def tick(timestamp): log("tick")
        def enqueue(name, arguments, key, delay):
            with app.replace_connector(app.connector.get_sync_connector()) as other, other.open():
                return other.configure_task(
                    TASKS[name].name, queueing_lock=key,
                    schedule_in=delay and {"seconds": delay}).defer(**arguments)
        """,
        "procrastinate --app jobs.app worker",
        "procrastinate --app jobs.app worker",
        on="postgres",
    ),
    "fastjournal": Queue(
        (),
        """
        from fastjournal.tasks import Tasks
        app = Tasks(ADDRESS)
        TASKS = {name: app.task(globals()[name]) for name in ("ok", "fail", "short", "typed")}
        @app.periodic("*/5 * * * * *", zone="UTC")
        @app.task
        def tick() -> None: log("tick")
        def enqueue(name, arguments, key, delay):
            more = {"unique": key} if key else {}
            if delay: more["delay"] = delay
            return TASKS[name].enqueue(**arguments, **more)
        """,
        "fj-worker jobs:app --server {address}",
        "fj-worker jobs:app --server {address}",
        on="fastjournald",
    ),
}


class Trial:
    """One queue in a directory of its own, with a server and workers."""

    def __init__(self, queue: Queue, python: Path, address: str) -> None:
        self.queue = queue
        self._python = python
        self._address = address
        self._directory = Path(tempfile.mkdtemp())
        self._processes: list[subprocess.Popen[bytes]] = []
        self._server: subprocess.Popen[bytes] | None = None
        jobs = COMMON + (ASYNC if queue.is_async else "") + textwrap.dedent(queue.jobs)
        (self._directory / "jobs.py").write_text(jobs.replace("SHORT_S", str(SHORT_S)))
        self.start_server()

    def start_server(self) -> None:
        """Start the server, on the files of an earlier one."""
        port = self._address.rpartition(":")[2]
        if self.queue.on == "redis":
            line = ["redis-server", "--port", port]
        elif self.queue.on == "fastjournald":
            program = Path(sys.executable).parent / "fastjournald"
            line = [str(program), "--cmdlog-path", "log.d", "--listen", self._address]
        else:
            self._run("import jobs, psycopg", EMPTIED)
            self._run("import jobs", "jobs.app.open(); jobs.app.schema_manager.apply_schema()")
            return
        self._server = self._start(line)
        time.sleep(3)

    def kill_server(self) -> None:
        """Kill the server."""
        assert self._server is not None
        self._server.kill()
        self._server.wait()

    def start_worker(self, command: str = "") -> subprocess.Popen[bytes]:
        """Start a worker."""
        command = command or self.queue.worker
        line = command.format(address=self._address, number=len(self._processes)).split()
        return self._start([str(self._python.parent / line[0]), *line[1:]])

    def enqueue(self, name: str, key: str = "", delay: int = 0, **arguments: object) -> str:
        """Enqueue a job; return what the call returned, or the name of the error."""
        given = f"{name!r}, {arguments!r}, {key or None!r}, {delay or None!r}"
        done = self._run("import jobs", f"print(repr(jobs.enqueue({given})))")
        if done.returncode:
            return "error " + done.stderr.strip().splitlines()[-1].partition(":")[0]
        return done.stdout.strip()[:40]

    def events(self) -> list[tuple[float, str]]:
        """Return what the jobs have written: seconds, and words."""
        path = self._directory / "log"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(float(at), words) for at, _, words in (line.partition(" ") for line in lines)]

    def wait(self, word: str, number: int, seconds: float) -> float | None:
        """Return the seconds until jobs have written a word so often; None: not in time."""
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            if sum(words.startswith(word) for _, words in self.events()) >= number:
                return time.monotonic() - began
            time.sleep(0.05)
        return None

    def end(self) -> None:
        """Kill all, and remove the files."""
        for process in self._processes:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            process.wait()
        shutil.rmtree(self._directory)

    def _run(self, *code: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self._python, "-c", "; ".join(code)],
            cwd=self._directory,
            env=self._environment(),
            capture_output=True,
            text=True,
            check=False,
        )

    def _environment(self) -> dict[str, str]:
        return os.environ | {"ADDRESS": self._address, "PYTHONPATH": str(self._directory)}

    def _start(self, line: list[str]) -> subprocess.Popen[bytes]:
        with open(self._directory / "output", "ab") as output:
            process = subprocess.Popen(
                line,
                cwd=self._directory,
                env=self._environment(),
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._processes.append(process)
        return process


def probe_same(trial: Trial, _: float) -> str:
    """The same key twice while the first job waits: which one runs?"""
    second = [trial.enqueue("ok", key="k", x=x) for x in (1, 2)][1]
    trial.start_worker()
    trial.wait("ok", 2, 10)
    return f"second: {second}; ran: {[words for _, words in trial.events()]}"


def probe_busy(trial: Trial, _: float) -> str:
    """The same key while the first job is worked on."""
    trial.enqueue("short", key="k", x=1)
    trial.start_worker()
    trial.wait("begin", 1, 30)
    second = trial.enqueue("short", key="k", x=2)
    trial.wait("end", 2, 3 * SHORT_S)
    return f"second: {second}; {[words for _, words in trial.events()]}"


def probe_arguments(trial: Trial, _: float) -> str:
    """A parameter that the function does not have; a text for an int."""
    return f"{trial.enqueue('typed', wrong=1)}; {trial.enqueue('typed', n='abc')}"


def probe_stopped(trial: Trial, _: float) -> str:
    """SIGTERM to the worker in the middle of a job."""
    trial.enqueue("short", x=1)
    worker = trial.start_worker()
    trial.wait("begin", 1, 30)
    worker.terminate()
    code = worker.wait(60)
    return f"exit code {code}; {[words for _, words in trial.events()]}"


def probe_delayed(trial: Trial, _: float) -> str:
    """A delay of three seconds."""
    trial.start_worker()
    trial.enqueue("ok", delay=3, x=1)
    took = trial.wait("ok", 1, 30)
    return "not in 30 s" if took is None else "ran"


def probe_failing(trial: Trial, _: float) -> str:
    """A job that always raises: its runs in 45 seconds."""
    trial.enqueue("fail", x=1)
    trial.start_worker()
    time.sleep(45)
    began = [at for at, words in trial.events() if words.startswith("fail")]
    return f"{len(began)} runs, after {[round(at - began[0]) for at in began]} s"


def probe_killed(trial: Trial, seconds: float) -> str:
    """SIGKILL to the worker in the middle of a job, and a new worker: when does it run again?"""
    trial.enqueue("short", x=1)
    worker = trial.start_worker()
    trial.wait("begin", 1, 30)
    os.killpg(worker.pid, signal.SIGKILL)
    trial.start_worker()
    took = trial.wait("begin", 2, seconds)
    return f"not in {seconds:.0f} s" if took is None else f"after {took:.0f} s"


def probe_server(trial: Trial, _: float) -> str:
    """SIGKILL to the server after the enqueue: does the job run?"""
    trial.enqueue("ok", x=1)
    trial.kill_server()
    trial.start_server()
    trial.start_worker()
    return "lost" if trial.wait("ok", 1, 20) is None else "ran"


def probe_periodic(trial: Trial, _: float) -> str:
    """Two workers with the same periodic job, each five seconds: how often does a tick run?"""
    command = trial.queue.periodic
    if not command:
        return "another program"
    for _ in range(2):
        trial.start_worker(command)
    trial.wait("tick", 1, 30)
    time.sleep(25)
    ticks = [int(at // 5) for at, words in trial.events() if words == "tick"]
    return f"a tick ran {sorted({ticks.count(tick) for tick in ticks})} times"


PROBES: dict[str, Callable[[Trial, float], str]] = {
    "same": probe_same,
    "busy": probe_busy,
    "arguments": probe_arguments,
    "stopped": probe_stopped,
    "delayed": probe_delayed,
    "failing": probe_failing,
    "server": probe_server,
    "periodic": probe_periodic,
    "killed": probe_killed,
}


def installed(queue: Queue, directory: Path) -> Path:
    """Return the interpreter of an environment with the packages of a queue."""
    if not queue.packages:
        return Path(sys.executable)
    subprocess.run([sys.executable, "-m", "venv", directory], check=True)
    python = directory / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", *queue.packages], check=True)
    return python


def main() -> None:
    """Try the queues, and print a line for each probe."""
    parser = argparse.ArgumentParser(description="Try task queues for Python.")
    parser.add_argument("--only", default=",".join(QUEUES))
    parser.add_argument("--probes", default=",".join(PROBES))
    parser.add_argument("--postgres", metavar="CONNINFO")
    parser.add_argument("--seconds", type=float, default=700.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as environments:
        for name in given.only.split(","):
            queue = QUEUES[name]
            if (queue.on == "redis" and shutil.which("redis-server") is None) or (
                queue.on == "postgres" and not given.postgres
            ):
                print(f"{name}: left out, there is no {queue.on}", flush=True)
                continue
            python = installed(queue, Path(environments) / name)
            for probe in given.probes.split(","):
                if queue.on == "postgres" and probe == "server":
                    continue
                address = given.postgres if queue.on == "postgres" else f"127.0.0.1:{free_port()}"
                trial = Trial(queue, python, address)
                try:
                    print(f"{name}, {probe}: {PROBES[probe](trial, given.seconds)}", flush=True)
                finally:
                    trial.end()


if __name__ == "__main__":
    main()
