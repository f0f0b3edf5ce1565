"""Listening with both clients to a real daemon."""

from __future__ import annotations

import os
import select
from datetime import UTC, datetime

import trio

from fastjournal import Change, Client, SyncClient
from tests.integration.daemon_process import DaemonProcess


def told(change: Change) -> tuple[str, bytes, bytes]:
    return str(change.kind), change.key, change.value


async def test_listen_to_every_kind_of_query_shows_its_changes(daemon: DaemonProcess) -> None:
    async with Client(daemon.address) as client, Client(daemon.address) as other:
        for query in ({"key": "a1"}, {"prefix": "a"}, {"start": "a", "end": "b"}, {"regex": "^a."}):
            async with client.listen(**query) as changes:
                with trio.fail_after(60):
                    await other.set("a1", b"one")
                    assert told(await anext(changes)) == ("set", b"a1", b"one")
                    await client.set("c", b"elsewhere")
                    await other.set("a1", b"two", overwrite=True)
                    assert told(await anext(changes)) == ("set", b"a1", b"two")
                    await client.delete("a1", overwrite=True)
                    assert told(await anext(changes)) == ("gone", b"a1", b"")
            await client.delete("c", overwrite=True)
        await other.set("a1")
        assert await client.nop() > datetime(2025, 1, 1, tzinfo=UTC)


def test_blocking_listener_gets_changes(daemon: DaemonProcess) -> None:
    with SyncClient(daemon.address) as client, client.listen(prefix="a") as changes:
        client.set("a1", b"one")
        client.set("b", b"elsewhere")
        change = changes.wait(timeout=60)
        assert change is not None
        assert told(change) == ("set", b"a1", b"one")
        client.delete("a1")
        assert told(next(changes)) == ("gone", b"a1", b"")
        assert changes.wait(timeout=0) is None


def test_listen_goes_on_in_a_parent_whose_forked_child_leaves_the_block(
    daemon: DaemonProcess,
) -> None:
    with (
        SyncClient(daemon.address) as other,
        SyncClient(daemon.address).listen(prefix="a") as changes,
    ):
        child = os.fork()
        if child == 0:
            try:
                changes.__exit__()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        other.set("a1", b"one")
        assert select.select([changes], [], [], 60)[0]
        change = changes.wait(0)
        assert change is not None
        assert told(change) == ("set", b"a1", b"one")
