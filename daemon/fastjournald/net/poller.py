"""Poller: the one task that serves all plain connections, TCP and unix.

Each round is the write path, and all of it, without a switch between tasks:

    epoll (which sockets have something) -> receive -> session (bytes to requests; the engine
    applies them and appends records) -> one commit for all of them -> send

The turn budget (``admission``) bounds which sessions are served in a round, and how much of each:
a session asks it before it decodes. While a sync runs in a thread, the next rounds receive and
handle, and their replies wait for the next commit.

The sockets are registered level-triggered: the system tells of a socket again until nothing is left
in it, whatever a receive returned. A connection that waits for something else while its client
sends is taken out, until it listens again; a client that waits for its replies never costs that.
"""

from __future__ import annotations

import logging
import os
import select
from collections import deque
from collections.abc import Callable
from typing import Protocol

import trio

from fastjournald.group_commit.commit import GroupCommit
from fastjournald.net.plain_socket import PlainSocket
from fastjournald.net.session import Session
from fastjournald.net.shared_batch import SharedBatch

LOG = logging.getLogger("fastjournald")

EVENTS_A_ROUND = 512
"""Sockets that are received from in one round: about 2 ms. Events of others stay with the system,
in the order in which they came."""

ALONE_PIECES = 32
"""Pieces of work, mostly batches of requests, after which a client has the daemon to itself, where
no other client has had any done since: none with TLS either, and none in a scan or a window."""

_EVENTS = select.EPOLLIN | select.EPOLLRDHUP


class Polled(Protocol):
    """A connection, as far as the poller knows it."""

    session: Session
    plain: PlainSocket
    heard: bool
    """Whether the system tells of its socket. The poller notes it."""

    def receive(self, together: SharedBatch | None) -> bool:
        """Receive, if it listens; return whether it did.

        Args:
            together: May take the request; the poller has it carried out. None: others sent none.
        """

    def go_on(self) -> None:
        """Go on, as far as that needs no wait: it asked for that by ``resume``."""

    def carry_on(self) -> None:
        """Carry out the request, which the shared batch has taken and left."""

    def settled(self, settled: int) -> None:
        """So many bytes of the log are settled: more than when it asked for that by ``settle``."""

    def stop_receiving(self) -> None:
        """Take no more from the client."""

    def cut(self) -> None:
        """Close at once."""


class Poller:
    """Serves the connections that were added.

    Args:
        commit: Group commit.
        together: Takes the requests of sessions that may be carried out together.
        now_us: Clock.
        is_alone: Whether the last pieces of work, so many, were all of one client.
    """

    def __init__(
        self,
        commit: GroupCommit,
        together: SharedBatch,
        now_us: Callable[[], int],
        is_alone: Callable[[int], bool],
    ) -> None:
        self._commit = commit
        self._together = together
        self._now_us = now_us
        self._is_alone = is_alone
        self._clients: dict[int, Polled] = {}
        """By descriptor."""
        self._epoll: select.epoll | None = None
        """None: it does not run."""
        self._wake_descriptor = -1
        self._asleep = False
        """The task waits for the system, and whoever has something to do has to tell that."""
        self._ready: deque[Polled] = deque()
        """Those that can go on."""
        self._unsettled: list[Polled] = []
        """Those that wait for the next commit."""
        self._some_unsettled = trio.Event()
        self._settling = False
        """A commit is under way that waits for a thread, or for another task."""
        self._stops: deque[tuple[float, Polled]] = deque()
        """When to receive no more, and from whom."""
        self._some_stop = trio.Event()
        self._stopping = False
        self._failed = False
        """It ended, with the daemon, while there were clients."""

    # --- calls of connections -------------------------------------------------------------------

    def add(self, client: Polled) -> None:
        """Serve one more."""
        self._clients[client.plain.socket.fileno()] = client
        self.hear(client)

    def hear(self, client: Polled) -> None:
        """Call ``receive`` when there is something to receive; where that cannot be, cut it."""
        if self._epoll is None:
            return
        try:
            self._epoll.register(client.plain.socket.fileno(), _EVENTS)
        except OSError as error:
            # the system watches no more sockets, for want of memory or by fs.epoll.max_user_watches
            LOG.warning("event=not-watched error=%r", error.strerror)
            client.cut()
        else:
            client.heard = True

    def remove(self, client: Polled) -> None:
        """Serve it no more, before its socket is closed."""
        descriptor = client.plain.socket.fileno()
        if self._clients.pop(descriptor, None) is not None and client.heard:
            assert self._epoll is not None
            self._epoll.unregister(descriptor)
        if self._stopping:
            self._wake()

    def resume(self, client: Polled) -> None:
        """Call ``go_on`` in the next round."""
        self._ready.append(client)
        if self._asleep:
            self._wake()

    def settle(self, client: Polled) -> None:
        """Call ``settled`` when more is settled, at the latest when all is that was appended."""
        self._unsettled.append(client)
        if self._asleep and not self._settling:
            self._wake()

    def stop_receiving_at(self, instant: float, client: Polled) -> None:
        """Call ``stop_receiving`` at an instant, which is not before those of earlier calls."""
        self._stops.append((instant, client))
        self._some_stop.set()

    @property
    def over(self) -> bool:
        """Whether it has ended, or is about to: nobody is left, and it was stopped."""
        return self._failed or (self._stopping and not self._clients)

    def stop(self) -> None:
        """End when the last client has gone."""
        self._stopping = True
        self._wake()

    def _wake(self) -> None:
        if self._asleep:
            self._asleep = False
            os.eventfd_write(self._wake_descriptor, 1)

    # --- the task -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve, until stopped and everybody has gone.

        Raises:
            LogFailedError: The log failed; the daemon must end.
        """
        self._wake_descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll = epoll = select.epoll()
        try:
            epoll.register(self._wake_descriptor, select.EPOLLIN | select.EPOLLET)
            self._hear_all()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._settle_slowly)
                nursery.start_soon(self._stop_clients)
                await self._serve(epoll)
                nursery.cancel_scope.cancel()
        finally:
            self._asleep = False
            self._failed = True
            self._cut_all()
            self._epoll = None
            epoll.close()
            os.close(self._wake_descriptor)

    def _hear_all(self) -> None:
        for client in list(self._clients.values()):
            self.hear(client)

    def _cut_all(self) -> None:
        for client in list(self._clients.values()):
            client.cut()
        for client in self._clients.values():
            # a task carries it on to its end
            client.heard = False

    async def _serve(self, epoll: select.epoll) -> None:
        descriptor = epoll.fileno()
        while not self.over:
            if self._ready or (self._unsettled and not self._settling):
                await trio.lowlevel.checkpoint()
            else:
                self._asleep = True
                await trio.lowlevel.wait_readable(descriptor)
                self._asleep = False
            self._take_round(epoll)

    def _take_round(self, epoll: select.epoll) -> None:
        clients, ready = self._clients, self._ready
        events = epoll.poll(0, EVENTS_A_ROUND)
        for _ in range(len(ready)):
            ready.popleft().go_on()
        together = self._together if len(events) > 1 else None
        for descriptor, _ in events:
            client = clients.get(descriptor)
            if client is not None and not client.receive(together):
                epoll.unregister(descriptor)
                client.heard = False
        if together is not None and together.waits:
            self._carry_out(together)
        if self._unsettled and not self._settling:
            alone = len(self._unsettled) == 1 and self._is_alone(ALONE_PIECES)
            if self._commit.settle_now(alone=alone):
                self._go_on_settled()
            else:
                self._settling = True
                self._some_unsettled.set()

    def _carry_out(self, together: SharedBatch) -> None:
        left = together.carry_out(self._now_us())
        if left:
            for client in self._unsettled.copy():
                if client.session in left:
                    client.carry_on()

    def _go_on_settled(self) -> None:
        # a client that came while a thread synced, and is not settled so far, asks again
        unsettled, self._unsettled = self._unsettled, []
        settled = self._commit.writer.settled
        for client in unsettled:
            client.settled(settled)

    async def _settle_slowly(self) -> None:
        """Carry out commits that the poller's task must not wait for."""
        commit = self._commit
        while True:
            await self._some_unsettled.wait()
            await commit.wait_settled(commit.writer.appended)
            self._go_on_settled()
            if not self._unsettled:
                self._settling = False
                self._some_unsettled = trio.Event()

    async def _stop_clients(self) -> None:
        while True:
            while self._stops:
                instant, client = self._stops[0]
                await trio.sleep_until(instant)
                self._stops.popleft()
                client.stop_receiving()
            self._some_stop = trio.Event()
            await self._some_stop.wait()
