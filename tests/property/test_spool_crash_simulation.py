"""Crash simulation of spool and forwarder: kills at every call, power losses, full and bad disks.

Two writers, one of them durable, drop-in files, a forwarder, a daemon with a journal on a disk of
its own, and a worker; a virtual clock, and slots of two seconds. The daemon is killed, loses power
and restarts from its journal too. Held to after each crash: a record whose append returned (after a
power loss: a durable one) is in the journal, or was handed to the worker, or is in ``dead/``, or
pending in the spool. So nothing is erased without a reply, and nothing is lost. No job is handed
out after the daemon has confirmed its completion, however often its record is sent: nothing is
doubled. The newest request of a key or URI stands, at the daemon or in the spool, and
the daemon never goes back behind one that it has confirmed (``newest_requests``). In the end all is
delivered soon, and what the daemon refuses is in ``dead/``.

FASTJOURNAL_SPOOL_CRASH_SEEDS=20000 looks at so many seeds instead of the usual number.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pytest

from fastjournal import file_sync
from fastjournal.errors import ProtocolError, SpoolError
from fastjournal.keys import build_journal_key
from fastjournal.protocol import (
    Flag,
    Function,
    Reply,
    Request,
    ServerConnection,
    decode_request,
    encode_request,
)
from fastjournal.spool import (
    Kind,
    SlotReader,
    Spool,
    dead,
    list_slots,
    slots,
)
from fastjournal.spool.appending import appendfile
from fastjournal.spool.format import FILE_HEADER, encode_record
from fastjournal.spool.reading import slot_reader, slot_window
from fastjournal.spool.slots import SLOT_SUFFIX, slot_name, slot_start
from fastjournal.testing.clock import ManualClock
from fj_forwarder import delivery
from fj_forwarder.delivery import Delivery
from fj_forwarder.sending.delivery_engine import DeliveryEngine
from fj_forwarder.storage import (
    slot_file,
    slot_listing,
    slot_space,
    slot_store,
)
from fj_forwarder.storage.slot_listing import SlotListing
from tests.property.faulty_os import FaultyOs, KilledError, install
from tests.property.newest_requests import KEYS, URIS, NewestRequests, subject_of
from tests.property.spool_daemon import DiedError, SpoolDaemon

START_US = 1_795_161_600_000_000
SLOT_SECONDS = 2
SEEDS = int(os.environ.get("FASTJOURNAL_SPOOL_CRASH_SEEDS", "700"))
GROUPS = 8
STEPS = 30
SOON_US = 300_000_000
MODULES = [
    appendfile,
    dead,
    delivery,
    file_sync,
    slot_file,
    slot_listing,
    slot_reader,
    slot_space,
    slot_store,
    slot_window,
    slots,
]
IN_MEMORY = Path("/dev/shm")


class Actor:
    """A process: its descriptors, which end with it."""

    def __init__(self) -> None:
        self.opened: dict[int, tuple[int, int]] = {}


class Writer(Actor):
    """A process that appends; it is there from its first append on."""

    def __init__(self, *, durable: bool) -> None:
        super().__init__()
        self.durable = durable
        self.spool: Spool | None = None


class World:
    """Spool, processes, clock, and what was promised."""

    def __init__(self, directory: Path, seed: int, patch: pytest.MonkeyPatch) -> None:
        self.random = Random(seed)
        self.directory = directory
        directory.mkdir()  # as the forwarder does at its start
        self.os = FaultyOs(self.random)
        install(self.os, MODULES, patch)
        patch.setattr(slot_space, "punch_hole", self.os.punch_hole)
        patch.setattr(slot_space, "RELEASE_BYTES", 400)
        # else the pauses between listings follow from how long one takes on this machine
        patch.setattr(SlotListing.__init__, "__kwdefaults__", {"clock_us": lambda: 0})
        self.clock = ManualClock(START_US)
        self.writers = [Writer(durable=True), Writer(durable=False)]
        self.forwarder = Actor()
        self.delivery: Delivery | None = None
        self.server: ServerConnection | None = None
        self.number = 0
        self.promised: dict[bytes, bool] = {}
        """Keys of appends that returned, and whether they were durable."""
        self.daemon = SpoolDaemon(Random(seed), self.clock)
        self.raw_keys: dict[str, bytes] = {}
        """Keys of the records in dead/, by the names of their files."""
        self.newest = NewestRequests(self.random)
        self.refused: set[bytes] = set()
        """Keys that the daemon has refused for good."""
        self.crashes = 0

    # --- the processes --------------------------------------------------------------------------

    def append(self, writer: Writer) -> None:
        """Append a record, good or bad."""
        self.os.switch(writer.opened)
        self.number += 1
        kind = self.random.choice(("good", "good", "good", "bad", "again", "again"))
        value = b"v" * self.random.choice((0, 20, 300))
        try:
            if writer.spool is None:
                directory, clock = str(self.directory), self.clock
                writer.spool = Spool(directory, SLOT_SECONDS, writer.durable, clock=clock)
            if kind == "again":
                request = self.newest.draw(self.clock.instant_us)
                writer.spool.append_request(request)
                self.newest.promise(request, durable=writer.durable)
            else:
                key = writer.spool.append(domain=kind, id=str(self.number), value=value)
                self.promised[key] = writer.durable
        except SpoolError:
            return  # nothing is promised

    def drop_in(self) -> None:
        """Let a program of another language put whole files there."""
        records = []
        for _ in range(self.random.randint(1, 4)):
            self.number += 1
            kind = self.random.choice(("good", "bad", "again"))
            if kind == "again":
                request = self.newest.draw(self.clock.instant_us)
                self.newest.promise(request, durable=False)
            else:
                key = build_journal_key(kind, str(self.number))
                request = Request(
                    Function.SET, 0, Flag.PERSIST, self.clock.instant_us, key, None, 1, b"v"
                )
                self.promised[key] = False
            records.append(encode_record(encode_request(request)))
        slot = slot_name(slot_start(self.clock.instant_us, SLOT_SECONDS)).removesuffix(SLOT_SUFFIX)
        temporary = self.directory / f".drop{self.number}{SLOT_SUFFIX}.tmp"
        for copy in range(self.random.choice((1, 1, 1, 2))):
            temporary.write_bytes(FILE_HEADER + b"".join(records))
            temporary.rename(self.directory / f"{slot}-drop{self.number}-{copy}{SLOT_SUFFIX}")

    def turn(self) -> bool:
        """One turn of the forwarder, and what the daemon says to it; whether it sent anything."""
        self.os.switch(self.forwarder.opened)
        now_us = self.clock.instant_us
        if self.delivery is None:
            self.engine = DeliveryEngine(
                in_flight_max=self.random.choice((1, 3, 50)), random=self.random
            )
            self.server = None
            self.delivery = Delivery(
                str(self.directory),
                slot_seconds=SLOT_SECONDS,
                engine=self.engine,
                now_us=now_us,
            )
        self.delivery.fill(now_us, now_us)
        due_us = self.engine.next_due(now_us)
        if self.server is None and due_us is not None and due_us <= now_us:
            self.server = ServerConnection()
        frames = self.engine.take(now_us) if self.server is not None else b""
        if frames:
            self.serve(self.delivery, frames)
            self.clock.instant_us += 200
            return True
        due_us = min(filter(None, (self.delivery.next_due(now_us), self.engine.next_due(now_us))))
        self.clock.instant_us = max(due_us, now_us + 1)
        return False

    def serve(self, delivery: Delivery, frames: bytes) -> None:
        """Be the daemon; at times the connection ends, before or after what was asked is done."""
        assert self.server is not None
        lost = self.random.random() < 0.1
        if lost and self.random.random() < 0.5:
            self.server = None
            delivery.lost(self.clock.instant_us)
            return
        self.server.receive_data(frames)
        try:
            replies = self.answer(list(self.server.next_events()))
        except DiedError:
            lost, replies = True, []
            self.crashes += 1
            self.check()
        if lost:
            del replies[self.random.randint(0, len(replies)) :]
        for reply in replies:
            delivery.handle(reply, self.clock.instant_us)
        if lost:
            self.server = None
            delivery.lost(self.clock.instant_us)

    def answer(self, requests: Sequence[object]) -> list[Reply]:
        """Have the daemon carry out what it does not refuse."""
        errors: list[str] = []
        taken = []
        for request in requests:
            assert isinstance(request, Request)
            errors.append(self.refusal(request))
            if not errors[-1]:
                taken.append(request)
        replies = self.daemon.serve(taken)
        for request in taken:
            if subject := subject_of(request):
                self.newest.confirm(request, self.daemon.standing(subject))
        done = iter(replies)
        return [
            Reply(request.identifier, error=error) if error else next(done)
            for request, error in zip(requests, errors, strict=True)
            if isinstance(request, Request)
        ]

    def refusal(self, request: Request) -> str:
        """Return the error of a request that the daemon does not take."""
        if request.function == Function.NOP:
            return ""
        if subject_of(request) is None:
            assert not request.value.strip(b"v"), "a record was changed on its way"
        if self.random.random() < 0.05:
            return self.random.choice(("locked", "busy"))
        if request.key.startswith(b"bad"):
            self.refused.add(request.key)
            return "bad-value"
        return ""

    def work(self) -> None:
        """Let the worker take jobs from the daemon."""
        try:
            self.daemon.work()
        except DiedError:
            self.crashes += 1
            if self.delivery is not None and self.server is not None:
                self.os.switch(self.forwarder.opened)
                self.server = None
                self.delivery.lost(self.clock.instant_us)
            self.check()
        assert not self.daemon.doubled, self.daemon.doubled

    # --- crashes --------------------------------------------------------------------------------

    def end(self, actor: Actor) -> None:
        """End a process: its descriptors are closed."""
        self.os.switch(actor.opened)
        self.os.revive()
        if isinstance(actor, Writer):
            actor.spool = None
        else:
            self.delivery = self.server = None

    def lose_power(self) -> None:
        """End all processes, and lose a part of what was not synced."""
        for actor in (*self.writers, self.forwarder):
            self.end(actor)
        self.os.lose_power([self.directory, self.directory / "dead"])
        self.promised = {key: True for key, durable in self.promised.items() if durable}
        self.newest.lose_power()
        self.raw_keys.clear()
        self.crashes += 1
        self.check()

    def act(self) -> None:
        """One step of a process, with a fault in it perhaps."""
        if self.random.random() < 0.1:
            self.drop_in()
        if self.random.random() < 0.2:
            self.work()
        actor = self.random.choice((*self.writers, self.forwarder, self.forwarder))
        if self.random.random() < 0.4:
            fault = self.random.choice(("kill", "kill", "full", "broken"))
            self.os.plan(fault, self.random.choice((1, 2, 3, 5, 8, 13, 30)))
        try:
            for _ in range(self.random.choice((1, 2, 5))):
                if isinstance(actor, Writer):
                    self.append(actor)
                else:
                    self.turn()
        except KilledError:
            self.crashes += 1
            self.end(actor)
            self.check()
        except SpoolError:
            self.end(actor)  # the program ends with 74, and is started again
        self.os.plan("", 0)
        self.clock.instant_us += self.random.choice((0, 1000, 700_000, 2_500_000))

    # --- what is held to ------------------------------------------------------------------------

    def check(self) -> None:
        """Nothing that was promised is lost, at this moment."""
        lost = self.promised.keys() - self.daemon.keys() - self.daemon.handed
        lost -= self.buried() if lost else set()
        older = self.newest.missing(self.daemon.standing)
        if not lost and not older:
            return
        pending = self.pending()
        lost -= {request.key for request in pending}
        assert not lost, sorted(lost)
        for subject, stamp in older.items():
            stamps = [each.timestamp for each in pending if subject_of(each) == subject]
            assert max(stamps, default=0) >= stamp, f"{subject!r}: its newest request is lost"

    def pending(self) -> list[Request]:
        """Return the pending records."""
        found = []
        for slot in list_slots(self.directory):
            with SlotReader(slot.path) as file:
                while pieces := file.read(1000, final=True):
                    frames = [each.data for each in pieces if each.kind is Kind.PENDING]
                    # A blank whose state was lost with the power, its size and CRC not.
                    found += [decode_request(frame) for frame in frames if any(frame)]
        return found

    def buried(self) -> set[bytes]:
        """Return the keys of the records in dead/, each file of which is read once."""
        directory = self.directory / "dead"
        for name in os.listdir(directory) if directory.is_dir() else ():
            if name.endswith(dead.RAW_SUFFIX) and name not in self.raw_keys:
                try:
                    self.raw_keys[name] = decode_request((directory / name).read_bytes()).key
                except ProtocolError:
                    self.raw_keys[name] = b""  # damage
        return set(self.raw_keys.values()) - {b""}

    def finish(self) -> None:
        """Deliver the rest, without faults."""
        for writer in self.writers:
            self.end(writer)
        end_us = self.clock.instant_us + SOON_US
        while True:
            sent = self.turn()
            if not sent and self.engine.in_flight == 0 and not self.pending():
                break
            assert self.clock.instant_us < end_us, f"held up: {self.pending()}"
        self.check()
        good = {key for key in self.promised if key.startswith(b"good")}
        while self.daemon.has_work() or not good <= self.daemon.handed:
            self.work()
            self.clock.instant_us += 100_000
            assert self.clock.instant_us < end_us, f"not handed out: {good - self.daemon.handed}"
        assert self.promised.keys() - good <= self.buried() <= self.refused
        self.newest.check_last(self.daemon.standing, self.daemon.values(KEYS + URIS))
        self.end(self.forwarder)


def run(seed: int) -> int:
    """Simulate a seed; return the faults."""
    parent = IN_MEMORY if IN_MEMORY.is_dir() else None
    with (
        tempfile.TemporaryDirectory(prefix="spool-", dir=parent) as name,
        pytest.MonkeyPatch.context() as patch,
    ):
        world = World(Path(name, "spool"), seed, patch)
        try:
            for _ in range(STEPS):
                world.act()
                if world.random.random() < 0.05:
                    world.lose_power()
            world.finish()
        except BaseException as error:  # whatever fails: the seed is shown
            error.add_note(f"seed {seed}")
            raise
        finally:
            for actor in (*world.writers, world.forwarder):
                world.end(actor)
    return world.crashes


@pytest.fixture(autouse=True)
def _silence() -> Iterator[None]:
    """Thousands of warnings are expected, and cost more than the simulation."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("group", range(GROUPS))
def test_crash_of_spool_and_forwarder_loses_no_record_and_erases_none_without_a_reply(
    group: int,
) -> None:
    crashes = sum(run(seed) for seed in range(group, SEEDS, GROUPS))
    assert crashes > 5 * SEEDS // GROUPS


@pytest.mark.parametrize("seed", [1259, 1400])
def test_crash_that_takes_back_only_the_state_of_erased_damage_sends_no_damage(seed: int) -> None:
    """Damage that was put aside was made an erased record with its bytes, and a CRC that fits."""
    run(seed)


def test_damage_that_a_broken_disk_does_not_let_erase_holds_up_no_record() -> None:
    """Records read before the damage were not sent until the forwarder started again."""
    run(464)
