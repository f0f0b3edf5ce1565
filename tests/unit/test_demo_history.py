"""Demo history: its log is one that the daemon could have written, and that workq starts on."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastjournal.cmdlog.recovery.recover import recover
from fastjournal.disk import OsDisk
from fastjournal.keys import build_journal_key
from fastjournal.testing.workq_rules import WorkqJobState, assert_workq_accepts
from fj_cli.demo.history_log import HistoryLog
from tests.property.subject import SECOND, START


def key(number: int) -> bytes:
    return build_journal_key(b"a.example", b"%d" % number, not_before_us=START, priority=1)


@pytest.mark.parametrize("buried", [False, True])
def test_log_of_a_page_that_changes_again_is_one_that_workq_accepts(
    tmp_path: Path, buried: bool
) -> None:
    directory = str(tmp_path / "log")
    log = HistoryLog(Path(directory), 1 << 20)
    old = log.set(key(1), b"uri", START, START, None)
    if buried:
        log.lease(old, START, START + SECOND)
        log.bury(old, b"reason", START)
    now = START + 2 * SECOND
    new = log.set(key(2), b"uri", now, now, old)
    log.close()
    jobs = {
        number.bytes: job.state
        for number, job in assert_workq_accepts(directory).jobs.items()
        if job.record.name == "a.example"
    }
    assert jobs == {new: WorkqJobState.NEW} | ({} if buried else {old: WorkqJobState.COMPLETED})
    recovered = recover(OsDisk(), directory, now_us=now)
    assert list(recovered.state.jobs) == [new]
    assert recovered.state.tombstones[key(1)].timestamp == now
