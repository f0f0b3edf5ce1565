"""The soak, shortened; ``make soak`` runs an hour of it."""

from __future__ import annotations

import pytest

from tests.soak.operations import OPERATIONS
from tests.soak.soak import GROWTH_BYTES_MAX, grown_bytes, run


@pytest.mark.parametrize("memory_limit", ["0", "1"], ids=["in memory", "on the disk only"])
def test_everybody_is_answered_every_job_is_completed_once_and_memory_is_flat(
    memory_limit: str,
) -> None:
    assert run(10, 1, "--memory-limit", memory_limit) == ""


def test_every_function_takes_part() -> None:
    from tests.door.engine import HANDLERS

    asked = {int(operation.function) for operation in OPERATIONS}
    # QUIT ends a connection, as the soak does by closing it
    assert set(HANDLERS) - asked <= {1}


@pytest.mark.parametrize("leak", [0, GROWTH_BYTES_MAX // 3])
def test_memory_that_grows_in_every_window_is_seen(leak: int) -> None:
    sizes = [100_000_000 + leak * window for window in range(12)]
    assert (grown_bytes(sizes) > GROWTH_BYTES_MAX) is bool(leak)
