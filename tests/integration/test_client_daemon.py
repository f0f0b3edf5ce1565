"""Both clients against a real daemon: every method, and many requests in flight."""

from __future__ import annotations

import pytest
import trio

from fastjournal import Client, RefusedError, SyncClient, build_journal_key
from fastjournal.client.core import calls
from fastjournal.errors import CannotConnectError
from tests.integration.daemon_process import DaemonProcess


def test_pipeline_of_thousands_is_answered_in_order(daemon: DaemonProcess) -> None:
    with SyncClient(daemon.address) as client:
        many = [calls.set_(build_journal_key("d", b"%d" % n), b"%d" % n) for n in range(5000)]
        results = client.call_many(many)
        assert not [result for result in results if isinstance(result, RefusedError)]
        values = client.call_many(calls.get(call.request.key) for call in many)
        assert [not isinstance(v, RefusedError) and v.value for v in values] == [
            b"%d" % n for n in range(5000)
        ]


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
