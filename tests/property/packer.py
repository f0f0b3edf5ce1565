"""Packer: a worker for segments without a process, as lazy as a scheduler may make one."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from fastjournal.cmdlog.format.layout import segment_name
from fastjournal.cmdlog.recovery import entry_blocks, recover
from fastjournal.cmdlog.recovery.inspect_log import LogInspection, Progress, inspect_log
from fastjournal.cmdlog.recovery.replay_state import ReplayState
from fastjournal.cmdlog.recovery.segment_reader import (
    PackedSegment,
    StartPacker,
    pack_segment,
    packed_bytes_max,
)
from fastjournal.cmdlog.recovery.value_budget import ValueLimit
from fastjournal.disk import Disk
from fastjournal.errors import LogFailedError
from fastjournal.testing.disk import SimulatedDisk

ALONE, WITH_WORKER = "alone", "with a worker"
"""Forms of recovery that the fixture ``both_forms`` gives."""

ROOM = 2
"""Segments that it takes at a time."""


class Packer:
    """Implements ``segment_reader.SegmentPacker``: it answers at once, or when it is waited for.

    Args:
        disk: Where the log is.
        directory: Directory of the log.
        seed: Decides when it answers.
        fails_after: It is gone after so many answers; None: never.
    """

    def __init__(
        self, disk: Disk, directory: str, seed: int = 0, fails_after: int | None = None
    ) -> None:
        self.closed = False
        self.taken: list[int] = []
        # a failure that a test has put there is for the reader
        self._disk = disk.kill() if isinstance(disk, SimulatedDisk) else disk
        self._directory = directory
        self._draw = random.Random(seed)
        self._answers_left = fails_after
        self._asked: list[int] = []
        self._answers: dict[int, tuple[PackedSegment, memoryview] | None] = {}
        self._in_use: set[int] = set()

    def ask(self, number: int) -> bool:
        assert not self.closed
        if self._answers_left == 0:
            return False
        if len(self._asked) + len(self._answers) + len(self._in_use) >= ROOM:
            return False
        self._asked.append(number)
        return True

    def is_packing(self, number: int) -> bool:
        while number in self._asked and self._draw.random() < 0.5:
            self._answer()
        return number in self._asked

    def wait(self) -> None:
        self._answer()

    def take(self, number: int) -> tuple[PackedSegment, memoryview] | None:
        assert number not in self._asked
        answer = self._answers.pop(number, None)
        if answer is not None:
            self._in_use.add(number)
            self.taken.append(number)
        return answer

    def release(self, number: int) -> None:
        self._in_use.remove(number)

    def close(self) -> None:
        self.closed = True

    def _answer(self) -> None:
        if self._answers_left == 0:
            self._asked.clear()
            return
        if self._answers_left is not None:
            self._answers_left -= 1
        number = self._asked.pop(0)
        packed = None
        buffer = memoryview(b"")
        with suppress(LogFailedError):
            data = self._disk.read(f"{self._directory}/{segment_name(number)}")
            buffer = memoryview(bytearray(packed_bytes_max(len(data))))
            packed = pack_segment(number, data, buffer)
        self._answers[number] = None if packed is None else (packed, buffer)


@contextmanager
def packing() -> Iterator[None]:
    """Let every recovery in the block have a packer, and blocks of few entries."""

    def with_packer(
        disk: Disk,
        directory: str,
        state: ReplayState,
        on_progress: Callable[[Progress], None] | None = None,
        limit: ValueLimit | None = None,
        start_packer: StartPacker | None = None,
    ) -> LogInspection:
        assert start_packer is None
        packer = Packer(disk, directory)
        return inspect_log(disk, directory, state, on_progress, limit, lambda _: packer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recover, "inspect_log", with_packer)
        patch.setattr(entry_blocks, "BLOCK_RECORDS_MIN", 1)
        yield
