"""Sessions on trio's mock clock over a log whose syncs take long, watched at every byte they send.

Whatever makes a message notes how far the log was appended then. Whatever reaches a client's stream
has to consist of such messages, and each has to wait until its part of the log is settled.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from fastjournal.protocol import decode_reply
from fastjournal.protocol.messages import Reply
from fastjournal.testing.inodes import file_at
from fastjournald.group_commit.commit import SyncThread
from tests.property.subject import START
from tests.unit.server_fixture import LOG, Peer, stored_chunks
from tests.unit.test_session_bounds import Room

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ENCODERS = (
    *("encode_reply", "encode_reply_to", "encode_success", "encode_successes", "encode_error"),
    "encode_success_of",
)

MEASURED_SECONDS_MEAN = 2e-5
"""Mean of what passes between two looks at the performance counter."""

START_BYTES = 12
"""Fewer than any message has."""


class TrioClock:
    """Goes as trio's."""

    def now_us(self) -> int:
        """Return the instant."""
        return START + int(trio.current_time() * 1_000_000)

    monotonic_us = now_us


def boottime_us() -> int:
    """Return the time of the lease of a primary."""
    return int(trio.current_time() * 1_000_000)


class SlowRoom(Room):
    """A server whose syncs and reads take a drawn time, and that proves the mark of each message.

    Args:
        seed: Seed of the time that each call in a thread takes.
        monkeypatch: Fixture of the test.
        sync_seconds_max: The longest of them.
        options: Options of the server.
    """

    def __init__(
        self,
        seed: int,
        monkeypatch: pytest.MonkeyPatch,
        sync_seconds_max: float = 0.1,
        **options: Any,
    ) -> None:
        super().__init__(clock=TrioClock(), boottime_us=boottime_us, **options)
        self.disk.capacity_bytes = None
        self.draw = Random(seed)
        self.on_message: Callable[[Reply], None] = lambda _: None
        """Called when a message is about to leave."""
        self.messages_sent = 0
        self.sent_ahead = 0
        """Messages that were sent when more had been appended than was settled."""
        self._made: dict[bytes, dict[bytes, int]] = {}
        """First bytes to messages, each with the appended bytes when it was made first."""
        self._sync_seconds_max = sync_seconds_max
        # the same seed gives the same order of tasks, too
        monkeypatch.setattr("trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING", True)
        trio._core._run._r.seed(seed)
        monkeypatch.setattr("fastjournald.group_commit.commit.INLINE_SECONDS_MAX", -1.0)
        # what waits is written while a sync goes on, however little it is
        monkeypatch.setattr("fastjournald.group_commit.commit.WRITE_BYTES_MIN", 1)
        # what is measured is drawn too: how busy the machine is changes no order of tasks
        measured, seconds = Random(seed), 0.0

        def perf_counter() -> float:
            nonlocal seconds
            seconds += measured.expovariate(1 / MEASURED_SECONDS_MEAN)
            return seconds

        for name, module in list(sys.modules.items()):
            for clock in ("perf_counter", "thread_time"):
                if name.startswith("fastjournald.") and hasattr(module, clock):
                    monkeypatch.setattr(module, clock, perf_counter)
        if self.server.remote is not None:
            self.server.remote._call = self._run_slowly
        self._synced_before = self._synced() - self.writer.durable
        monkeypatch.setattr(trio.to_thread, "run_sync", self._run_slowly)
        monkeypatch.setattr(SyncThread, "run", lambda _, call: self._sync_slowly(call))
        for name, module in list(sys.modules.items()):
            if name.startswith("fastjournald."):
                for encoder in ENCODERS:
                    if hasattr(module, encoder):
                        noting = self._noting(getattr(module, encoder))
                        monkeypatch.setattr(module, encoder, noting)
        encode = sys.modules["fastjournal.protocol.replies"].ReplyEncoder.encode
        monkeypatch.setattr(
            "fastjournal.protocol.replies.ReplyEncoder.encode", self._noting(encode)
        )

    @asynccontextmanager
    async def open(self) -> AsyncIterator[SlowRoom]:
        """Serve while the block runs."""
        server = self.server
        async with super().open(), trio.open_nursery() as background:
            for task in (server.notifier.run, server.notifier.pace, server.timers.run):
                background.start_soon(task)
            if server.remote is not None:
                background.start_soon(server.remote.run)
            yield self
            background.cancel_scope.cancel()

    def stop(self) -> None:
        """Tell all who wait that the daemon stops."""
        self.server.connections.deliver(self.engine.shut_down(self.clock.now_us()))

    def connect_watched(self, *, lockstep: bool = False) -> Peer:
        """Connect a client whose stream is watched."""
        unsent = b""

        def about_to_send(data: bytes) -> None:
            nonlocal unsent
            unsent = self._check(unsent + data)

        return self.connect_in_memory(lockstep=lockstep, watch=about_to_send)

    def _noting(self, encode: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*arguments: Any) -> Any:
            made = encode(*arguments)
            for data in made if isinstance(made, list) else [made]:
                if data is not None:
                    # the same bytes may be made twice, and then the earlier ones are sent first
                    assert len(data) >= START_BYTES
                    alike = self._made.setdefault(data[:START_BYTES], {})
                    alike.setdefault(data, self.writer.appended)
            return made

        return noting

    def _check(self, data: bytes) -> bytes:
        """Hold messages against their marks; return what of the last one is to come."""
        settled = self.writer.settled
        assert self.writer.durable <= self._synced() - self._synced_before
        remote = self.server.remote
        if remote is not None:
            assert remote.primary.lease.may_answer(boottime_us()), "sent behind the lease"
            if remote.leads:
                chunks = stored_chunks(remote.primary.store)
                assert settled <= sum(len(chunk.payload) for chunk in chunks)
        while data:
            alike = self._alike(data[:START_BYTES])
            begun = [made for made in alike if data.startswith(made) or made.startswith(data)]
            early = min(alike[made] for made in begun) - settled
            assert early <= 0, f"sent when {early} bytes of the log were not settled: {begun!r}"
            if len(begun[0]) > len(data):
                break
            self.messages_sent += 1
            self.on_message(decode_reply(begun[0]))
            self.sent_ahead += settled < self.writer.appended
            data = data[len(begun[0]) :]
        return data

    def _alike(self, start: bytes) -> dict[bytes, int]:
        """Return the messages that begin so, with their marks."""
        if len(start) == START_BYTES:
            return self._made[start]
        return {
            made: mark
            for first, alike in self._made.items()
            if first.startswith(start)
            for made, mark in alike.items()
        }

    def _synced(self) -> int:
        """Bytes of the log that survive a power loss for certain."""
        paths = [f"{LOG}/{name}" for name in self.disk.listdir(LOG)]
        return sum(
            file_at(self.disk._root, path).synced
            for path in paths
            if not self.disk.is_directory(path)
        )

    async def _sync_slowly(self, call: Callable[[], object]) -> None:
        # early or late: what is written meanwhile may be on the disk at the end, or not
        seconds = self.draw.uniform(0, self._sync_seconds_max)
        before = self.draw.choice((0.0, seconds, self.draw.uniform(0, seconds)))
        with trio.CancelScope(shield=True):
            await trio.sleep(before)
            call()
            await trio.sleep(seconds - before)

    async def _run_slowly(self, call: Callable[..., Any], *arguments: Any, **_: Any) -> Any:
        await trio.sleep(self.draw.uniform(0, self._sync_seconds_max))
        result = call(*arguments)
        await trio.sleep(self.draw.uniform(0, self._sync_seconds_max / 10))
        return result
