"""Watchdog: tell the service manager that the event loop runs (WatchdogSec= of the unit)."""

from __future__ import annotations

import trio

from fastjournal import sdnotify


async def ping_watchdog(seconds: float) -> None:
    """Send ``WATCHDOG=1`` twice in the time that the service manager waits for one.

    A turn of the event loop that takes longer sends none, and the manager ends the daemon with
    SIGABRT: with PYTHONFAULTHANDLER=1, which the unit sets, its log then shows where each thread
    stood.
    """
    while True:
        sdnotify.notify("WATCHDOG=1", wait=False)
        await trio.sleep(seconds / 2)
