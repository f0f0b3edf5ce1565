"""The soak, shortened; ``make soak`` runs an hour of it."""

from __future__ import annotations

import pytest

from fastjournal.protocol import ErrorCode, Flag
from fastjournal.spool.appending.spool_writer import WRITES
from fj_forwarder.sending.dispositions import Disposition, disposition_of
from tests.soak.operations import OPERATIONS
from tests.soak.poisons import POISONS, REFUSED, UNREACHABLE, WAITING
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
