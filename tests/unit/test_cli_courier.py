"""The worker's patience with a daemon that is away, or that says: not now."""

from __future__ import annotations

import contextlib

import pytest
import trio
import trio.testing

from fastjournal.errors import (
    BadRequestError,
    CannotConnectError,
    FastjournalError,
    ProtocolError,
    RefusedError,
)
from fj_cli.courier import LATER, Patience

AWAY = CannotConnectError("nobody there")
OTHER = ProtocolError("no fastjournald")
BUSY = RefusedError("full", code="busy")


async def seconds_of(error: FastjournalError, away_s: float, refused_s: float) -> float:
    """How long an error is put up with, by a clock that jumps."""
    began = trio.current_time()
    patience = Patience(away_s, refused_s, trio.Event())
    with contextlib.suppress(FastjournalError):
        while True:
            await patience.pause_after(error)
    return trio.current_time() - began


async def test_a_daemon_that_is_away_is_waited_for_so_long(
    autojump_clock: trio.testing.MockClock,
) -> None:
    for error in (AWAY, OTHER):
        assert 295 <= await seconds_of(error, 300, 0) <= 300
        assert await seconds_of(error, 0, 300) == 0


async def test_one_that_says_not_now_is_waited_for_longer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    for code in LATER:
        assert 3595 <= await seconds_of(RefusedError("", code=code), 300, 3600) <= 3600
    for code in ("forbidden", "auth-failed", "clock-skew", "lease-lost"):
        assert await seconds_of(RefusedError("", code=code), 300, 3600) == 0
    assert await seconds_of(BadRequestError(""), 300, 3600) == 0


async def test_what_speaks_another_protocol_counts_as_away() -> None:
    with pytest.raises(CannotConnectError, match="no fastjournald"):
        await Patience(0, 0, trio.Event()).pause_after(OTHER)


async def test_giving_up_ends_a_pause_at_once_and_allows_no_other(
    autojump_clock: trio.testing.MockClock,
) -> None:
    gave_up = trio.Event()
    patience = Patience(300, 300, gave_up)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(patience.pause_after, BUSY)
        await trio.testing.wait_all_tasks_blocked()
        gave_up.set()
    assert trio.current_time() < 1
    with pytest.raises(RefusedError):
        await patience.pause_after(BUSY)
