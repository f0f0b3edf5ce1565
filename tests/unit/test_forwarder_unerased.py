"""Slots in which nothing can be erased: no other one waits."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from fastjournal.errors import SpoolFailedError
from fastjournal.limits import FIRST_RECORDS_MAX
from fastjournal.spool import Spool, spool_status
from fastjournal.spool.format import ERASED_BYTE
from fastjournal.testing.ledger import Ledger
from fastjournal.testing.scripted_daemon import ScriptedDaemon
from fj_forwarder.storage import slot_store
from tests.unit.spool_files import a_forwarder

BAD, GOOD = 1_100, 300
"""Records of a slot that cannot be erased: more than may be in flight; and of a good one."""


class At:
    """A clock that stands."""

    def __init__(self, hour: int) -> None:
        self._us = (1_795_161_600 + hour * 3600) * 1_000_000

    def now_us(self) -> int:
        return self._us


def fill(directory: Path, hour: int, count: int) -> tuple[Path, set[bytes]]:
    before = set(directory.glob("*.fjs"))
    with Spool(directory, clock=At(hour)) as spool:
        keys = {spool.append(domain="d", id=f"{hour}-{number}") for number in range(count)}
    (path,) = set(directory.glob("*.fjs")) - before
    return path, keys


def break_erasing(monkeypatch: pytest.MonkeyPatch, inodes: set[int], number: int) -> None:
    """Let no byte of these files be erased."""
    pwrite = os.pwrite

    def failing(descriptor: int, data: bytes, offset: int) -> int:
        if data == ERASED_BYTE and os.fstat(descriptor).st_ino in inodes:
            raise OSError(number, os.strerror(number))
        return pwrite(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", failing)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
async def test_slot_that_cannot_be_erased_is_left_out_and_its_start_alone_is_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    bad, of_bad = fill(tmp_path, 0, BAD)
    _, of_good = fill(tmp_path, 1, GOOD)
    ledger = Ledger()
    with ScriptedDaemon(ledger.answer) as daemon:
        with monkeypatch.context() as patch:
            break_erasing(patch, {bad.stat().st_ino}, number)
            for _ in range(2):
                caplog.clear()
                with pytest.raises(SpoolFailedError, match="cannot erase") as raised:
                    await a_forwarder(tmp_path, daemon).run()
                assert raised.value.path == str(bad)
                told = [line for line in caplog.messages if "left out" in line]
                assert len(told) == 1
                assert bad.name in told[0]
                sent = {request.key for request in daemon.requests}
                assert len(sent & of_bad) == FIRST_RECORDS_MAX, "and the same ones each time"
                assert sent >= of_good
                assert spool_status(tmp_path).pending == BAD
                status = json.loads((tmp_path / "status.json").read_bytes())
                assert status["left_out_names"] == [bad.name]
        await a_forwarder(tmp_path, daemon).run()
    assert set(ledger.applied) == of_bad | of_good
    assert spool_status(tmp_path).pending == 0


async def test_slots_that_cannot_be_erased_hold_up_no_good_one_however_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_store, "OPEN_SLOTS_MAX", 2)
    monkeypatch.setattr(slot_store, "UNERASED_MAX", 2 * FIRST_RECORDS_MAX)
    slots = [fill(tmp_path, hour, 40) for hour in range(5)]
    _, of_good = fill(tmp_path, 5, GOOD)
    break_erasing(monkeypatch, {path.stat().st_ino for path, _ in slots}, errno.EROFS)
    ledger = Ledger()
    with (
        ScriptedDaemon(ledger.answer) as daemon,
        pytest.raises(SpoolFailedError, match="nor were read"),
    ):
        await a_forwarder(tmp_path, daemon).run()
    applied = set(ledger.applied)
    assert applied >= of_good
    assert spool_status(tmp_path).pending == 5 * 40
    sent = [len(applied & keys) for _, keys in slots]
    assert all(1 <= count <= FIRST_RECORDS_MAX for count in sent)
    assert sent[-1] == 1, "over the bound of all slots"


async def test_dead_letter_that_cannot_be_erased_is_put_aside_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bad, _ = fill(tmp_path, 0, 1)
    with ScriptedDaemon(Ledger(refuse=lambda _: "bad-value").answer) as daemon:
        with monkeypatch.context() as patch:
            break_erasing(patch, {bad.stat().st_ino}, errno.EIO)
            run = a_forwarder(tmp_path, daemon)
            with pytest.raises(SpoolFailedError, match="cannot erase"):
                await run.run()
        assert (run.dead, run.done) == (1, 0)
        assert sum("bad-value" in line for line in caplog.messages) == 1
        await a_forwarder(tmp_path, daemon).run()
    assert (spool_status(tmp_path).dead, spool_status(tmp_path).pending) == (1, 0)
