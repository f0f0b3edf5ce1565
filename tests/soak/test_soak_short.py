"""The soak, shortened; ``make soak`` runs an hour of it."""

from __future__ import annotations

import pytest

from tests.soak.failover_soak import run_failover
from tests.soak.operations import OPERATIONS
from tests.soak.soak import run
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


def test_failover_soak_loses_and_doubles_nothing_and_answers_no_stale_read() -> None:
    outcome = run_failover(45, 1, faults=7)
    print(outcome.line())
    assert outcome.wrong == []
    assert (outcome.lost, outcome.doubled, outcome.stale) == (0, 0, 0)
    assert outcome.completed > 0 < outcome.reads
    assert sum(outcome.process_faults.values()) >= 1
    assert outcome.epochs > 1


def test_functions_all_take_part_in_the_soak() -> None:
    from fastjournald.engine.handlers.table import HANDLERS

    asked = {int(operation.function) for operation in OPERATIONS}
    # QUIT ends a connection, as the soak does by closing it
    assert set(HANDLERS) - asked <= {1}
