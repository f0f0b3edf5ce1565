"""Parking lot: tasks that wait in a FIFO queue until others wake some of them."""

from __future__ import annotations

from collections import deque

from fastjournal.client.aio.event_loop import EventLoop, LoopEvent


class ParkingLot:
    """Queue of tasks that wait; first come, first served."""

    def __init__(self, loop: EventLoop) -> None:
        self._new_event = loop.new_event
        self._waiting: deque[LoopEvent] = deque()
        self.woken = 0
        """Tasks that were woken, and have not run since."""

    def __len__(self) -> int:
        return len(self._waiting)

    async def park(self) -> None:
        """Wait until this task is woken.

        Where the wait is cancelled in the moment in which it was woken, the next one is woken.
        """
        woken = self._new_event()
        self._waiting.append(woken)
        try:
            await woken.wait()
        except BaseException:  # cancelled
            if woken.is_set():
                self.woken -= 1
                self.unpark(1)
            else:
                self._waiting.remove(woken)
            raise
        self.woken -= 1

    def unpark(self, count: int) -> None:
        """Wake the first tasks."""
        count = min(count, len(self._waiting))
        for _ in range(count):
            self._waiting.popleft().set()
        self.woken += count

    def unpark_all(self) -> None:
        """Wake all tasks."""
        self.unpark(len(self._waiting))
