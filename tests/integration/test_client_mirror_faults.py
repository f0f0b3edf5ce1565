"""Mirror: subscribe again after a refusal that passes, end after one for good, in both loops."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
import trio
import trustme

from fastjournal import CannotConnectError, Client, FastjournalError, Mirror, Reconnect
from fastjournal.errors import RefusedError
from fastjournal.protocol import Flag, Function, Meta, Pair, Reply, Request
from fastjournal.testing.scripted_daemon import Answer, ScriptedDaemon
from tests.integration.daemon_process import DaemonProcess

LISTEN = int(Flag.LISTEN)
QUICK = Reconnect(first_pause=0.01, longest_pause=0.1, patience=60)
TIMEOUT_S = 60
LOOPS: dict[str, Callable[..., object]] = {
    "trio": trio.run,
    "asyncio": lambda main, *args: asyncio.run(main(*args)),
}
both_loops = pytest.mark.parametrize("loop", LOOPS)


class Script:
    """Daemon with one entry, which ends a subscription at the PAUSE of a domain."""

    def __init__(self) -> None:
        self.subscription = 0
        self.subscribed = 0
        self.refusals: list[str] = []
        """Answers to the next subscriptions."""
        self.end = "busy"
        """Error with which a subscription ends."""

    def __call__(self, request: Request) -> Answer:
        if request.function == Function.PAUSE:
            over = Reply(self.subscription, flags=LISTEN, error=self.end)
            return [Reply(request.identifier), over]
        if request.function != Function.GET:
            return [Reply(request.identifier)]
        if request.flags & LISTEN:
            self.subscribed += 1
            self.subscription = request.identifier
            error = self.refusals.pop(0) if self.refusals else ""
            return [Reply(request.identifier, error=error, pairs=[])]
        pair = Pair(b"color:sky", 1, b"blue", meta=Meta(created_us=self.subscribed))
        return [Reply(request.identifier, pairs=[pair])]


async def wait_for(copy: Mirror, condition: Callable[[], bool]) -> None:
    with anyio.fail_after(TIMEOUT_S):
        while not condition():
            await copy.changed()


@both_loops
def test_client_copy_subscribes_again_after_a_refusal_that_passes(loop: str) -> None:
    script = Script()

    async def main(address: str) -> None:
        async with (
            Client(address, reconnect=QUICK) as client,
            client.mirror("color:") as copy,
        ):
            script.refusals = ["busy too many listen", "shutting-down", "read-only"]
            await client.pause("d", 1)
            await wait_for(copy, lambda: script.subscribed == 5 and copy.is_current)
            meta = copy[b"color:sky"].meta
            assert meta is not None
            assert meta.created_us == 5  # it was read anew, after the last subscription
            assert copy.failure is None

    with ScriptedDaemon(script) as daemon:
        LOOPS[loop](main, daemon.address)


@both_loops
@pytest.mark.parametrize("reconnect", [QUICK, None])
def test_client_copy_ends_after_a_refusal_for_good(loop: str, reconnect: Reconnect | None) -> None:
    script = Script()
    script.end = "busy" if reconnect is None else "forbidden"

    async def main(address: str) -> None:
        async with (
            Client(address, reconnect=reconnect) as client,
            client.mirror("color:") as copy,
        ):
            await client.pause("d", 1)
            with pytest.raises(RefusedError, match=script.end):
                await wait_for(copy, lambda: False)
            assert not copy.is_current
            assert script.subscribed == 1

    with ScriptedDaemon(script) as daemon:
        LOOPS[loop](main, daemon.address)


@both_loops
def test_client_copy_ends_where_tls_refuses_the_daemon(loop: str, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)

    async def main(daemon: ScriptedDaemon) -> None:
        async with (
            Client(daemon.address, tls=str(tmp_path / "ca.pem"), reconnect=QUICK) as client,
            client.mirror("color:") as copy,
        ):
            trustme.CA().issue_cert("127.0.0.1").configure_cert(context)  # of no authority
            daemon.drop_connections()
            with pytest.raises(CannotConnectError, match="certificate is refused"):
                await wait_for(copy, lambda: False)
            assert copy.failure is not None
            assert copy.failure.code == "tls-failed"
            assert daemon.connections == 2

    with ScriptedDaemon(Script(), tls=context) as daemon:
        LOOPS[loop](main, daemon)


@both_loops
def test_client_copy_that_was_left_tells_those_who_wait_for_a_change(
    loop: str, daemon: DaemonProcess
) -> None:
    async def wait(copy: Mirror, waiting: anyio.Event, caught: list[FastjournalError]) -> None:
        waiting.set()
        try:
            await wait_for(copy, lambda: False)
        except FastjournalError as error:
            caught.append(error)

    async def main() -> None:
        waiting, caught = anyio.Event(), list[FastjournalError]()
        async with Client(daemon.address) as client, anyio.create_task_group() as group:
            await client.set("color:sky", "blue")
            async with client.mirror("color:") as copy:
                group.start_soon(wait, copy, waiting, caught)
                await waiting.wait()
        assert [error.code for error in caught] == ["not-connected"]
        with anyio.fail_after(TIMEOUT_S), pytest.raises(CannotConnectError, match="mirror"):
            await copy.changed()
        assert copy[b"color:sky"].decoded() == "blue"  # what was copied stays

    LOOPS[loop](main)
