"""Lists of addresses: both clients and all programs go on where another daemon serves.

The daemons here are independent: the second one has nothing of the first. What is shown is who is
asked, and that callers notice nothing else.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import ANY

import anyio
import pytest
import trio
import trio.testing
from anyio.abc import SocketAttribute

from fastjournal import CannotConnectError, Client, Reconnect, RefusedError, SyncClient
from fastjournal.client import calls
from fastjournal.client.core.client_credentials import make_context
from fastjournal.errors import LeaseLostError
from fastjournal.protocol import Reply, Request
from fastjournal.spool import Spool, spool_status
from fastjournal.testing.scripted_daemon import Answer, ScriptedDaemon
from tests.certificates import Authority
from tests.integration.both_clients import KINDS, connected
from tests.integration.cli_process import TIMEOUT_S, Cli
from tests.integration.daemon_process import DaemonProcess
from tests.integration.programs import ended, forwarding, installed, run_program
from tests.integration.worker_process import wait_until

QUICK = Reconnect(first_pause=0.01, longest_pause=0.1)
NOBODY = "127.0.0.1:1"


def agree(request: Request) -> Answer:
    return [Reply(request.identifier)]


class Standby:
    """Closes what a socket unit has accepted for it, at once."""

    def __init__(self, path: Path | None = None) -> None:
        self.accepted = 0
        if path is None:
            self._listener = socket.create_server(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        else:
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(str(path))
            self._listener.listen()
            self.address = f"unix:{path}"
        self._path = path
        self._thread = threading.Thread(target=self._accept)

    def __enter__(self) -> Standby:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End it; its path is free then."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(TIMEOUT_S)
        self._listener.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                accepted, _ = self._listener.accept()
                accepted.close()
                self.accepted += 1


@contextlib.contextmanager
def black_hole() -> Iterator[str]:
    """Give an address at which connecting takes for ever: its queue of connections is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"


class Nodes:
    """A daemon that serves, and one that is to take over, where a standby closes meanwhile."""

    def __init__(self, directory: Path) -> None:
        self.first = DaemonProcess(directory)
        other = directory / "other"
        other.mkdir()
        self.standby = Standby(other / "socket")
        self.other = DaemonProcess(other, "--listen", self.standby.address)

    @property
    def address(self) -> str:
        return f"{self.first.address},{self.standby.address}"

    def take_over(self) -> None:
        """Have the other one serve, once somebody has tried both in vain."""
        wait_until(lambda: self.standby.accepted)
        self.standby.stop()
        self.other.start()

    def fail_over(self) -> None:
        """Kill the one that serves, which has no work left, under a client that notices it."""
        with SyncClient(self.first.address) as client:
            wait_until(lambda: not client.domain_stats("d").entries)
        self.first.kill()
        self.take_over()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    nodes = Nodes(tmp_path)
    with nodes.standby, nodes.first:
        try:
            yield nodes
        finally:
            nodes.other.__exit__()


# --- who is asked ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_failover_repeats_calls_at_the_other_address(kind: str, nodes: Nodes) -> None:
    async with connected(kind, nodes.address) as client:
        await client.set("k", "1")
        assert str(client.client.address if kind != "trio" else client.address) == (
            nodes.first.address
        )
        nodes.first.kill()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, nodes.take_over)
            await client.set("k", "2")
        assert (await client.get("k")).value == b"2"
    with SyncClient(nodes.other.address) as other:
        assert other.get("k").value == b"2"


@pytest.mark.parametrize("kind", KINDS)
async def test_first_connection_passes_over_every_address_that_serves_nobody(
    kind: str, tmp_path: Path
) -> None:
    with Standby() as standby, black_hole() as silent, ScriptedDaemon(agree) as daemon:
        away = f"unix:{tmp_path}/nothing"
        listed = ", ".join((NOBODY, standby.address, silent, away, daemon.address))
        async with connected(kind, listed, connect_timeout=5, reconnect=None) as client:
            await client.nop()
            assert standby.accepted == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_client_stays_with_an_address_and_tries_it_first_when_it_is_lost(
    kind: str, tmp_path: Path
) -> None:
    path = str(tmp_path / "socket")
    with ScriptedDaemon(agree) as other:
        listed = f"unix:{path},{other.address}"
        first = ScriptedDaemon(agree, unix_path=path)
        with first:
            async with connected(kind, listed, reconnect=QUICK) as client:
                await client.nop()
                first.drop_connections()
                await client.nop()
                assert (first.connections, other.connections) == (2, 0)
                await trio.to_thread.run_sync(first.__exit__)
                await client.nop()
                assert other.connections == 1
                await trio.Path(path).unlink()
                with ScriptedDaemon(agree, unix_path=path) as again:
                    other.drop_connections()
                    await client.nop()
                    assert (again.connections, other.connections) == (0, 2)


@pytest.mark.parametrize("kind", KINDS)
async def test_daemon_that_hangs_is_left_for_the_other_address(kind: str, nodes: Nodes) -> None:
    nodes.standby.stop()
    nodes.other.start()
    options = {"reply_timeout": 0.5, "connect_timeout": 1, "reconnect": QUICK}
    async with connected(kind, nodes.address, **options) as client:
        await client.set("k", "1")
        os.kill(nodes.first.pid, signal.SIGSTOP)
        await client.set("k", "2")
    with SyncClient(nodes.other.address) as other:
        assert other.get("k").value == b"2"


def test_backoff_of_the_blocking_client_counts_rounds_over_the_list() -> None:
    done: list[object] = []
    with ScriptedDaemon(agree) as daemon:
        plan = Reconnect(first_pause=1, longest_pause=8, patience=20)
        now_s = [0.0]

        def sleep(pause_s: float) -> None:
            done.append(pause_s)
            now_s[0] += pause_s

        listed = f"{daemon.address},unix:/no/one,unix:/no/two"
        client = SyncClient(
            listed, reconnect=plan, rng=Random(2), sleep=sleep, monotonic=lambda: now_s[0]
        )
        client.nop()
    connect = client._dialer.connect

    def note(address: object, *args: Any, **options: Any) -> Any:
        done.append(str(address))
        return connect(address, *args, **options)  # type: ignore[arg-type] # as it came

    client._dialer.connect = note
    with pytest.raises(CannotConnectError):
        client.nop()
    assert [done[at : at + 3] for at in range(1, len(done), 4)] == [listed.split(",")] * (
        len(done) // 4
    )
    pauses = [pause for pause in done[::4] if isinstance(pause, float)]
    assert len(pauses) == len(done) // 4 > 3
    assert all(pause <= 2**at for at, pause in enumerate(pauses))
    assert sum(pauses) == pytest.approx(20)


async def test_backoff_of_the_task_client_counts_rounds_over_the_list(
    mock_clock: trio.testing.MockClock,
) -> None:
    done: list[tuple[float, str]] = []
    async with contextlib.AsyncExitStack() as stack:
        with ScriptedDaemon(agree) as daemon:
            plan = Reconnect(first_pause=1, longest_pause=8, patience=20)
            listed = f"{daemon.address},unix:/no/one,unix:/no/two"
            client = Client(listed, reconnect=plan, rng=Random(2))
            await stack.enter_async_context(client)
        open_stream = client.connection.open_stream

        async def note(address: Any, *args: Any, **options: Any) -> Any:
            done.append((trio.current_time(), str(address)))
            return await open_stream(address, *args, **options)

        client.connection.open_stream = note
        mock_clock.autojump_threshold = 0.01
        with pytest.raises(CannotConnectError):
            await client.nop()
    assert [address for _, address in done] == listed.split(",") * (len(done) // 3)
    rounds = [{at for at, _ in done[n : n + 3]} for n in range(0, len(done), 3)]
    assert all(len(instants) == 1 for instants in rounds)
    assert len(set.union(*rounds)) == len(rounds) > 3


@pytest.mark.parametrize("kind", KINDS)
async def test_a_connection_notices_a_lost_machine(kind: str) -> None:
    with ScriptedDaemon(agree) as daemon:
        async with connected(kind, daemon.address) as client:
            own = client if kind == "trio" else client.client
            if kind == "sync":
                sock = own.connection.transport._channel._socket
            else:
                stream = own.connection.transport._stream
                sock = stream.extra(SocketAttribute.raw_socket)
            options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert [sock.getsockopt(socket.IPPROTO_TCP, each) for each in options] == [15, 5, 3]


def test_patience_with_several_addresses_is_enough_for_a_takeover() -> None:
    def patience_s(listed: str, plan: Reconnect) -> float:
        resolved = SyncClient(listed, reconnect=plan)._dialer.plan
        assert resolved is not None
        return resolved.patience_s

    assert patience_s("a:1", Reconnect()) == 30
    assert patience_s("a:1,b:1", Reconnect(first_pause=1)) == 60
    assert patience_s("a:1,b:1", Reconnect(patience=30)) == 30


# --- why nobody answers ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_error_names_each_address_with_its_reason(kind: str) -> None:
    with Standby() as standby, black_hole() as silent:
        listed = f"{NOBODY},{standby.address},unix:/no/socket,{silent}"
        with pytest.raises(CannotConnectError) as caught:
            async with connected(kind, listed, connect_timeout=2, reconnect=None):
                pass
    reason = caught.value.message
    closed = ("it closed the connection", "Connection reset by peer")
    assert reason in [
        f"cannot connect to {NOBODY}: Connection refused; {standby.address}: {how};"
        f" unix:/no/socket: No such file or directory; {silent}: {late}"
        for how in closed
        for late in ("no answer in time", "timed out")
    ]
    assert (caught.value.code, caught.value.address) == ("cannot-connect", listed)
    assert "(daemon" not in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
async def test_port_of_something_else_is_named_and_ends_the_effort(kind: str) -> None:
    answer = b"HTTP/1.1 400 Bad Request\r\n\r\n"
    with ScriptedDaemon(lambda _: [answer], proves=False) as http:
        listed = f"{NOBODY},{http.address}"
        with pytest.raises(CannotConnectError) as caught:
            async with connected(kind, listed, reconnect=Reconnect(at_start=True)):
                pass
    assert "it speaks HTTP" in str(caught.value)
    assert f"{NOBODY}: Connection refused" in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
async def test_refused_token_is_the_error_though_other_addresses_are_away(kind: str) -> None:
    def refuse(request: Request) -> Answer:
        return [Reply(request.identifier, error="auth-failed no such token")]

    with ScriptedDaemon(refuse, proves=False) as daemon:
        listed = f"{NOBODY},{daemon.address}"
        with pytest.raises(RefusedError) as caught:
            async with connected(kind, listed, auth="t", reconnect=Reconnect(at_start=True)):
                pass
    assert caught.value.code == "auth-failed"
    assert f"{NOBODY}: Connection refused; {daemon.address}: no such token" in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
async def test_tls_checks_the_name_of_each_address(kind: str, tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    context = make_context(authority.path)
    by_name = authority.server_context("localhost")
    by_number = authority.server_context("127.0.0.1")

    def port(daemon: ScriptedDaemon) -> str:
        return daemon.address.rpartition(":")[2]

    with (
        ScriptedDaemon(agree, tls=by_number) as second,
        ScriptedDaemon(agree, tls=other.server_context()) as stranger,
        Standby() as standby,
    ):
        with ScriptedDaemon(agree, tls=by_name) as first:
            listed = f"{standby.address},localhost:{port(first)},127.0.0.1:{port(second)}"
            async with connected(kind, listed, tls=context, reconnect=QUICK) as client:
                await client.nop()
                assert (first.connections, second.connections) == (1, 0)
                await trio.to_thread.run_sync(first.__exit__)
                await client.nop()
                assert second.connections == 1
        wrong = f"tls://127.0.0.1:{port(stranger)},tls://localhost:{port(second)}"
        with pytest.raises(CannotConnectError) as caught:
            async with connected(kind, wrong, tls=context, reconnect=Reconnect(at_start=True)):
                pass
    assert caught.value.code == "tls-failed"
    assert caught.value.message.count("the daemon's certificate is refused") == 2
    assert f"tls://localhost:{port(second)}: " in caught.value.message


# --- loops ----------------------------------------------------------------------------------------


def test_blocking_job_loop_goes_on_through_a_failover(nodes: Nodes) -> None:
    done: list[str] = []

    def work(job: Any) -> None:
        done.append(job.decoded(str))
        if len(done) == 2:
            loop.stop()
            return
        threading.Thread(target=take_over).start()

    def take_over() -> None:
        nodes.fail_over()
        with SyncClient(nodes.other.address) as client:
            client.enqueue("d", "second")

    with SyncClient(nodes.address) as client:
        client.enqueue("d", "first")
        loop = client.jobs("d")
        loop.run(work)
    assert done == ["first", "second"]


@pytest.mark.parametrize("library", ["trio", "asyncio"])
def test_job_loop_of_tasks_goes_on_though_its_job_was_lost(library: str, nodes: Nodes) -> None:
    """The second daemon knows nothing of the first job."""
    done: list[str] = []
    loops: list[Any] = []

    async def work(job: Any) -> None:
        done.append(job.decoded(str))
        if len(done) == 2:
            loops[0].stop()
            return
        nodes.first.kill()
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.to_thread.run_sync, nodes.take_over)
            with contextlib.suppress(LeaseLostError):  # where the first DELETE was sent to nobody
                await job.complete()
        with SyncClient(nodes.other.address) as client:
            client.enqueue("d", "second")

    async def main() -> None:
        async with Client(nodes.address) as client:
            await client.enqueue("d", "first")
            loops.append(client.jobs("d"))
            await loops[0].run(work)

    anyio.run(main, backend=library)
    assert done == ["first", "second"]


def set_there(nodes: Nodes, heard: threading.Event) -> None:
    """Fail over, and set a key at the daemon that serves then, until a listener has heard of it."""
    nodes.fail_over()
    with SyncClient(nodes.other.address) as client:
        while not heard.wait(0.05):
            client.set("k", "v", overwrite=True)


def test_blocking_listener_goes_on_through_a_failover(nodes: Nodes) -> None:
    with SyncClient(nodes.address) as client, client.listen("k") as changes:
        heard = threading.Event()
        thread = threading.Thread(target=set_there, args=(nodes, heard))
        thread.start()
        while (change := changes.wait(TIMEOUT_S)) is not None and change.key != b"k":
            pass
        heard.set()
        thread.join()
    assert change is not None


async def test_listener_and_mirror_go_on_through_a_failover(nodes: Nodes) -> None:
    with trio.fail_after(TIMEOUT_S):
        async with (
            Client(nodes.address) as client,
            client.listen(prefix="k") as changes,
            client.mirror("k") as copy,
            trio.open_nursery() as nursery,
        ):
            heard = threading.Event()
            nursery.start_soon(trio.to_thread.run_sync, set_there, nodes, heard)
            async for change in changes:
                if change.key == b"k":
                    break
            await trio.to_thread.run_sync(wait_until, lambda: b"k" in copy)
            heard.set()


def test_call_that_waits_by_its_descriptor_connects_where_somebody_serves() -> None:
    with (
        Standby() as standby,
        ScriptedDaemon(agree) as daemon,
        SyncClient(f"{standby.address},{daemon.address}").waiting(calls.nop()) as waiting,
    ):
        assert select.select([waiting], [], [], TIMEOUT_S)[0]
        assert waiting.take() is not None
        assert standby.accepted == 1


# --- programs -------------------------------------------------------------------------------------


def test_cli_takes_lists_by_option_variable_and_file(nodes: Nodes, tmp_path: Path) -> None:
    cli = Cli(tmp_path, nodes.address)
    assert cli("set", "k", "1").returncode == 0
    nodes.first.kill()
    said = cli("set", "k", "2")
    assert said.returncode == 69
    assert b"Connection refused; unix:" in said.stderr
    nodes.take_over()
    assert cli("set", "k", "2").returncode == 0
    (found,) = cli.json("--server", nodes.address, "get", "k")
    assert found["value"] == "2"
    file = tmp_path / "config" / "fastjournal" / "client.toml"
    file.parent.mkdir(parents=True)
    file.write_text(f"server = '{nodes.address}'")
    assert Cli(tmp_path, None).json("get", "k") == [found | {"accessed_us": ANY}]
    nodes.other.kill()
    said = cli("get", "k", "--json")
    assert said.returncode == 69
    assert b'"address":"' + nodes.address.encode() in said.stderr
    assert said.stderr.count(b"Connection refused") == 2


def test_programs_say_what_is_wrong_with_a_list(tmp_path: Path) -> None:
    cli, listed = Cli(tmp_path, None), "a:1,b:2,"
    lines = {
        "fj-forwarder": (64, "--spool", str(tmp_path / "spool"), "--server", listed),
        "fj-worker": (2, "shop:app", "--server", listed),
        "fj-cli": (2, "--server", listed, "get", "k"),
    }
    for program, (status, *words) in lines.items():
        line = [installed(program), *map(str, words)]
        done = run_program(line, capture_output=True, text=True, env=cli.environment)
        said = f"{program}: --server: 'a:1,b:2,' has an empty address: a comma too many"
        assert (done.returncode, said in done.stderr) == (status, True), done.stderr


def test_cli_worker_goes_on_through_a_failover(nodes: Nodes, tmp_path: Path) -> None:
    """Its commands use the same list: the second one writes to the daemon that serves then."""
    with SyncClient(nodes.address) as client:
        client.enqueue("d", "first")
    cli = Cli(tmp_path, None)
    shell = f"value=$(cat); {installed('fj-cli')} set said $value && touch {tmp_path}/$value"
    worker = cli.start(
        *("next", "d", "--server", nodes.address, "--wait", "forever", "--count", "2"),
        *("--exec", "sh", "-c", shell),
    )
    with ended(worker):
        wait_until((tmp_path / "first").exists)
        nodes.fail_over()
        with SyncClient(nodes.other.address) as client:
            client.enqueue("d", "second")
            _, stderr = worker.communicate(timeout=TIMEOUT_S)
            assert worker.returncode == 0, stderr
            assert client.get("said").value == b"second"


TASKS = """
from pathlib import Path
from fastjournal.tasks import Tasks
app = Tasks()

@app.task(queue="d")
def touch(name: str) -> None:
    Path(name).touch()
"""


def test_tasks_and_their_worker_go_on_through_a_failover(nodes: Nodes, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(TASKS)
    environment = Cli(tmp_path, nodes.address).environment

    def enqueue(name: str) -> None:
        program = f"from shop import touch; touch.enqueue(name={name!r})"
        line = [sys.executable, "-c", program]
        subprocess.run(line, cwd=tmp_path, env=environment, check=True, timeout=TIMEOUT_S)

    enqueue("first")
    line = [installed("fj-worker"), "shop:app", "--server", nodes.address]
    with ended(subprocess.Popen(line, cwd=tmp_path, env=environment)) as worker:
        wait_until((tmp_path / "first").exists)
        nodes.fail_over()
        enqueue("second")
        wait_until((tmp_path / "second").exists)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(TIMEOUT_S) == 0


def test_forwarder_goes_on_through_a_failover(nodes: Nodes, tmp_path: Path) -> None:
    """Its list is one word, and where no option is given the variable."""
    directory = tmp_path / "spool"
    with Spool(directory) as spool, forwarding(directory, nodes.address):
        spool.append(domain="d", value=b"first")
        with SyncClient(nodes.address) as client:
            wait_until(lambda: client.domain_stats("d").entries == 1)
            nodes.first.kill()
        spool.append(domain="d", value=b"second")
        wait_until(lambda: nodes.standby.accepted)
        nodes.standby.stop()
        nodes.other.start()
        with SyncClient(nodes.other.address) as client:
            wait_until(lambda: client.domain_stats("d").entries == 1)
        wait_until(lambda: spool_status(directory).pending == 0)
    with Spool(directory) as spool:
        spool.append(domain="d", value=b"third")
    environment = Cli(tmp_path, nodes.address).environment
    line = [installed("fj-forwarder"), "--spool", str(directory), "--once"]
    subprocess.run(line, env=environment, check=True, timeout=TIMEOUT_S)
    with SyncClient(nodes.other.address) as client:
        assert client.domain_stats("d").entries == 2
