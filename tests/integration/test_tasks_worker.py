"""The installed ``fj-worker`` against a daemon: runs, stops, crashes, processes, reload."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fastjournal.client import SyncClient
from tests.integration.cli_process import TIMEOUT_S
from tests.integration.daemon_process import DaemonProcess
from tests.integration.programs import installed
from tests.integration.worker_process import wait_until

SHOP = """
import os, time
import anyio
from fastjournal.tasks import Tasks, current_run

app = Tasks()

def say(text):
    with open("said", "a") as file:
        file.write(f"{text}\\n")

def gate(name):
    while not os.path.exists(name):
        time.sleep(0.01)

@app.task(queue="mails", retries=2, retry_delay=0.01)
async def send(number: int, fails: int = 0) -> None:
    attempt = current_run().attempt
    say(f"send {number} {attempt}")
    if attempt <= fails:
        raise OSError("SMTP 451")

@app.task(queue="mails")
async def wait_for(name: str) -> None:
    say(f"began {name} {current_run().attempt}")
    while not os.path.exists(name):
        await anyio.sleep(0.01)
    say(f"ended {name}")

@app.task(queue="search")
def index(name: str) -> None:
    say(f"began {name} {current_run().attempt} {os.getpid()}")
    try:
        gate(name)
        say(f"ended {name}")
    finally:
        say(f"left {name}")

@app.task(queue="search", retries=0, timeout=0.2)
def too_long() -> None:
    try:
        gate("never")
    finally:
        say("left too_long")

@app.task(queue="search", retries=0, timeout=0.2)
def swallow() -> str:
    try:
        gate("never")
    except BaseException as error:
        say(f"swallowed {type(error).__name__}")
    return "as if it were done"

@app.task(queue="mails")
async def block_loop(name: str) -> None:
    say(f"blocks {current_run().attempt} {os.getpid()}")
    if current_run().attempt == 1:
        gate(name)
"""


class Shop:
    """An application in a directory, its daemon, and workers.

    Args:
        directory: Where its module is, and what it says.
        daemon: It.
    """

    def __init__(self, directory: Path, daemon: DaemonProcess) -> None:
        self.directory = directory
        self.daemon = daemon
        self.module = directory / "shop.py"
        self.module.write_text(SHOP)
        self.workers: list[subprocess.Popen[bytes]] = []
        self.environment = {**os.environ, "FASTJOURNAL_SERVER": daemon.address}
        self.environment.pop("PYTHONPATH", None)

    def enqueue(self, *calls: str) -> None:
        """Enqueue by a program that imports the module: ``send.enqueue(number=1)``, ..."""
        program = f"import shop\nfrom shop import *\n{chr(10).join(calls)}"
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=self.directory,
            env=self.environment,
            check=True,
            timeout=TIMEOUT_S,
        )

    def start(self, *arguments: str, app: str = "shop:app", **variables: str) -> Any:
        """Start a worker."""
        with open(self.directory / "worker.err", "ab") as stderr:
            worker = subprocess.Popen(
                [installed("fj-worker"), app, *arguments],
                cwd=self.directory,
                env={**self.environment, **variables},
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
            )
        self.workers.append(worker)
        return worker

    def burst(self, *arguments: str, app: str = "shop:app") -> int:
        """Run a worker that ends by itself; return its exit code."""
        status: int = self.start(*arguments, app=app).wait(TIMEOUT_S)
        return status

    @property
    def said(self) -> list[str]:
        """What the tasks have written."""
        file = self.directory / "said"
        return file.read_text().splitlines() if file.exists() else []

    @property
    def log(self) -> str:
        """What the workers have written."""
        return (self.directory / "worker.err").read_text()

    def wait_said(self, *lines: str) -> None:
        wait_until(lambda: set(lines) <= set(self.said))

    def wait_log(self, text: str, times: int = 1) -> None:
        wait_until(lambda: self.log.count(text) >= times)

    def open(self, name: str) -> None:
        (self.directory / name).touch()

    def client(self) -> SyncClient:
        return SyncClient(self.daemon.address)

    def kill(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait()


@pytest.fixture
def shop(tmp_path: Path, daemon: DaemonProcess) -> Iterator[Shop]:
    directory = tmp_path / "shop"
    directory.mkdir()
    shop = Shop(directory, daemon)
    try:
        yield shop
    finally:
        shop.kill()


def states(client: SyncClient, queue: str) -> list[tuple[str, int]]:
    """Return state and failed attempts of each job of a queue."""
    entries = [client.entry_stats(entry.key) for entry in client.prefix(f"{queue}:")]
    return [(str(stats.state), stats.attempts) for stats in entries]


# --- runs -------------------------------------------------------------------------------------


def test_worker_runs_async_and_sync_tasks_and_retries_those_that_fail(shop: Shop) -> None:
    shop.open("a")
    shop.enqueue(
        "send.enqueue(number=1)",
        "send.enqueue(number=2, fails=1)",
        "send.enqueue(number=3, fails=9)",
        "index.enqueue(name='a')",
    )
    shop.start("--concurrency", "4")
    shop.wait_said("send 1 1", "send 2 2", "send 3 3", "ended a")
    with shop.client() as client:
        wait_until(lambda: states(client, "search") == [])
        wait_until(lambda: [state for state, _ in states(client, "mails")] == ["buried"])
        [entry] = client.prefix("mails:")
        reason = client.entry_stats(entry.key).buried_reason
    assert reason is not None
    assert reason.startswith('OSError: SMTP 451\n  File "')
    assert "in send" in reason
    assert "fastjournal/tasks" not in reason
    line = next(line for line in shop.log.splitlines() if "event=run-failed" in line)
    assert line.partition(" WARNING ")[2].startswith("event=run-failed task=shop.send key=b'mails:")
    at = 1 + SHOP[: SHOP.index("raise")].count("\n")
    assert line.endswith(f" error='OSError: SMTP 451' at='shop.py:{at} send'")
    assert "Traceback" not in shop.log
    assert shop.said.count("send 3 1") == 1
    assert "send 3 4" not in shop.said


def test_worker_runs_so_many_side_by_side_in_threads_and_in_tasks(shop: Shop) -> None:
    shop.enqueue(
        *(f"{task}.enqueue(name='{task}{n}')" for task in ("index", "wait_for") for n in (1, 2, 3))
    )
    worker = shop.start("--concurrency", "4")
    wait_until(lambda: sum("began" in line for line in shop.said) == 4)
    with shop.client() as client:
        jobs = [job for queue in ("mails", "search") for job in states(client, queue)]
        assert jobs.count(("worked on", 0)) == 4
    for task in ("index", "wait_for"):
        for number in (1, 2, 3):
            shop.open(f"{task}{number}")
    wait_until(lambda: sum("ended" in line for line in shop.said) == 6)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(TIMEOUT_S) == 0


def test_child_of_a_fork_enqueues_by_a_connection_of_its_own(shop: Shop) -> None:
    shop.enqueue(
        "import os",
        "send.enqueue(number=1)",
        "child = os.fork()",
        "send.enqueue(number=2 if child else 3)",
        "child and os.waitpid(child, 0)",
    )
    assert shop.burst("--burst") == 0
    assert sorted(shop.said) == ["send 1 1", "send 2 1", "send 3 1"]


def test_worker_serves_the_queues_that_are_named(shop: Shop) -> None:
    shop.open("a")
    shop.enqueue("send.enqueue(number=1)", "index.enqueue(name='a')")
    assert shop.burst("--burst", "--queues", "search") == 0
    assert [line.split()[0] for line in shop.said] == ["began", "ended", "left"]
    assert shop.burst("--once", "--queues", "mails, search") == 0
    assert "send 1 1" in shop.said


def test_worker_warns_of_a_queue_of_no_task_and_works_on_it(shop: Shop) -> None:
    assert shop.burst("--burst", "--queues", "mails,nothere,search") == 0
    (line,) = (line for line in shop.log.splitlines() if "event=no-task-of-queue" in line)
    assert line.partition(" WARNING ")[2] == (
        "event=no-task-of-queue queues=nothere app_queues=mails,search"
    )
    assert "event=ready queues=mails,nothere,search" in shop.log


def test_worker_is_ready_when_the_daemon_gives_it_work(shop: Shop, tmp_path: Path) -> None:
    token = "shop-token-0123456789"
    tokens, own = tmp_path / "tokens.toml", tmp_path / "token"
    for file in (tokens, own):
        file.touch(0o600)
    tokens.write_text(
        f"[[token]]\nname = 'shop'\ntoken = '{token}'\nrights = ['next']\nprefixes = ['mails']\n"
    )
    own.write_text(token)
    shop.daemon.stop()
    with DaemonProcess(tmp_path, "--auth-tokens", str(tokens)) as daemon:
        arguments = "--server", daemon.address, "--queues"
        assert shop.burst(*arguments, "mails") == 1
        assert "auth-required" in shop.log
        assert "event=ready" not in shop.log
        shop.environment["FASTJOURNAL_AUTH_FILE"] = str(own)
        with service_manager(tmp_path) as (path, state):
            worker = shop.start(*arguments, "search", NOTIFY_SOCKET=path)
            assert worker.wait(TIMEOUT_S) == 1
            assert "forbidden" in shop.log
            assert "event=ready" not in shop.log
            shop.start(*arguments, "mails", NOTIFY_SOCKET=path)
            assert state() == "READY=1"
        shop.wait_log("event=ready")


def test_worker_buries_what_it_cannot_run_and_goes_on(shop: Shop) -> None:
    with shop.client() as client:
        client.enqueue("mails", b"\x80\x04pickle")
        client.enqueue("mails", '{"fj":1,"task":"shop.nobody","args":{}}')
        client.enqueue("mails", '{"fj":1,"task":"shop.send","args":{"number":"1"}}')
        shop.enqueue("send.enqueue(number=4)")
        assert shop.burst("--burst") == 0
        assert shop.said == ["send 4 1"]
        reasons = [
            client.entry_stats(entry.key).buried_reason or "" for entry in client.prefix("mails:")
        ]
    assert sorted(reason.partition(":")[0] for reason in reasons) == [
        "bad-arguments",
        "bad-message",
        "unknown-task",
    ]
    assert shop.log.count("event=job-buried") == 3


def reason_of_burial(shop: Shop) -> str:
    """Return why the one job of the queue search was buried."""
    with shop.client() as client:
        [entry] = client.prefix("search:")
        return client.entry_stats(entry.key).buried_reason or ""


def test_timeout_interrupts_a_function_in_a_thread(shop: Shop) -> None:
    shop.enqueue("too_long.enqueue()")
    assert shop.burst("--burst") == 0
    assert shop.said == ["left too_long"]
    reason = reason_of_burial(shop)
    assert reason.startswith("TimeoutError: the timeout of 0.2 s is over")
    assert "in gate" in reason  # where it was


def test_timeout_that_a_function_in_a_thread_swallows_is_a_failed_run(shop: Shop) -> None:
    shop.enqueue("swallow.enqueue()")
    assert shop.burst("--burst") == 0
    assert shop.said == ["swallowed Interrupted"]
    reason = reason_of_burial(shop)
    assert reason.startswith("TimeoutError: the timeout of 0.2 s is over")


def test_worker_is_listed_by_its_application_host_and_process(shop: Shop) -> None:
    shop.start()
    with shop.client() as client:
        # listed while it waits for work: its first look, when it becomes ready, waits for none
        wait_until(lambda: client.daemon_stats(workers=True).workers)
        [worker] = client.daemon_stats(workers=True).workers or []
    assert re.match(r"fj-worker \S+:app on \S+, process \d+, ", worker.name)


def test_worker_waits_for_a_daemon_that_is_away(shop: Shop) -> None:
    shop.enqueue("send.enqueue(number=1)")
    shop.daemon.stop()
    shop.start()
    shop.wait_log("event=connecting")
    shop.daemon.start()
    shop.wait_said("send 1 1")


# --- stops ------------------------------------------------------------------------------------


def test_sigterm_finishes_what_runs_and_takes_no_more(shop: Shop) -> None:
    shop.enqueue("index.enqueue(name='a')", "wait_for.enqueue(name='b')")
    worker = shop.start("--concurrency", "2")
    wait_until(lambda: sum("began" in line for line in shop.said) == 2)
    shop.enqueue("send.enqueue(number=1)")
    worker.send_signal(signal.SIGTERM)
    shop.wait_log("event=stopping reason=SIGTERM")
    shop.open("a")
    shop.open("b")
    assert worker.wait(TIMEOUT_S) == 0
    assert {"ended a", "ended b"} <= set(shop.said)
    with shop.client() as client:
        assert states(client, "mails") == [("ready", 0)]
        assert states(client, "search") == []


@pytest.mark.parametrize("stop", ["grace", "second signal"])
def test_stop_releases_the_rest_and_counts_no_failure(shop: Shop, stop: str) -> None:
    shop.enqueue("index.enqueue(name='a')", "wait_for.enqueue(name='b')")
    worker = shop.start("--grace", "0.1" if stop == "grace" else "1000")
    wait_until(lambda: sum("began" in line for line in shop.said) == 2)
    worker.send_signal(signal.SIGTERM)
    if stop == "second signal":
        shop.wait_log("event=stopping")
        worker.send_signal(signal.SIGINT)
    assert worker.wait(TIMEOUT_S) == 0
    assert ("event=grace-is-over" in shop.log) == (stop == "grace")
    with shop.client() as client:
        assert states(client, "mails") == [("ready", 0)]
        assert states(client, "search") == [("ready", 0)]
    assert not any("ended" in line for line in shop.said)


def test_job_of_a_killed_worker_is_run_by_another_one(shop: Shop) -> None:
    shop.enqueue("index.enqueue(name='a')")
    worker = shop.start("--lease", "1")
    wait_until(lambda: shop.said)
    worker.kill()
    shop.open("a")
    shop.start("--lease", "1")
    wait_until(lambda: "ended a" in shop.said)
    assert [line.split()[:3] for line in shop.said if "began" in line] == [
        ["began", "a", "1"],
        ["began", "a", "2"],
    ]


def test_lost_lease_interrupts_a_function_in_a_thread(shop: Shop) -> None:
    shop.enqueue("index.enqueue(name='a')")
    shop.start("--lease", "1")
    wait_until(lambda: shop.said)
    with shop.client() as client:
        [entry] = client.prefix("search:")
        client.bury(entry.key, reason="an operator")
        shop.wait_said("left a")
        assert "ended a" not in shop.said
        assert client.entry_stats(entry.key).buried_reason == "an operator"
    shop.enqueue("send.enqueue(number=1)")  # the worker goes on
    shop.wait_said("send 1 1")


# --- notification -----------------------------------------------------------------------------


@contextlib.contextmanager
def service_manager(directory: Path) -> Iterator[tuple[str, Callable[[], str]]]:
    """Give a socket for NOTIFY_SOCKET, and a function that returns the next state."""
    path = str(directory / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(path)
        receiver.settimeout(TIMEOUT_S)
        yield path, lambda: receiver.recv(4096).decode()


@pytest.mark.parametrize("processes", ["1", "2"])
def test_worker_notifies_the_service_manager(shop: Shop, tmp_path: Path, processes: str) -> None:
    with service_manager(tmp_path) as (path, state):
        worker = shop.start("--processes", processes, NOTIFY_SOCKET=path, WATCHDOG_USEC="30000000")
        assert state() == "READY=1"
        assert state() == "WATCHDOG=1"
        worker.send_signal(signal.SIGTERM)
        assert state() == "STOPPING=1"
        assert worker.wait(TIMEOUT_S) == 0


# --- processes --------------------------------------------------------------------------------


def pids(shop: Shop) -> set[int]:
    return {int(line.split()[3]) for line in shop.said if line.startswith("began")}


def is_alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


def test_processes_share_the_work_and_one_that_dies_is_started_again(shop: Shop) -> None:
    worker = shop.start("--processes", "2", "--concurrency", "1", "--lease", "1")
    shop.wait_log("event=ready", 2)
    shop.enqueue(*(f"index.enqueue(name='{name}')" for name in "ab"))
    wait_until(lambda: len(pids(shop)) == 2)
    first, second = pids(shop)
    assert worker.pid not in pids(shop)
    os.kill(first, signal.SIGKILL)
    shop.wait_log("event=ready", 3)
    shop.wait_log("event=process-died status=-9 again_in_seconds=0.5")
    wait_until(lambda: len(pids(shop)) == 3)  # the new one has the job of the dead one
    shop.open("a")
    shop.open("b")
    shop.wait_said("ended a", "ended b")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(TIMEOUT_S) == 0
    assert not any(map(is_alive, {*pids(shop), second}))


@pytest.mark.parametrize("way", ["SIGKILL", "two signals"])
def test_processes_end_with_their_supervisor(shop: Shop, way: str) -> None:
    worker = shop.start("--processes", "2", "--grace", "0.1" if way == "SIGKILL" else "1000")
    shop.enqueue("index.enqueue(name='a')")
    wait_until(lambda: shop.said)
    [busy] = pids(shop)
    if way == "SIGKILL":
        worker.kill()
    else:
        worker.send_signal(signal.SIGTERM)
        shop.wait_log("event=stopping", 2)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(TIMEOUT_S) == 0
    wait_until(lambda: not is_alive(busy))
    with shop.client() as client:
        assert states(client, "search") == [("ready", 0)]


def test_process_that_hangs_is_killed_by_the_watchdog(shop: Shop, tmp_path: Path) -> None:
    with service_manager(tmp_path) as (path, state):
        shop.start(
            *("--processes", "2", "--lease", "1"),
            NOTIFY_SOCKET=path,
            WATCHDOG_USEC="3000000",
        )
        assert state() == "READY=1"
        shop.enqueue("block_loop.enqueue(name='never')")
        shop.wait_log("event=process-hangs")
        wait_until(lambda: any(line.startswith("blocks 2") for line in shop.said))


def test_watchdog_waits_for_processes_whose_module_is_slow_to_import(
    shop: Shop, tmp_path: Path
) -> None:
    shop.module.write_text(f"import time\ntime.sleep(2.5)\n{SHOP}")
    with service_manager(tmp_path) as (path, state):
        shop.start("--processes", "2", NOTIFY_SOCKET=path, WATCHDOG_USEC="1000000")
        assert state() == "READY=1"
    assert "process-hangs" not in shop.log


def test_process_that_waits_for_a_daemon_is_not_one_that_hangs(shop: Shop, tmp_path: Path) -> None:
    shop.daemon.stop()
    with service_manager(tmp_path) as (path, _):
        worker = shop.start("--processes", "2", NOTIFY_SOCKET=path, WATCHDOG_USEC="500000")
        shop.wait_log("event=connecting", 2)
        time.sleep(1.5)  # three times that of the watchdog
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(TIMEOUT_S) == 0
    assert "event=process-" not in shop.log


# --- reload -----------------------------------------------------------------------------------


def test_reload_starts_again_when_a_module_changes(shop: Shop) -> None:
    worker = shop.start("--reload")
    shop.enqueue("send.enqueue(number=1)")
    shop.wait_said("send 1 1")

    def write(text: str) -> None:
        shop.module.write_text(text)

    write(SHOP.replace("send {number}", "mailed {number}"))
    shop.wait_log("event=ready", 2)
    shop.enqueue("send.enqueue(number=2)")
    shop.wait_said("mailed 2 1")
    write(SHOP + "\n this is no Python\n")
    shop.wait_log("event=import-failed")
    assert "IndentationError" in shop.log
    write(SHOP.replace("send {number}", "posted {number}"))
    shop.wait_log("event=ready", 3)
    shop.enqueue("send.enqueue(number=3)")
    shop.wait_said("posted 3 1")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(TIMEOUT_S) == 0


@pytest.mark.parametrize(
    "text",
    [
        SHOP.replace("retries=2", "retries=-2"),
        SHOP.replace("def index(name: str)", "def index(*name: str)"),
        SHOP.replace("app", "other"),
    ],
)
def test_reload_waits_while_a_module_has_no_valid_application(shop: Shop, text: str) -> None:
    worker = shop.start("--reload")
    shop.wait_log("event=ready")
    shop.module.write_text(text)
    shop.wait_log("event=import-failed")
    shop.module.write_text(SHOP)
    shop.wait_log("event=ready", 2)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(TIMEOUT_S) == 0


def test_reload_waits_for_a_file_that_is_away_for_a_while(shop: Shop) -> None:
    worker = shop.start("--reload")
    shop.wait_log("event=ready")
    shop.module.unlink()
    with pytest.raises(subprocess.TimeoutExpired):
        worker.wait(1.5)
    shop.module.write_text(SHOP)
    shop.wait_log("event=ready", 2)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(TIMEOUT_S) == 0


# --- bad input --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("app", "arguments", "words"),
    [
        ("shop", (), "'shop' names no application (write MODULE:APP"),
        ("nowhere:app", (), "there is no module 'nowhere' (start fj-worker where it is, now /"),
        ("shop.mails:app", (), "there is no module 'shop.mails'"),
        ("shop:send", (), "'send' of module shop is no Tasks (it has app)"),
        ("broken:app", (), "module broken cannot be imported: ModuleNotFoundError"),
        ("empty:app", (), "there is no queue to work on: the application has no tasks"),
        ("shop:app", ("--queues", "a:b"), "':'"),
        ("shop:app", ("--concurrency", "0"), "Expected `int` >= 1 - at `--concurrency`"),
        ("shop:app", ("--grace", "soon"), "Expected `float`, got `str` - at `--grace`"),
        ("shop:app", ("--log-level", "loud"), "Invalid enum value 'loud' - at `--log-level`"),
        ("shop:app", ("--server", "127.0.0.1"), "fj-worker: --server: '127.0.0.1' is no address"),
        ("shop:app", ("--processes", "2", "--server", "nowhere"), "--server: 'nowhere'"),
        ("shop.py:app", (), "'shop.py' is a file (write its module: shop:app)"),
        ("./shop.py:app", (), "'./shop.py' is a file (write its module: shop:app)"),
    ],
)
def test_bad_usage_is_a_sentence_and_exit_code_2(
    shop: Shop, app: str, arguments: tuple[str, ...], words: str
) -> None:
    (shop.directory / "broken.py").write_text("import not_there_at_all\n")
    (shop.directory / "empty.py").write_text("from fastjournal.tasks import Tasks\napp = Tasks()\n")
    assert shop.burst(*arguments, app=app) == 2
    assert words in shop.log


def test_burst_without_a_daemon_is_exit_code_1(shop: Shop) -> None:
    shop.daemon.stop()
    assert shop.burst("--burst") == 1
    assert "fj-worker: " in shop.log


def test_version(shop: Shop) -> None:
    done = subprocess.run(
        [installed("fj-worker"), "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("fj-worker, version ")
