"""World of the remote log: nodes that run the code's rules, a store, requests in any order.

One long module: a step is an action, what it may do to the store, and the invariants behind it.

The requests under way are a pool. They are carried out in any order, at any time, also after their
sender gave up, died or sent them again; they are dropped at will. Reads are one step of the node.
Between any two steps anything may happen: a frozen node is one that is not scheduled. The disk of a
node is what ``DirectoryCheck`` compares with the store. A directory may be set back to a copy.

A record is a number. It knows the one that its writer had appended before it, so a set of records
is a state that was live if it holds the parent of each of its records, and no two with one parent.
Compaction moves records to the open segment, then rewrites or removes a segment.

Invariants, after each step:

- I1: every acknowledged record is in what the newest checkpoint and the chunks behind it bring;
- I2: where an epoch exists, the one before it is sealed behind its last chunk;
- I3: each whole checkpoint, and each prefix of the chunks behind it, is a state that was live;
- I4: when the faults end, somebody serves;
- I5: a writer ends as fenced only where a seal is; no reader finds damage;
- I6: async: the node that wrote last goes on with all that it acknowledged;
- I7: a restore brings what was acknowledged before it began, and a state that was live.
"""

from __future__ import annotations

import pickle
import random
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import google_crc32c

from fastjournal.cmdlog.format.layout import pack_position, unpack_position
from fastjournal.errors import FencedError, ForeignRemoteLogError, RemoteLogCorruptError
from fastjournal.remote import checkpoints, directory, reader, writer
from fastjournal.remote.objects import (
    FORMAT_NAME,
    Checkpoint,
    Chunk,
    ChunkId,
    Epoch,
    SegmentRef,
    checkpoint_id,
    chunk_id,
    chunk_name,
    decode_checkpoint,
    decode_chunk,
    decode_epoch,
    decode_format,
    epoch_name,
    segment_object,
    segment_ref,
)
from fastjournal.remote.store import Copy, Create, Delete, Overwrite, perform
from fastjournal.remote.writer import RemoteAck
from fastjournal.testing.object_store import MemoryStore

LOG = "8b6e7b2e-52b9-4c0e-9d2c-3a1f0c9f7d11"
_NUMBER = struct.Struct(">I")
WRITES = (Create, Overwrite, Delete, Copy)

Action = tuple[Any, ...]


class BreachError(AssertionError):
    """An invariant does not hold."""


def numbers(content: bytes) -> tuple[int, ...]:
    return tuple(number for (number,) in _NUMBER.iter_unpack(content))


def packed(records: Iterable[int]) -> bytes:
    return b"".join(map(_NUMBER.pack, records))


@dataclass
class Limits:
    """How much may happen in one walk."""

    records: int = 8
    checkpoints: int = 4
    compactions: int = 3
    crashes: int = 3
    copies: int = 1
    takes: int = 5
    repeats: int = 6
    starts: int = 12
    orderly: int = 1


@dataclass
class Setup:
    """What is simulated."""

    nodes: int = 2
    ack: RemoteAck = RemoteAck.DURABLE
    synced: bool = True
    """Sync policy: replies wait for a sync."""
    links: bool = True
    """A checkpoint is linked when its segment is sealed; else its files are uploaded as they are
    then."""
    late_listings: bool = False
    limits: Limits = field(default_factory=Limits)


@dataclass
class Call:
    """A request under way."""

    serial: int
    node: int
    life: int
    channel: str
    request: Any


class Process:
    """One rule that a node carries out."""

    def __init__(self, steps: Any, end: Callable[[Any], None]) -> None:
        self.steps, self.end = steps, end
        self.wanted: Any = None
        """The request that it waits for."""
        self.serial = 0
        """Of the newest call of that; 0: it is a read."""
        self.answered = False
        self.answer: Any = None


class Node:
    """A machine: its disk stays, its memory ends with the process."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.life = 0
        self.disk: dict[int, bytes] = {}
        self.synced = 0
        """Position up to which the open segment is synced."""
        self.remote_epoch: int | None = None
        """Of remote.json."""
        self.copy: bytes | None = None
        self.copies = 0
        self.up = False
        self.boot("off")

    def boot(self, role: str) -> None:
        self.role = role
        self.processes: dict[str, Process] = {}
        self.reader = reader.LogReader(LOG)
        self.check = directory.DirectoryCheck()
        self.base: tuple[ChunkId, Checkpoint] | None = None
        self.must_have: frozenset[int] = frozenset()
        self.writer: Any = None
        self.uploads: Any = None
        self.collector: Any = None
        self.ends: dict[int, int] = {}
        """Bytes of each sealed segment when it was sealed."""
        self.unacked: list[tuple[int, int]] = []
        self.tip = -1
        self.links: dict[SegmentRef, str] | None = None
        """Of a checkpoint whose last chunk is not stored yet."""
        self.compaction: tuple[int, bytes, int] | None = None

    @property
    def open(self) -> int:
        return max(self.disk)

    @property
    def appended(self) -> int:
        return pack_position(self.open, len(self.disk[self.open]))

    @property
    def clock_us(self) -> int:
        return (0, 400, -300)[self.number % 3]


class World:
    """All of it. The same actions give the same world. It can be subclassed to plant a fault."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.left = Limits(**vars(setup.limits))
        self.durable = setup.ack is RemoteAck.DURABLE
        self.store = MemoryStore()
        self.parsed: dict[str, Any] = {}
        self.pool: list[Call] = []
        self.nodes = [Node(number) for number in range(setup.nodes)]
        self.acked: set[int] = set()
        self.acked_by: dict[int, tuple[int, int]] = {}
        self.parent: dict[int, int] = {}
        self.last_record = 0
        self.serial = 0
        self.now = 1000
        self.files: dict[str, bytes] = {}
        self.last_chunk: dict[int, int] = {}
        """Epoch to the highest chunk that was ever stored in it."""
        self.counts: dict[str, int] = {}
        first = self.nodes[0]
        for _ in range(2):
            first.disk[len(first.disk) + 1] = packed((self._record(first),))

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def _record(self, node: Node) -> int:
        self.last_record += 1
        self.parent[self.last_record] = node.tip
        node.tip = self.last_record
        return self.last_record

    # --- the store ------------------------------------------------------------------------------

    def _carry_out(self, call: Call) -> bool:
        """Carry out a request; return whether the store may have changed."""
        request = call.request
        if isinstance(request, Overwrite) and request.data is None:
            request = Overwrite(request.name, self.files[request.path])
        answer = perform(self.store, request)
        name = request.target if isinstance(request, Copy) else request.name
        if isinstance(request, Delete):
            self.parsed.pop(name, None)
        elif answer is not False:
            self._parse(name)
        node = self.nodes[call.node]
        process = node.processes.get(call.channel)
        if process is not None and self.waits(call):
            process.answered, process.answer = True, answer
        return answer is not False

    def _parse(self, name: str) -> None:
        data = self.store.objects[name]
        chunk, behind, segment = chunk_id(name), checkpoint_id(name), segment_ref(name)
        if chunk is not None:
            self.parsed[name] = found = decode_chunk(chunk, data)
            if not found.is_seal:
                self._stored(chunk)
        elif behind is not None:
            self.parsed[name] = decode_checkpoint(behind, data)
        elif segment is not None:
            self.parsed[name] = numbers(data)
        elif name == FORMAT_NAME:
            self._stored(ChunkId(0, decode_format(data, LOG).checkpoint))
        else:
            epoch = int(name[len("epochs/") : -len(".json")])
            self.parsed[name] = decode_epoch(epoch, data, LOG)

    def _stored(self, chunk: ChunkId) -> None:
        self.last_chunk[chunk.epoch] = max(chunk.number, self.last_chunk.get(chunk.epoch, -1))

    def waits(self, call: Call) -> bool:
        """Whether the sender still waits for this call."""
        node = self.nodes[call.node]
        process = node.processes.get(call.channel)
        return (
            node.up
            and node.life == call.life
            and process is not None
            and process.serial == call.serial
            and not process.answered
        )

    # --- processes ------------------------------------------------------------------------------

    def begin(self, node: Node, channel: str, steps: Any, end: Callable[[Any], None]) -> None:
        node.processes[channel] = process = Process(steps, end)
        self._advance(node, channel, process, None)

    def _advance(self, node: Node, channel: str, process: Process, answer: Any) -> None:
        """Send an answer, and take requests up to one of the store."""
        while True:
            try:
                process.wanted = process.steps.send(answer)
            except StopIteration as stop:
                if node.processes.get(channel) is process:
                    del node.processes[channel]
                process.end(stop.value)
                return
            except FencedError as error:
                self._fenced(node, error)
                return
            except (RemoteLogCorruptError, ForeignRemoteLogError, RuntimeError) as error:
                raise BreachError(f"I5 {node.role} {node.number}: {error}") from error
            process.serial, process.answered = 0, False
            if isinstance(process.wanted, WRITES):
                self._send(node, channel, process)
                return
            local = self._local(node, process.wanted)
            if local is NotImplemented:
                return
            answer = local

    def _send(self, node: Node, channel: str, process: Process) -> None:
        self.serial += 1
        process.serial = self.serial
        self.pool.append(Call(self.serial, node.number, node.life, channel, process.wanted))

    def _local(self, node: Node, wanted: Any) -> Any:
        """Carry out a step that needs no store; NotImplemented: this one does."""
        if isinstance(wanted, reader.Restart):
            node.base = (wanted.behind, wanted.checkpoint)
            refs = {ref.number: ref for ref in wanted.checkpoint.segments}
            node.check.restart(refs.values())
            for number in [number for number in node.disk if number <= max(refs, default=0)]:
                if number not in refs or described(number, node.disk[number]) != refs[number]:
                    del node.disk[number]
            return None
        if isinstance(wanted, reader.Append):
            chunk = wanted.chunk
            local = node.disk.get(chunk.segment, b"")
            fit = node.check.fit(chunk, local[chunk.offset :][: len(chunk.payload)])
            if fit is directory.Fit.WRITE:
                node.disk[chunk.segment] = local[: chunk.offset] + chunk.payload
            return fit is not directory.Fit.HOLE
        if isinstance(wanted, reader.Fetch) and wanted.segment.number in node.disk:
            return True
        return NotImplemented

    def _read(self, node: Node, wanted: Any) -> Any:
        if isinstance(wanted, reader.Fetch):
            content = self.store.get(segment_object(wanted.epoch, wanted.segment))
            if content is None:
                return False
            if described(wanted.segment.number, content) != wanted.segment:
                raise BreachError(f"I5 {wanted.segment} has other bytes than its name says")
            node.disk[wanted.segment.number] = content
            return True
        found = perform(self.store, wanted)
        if self.setup.late_listings and isinstance(found, list) and self.serial % 2:
            return found[:-1]
        return found

    # --- actions --------------------------------------------------------------------------------

    def enabled(self) -> list[Action]:
        actions: list[Action] = []
        for index, call in enumerate(self.pool):
            actions.append(("apply", index))
            if not self.waits(call):
                actions.append(("drop", index))
        for node in self.nodes:
            actions.extend((name, node.number, *rest) for name, *rest in self._enabled(node))
        return actions

    def _enabled(self, node: Node) -> Iterator[tuple[str, ...]]:
        left = self.left
        if not node.up:
            if left.starts and (node.number == 0 or FORMAT_NAME in self.store.objects):
                yield ("start",)
            if node.copy is not None and node.copies:
                yield ("setback",)
            return
        if left.crashes:
            yield ("kill",)
            if node.role == "primary":
                yield ("power_loss",)
        for channel, process in node.processes.items():
            if not process.serial:
                yield "read", channel
            elif process.answered:
                yield "receive", channel
            elif left.repeats:
                yield "again", channel
        if node.role == "standby" and "main" not in node.processes:
            yield ("poll",)
            newest = node.reader.epoch.epoch if node.reader.epoch else -1
            if left.takes or directory.takes_over_at_once(node.remote_epoch, newest):
                yield ("take",)
        elif node.role == "taken":
            yield ("note",)
            if "main" not in node.processes:
                yield ("beat",)
        elif node.role == "primary":
            yield from self._enabled_primary(node)

    def _enabled_primary(self, node: Node) -> Iterator[tuple[str, ...]]:
        left, idle = self.left, "main" not in node.processes
        if left.records:
            yield ("append",)
        if node.synced != node.appended:
            yield ("sync",)
        if idle and self._next_piece(node):
            yield ("ship",)
        if idle:
            yield ("beat",)
            if left.orderly:
                yield ("end",)
        if node.unacked and node.unacked[0][1] <= self._commit_position(node):
            yield ("ack",)
        if node.compaction is None and left.compactions and self._compactable(node):
            yield ("compact",)
        if node.compaction is not None and node.compaction[2] <= node.synced:
            yield ("replace",)
        if node.links is None and "back" not in node.processes and left.checkpoints:
            yield ("checkpoint",)
        if node.links is not None and "back" not in node.processes and node.writer.cut_at:
            yield ("upload",)
        if "back" not in node.processes and node.writer.number:
            yield ("collect",)
        if left.copies and not node.copies:
            yield ("copy",)

    def do(self, action: Action) -> None:
        name, index, *rest = action
        self.now += 7
        if name == "apply":
            if self._carry_out(self.pool.pop(index)):
                self.verify()
        elif name == "drop":
            self.pool.pop(index)
        else:
            getattr(self, f"do_{name}")(self.nodes[index], *rest)

    def do_start(self, node: Node) -> None:
        self.left.starts -= 1
        node.up, node.life = True, node.life + 1
        if FORMAT_NAME in self.store.objects:
            node.boot("standby")
            self.do_poll(node)
            return
        node.boot("adopter")
        if node.life % 2 == 0:  # a start may append to the log, and the log may be set back
            node.tip = max(numbers(node.disk[node.open]))
            node.disk[node.open + 1] = packed((self._record(node),))
        elif node.life > 1:
            del node.disk[node.open]
        links = dict(self._link(node, node.disk))
        epoch = Epoch(0, LOG, "node 0", self._nonce(), -1)
        steps = checkpoints.adopt(epoch, self._time(node), links)
        self.begin(node, "main", steps, lambda _: self._adopted(node))

    def _adopted(self, node: Node) -> None:
        node.role, node.remote_epoch = "standby", 0
        self.do_poll(node)

    def do_setback(self, node: Node) -> None:
        node.copies -= 1
        assert node.copy is not None
        node.disk, node.synced, node.remote_epoch = pickle.loads(node.copy)

    def do_copy(self, node: Node) -> None:
        self.left.copies -= 1
        node.copies = 1
        node.copy = pickle.dumps((node.disk, node.synced, node.remote_epoch))

    def do_kill(self, node: Node) -> None:
        self.left.crashes -= 1
        node.up = False
        node.boot("off")

    def do_power_loss(self, node: Node) -> None:
        segment, offset = unpack_position(node.synced)
        kept = offset if segment == node.open else 0
        node.disk[node.open] = node.disk[node.open][:kept]
        self.do_kill(node)

    def do_read(self, node: Node, channel: str) -> None:
        process = node.processes[channel]
        self._advance(node, channel, process, self._read(node, process.wanted))

    def do_receive(self, node: Node, channel: str) -> None:
        process = node.processes[channel]
        self._advance(node, channel, process, process.answer)

    def do_again(self, node: Node, channel: str) -> None:
        """A time-out, or the library's own repeat."""
        self.left.repeats -= 1
        self._send(node, channel, node.processes[channel])

    def do_poll(self, node: Node) -> None:
        node.must_have = frozenset(self.acked)
        steps = reader.read_to_end(node.reader)
        self.begin(node, "main", steps, lambda _: self._restored(node))

    def _restored(self, node: Node) -> None:
        """A restore would end here: settle what the directory has beside (S1)."""
        assert node.reader.epoch is not None
        self._settle_surplus(node, node.reader.epoch.epoch)
        ids = {number for content in self._confirmed(node) for number in numbers(content)}
        if self.durable and not node.must_have <= ids:
            lost = sorted(node.must_have - ids)
            raise BreachError(f"I7 a restore ends at {node.reader.here} without {lost}")
        if not self.live(ids):
            raise BreachError(f"I7 a restore brings {sorted(ids)}, never live")

    def _settle_surplus(self, node: Node, newest: int) -> None:
        surplus = node.check.surplus({number: len(data) for number, data in node.disk.items()})
        use = directory.judge_surplus(self.setup.ack, node.remote_epoch, newest)
        if use is directory.SurplusUse.STORE and node.check.continues(surplus):
            return
        for number, offset in surplus:
            node.disk[number] = node.disk[number][:offset]
        for number in [number for number, data in node.disk.items() if not data]:
            del node.disk[number]

    def _confirmed(self, node: Node) -> list[bytes]:
        return [node.disk[number][:size] for number, size in node.check.confirmed.items()]

    def do_take(self, node: Node) -> None:
        assert node.reader.epoch is not None
        if not directory.takes_over_at_once(node.remote_epoch, node.reader.epoch.epoch):
            self.left.takes -= 1
        node.role = "taker"
        candidate = reader.Candidate(f"node {node.number}", self._nonce())
        steps = reader.take_over(node.reader, candidate, self._time(node))
        self.begin(node, "main", steps, lambda epoch: self._taken(node, epoch))

    def _taken(self, node: Node, epoch: Epoch | None) -> None:
        if epoch is None:
            node.role = "standby"
            return
        self._settle_surplus(node, epoch.epoch - 1)
        ids = {number for content in self._confirmed(node) for number in numbers(content)}
        self._check_taken(node, epoch, ids)
        node.tip = max(ids - {self.parent[number] for number in ids}, default=-1)
        tail = {number for data in node.disk.values() for number in numbers(data)} - ids
        if tail:
            node.tip = max(tail)
        node.ends = {number: len(data) for number, data in node.disk.items()}
        node.disk[max(node.disk, default=0) + 1] = b""
        node.synced = node.appended
        node.writer = writer.ChunkWriter(epoch, node.check.end, node.reader.time_us)
        node.uploads = checkpoints.Uploads(epoch.epoch, node.base)
        node.collector = checkpoints.Collector(
            epoch, node.uploads, checkpoints.Retention(keep_us=-1000, newest=1)
        )
        if not self.durable:
            self.acked &= ids | tail
        self.count("epochs")
        node.role = "taken"
        self.do_beat(node)

    def _check_taken(self, node: Node, epoch: Epoch, ids: set[int]) -> None:
        if not self.live(ids):
            raise BreachError(f"I3 taker serves {sorted(ids)}, never live")
        missing = self.acked - ids
        # a taker that slept over the next takeover serves nobody: its first chunk meets a seal
        passed = chunk_name(ChunkId(epoch.epoch, 0)) in self.store.objects
        if self.durable and missing and not passed:
            raise BreachError(f"I1 taker of epoch {epoch.epoch} serves without {sorted(missing)}")
        own = not self.durable and node.remote_epoch == epoch.epoch - 1
        if own and node.copy is None and self.setup.synced:
            by = (node.number, epoch.epoch - 1)
            mine = {number for number in self.acked if self.acked_by[number] == by}
            kept = {number for data in node.disk.values() for number in numbers(data)}
            if not mine <= kept or not self.live(kept):
                raise BreachError("I6 async: the node that wrote last goes on without its records")

    def do_note(self, node: Node) -> None:
        """Write remote.json once the log is replayed, then serve."""
        node.remote_epoch = node.writer.epoch.epoch
        node.role = "primary"

    def do_beat(self, node: Node) -> None:
        steps = node.writer.store(0, 0, b"", self._time(node))
        self.begin(node, "main", steps, lambda _: None)

    def do_ship(self, node: Node) -> None:
        segment, offset, payload = self._next_piece(node)
        steps = node.writer.store(segment, offset, payload, self._time(node))
        self.begin(node, "main", steps, lambda _: None)

    def do_end(self, node: Node) -> None:
        self.left.orderly -= 1
        self.begin(node, "main", node.writer.seal(self._time(node)), lambda _: self._off(node))

    def _off(self, node: Node) -> None:
        node.up = False
        node.boot("off")

    def _next_piece(self, node: Node) -> tuple[int, int, bytes] | None:
        """What of the log comes next, in one segment."""
        if not node.writer.number:
            return None
        segment, offset = unpack_position(node.writer.stored)
        if offset >= node.ends.get(segment, offset + (segment == node.open)):
            segment, offset = min((n for n in node.disk if n > segment), default=segment), 0
        piece = node.disk.get(segment, b"")[offset:]
        return (segment, offset, piece) if piece else None

    def _commit_position(self, node: Node) -> int:
        local = node.synced if self.setup.synced else node.appended
        return writer.commit_position(local, node.writer.stored, self.setup.ack)

    def do_append(self, node: Node) -> None:
        self.left.records -= 1
        number = self._record(node)
        node.disk[node.open] += packed((number,))
        node.unacked.append((number, node.appended))

    def do_sync(self, node: Node) -> None:
        node.synced = node.appended

    def do_ack(self, node: Node) -> None:
        number, _ = node.unacked.pop(0)
        self.acked.add(number)
        self.acked_by[number] = (node.number, node.writer.epoch.epoch)
        self.count("acks")
        self.verify()

    def _compactable(self, node: Node) -> list[int]:
        return [
            number
            for number, end in node.ends.items()
            if number in node.disk
            and writer.may_compact(pack_position(number, end), node.writer.stored)
        ]

    def do_compact(self, node: Node) -> None:
        self.left.compactions -= 1
        candidates = self._compactable(node)
        number = candidates[self.serial % len(candidates)]
        content = numbers(node.disk[number])
        cut = 1 + (self.serial // 3) % len(content) if content else 0
        there = set(numbers(node.disk[node.open]))
        node.disk[node.open] += packed(moved for moved in content[:cut] if moved not in there)
        node.compaction = (number, packed(content[cut:]), node.appended)

    def do_replace(self, node: Node) -> None:
        assert node.compaction is not None
        number, rest, _ = node.compaction
        node.compaction = None
        if rest:
            node.disk[number] = rest
        else:
            del node.disk[number]
        self.count("compactions")

    def do_checkpoint(self, node: Node) -> None:
        self.left.checkpoints -= 1
        number = node.open
        if node.disk[number]:
            node.synced = node.appended
            node.ends[number] = len(node.disk[number])
            node.disk[number + 1] = b""
            node.synced = node.appended
        sealed = {n: data for n, data in node.disk.items() if n < node.open and data}
        node.links = dict(self._link(node, sealed))
        last = max(node.ends, default=0)
        node.writer.cut(pack_position(last, node.ends.get(last, 0)))

    def _link(self, node: Node, segments: dict[int, bytes]) -> Iterator[tuple[SegmentRef, str]]:
        for number, content in segments.items():
            path = f"{node.number}.{node.life}.{len(self.files)}"
            self.files[path] = content
            yield described(number, content), path

    def do_upload(self, node: Node) -> None:
        behind, time_us = node.writer.cut_at
        links, node.links = node.links, None
        if not self.setup.links:
            numbers_then = {ref.number for ref in links}
            links = dict(
                self._link(node, {n: node.disk[n] for n in node.disk if n in numbers_then})
            )
        steps = checkpoints.upload_checkpoint(behind, time_us, links, node.uploads)
        self.begin(node, "back", steps, lambda found: self._checkpointed(node, found))

    def _checkpointed(self, node: Node, checkpoint: Checkpoint | None) -> None:
        if checkpoint is not None:
            self.count("checkpoints")
            self.do_collect(node)

    def do_collect(self, node: Node) -> None:
        steps = node.collector.collect(self._time(node))
        self.begin(node, "back", steps, lambda _: None)

    def _fenced(self, node: Node, error: FencedError) -> None:
        assert error.path is not None
        found = self.parsed.get(error.path)
        if found is None or not found.is_seal:
            raise BreachError(
                f"I5 node {node.number} ends as fenced at {error.path}, where no seal is"
            )
        self.count("fenced")
        self._off(node)

    def _nonce(self) -> bytes:
        self.serial += 1
        return self.serial.to_bytes(16, "big")

    def _time(self, node: Node) -> int:
        return self.now + node.clock_us

    # --- invariants -----------------------------------------------------------------------------

    def live(self, ids: Iterable[int]) -> bool:
        """Whether these records were the log at some instant."""
        ids, parents = set(ids), set()
        for number in ids:
            parent = self.parent[number]
            if (parent != -1 and parent not in ids) or parent in parents:
                return False
            parents.add(parent)
        return True

    def states(self, behind: ChunkId) -> Iterator[set[int]]:
        """Each state that a checkpoint and the chunks behind it bring, by a reader of our own."""
        ids: set[int] = set()
        checkpoint = self.parsed[f"checkpoints/{behind.epoch:010d}-{behind.number:012d}.json"]
        for ref in checkpoint.segments:
            name = segment_object(behind.epoch, ref)
            if name not in self.parsed:
                raise BreachError(f"I1 the newest checkpoint {behind} names {name}, which is gone")
            ids.update(self.parsed[name])
        epoch, number = behind.epoch, behind.number + 1
        while True:
            yield ids
            chunk: Chunk | None = self.parsed.get(chunk_name(ChunkId(epoch, number)))
            following: Epoch | None = self.parsed.get(epoch_name(epoch + 1))
            if chunk is None:
                if following is not None:
                    raise BreachError(f"I1 hole at {(epoch, number)} behind {behind}")
                return
            if chunk.is_seal:
                if following is None:
                    return
                if following.sealed_at != number:
                    raise BreachError(f"I1 hole at {(epoch, number)} behind {behind}")
                epoch, number = epoch + 1, 0
                continue
            ids = ids | set(numbers(chunk.payload))
            number += 1

    def verify(self) -> None:
        """Check I1 to I3."""
        if FORMAT_NAME not in self.store.objects:
            return
        newest_epoch = 0
        while epoch_name(newest_epoch + 1) in self.parsed:
            newest_epoch += 1
            end = ChunkId(newest_epoch - 1, self.last_chunk.get(newest_epoch - 1, -1) + 1)
            found = self.parsed.get(chunk_name(end))
            if found is None or not found.is_seal:
                raise BreachError(f"I2 epoch {newest_epoch} exists, {end} can still be written")
        there = sorted(
            behind
            for name in self.parsed
            if (behind := checkpoint_id(name)) is not None
            and (behind.epoch or behind.number == self.last_chunk[0])
        )
        if not there:
            raise BreachError("I1 there is no checkpoint")
        for state in self.states(there[-1]):
            ids = state
        if self.durable and not self.acked <= ids:
            raise BreachError(f"I1 acknowledged {sorted(self.acked - ids)} are not in the log")
        for behind in there:
            self._verify_states(behind)

    def _verify_states(self, behind: ChunkId) -> None:
        found: list[set[int]] = []
        try:
            found.extend(self.states(behind))
        except BreachError:
            return  # the collector has begun to delete it
        for state in found:
            if not self.live(state):
                raise BreachError(f"I3 checkpoint {behind} brings {sorted(state)}, never live")


def described(number: int, content: bytes) -> SegmentRef:
    return SegmentRef(number, len(content), google_crc32c.value(content))


# --- walks --------------------------------------------------------------------------------------

WEIGHTS = {
    "kill": 0.12,
    "power_loss": 0.12,
    "drop": 0.1,
    "again": 0.25,
    "take": 0.25,
    "end": 0.05,
    "setback": 0.5,
    "copy": 0.3,
    "start": 0.6,
    "poll": 0.3,
    "beat": 0.1,
    "collect": 0.1,
    "append": 1.5,
    "checkpoint": 0.6,
    "compact": 0.6,
    "apply": 1.2,
    "read": 2.0,
}
LENGTHS = (60, 120, 250, 400)


@dataclass
class Walk:
    """How a number of walks ended."""

    seed: int
    walks: int = 0
    steps: int = 0
    breach: str | None = None
    trace: list[Action] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)


def walk(setup: Setup, steps: int, seed: int, make_world: Callable[[Setup], World] = World) -> Walk:
    """Walk at random until so many steps are done or an invariant does not hold."""
    draw, result = random.Random(seed), Walk(seed)
    while result.steps < steps and result.breach is None:
        world = make_world(setup)
        result.trace = []
        try:
            walk_once(world, draw, result)
            settle(world, draw)
            result.walks += 1
        except BreachError as breach:
            result.breach = str(breach)
        for what, count in world.counts.items():
            result.counts[what] = result.counts.get(what, 0) + count
    return result


def walk_once(world: World, draw: random.Random, result: Walk) -> None:
    frozen, until = None, 0
    for turn in range(draw.choice(LENGTHS)):
        actions = world.enabled()
        if frozen is None and draw.random() < 0.02:
            frozen, until = draw.randrange(len(world.nodes)), turn + draw.choice((10, 40, 120))
        if turn >= until:
            frozen = None
        if frozen is not None:
            thawed = [a for a in actions if a[0] in ("apply", "drop") or a[1] != frozen]
            actions = thawed or actions
        if not actions:
            return
        action = draw.choices(actions, [WEIGHTS.get(a[0], 1) for a in actions])[0]
        result.trace.append(action)
        result.steps += 1
        world.do(action)


def settle(world: World, draw: random.Random) -> None:
    """End the faults: requests are answered, nodes start. Somebody must acknowledge (I4)."""
    left, before = world.left, world.last_record
    left.crashes = left.copies = left.checkpoints = left.compactions = left.records = 0
    left.orderly, left.repeats, left.starts, left.takes = 0, 0, 50, 50
    for _ in range(3000):
        if any(number > before for number in world.acked):
            return
        if not any(node.unacked for node in world.nodes):
            left.records = 1
        actions = calm_actions(world)
        world.do(draw.choice(actions))
    roles = [(node.role, node.up) for node in world.nodes]
    raise BreachError(f"I4 the faults ended, and nobody serves: {roles}")


def calm_actions(world: World) -> list[Action]:
    """Actions of nodes and a store without faults; a standby takes over where nobody serves."""
    actions = [action for action in world.enabled() if action[0] not in ("drop", "setback", "end")]
    if any(node.role in ("taken", "primary") and is_newest(world, node) for node in world.nodes):
        actions = [action for action in actions if action[0] != "take"]
    busy = [action for action in actions if action[0] not in ("poll", "beat")]
    return busy or actions


def is_newest(world: World, node: Node) -> bool:
    return epoch_name(node.writer.epoch.epoch + 1) not in world.parsed
