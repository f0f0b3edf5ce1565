"""Faults planted in the rules of the remote log: what each rule is there for.

Each fault replaces one rule of ``fastjournal.remote`` by what seems to do as well. The walks of
``remote_log_world`` find an acknowledged record that is lost, two primaries, or a state that was
never live.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from fastjournal.errors import FencedError
from fastjournal.remote import checkpoints, directory, objects, reader, writer
from fastjournal.remote.objects import (
    Chunk,
    ChunkId,
    Epoch,
    chunk_name,
    chunks_of,
    decode_chunk,
    encode_chunk,
    epoch_name,
)
from fastjournal.remote.store import Create, Delete, List, Steps
from fastjournal.remote.writer import ChunkWriter, RemoteAck
from tests.property.remote_log_world import Limits, Node, Setup, World

Patch = pytest.MonkeyPatch


@dataclass
class Fault:
    """One fault: how it is planted, and with which seed a walk finds it soon."""

    plant: Callable[[Patch], None]
    seed: int = 1
    setup: Setup = field(default_factory=Setup)
    world: type[World] = World


def nothing(_: Patch) -> None:
    """Plant nothing: the fault is in the setup."""


# --- writer -------------------------------------------------------------------------------------


class EagerWriter(ChunkWriter):
    pending: Chunk

    def _create(self, chunk: Chunk) -> Steps[None]:
        self.pending = chunk
        yield from super()._create(chunk)

    def send_next(self) -> None:
        self.number, self.under_way = self.number + 1, False


class EagerWorld(World):
    """W1: the next chunk is sent before the answer for the last one."""

    def _enabled_primary(self, node: Node) -> Iterator[tuple[str, ...]]:
        yield from super()._enabled_primary(node)
        process = node.processes.get("main")
        if process is not None and process.serial and not process.answered:
            yield ("send_next",)

    def do_send_next(self, node: Node) -> None:
        eager = node.writer
        if not eager.pending.payload:
            return
        stored, eager.stored = eager.stored, eager.pending.end
        piece, eager.stored = self._next_piece(node), stored
        if piece:
            eager.send_next()
            self.begin(node, "main", eager.store(*piece, self._time(node)), lambda _: None)


def two_under_way(patch: Patch) -> None:
    patch.setattr(writer, "ChunkWriter", EagerWriter)


class RenewingWriter(ChunkWriter):
    """W3: after a time-out other bytes go under the same number."""

    claimed = 0

    def store(self, segment: int, offset: int, payload: bytes, now_us: int) -> Steps[None]:
        self.claimed = 0
        yield from super().store(segment, offset, payload, now_us)
        self.stored = max(self.stored, self.claimed)
        self._note_cut()

    def _is_own(self, chunk: Chunk, header: bytes, data: bytes) -> bool:
        found = objects.decode_header(chunk.id, header)
        return found.nonce == self.epoch.nonce or super()._is_own(chunk, header, data)


class RenewingWorld(World):
    def do_again(self, node: Node, channel: str) -> None:
        process = node.processes[channel]
        wanted = process.wanted
        if node.role == "primary" and isinstance(wanted, Create) and channel == "main":
            at = objects.chunk_id(wanted.name)
            assert at is not None
            chunk = decode_chunk(at, wanted.data)
            if chunk.payload:
                piece = node.disk[chunk.segment][chunk.offset :]
                chunk = Chunk(*[*(getattr(chunk, f) for f in chunk.__struct_fields__[:-1]), piece])
                node.writer.claimed = chunk.end
                process.wanted = Create(wanted.name, encode_chunk(chunk))
        super().do_again(node, channel)


def timeout_is_failure(patch: Patch) -> None:
    patch.setattr(writer, "ChunkWriter", RenewingWriter)


def own_is_seal(patch: Patch) -> None:
    def fenced(self: ChunkWriter, chunk: Chunk, *_: Any) -> bool:
        raise FencedError("the object exists", path=chunk_name(chunk.id))

    patch.setattr(ChunkWriter, "_is_own", fenced)


def ack_at_local(patch: Patch) -> None:
    patch.setattr(writer, "commit_position", lambda local, _stored, _ack: local)


def compact_unstored(patch: Patch) -> None:
    patch.setattr(writer, "may_compact", lambda _end, _stored: True)


def cut_at_last(patch: Patch) -> None:
    """C1: the checkpoint is named by the chunk that is the last one when it is uploaded."""

    def last(self: ChunkWriter) -> tuple[ChunkId, int] | None:
        return self._cut_at and (self.last, self.time_us)

    patch.setattr(ChunkWriter, "cut_at", property(last))


# --- taker and reader ---------------------------------------------------------------------------


def _epoch(log: reader.LogReader, candidate: reader.Candidate) -> Epoch:
    assert log.epoch is not None
    number = log.epoch.epoch + 1
    return Epoch(number, log.epoch.log, candidate.node, candidate.nonce, log.number)


def seal_after_epoch(patch: Patch) -> None:
    def take_over(
        log: reader.LogReader, candidate: reader.Candidate, now_us: int
    ) -> Steps[Epoch | None]:
        yield from log.advance()
        epoch = _epoch(log, candidate)
        if not (yield from reader.create_epoch(epoch)):
            return None
        yield Create(chunk_name(log.here), reader._seal(log, candidate.nonce, now_us))
        return epoch

    patch.setattr(reader, "take_over", take_over)


def follow_no_reread(patch: Patch) -> None:
    def take_over(
        log: reader.LogReader, candidate: reader.Candidate, now_us: int
    ) -> Steps[Epoch | None]:
        yield from log.advance()
        while not log.sealed:
            seal = reader._seal(log, candidate.nonce, now_us)
            log.sealed = yield Create(chunk_name(log.here), seal)
            log.number += not log.sealed
        epoch = _epoch(log, candidate)
        return epoch if (yield from reader.create_epoch(epoch)) else None

    patch.setattr(reader, "take_over", take_over)


def hole_is_end(patch: Patch) -> None:
    def confirm(_: reader.LogReader) -> Steps[bool]:
        return True
        yield

    patch.setattr(reader.LogReader, "confirm", confirm)


def no_checkpoint_look(patch: Patch) -> None:
    """T1: the end counts although a checkpoint behind it is there."""

    def confirm(self: reader.LogReader) -> Steps[bool]:
        later = yield List(chunks_of(self.here.epoch), chunk_name(self.here), 1)
        if later:
            self.base = None
        return not later

    patch.setattr(reader.LogReader, "confirm", confirm)


def any_seal_ends(patch: Patch) -> None:
    """T1: any seal ends an epoch, not the one that the next epoch names."""

    def next_epoch(self: reader.LogReader) -> Steps[bool]:
        following = yield from self._read_epoch(self.here.epoch + 1)
        if following is None:
            self.sealed = True
            return True
        self.epoch, self.number = following, 0
        return False

    patch.setattr(reader.LogReader, "_next_epoch", next_epoch)


# --- collector, checkpoints, directory ----------------------------------------------------------


def gc_seals(patch: Patch) -> None:
    def is_data(_self: checkpoints.Collector, _chunk: ChunkId) -> Steps[bool]:
        return True
        yield

    patch.setattr(checkpoints.Collector, "_is_data", is_data)


def gc_epochs(patch: Patch) -> None:
    usual = checkpoints.Collector.collect

    def collect(self: checkpoints.Collector, now_us: int) -> Steps[int]:
        deleted = yield from usual(self, now_us)
        for epoch in range(self._epoch.epoch if deleted else 0):
            yield Delete(epoch_name(epoch))
        return deleted

    patch.setattr(checkpoints.Collector, "collect", collect)


def gc_before_own(patch: Patch) -> None:
    """G1: it collects before there is a checkpoint of its own epoch."""
    patch.setattr(checkpoints.Collector, "_may_collect", lambda self: bool(self._checkpoints))


def shared_names(patch: Patch) -> None:
    """C1: segments are named without their epoch."""
    name_of = objects.segment_object

    def shared(_epoch: int, ref: objects.SegmentRef) -> str:
        return name_of(0, ref)

    patch.setattr(checkpoints, "segment_object", shared)
    patch.setattr("tests.property.remote_log_world.segment_object", shared)


def any_surplus_goes_on(patch: Patch) -> None:
    """S1, async: local bytes go on whatever epoch remote.json names."""
    use = directory.SurplusUse.STORE
    patch.setattr(directory, "judge_surplus", lambda _ack, _own, _newest: use)


MANY = Limits(records=12, checkpoints=8, takes=10, starts=16)

FAULTS = {
    "two_under_way": Fault(two_under_way, world=EagerWorld),
    "gc_seals": Fault(gc_seals),
    "gc_epochs": Fault(gc_epochs, seed=5),
    "timeout_is_failure": Fault(timeout_is_failure, seed=4, world=RenewingWorld),
    "own_is_seal": Fault(own_is_seal),
    "seal_after_epoch": Fault(seal_after_epoch),
    "hole_is_end": Fault(hole_is_end, seed=3),
    "checkpoint_unlinked": Fault(nothing, setup=Setup(links=False)),
    "ack_at_local": Fault(ack_at_local),
    "follow_no_reread": Fault(follow_no_reread),
    "compact_unstored": Fault(compact_unstored, seed=18),
    "late_listings": Fault(nothing, setup=Setup(late_listings=True)),
    "no_checkpoint_look": Fault(no_checkpoint_look, seed=20, setup=Setup(limits=MANY)),
    "any_seal_ends": Fault(any_seal_ends, seed=7, setup=Setup(limits=MANY)),
    "cut_at_last": Fault(cut_at_last),
    "shared_names": Fault(shared_names, seed=5),
    "gc_before_own": Fault(gc_before_own, seed=13),
    "any_surplus_goes_on": Fault(any_surplus_goes_on, seed=17, setup=Setup(ack=RemoteAck.ASYNC)),
}
