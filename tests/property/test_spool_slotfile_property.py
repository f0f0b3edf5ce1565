"""A slot under appends, torn ones, erasing, releasing and kills: each record comes until erased.

The forwarder is killed between any two of its writes to the file, and opened again.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fastjournal.spool import Piece, list_slots
from fastjournal.spool import format as form
from fj_forwarder.storage import slot_file, slot_space
from fj_forwarder.storage.slot_file import Retry, SlotFile

NAME = "20261120T080000Z.fjs"


class KilledError(Exception):
    """Stands for SIGKILL between two calls."""


class KillingOs:
    """The module ``os`` as slot files see it: before the n-th write the process is killed."""

    def __init__(self) -> None:
        self.calls_left = -1
        """Until the kill; negative: there is none to come."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def pwrite(self, descriptor: int, data: bytes, offset: int) -> int:
        self._count()
        return os.pwrite(descriptor, data, offset)

    def punch_hole(self, descriptor: int, offset: int, size: int) -> bool:
        self._count()
        os.pwrite(descriptor, bytes(size), offset)
        return True

    def _count(self) -> None:
        if self.calls_left == 0:
            raise KilledError
        self.calls_left -= 1


class SlotMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.path = Path(self.directory.name, NAME)
        self.path.write_bytes(form.FILE_HEADER)
        self.random = Random(0)
        self.appended: dict[int, bytes] = {}
        """Offset to frame, of what is not erased."""
        self.torn: set[bytes] = set()
        self.aside: set[bytes] = set()
        self.taken: dict[int, Piece] = {}
        self.os = KillingOs()
        self.patches: list[Any] = [
            mock.patch.object(slot_space, "RELEASE_BYTES", 300),
            mock.patch.object(slot_space, "RECORD_BYTES_MAX", 700),
            mock.patch.object(slot_space, "punch_hole", self.os.punch_hole),
            mock.patch.object(slot_space, "os", self.os),
            mock.patch.object(slot_file, "os", self.os),
        ]
        for patch in self.patches:
            patch.start()
        self.file = self.opened()

    # The steps.

    @initialize(seed=st.integers(0, 2**32))
    def choose_frames(self, seed: int) -> None:
        self.random = Random(seed)

    def frame(self) -> bytes:
        return self.random.randbytes(self.random.choice((0, 1, 10, 60, 200)))

    @rule(count=st.integers(1, 12))
    def append(self, count: int) -> None:
        for _ in range(count):
            frame = self.frame()
            self.appended[self.path.stat().st_size] = frame
            self.write(form.encode_record(frame))

    @rule()
    def append_torn_and_another(self) -> None:
        record = form.encode_record(self.frame())
        piece = record[: self.random.randrange(1, len(record))]
        if record.startswith(piece + b"P"):
            return  # what follows would complete it: then it was not torn
        self.torn.add(piece)
        self.write(piece)
        self.append(1)

    def write(self, data: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(data)

    @rule(count=st.integers(1, 20), settled=st.booleans())
    def take(self, count: int, settled: bool) -> None:
        if settled:
            self.file.take(0, 1)
            self.file.wait_for_writes()
        self.keep(self.file.take(count, 10**6, settled=settled))

    @rule(count=st.integers(1, 20), in_order=st.booleans())
    def erase(self, count: int, in_order: bool) -> None:
        for _ in range(min(count, len(self.taken))):
            offset = min(self.taken) if in_order else self.random.choice(sorted(self.taken))
            del self.taken[offset]
            del self.appended[offset]
            self.file.erase(offset)

    @rule(count=st.integers(1, 8))
    def delay(self, count: int) -> None:
        """Forget some records: one range from the first to the last, those between included."""
        some = sorted(self.random.sample(sorted(self.taken), min(count, len(self.taken))))
        if some:
            retry = Retry(self.file, some[0], self.taken[some[-1]].end, due_us=0)
            for offset in some:
                self.file.evict(offset)
                del self.taken[offset]
            self.file.delayed.add(retry)

    @rule(count=st.integers(1, 8))
    def take_again(self, count: int) -> None:
        for retry in list(self.file.delayed):
            self.keep(self.file.take_again(retry, count, 10**6))
            if retry.start >= retry.end:
                self.file.undelay(retry)

    @rule()
    def rest_and_wake(self) -> None:
        if self.file.is_at_rest:
            self.file.suspend()
            self.file.resume()

    @rule()
    def kill(self) -> None:
        self.open_again()

    @rule(calls=st.integers(0, 12))
    def erase_and_kill_in_the_middle(self, calls: int) -> None:
        self.os.calls_left = calls
        try:
            self.take(20, settled=False)
            while self.taken:
                offset = min(self.taken)
                self.file.erase(offset)
                del self.taken[offset], self.appended[offset]
        except KilledError:
            # The erasing itself may have been done, and only what follows not.
            for offset in list(self.appended):
                if self.state(offset) != form.PENDING:
                    del self.appended[offset]
            self.open_again()
        self.os.calls_left = -1

    def state(self, offset: int) -> int:
        with self.path.open("rb") as file:
            file.seek(offset)
            return file.read(1)[0]

    def opened(self) -> SlotFile:
        (slot,) = list_slots(self.directory.name)
        return SlotFile(slot, self.put_aside)

    def put_aside(self, slot: SlotFile, piece: Piece, code: str, sentence: str) -> bool:
        self.aside.add(piece.data)
        return True

    def open_again(self) -> None:
        self.os.calls_left = -1
        self.file.close()
        self.file = self.opened()
        self.taken.clear()

    def keep(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            assert self.appended.get(piece.offset) == piece.data, "not appended, or erased before"
            assert piece.offset not in self.taken, "taken twice"
            self.taken[piece.offset] = piece

    @invariant()
    def what_is_pending_is_as_it_was_appended(self) -> None:
        data = self.path.read_bytes()
        for offset, frame in self.appended.items():
            assert data[offset:].startswith(form.encode_record(frame))

    def teardown(self) -> None:
        for patch in self.patches:
            patch.stop()
        try:
            self.open_again()
            while pieces := self.file.take(100, 10**6, final=True):
                self.keep(pieces)
            assert self.taken.keys() == self.appended.keys(), "lost"
            assert self.aside == self.torn, "damage was dropped, or what is none was put aside"
        finally:
            self.file.close()
            self.directory.cleanup()


SlotMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestSlotMachine = SlotMachine.TestCase
