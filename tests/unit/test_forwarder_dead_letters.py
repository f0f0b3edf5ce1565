"""Dead letters of which ``dead/`` does not take some, or takes none: the others, and the pauses."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import google_crc32c
import pytest

from fastjournal.errors import SpoolFailedError
from fastjournal.limits import RESCAN_US
from fastjournal.protocol import Reply, ServerConnection
from fastjournal.spool import DeadDirectory
from fastjournal.spool.format import FILE_HEADER, FILE_HEADER_BYTES
from fj_forwarder.delivery import LETTER_UNITS, TURN_UNITS
from tests.unit.spool_files import EIGHT as START_US
from tests.unit.spool_files import a_delivery, record

SLOT = "20261120T080000Z"
DAMAGE = b"x" * 100
COUNT = 30


class Refused:
    """Delivery to a daemon that refuses each record for good, in virtual time."""

    def __init__(self, directory: Path) -> None:
        self.now_us = START_US
        self._daemon = ServerConnection()
        self.delivery, self._engine = a_delivery(directory, slot_seconds=1)

    def run(self, seconds: int) -> None:
        end_us = self.now_us + seconds * 1_000_000
        while self.now_us < end_us:
            self.delivery.fill(self.now_us, self.now_us)
            frames = self._engine.take(self.now_us)
            if frames:
                self._daemon.receive_data(frames)
            for request in self._daemon.next_events():
                reply = Reply(request.identifier, error="bad-value refused")
                self.delivery.handle(reply, self.now_us)
            if not frames:
                self.now_us = max(self.now_us + 1000, self.delivery.next_due(self.now_us))


def block(directory: Path, slot: str, raw: bytes) -> Path:
    """Put a directory where the letter of the first bytes of a slot is to be written."""
    name = f"{slot}-{FILE_HEADER_BYTES:012d}-{google_crc32c.value(raw):08x}.bin.tmp"
    path = directory / "dead" / name
    path.mkdir(parents=True)
    return path


def write_drop_ins(directory: Path) -> None:
    for number in range(COUNT):
        path = directory / f"{SLOT}-{number}.fjs"
        path.write_bytes(FILE_HEADER + record(number))


def write_damage(directory: Path) -> Path:
    (directory / f"{SLOT}.fjs").write_bytes(FILE_HEADER + DAMAGE + record(COUNT))
    return block(directory, SLOT, DAMAGE)


def write_letter(directory: Path) -> Path:
    (directory / f"{SLOT}.fjs").write_bytes(FILE_HEADER + record(COUNT))
    return block(directory, SLOT, record(COUNT)[5:-4])


@pytest.mark.parametrize("write", [write_damage, write_letter])
def test_piece_that_dead_does_not_take_holds_up_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, write: Callable[[Path], Path]
) -> None:
    blocker = write(tmp_path)
    write_drop_ins(tmp_path)
    run = Refused(tmp_path)
    run.run(20)
    assert run.delivery.dead_letters.count == COUNT + (write is write_damage)
    assert [path.name for path in tmp_path.glob("*.fjs")] == [f"{SLOT}.fjs"]
    with pytest.raises(SpoolFailedError):
        run.delivery.finish()
    failures = [entry for entry in caplog.records if entry.levelno == logging.ERROR]
    assert len(failures) == 1
    blocker.rmdir()
    run.run(60)
    assert list(tmp_path.glob("*.fjs")) == []
    run.delivery.finish()


def test_last_try_of_the_forwarder_comes_to_pieces_behind_one_that_dead_does_not_take(
    tmp_path: Path,
) -> None:
    write_damage(tmp_path)
    write_drop_ins(tmp_path)
    dead = tmp_path / "dead"
    away = dead.rename(tmp_path / "away.fjs.tmp")
    dead.touch()  # dead/ takes nothing at all
    run = Refused(tmp_path)
    run.run(2)
    assert run.delivery.dead_letters.count == 0
    dead.unlink()
    away.rename(dead)
    with pytest.raises(SpoolFailedError, match="Is a directory"):
        run.delivery.finish()
    assert run.delivery.dead_letters.count == COUNT + 1


def test_last_try_of_a_stopped_forwarder_is_one_turn_and_the_rest_is_for_the_next_start(
    tmp_path: Path,
) -> None:
    write_drop_ins(tmp_path)
    dead = tmp_path / "dead"
    dead.touch()
    stopped = Refused(tmp_path)
    stopped.run(2)
    dead.unlink()
    stopped.delivery.finish(is_stopped=True)
    buried = stopped.delivery.dead_letters.count
    assert 0 < buried <= TURN_UNITS // LETTER_UNITS + 1 < COUNT, "a thousand take minutes"
    stopped.delivery.close()
    next_one = Refused(tmp_path)
    next_one.run(2)
    assert next_one.delivery.dead_letters.count == COUNT - buried
    assert list(tmp_path.glob("*.fjs")) == []


def test_dead_that_takes_nothing_is_left_alone_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_drop_ins(tmp_path)
    (tmp_path / "dead").touch()
    tries: list[int] = []
    put = DeadDirectory.put

    def count(*arguments: object) -> str:
        tries.append(run.now_us)
        return put(*arguments)  # type: ignore[arg-type]  # as they came

    monkeypatch.setattr(DeadDirectory, "put", count)
    run = Refused(tmp_path)
    run.run(60)
    assert 2 <= len(tries) <= 60_000_000 // RESCAN_US
    assert min(b - a for a, b in pairwise(tries)) >= RESCAN_US
    assert len([e for e in caplog.records if e.levelno == logging.ERROR]) == 1
    (tmp_path / "dead").unlink()
    run.run(60)
    assert run.delivery.dead_letters.count == COUNT
