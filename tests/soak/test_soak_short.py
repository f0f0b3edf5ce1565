"""The soak, shortened; ``make soak`` runs an hour of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from fastjournal.protocol import ErrorCode, Flag
from fastjournal.spool.appending.spool_writer import WRITES
from fj_forwarder.sending.dispositions import Disposition, disposition_of
from tests.soak.operations import OPERATIONS
from tests.soak.peer import LostError, Peer
from tests.soak.poisons import POISONS, REFUSED, UNREACHABLE, WAITING
from tests.soak.soak import GROWTH_BYTES_MAX, grown_bytes, run
from tests.soak.spool_soak import run_spool


@pytest.mark.parametrize("memory_limit", ["0", "1"], ids=["in memory", "on the disk only"])
def test_soak_answers_everybody_completes_every_job_once_and_memory_is_flat(
    memory_limit: str,
) -> None:
    assert run(6, 1, "--memory-limit", memory_limit) == ""


def test_spool_soak_loses_and_doubles_nothing_under_kills_poison_and_full_disks() -> None:
    outcome = run_spool(4, 1)
    assert outcome.wrong == []
    assert outcome.line().startswith(f"appended {outcome.appended:,}, delivered ")
    assert (outcome.lost, outcome.doubled) == (0, 0)
    assert outcome.delivered == outcome.appended > 0
    assert outcome.kills > 0


def test_poisons_of_the_soak_have_every_code_that_the_forwarder_gives_one_record() -> None:
    """A code that is new in the protocol needs a poison, or a reason why there can be none."""
    effects = {
        (code.value, disposition_of(code, function, flags))
        for code in ErrorCode
        for function in WRITES
        for flags in (0, Flag.OVERWRITE)
    }
    of_one_record = {Disposition.DEAD, Disposition.LATER, Disposition.SKEWED}
    codes = {code for code, effect in effects if effect in of_one_record}
    assert set(WAITING.values()) <= POISONS.keys()
    poisons = {code for code, _ in REFUSED.values()} | WAITING.keys()
    assert codes - poisons == UNREACHABLE.keys()
    assert not poisons & UNREACHABLE.keys()


def test_functions_all_take_part_in_the_soak() -> None:
    from fastjournald.engine.handlers.table import HANDLERS

    asked = {int(operation.function) for operation in OPERATIONS}
    # QUIT ends a connection, as the soak does by closing it
    assert set(HANDLERS) - asked <= {1}


@pytest.mark.parametrize("leak", [0, GROWTH_BYTES_MAX // 3])
def test_memory_that_grows_in_every_window_is_seen(leak: int) -> None:
    sizes = [100_000_000 + leak * window for window in range(12)]
    assert (grown_bytes(sizes) > GROWTH_BYTES_MAX) is bool(leak)


async def _send_on(peer: Peer) -> None:
    """Send bytes until the kernel says that nobody takes them."""
    for _ in range(1000):
        await peer.send_bytes(b".")


@pytest.mark.parametrize("act", [_send_on, Peer.wait, Peer.reply])
async def test_connection_that_the_daemon_ends_is_lost_in_the_middle_of_a_request_too(
    act: Callable[[Peer], Awaitable[None]],
) -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        stream = await trio.testing.open_stream_to_socket_listener(listener)
        daemon = await listener.accept()
        async with stream:
            peer = Peer(stream)
            await peer.send_bytes(b"half of a request")
            # with bytes unread the kernel resets the connection
            with trio.fail_after(60):
                await trio.lowlevel.wait_readable(daemon.socket)
            await daemon.aclose()
            with pytest.raises(LostError):
                await act(peer)
