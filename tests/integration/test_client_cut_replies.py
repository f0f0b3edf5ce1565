"""Both clients where a connection ends inside a reply, or is refused: both are lost connections."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from fastjournal import CannotConnectError, Client, Entry, Reconnect, SyncClient
from fastjournal.protocol import Function, Pair, Reply, Request, encode_error, encode_reply
from fastjournal.testing.scripted_daemon import Answer, Do, ScriptedDaemon
from tests.integration.both_clients import KINDS, connected
from tests.integration.daemon_process import DaemonProcess

QUICK = Reconnect(first_pause=0.001, longest_pause=0.01, patience=30)
PATIENT = Reconnect(first_pause=0.01, longest_pause=0.1, patience=60)
FULL = encode_error(0, 0, "busy the daemon has max-connections clients")


def reply_to(request: Request) -> Reply:
    return Reply(request.identifier, timeout=9, cursor=b"cursor", pairs=[Pair(b"k", 1, b"v" * 20)])


REPLY_BYTES = len(encode_reply(reply_to(Request(Function.GET))))


class Cutting:
    """Cuts the first reply to each function off after so many bytes."""

    def __init__(self, at: int) -> None:
        self.at = at
        self._cut: set[int] = set()

    def __call__(self, request: Request) -> Answer:
        reply = encode_reply(reply_to(request))
        if request.function in self._cut:
            return [reply]
        self._cut.add(request.function)
        return [reply[: self.at], Do.CLOSE]


@pytest.mark.parametrize("kind", KINDS)
async def test_reply_that_is_cut_at_any_byte_is_a_lost_connection(kind: str) -> None:
    for at in range(REPLY_BYTES):
        with ScriptedDaemon(Cutting(at)) as daemon:
            async with connected(kind, daemon.address, reconnect=QUICK) as client:
                assert (await client.get("k")).value == b"v" * 20
                with pytest.raises(CannotConnectError) as caught:
                    await client.next("d")
                assert (caught.value.code, caught.value.maybe_done) == ("connection-lost", True)


@pytest.mark.parametrize("kind", KINDS)
async def test_reply_to_auth_that_is_cut_at_any_byte_is_a_lost_connection(kind: str) -> None:
    for at in range(len(encode_reply(Reply(1)))):
        cut = encode_reply(Reply(1))[:at]
        with (
            ScriptedDaemon(lambda _, cut=cut: [cut, Do.CLOSE]) as daemon,
            pytest.raises(CannotConnectError, match="closed the connection"),
        ):
            await use(kind, daemon.address)


async def use(kind: str, address: str) -> None:
    async with connected(kind, address, auth="secret") as client:
        await client.nop()


@pytest.mark.parametrize("kind", KINDS)
async def test_job_loop_goes_on_after_replies_that_were_cut(kind: str) -> None:
    cut: list[int] = []

    def script(request: Request) -> Answer:
        pairs = []
        if request.function == Function.NEXT and request.key == b"d" and len(cut) < 2:
            pairs = [Pair(b"d:1:1:x", 1, b"v", meta=None)]
        reply = encode_reply(Reply(request.identifier, timeout=7, pairs=pairs))
        if request.function not in cut:
            cut.append(request.function)
            return [reply[:-1], Do.CLOSE]
        return [reply]

    with ScriptedDaemon(script) as daemon:

        async def work_async() -> list[bytes]:
            async with Client(daemon.address, reconnect=QUICK) as client:
                return [job.value async for job in client.jobs("d", wait=None)]

        if kind == "trio":
            assert await work_async() == [b"v"]
        elif kind == "asyncio":
            assert await trio.to_thread.run_sync(asyncio.run, work_async()) == [b"v"]
        else:
            with SyncClient(daemon.address, reconnect=QUICK) as blocking:

                def work() -> list[bytes]:
                    return [job.value for job in blocking.jobs("d", wait=None)]

                assert await trio.to_thread.run_sync(work) == [b"v"]
    assert cut == [Function.NEXT, Function.DELETE]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("auth", [None, "secret"])
async def test_daemon_that_is_full_is_a_named_error_after_the_patience(
    kind: str, auth: str | None
) -> None:
    served = 0 if auth is None else 1

    def script(request: Request) -> Answer:
        nonlocal served
        served -= 1
        return [reply_to(request)] if served >= 0 else [FULL, Do.CLOSE]

    plan = Reconnect(first_pause=0.001, longest_pause=0.01, patience=0.1)
    with ScriptedDaemon(script, proves=False) as daemon:
        async with connected(kind, daemon.address, reconnect=plan, auth=auth) as client:
            with pytest.raises(CannotConnectError, match="max-connections") as caught:
                await client.next("d")
            assert (caught.value.code, caught.value.maybe_done) == ("busy", False)


@pytest.mark.parametrize("kind", KINDS)
async def test_client_waits_until_a_full_daemon_has_room(kind: str, tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, "--max-connections", "1") as daemon:
        first = SyncClient(daemon.address)
        first.add("k", 1, create=True)
        async with (
            connected(kind, daemon.address, reconnect=PATIENT) as second,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(leave_later, first)
            assert (await second.add("k", 1)).decoded() == 2


async def leave_later(client: SyncClient) -> None:
    await trio.sleep(0.3)  # the other has been refused by then, or has less to prove
    client.close()


ROUNDS = 6
READS = 8
"""Number of each client in a round: enough to be still at it when the daemon is killed."""


def test_daemon_killed_in_the_middle_of_large_replies_loses_no_request(tmp_path: Path) -> None:
    value = bytes(8_000_000)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with DaemonProcess(
        tmp_path, "--listen", f"127.0.0.1:{port}", "--max-value", "8000000"
    ) as daemon:
        with SyncClient(daemon.address) as client:
            client.set("large", value, persist=True)
        for n in range(ROUNDS):
            results: list[bytes | BaseException] = []
            threads = [
                threading.Thread(target=read_large, args=(reader, daemon.address, results))
                for reader in (read_sync, read_trio)
            ]
            for thread in threads:
                thread.start()
            while len(results) < 4:
                time.sleep(0.001)
            time.sleep(n / 230)
            daemon.kill()
            daemon.start()
            for thread in threads:
                thread.join()
            assert [r for r in results if r != len(value)] == []


def read_large(
    reader: Callable[[str, list[object]], None], address: str, results: list[object]
) -> None:
    try:
        reader(address, results)
    except BaseException as error:  # noqa: BLE001 - the test looks at it
        results.append(error)


def read_sync(address: str, results: list[object]) -> None:
    with SyncClient(address, reconnect=PATIENT) as client:
        for _ in range(READS):
            results.append(len(client.get("large").value))


def read_trio(address: str, results: list[object]) -> None:
    async def main() -> None:
        async with Client(address, reconnect=PATIENT) as client:
            for _ in range(READS):
                entry: Entry = await client.get("large")
                results.append(len(entry.value))

    trio.run(main)
