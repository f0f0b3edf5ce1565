"""Crash simulation of the daemon with a remote log: its own code, virtual disks, a cruel store.

Machines run what the installed daemon runs: ``Node`` (adoption, standby, takeover), recovery, and
``Server`` with its tasks, on a ``SimulatedDisk`` each and one ``CruelStore``. Time is trio's mock
clock, and all chances are drawn from the seed. Each call of the store and of a thread takes a drawn
time before and behind it, in which the machine may be frozen, killed, lose its power, or be set
back to a copy of its disk, while others take over. Nothing runs beside anything else: a blocking
rule is a thread that runs while all else stands still (``Coroutine``).

Clients keep a ledger of what they were told. ``World.audit`` restores the store into a scratch
directory, and holds what it brings against the ledger. With ``async`` a takeover may lose what was
not stored: what an audit has found once stays, and all that got OK is there where a node takes over
in the directory that wrote last, or behind a seal.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from fastjournal.errors import FencedError, StoreUnavailableError
from fastjournal.protocol.constants import Flag, Function
from fastjournal.protocol.messages import Reply, Request
from fastjournal.remote.directory import REMOTE_FILE
from fastjournal.remote.node import Node, NodeOptions, Primary
from fastjournal.remote.objects import EPOCHS, FORMAT_NAME
from fastjournal.remote.restore import restore_remote
from fastjournal.remote.store import Listed
from fastjournal.remote.writer import RemoteAck
from fastjournal.testing.disk import SimulatedDisk
from fastjournal.testing.object_store import CruelStore
from fastjournald.config.options import Config
from fastjournald.engine.engine import Engine
from fastjournald.group_commit.commit import SyncThread
from fastjournald.group_commit.remote_commit import RemoteCommit
from fastjournald.recovery.recover import make_whole, recover_engine
from fastjournald.server import Server
from tests.property.cold_values import value_of
from tests.property.subject import SECOND, START, request
from tests.unit.client_streams import as_socket_stream, stream_pair
from tests.unit.server_fixture import Peer

LOG = "/log"
RESTORED = "/scratch/log"
TAKEOVER_US = 2 * SECOND
BEAT_US = TAKEOVER_US // 3
POLL_US = SECOND // 5
PATIENCE_SECONDS = 3.0
"""Time after which a client asks another machine."""
CALM_SECONDS = 120.0
"""When the faults have ended, everybody is served within so long."""
REGISTERS = 4
LEASE_US = 4 * SECOND
GONE = (trio.BrokenResourceError, trio.ClosedResourceError, trio.EndOfChannel, OSError)


class BreachError(AssertionError):
    """A promise does not hold."""


class _KilledError(BaseException):
    """Ends a blocking rule where it is."""


# --- blocking rules without a second thing that runs ----------------------------------------------


class Coroutine:
    """A blocking call, in a thread that runs while the event loop stands still.

    Args:
        machine: Whose call it is.
        call: The call.
    """

    here = threading.local()
    """``.current``: the coroutine of this thread."""

    def __init__(self, machine: Machine, call: Callable[[], Any]) -> None:
        self._machine = machine
        self._call = call
        self._turn, self._goes_on = threading.Semaphore(0), threading.Semaphore(0)
        self._seconds = 0.0
        self._ended = self._killed = False
        self._result: Any = None
        self._error: BaseException | None = None

    async def run(self) -> Any:
        """Run it to its end; a cancellation kills it where it waits."""
        thread = threading.Thread(target=self._main)
        thread.start()
        try:
            while True:
                self._turn.acquire()
                if self._ended:
                    break
                await trio.sleep(self._seconds)
                await self._machine.wait_thawed()
                self._goes_on.release()
        except BaseException:
            self._killed = True
            self._goes_on.release()
            raise
        finally:
            thread.join()
        if self._error is not None:
            raise self._error
        return self._result

    def sleep(self, seconds: float) -> None:
        """Let others run for so long; called in the thread."""
        if self._killed:
            raise _KilledError
        self._seconds = seconds
        self._turn.release()
        self._goes_on.acquire()
        if self._killed:
            raise _KilledError

    def _main(self) -> None:
        Coroutine.here.current = self
        try:
            self._result = self._call()
        except BaseException as error:  # noqa: BLE001 - it is raised in ``run``
            self._error = error
        self._ended = True
        self._turn.release()


class SleepingEvent:
    """Stands for ``threading.Event`` in a rule: waiting for it lets others run."""

    def __init__(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True

    def wait(self, seconds: float) -> bool:
        if not self._is_set:
            Coroutine.here.current.sleep(seconds)
        return self._is_set


class InlineExecutor:
    """Stands for ``ThreadPoolExecutor``: calls are made at once, one after the other."""

    def __init__(self, _threads: int) -> None:
        pass

    def __enter__(self) -> InlineExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(call(*arguments))
        except Exception as error:  # noqa: BLE001 - as an executor does
            future.set_exception(error)
        return future

    def map(self, call: Callable[..., Any], *items: Any) -> list[Any]:
        return [call(*each) for each in zip(*items, strict=True)]

    def shutdown(self, *, cancel_futures: bool = False) -> None:
        pass


# --- machines -----------------------------------------------------------------------------------

CURRENT: ContextVar[Machine] = ContextVar("CURRENT")


class Network:
    """A machine's way to the store: each call takes its time, and none leaves a dead machine."""

    def __init__(self, life: Life) -> None:
        self._life = life

    def _call(self, name: str, *arguments: Any) -> Any:
        life, here = self._life, getattr(Coroutine.here, "current", None)
        if here is not None:
            here.sleep(life.machine.draw_seconds())
        if not life.alive:
            raise StoreUnavailableError("the machine is dead")
        answer = getattr(life.machine.world.store, name)(*arguments)
        if here is not None:
            here.sleep(life.machine.draw_seconds())
        return answer

    def create(self, name: str, data: bytes) -> bool:
        return bool(self._call("create", name, data))

    def get(self, name: str) -> bytes | None:
        return cast(bytes | None, self._call("get", name))

    def get_range(self, name: str, start: int, length: int) -> bytes | None:
        return cast(bytes | None, self._call("get_range", name, start, length))

    def list(self, folder: str, after: str = "", limit: int | None = None) -> list[Listed]:
        return cast(list[Listed], self._call("list", folder, after, limit))

    def delete(self, name: str) -> None:
        self._call("delete", name)

    def overwrite(self, name: str, data: bytes | None, path: str = "") -> None:
        self._call("overwrite", name, self._life.disk.read(path) if data is None else data)

    def copy(self, source: str, target: str) -> bool:
        return bool(self._call("copy", source, target))


class Life:
    """One process of a machine, from its start to its end."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.disk = machine.disk
        self.alive = True
        self.scope = trio.CancelScope()
        self.stopped = trio.Event()
        self.server: Server | None = None
        self.streams: list[Any] = []

    async def run(self) -> None:
        """Follow, take over, serve."""
        with self.scope:
            recovered = await Coroutine(self.machine, self._become_primary).run()
            if recovered is None:
                return
            primary, engine, writer = recovered
            world = self.machine.world
            world.look_at_taker(self, primary, engine)
            self.server = Server(
                world.config,
                engine,
                writer,
                cast(Any, self.disk),
                world.clock,
                remote=primary,
                boottime_us=world.boottime_us,
            )
            await self.server.run(lambda _: None, self.stopped.wait)

    def _become_primary(self) -> Any:
        world, disk = self.machine.world, cast(Any, self.disk)
        config, settings = world.config, world.config.settings()
        options = NodeOptions(
            name=self.machine.name,
            ack=world.ack,
            takeover_after_us=TAKEOVER_US,
            beat_us=BEAT_US,
            poll_us=POLL_US,
        )
        node = Node(
            Network(self),
            disk,
            LOG,
            options,
            clock=world.clock,
            boottime_us=world.boottime_us,
            recover=lambda: make_whole(disk, config, settings, world.clock),
        )
        primary = node.run()
        if primary is None:
            return None
        engine, writer = recover_engine(
            disk, config, settings, world.clock, seed=world.draw.randbytes(8), listed=True
        )
        Coroutine.here.current.sleep(world.draw.uniform(0, 0.5))
        node.store_log(primary, writer.flush)
        return primary, engine, writer

    def connect(self) -> Peer | None:
        """Return a connection of a client, if it serves."""
        connections = self.server and self.server.connections
        if not (self.alive and connections and connections.nursery) or connections.stopping:
            return None
        CURRENT.set(self.machine)  # the tasks that serve it inherit that
        ours, theirs = stream_pair(sockets=False, lockstep=False, watch=None)
        self.streams.append(ours)
        try:
            connections.serve(theirs, {"peer": "memory"})
        except RuntimeError:
            return None  # its nursery ends
        return Peer(as_socket_stream(ours))


class Machine:
    """A machine: its disk stays, a life ends."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.name = f"node{number}"
        self.disk = SimulatedDisk(number, capacity_bytes=1 << 24)
        self.disk.mkdir(LOG)
        self.copies: list[SimulatedDisk] = []
        self.frozen_until = 0.0
        self.intact = False
        """Whether its directory has all that it has acknowledged since it took over."""
        self.life: Life | None = None

    def draw_seconds(self) -> float:
        """Return how long a request is under way, one way."""
        return self.world.draw.choice((0.0, 0.005, 0.005, 0.02, 0.3)) * self.world.draw.random()

    async def wait_thawed(self) -> None:
        """Return when it is not frozen."""
        while trio.current_time() < self.frozen_until:  # noqa: ASYNC110 - it may move meanwhile
            await trio.sleep_until(self.frozen_until)

    async def run(self) -> None:
        """Start it again whenever it ends."""
        world = self.world
        CURRENT.set(self)
        while True:
            self.life = life = Life(self)
            try:
                await life.run()
            except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 - judged there
                self._judge(life, error)
            for stream in life.streams:
                await trio.aclose_forcefully(stream)
            if life.alive:
                # it ended by itself: what it wrote is there
                self.end(life, self.disk.kill(world.draw.getrandbits(32)))
            await trio.sleep(world.draw.choice((0.0, 0.1, 1.0, 4.0)))

    def _judge(self, life: Life, error: BaseException) -> None:
        """A life ends as fenced, or by whatever its sudden death does to it."""
        group = error if isinstance(error, BaseExceptionGroup) else BaseExceptionGroup("", [error])
        if group.subgroup(BreachError) is not None or life.alive:
            fenced, rest = group.split(FencedError)
            if rest is not None:
                raise error
            self.world.counts["fenced"] += fenced is not None

    def end(self, life: Life, disk: SimulatedDisk) -> None:
        """End a life at this instant; the next one finds this disk."""
        life.alive = False
        self.disk = disk
        life.scope.cancel()


class World:
    """All of it.

    Args:
        seed: Of everything.
        ack: What OK means.
        machines: How many.
        patch: Replaces threads and clocks for the time of the test.
        outage_seconds: The longest time without the store.
        options: More options of the daemons.
    """

    def __init__(
        self,
        seed: int,
        patch: pytest.MonkeyPatch,
        *,
        ack: RemoteAck = RemoteAck.DURABLE,
        machines: int = 2,
        outage_seconds: float = 1.0,
        **options: Any,
    ) -> None:
        self.draw = Random(seed)
        self.time = trio.testing.MockClock(autojump_threshold=0)
        self.ack = ack
        self.durable = ack is RemoteAck.DURABLE
        self.store = CruelStore(seed)
        self._outage_seconds = outage_seconds
        self.counts: Counter[str] = Counter()
        self.config = Config(
            cmdlog_path=LOG,
            listen=["127.0.0.1:0"],
            min_free_bytes=1 << 18,
            **(
                {
                    "cmdlog_sync": self.draw.choice(("always", "os")),
                    "cmdlog_seg_size": self.draw.choice((3000, 20_000)),
                    "cmdlog_clean_int": 300,
                    "remote_keep": 1,
                }
                | options
            ),
        )
        self.acknowledged = [0] * REGISTERS
        """Register to the newest value that got OK, or that an audit has found."""
        self.tried = [0] * REGISTERS
        self.jobs: set[bytes] = set()
        """Jobs whose SET got OK."""
        self.stored = [0] * REGISTERS
        self.stored_jobs: set[bytes] = set()
        """What the store has shown once."""
        self._looked_at = -1
        """Epoch whose taker was held against the ledger last."""
        self.given: set[bytes] = set()
        """Jobs that were given to a worker, who may have completed them."""
        self.completed: dict[bytes, float] = {}
        self.machines = [Machine(self, number) for number in range(machines)]
        self._patch(patch)
        self._last_us = START

    def _patch(self, patch: pytest.MonkeyPatch) -> None:
        for name in ("node", "open_store", "restore"):
            patch.setattr(f"fastjournal.remote.{name}.ThreadPoolExecutor", InlineExecutor)
        # it asks the store some thirty times in a row, which a cruel one seldom answers
        patch.setattr("fastjournal.remote.node.require_promises", lambda *_, **__: None)
        events = SimpleNamespace(Event=SleepingEvent)
        patch.setattr("fastjournal.remote.node.threading", events)
        patch.setattr("fastjournald.group_commit.commit.INLINE_SECONDS_MAX", -1.0)
        # how busy the machine is changes nothing
        for name, module in list(sys.modules.items()):
            for clock in ("perf_counter", "thread_time"):
                if name.startswith("fastjournald.") and hasattr(module, clock):
                    patch.setattr(module, clock, self.time.current_time)
        patch.setattr(trio.to_thread, "run_sync", self._run_slowly)
        patch.setitem(RemoteCommit.__init__.__kwdefaults__, "call", self._run_slowly)
        patch.setattr(SyncThread, "run", lambda _, call: self._sync_slowly(call))
        patch.setattr(SyncThread, "start", lambda _: None)
        patch.setattr("trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING", True)
        trio._core._run._r.seed(self.draw.getrandbits(32))

    async def _run_slowly(self, call: Callable[..., Any], *arguments: Any, **_: Any) -> Any:
        machine = CURRENT.get()
        try:
            await trio.sleep(machine.draw_seconds())
            await machine.wait_thawed()
        except trio.Cancelled:
            if self.draw.random() < 0.5:
                # the thread that was abandoned goes on, unless the machine is dead
                with suppress(StoreUnavailableError):
                    call(*arguments)
            raise
        try:
            return call(*arguments)
        finally:
            await trio.sleep(machine.draw_seconds())
            await machine.wait_thawed()

    async def _sync_slowly(self, call: Callable[[], object]) -> None:
        with trio.CancelScope(shield=True):
            await self._run_slowly(call)

    # --- clocks ---------------------------------------------------------------------------------

    @property
    def clock(self) -> Any:
        return SimpleNamespace(now_us=self.now_us, monotonic_us=self.now_us)

    def now_us(self) -> int:
        return START + self.boottime_us()

    def boottime_us(self) -> int:
        return int(self.time.current_time() * SECOND)

    def timestamp(self) -> int:
        """Return an instant that no other request has."""
        self._last_us = max(self._last_us + 1, self.now_us())
        return self._last_us

    # --- a run ----------------------------------------------------------------------------------

    async def run(self, seconds: float) -> None:
        """Live with faults for so long, and then without."""
        self._prepare()
        async with trio.open_nursery() as nursery:
            for machine in self.machines:
                nursery.start_soon(machine.run)
            for number in range(REGISTERS):
                nursery.start_soon(self._write_register, number)
            nursery.start_soon(self._read_registers)
            nursery.start_soon(self._produce)
            nursery.start_soon(self._work)
            with trio.move_on_after(seconds):
                async with trio.open_nursery() as faults:
                    faults.start_soon(self._disturb_machines)
                    faults.start_soon(self._disturb_store)
            self.store.failures = 0.0
            await self._be_calm()
            nursery.cancel_scope.cancel()
            for machine in self.machines:
                if machine.life is not None:
                    machine.end(machine.life, machine.disk)
        self.audit()

    async def read_from_frozen(self) -> Reply | None:
        """Return what a primary that was frozen answers when its successor has acknowledged."""
        self._prepare()
        async with trio.open_nursery() as nursery:
            for machine in self.machines:
                nursery.start_soon(machine.run)
            frozen, reader = await self._wait_served(self.machines)
            assert await self._set_register(reader, 1)
            frozen.frozen_until = trio.current_time() + 30 * TAKEOVER_US / SECOND
            others = [machine for machine in self.machines if machine is not frozen]
            _, writer = await self._wait_served(others)
            assert await self._set_register(writer, 2)
            asked = request(Function.GET, b"r0", flags=Flag.DATA, at=self.timestamp())
            reply = await self._ask(reader, asked)
            nursery.cancel_scope.cancel()
            for machine in self.machines:
                assert machine.life is not None
                machine.end(machine.life, machine.disk)
        return reply

    async def _wait_served(self, machines: list[Machine]) -> tuple[Machine, Peer]:
        """Return the first of these machines that serves, and a connection to it."""
        with trio.fail_after(CALM_SECONDS):
            while True:
                for machine in machines:
                    if machine.life is not None and (peer := machine.life.connect()) is not None:
                        return machine, peer
                await trio.sleep(0.1)

    async def _set_register(self, peer: Peer, value: int) -> bool:
        flags = Flag.PERSIST | Flag.OVERWRITE
        asked = request(Function.SET, b"r0", b"%d" % value, flags=flags, at=self.timestamp())
        reply = await self._ask(peer, asked)
        self.tried[0] = self.acknowledged[0] = value
        return reply is not None and reply.code == ""

    def _prepare(self) -> None:
        """Give the first machine a log, which it adopts."""
        disk = cast(Any, self.machines[0].disk)
        engine, writer = recover_engine(
            disk, self.config, self.config.settings(), self.clock, seed=bytes(8)
        )
        first = request(Function.SET, b"r0", b"0", flags=Flag.PERSIST, at=START)
        engine.handle("session", first, START)
        writer.flush()
        writer.close()
        self.machines[0].disk = self.machines[0].disk.kill()

    async def _be_calm(self) -> None:
        before = list(self.acknowledged)
        with trio.move_on_after(CALM_SECONDS):
            while any(a <= b for a, b in zip(self.acknowledged, before, strict=True)):  # noqa: ASYNC110
                await trio.sleep(0.1)
            return
        said = [(each.name, each.life and each.life.server) for each in self.machines]
        raise BreachError(f"the faults ended, and nobody serves: {said}")

    async def _disturb_machines(self) -> None:
        draw = self.draw
        while True:
            await trio.sleep(draw.choice((0.05, 0.5, 3.0, 8.0)) * draw.random())
            machine = draw.choice(self.machines)
            life = machine.life
            if life is None or not life.alive:
                continue
            what = draw.choice(("kill", "power", "freeze", "freeze", "stop", "copy", "set back"))
            self.counts[what] += 1
            seed = draw.getrandbits(32)
            if what == "kill":
                machine.end(life, life.disk.kill(seed))
            elif what == "power":
                machine.intact &= self.config.cmdlog_sync == "always"
                machine.end(life, life.disk.crash(seed))
            elif what == "freeze":
                seconds = draw.choice((3, 10)) * TAKEOVER_US / SECOND * draw.random()
                machine.frozen_until = trio.current_time() + seconds
            elif what == "stop":
                life.stopped.set()
            elif what == "copy" and life.disk.exists(f"{LOG}/{REMOTE_FILE}"):
                machine.copies.append(life.disk.kill(seed))
            elif what == "set back" and machine.copies:
                machine.intact = False
                machine.end(life, draw.choice(machine.copies).kill())

    async def _disturb_store(self) -> None:
        while True:
            self.store.failures = self.draw.choice((0.0, 0.0, 0.1, 0.3, 1.0))
            seconds = self._outage_seconds if self.store.failures == 1 else 4.0
            await trio.sleep(self.draw.uniform(0, seconds))

    # --- clients --------------------------------------------------------------------------------

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Peer | None]:
        machine = self.draw.choice(self.machines)
        peer = machine.life.connect() if machine.life is not None else None
        try:
            yield peer
        finally:
            if peer is not None:
                await trio.aclose_forcefully(peer.stream)

    async def _ask(self, peer: Peer, asked: Request) -> Reply | None:
        """Return the reply; None: there is none, and nobody knows what became of the request."""
        with trio.move_on_after(PATIENCE_SECONDS), suppress(*GONE):
            await peer.send(asked)
            return await peer.reply()
        return None

    async def _converse(self, talk: Callable[[Peer], Any]) -> None:
        """Talk over one connection after the other; ``talk`` returns whether it goes on."""
        while True:
            async with self._connection() as peer:
                while peer is not None and await talk(peer):  # noqa: ASYNC110 - no polling
                    await trio.sleep(self.draw.choice((0.0, 0.01, 0.2)))
            await trio.sleep(0.05)

    async def _write_register(self, number: int) -> None:
        key = b"r%d" % number

        async def talk(peer: Peer) -> bool:
            self.tried[number] += 1
            value = self.tried[number]
            padding = b" " * self.draw.choice((0, 10, 300))
            asked = request(
                Function.SET,
                key,
                b"%d" % value + padding,
                flags=Flag.PERSIST | Flag.OVERWRITE,
                at=self.timestamp(),
            )
            reply = await self._ask(peer, asked)
            if reply is None or reply.code == "shutting-down":
                return False
            assert reply.code == "", reply.error
            self.acknowledged[number] = max(self.acknowledged[number], value)
            self.counts["acknowledged"] += 1
            if self.draw.random() < 0.05:
                self.audit()
            return True

        await self._converse(talk)

    async def _read_registers(self) -> None:
        async def talk(peer: Peer) -> bool:
            number = self.draw.randrange(REGISTERS)
            floor = self.acknowledged[number]
            asked = request(Function.GET, b"r%d" % number, flags=Flag.DATA, at=self.timestamp())
            reply = await self._ask(peer, asked)
            if reply is None or reply.code == "shutting-down":
                return False
            assert reply.code in ("", "not-found"), reply.error
            found = int(reply.pairs[0].value) if reply.pairs else 0
            if self.durable and found < floor:
                raise BreachError(f"a stale read: {found} where {floor} has got OK")
            self.counts["reads"] += 1
            return True

        await self._converse(talk)

    async def _produce(self) -> None:
        async def talk(peer: Peer) -> bool:
            at = self.timestamp()
            key = b"d:128:0:%d" % at
            reply = await self._ask(
                peer, request(Function.SET, key, b"", flags=Flag.PERSIST, at=at)
            )
            if reply is None or reply.code:
                return False
            self.jobs.add(key)
            return True

        await self._converse(talk)

    async def _work(self) -> None:
        async def talk(peer: Peer) -> bool:
            asked_at = trio.current_time()
            asked = request(Function.NEXT, b"d", count=2, timeout=LEASE_US, at=self.timestamp())
            reply = await self._ask(peer, asked)
            if reply is None or reply.code:
                return False
            for pair in reply.pairs or ():
                if not self.durable:
                    continue  # another machine may know nothing of what was completed
                if self.completed.get(pair.key, asked_at) < asked_at:
                    raise BreachError(f"{pair.key!r} is given again behind its completion")
                self.given.add(pair.key)
                done = request(
                    Function.DELETE,
                    pair.key,
                    flags=Flag.WORKED_ON,
                    timeout=reply.timeout,
                    at=self.timestamp(),
                )
                answer = await self._ask(peer, done)
                if answer is None:
                    return False
                if answer.code == "":
                    if pair.key in self.completed:
                        raise BreachError(f"{pair.key!r} is completed twice")
                    self.completed[pair.key] = trio.current_time()
                    self.counts["completed"] += 1
            return True

        await self._converse(talk)

    # --- audit ----------------------------------------------------------------------------------

    def audit(self) -> None:
        """Hold what the store brings against the ledger."""
        if FORMAT_NAME not in self.store.store.objects:
            return
        self.counts["audits"] += 1
        disk = SimulatedDisk(capacity_bytes=1 << 24)
        disk.mkdir("/scratch")
        restore_remote(
            self.store.store, cast(Any, disk), RESTORED, wait=_no_wait, now_us=self._last_us
        )
        config = Config(cmdlog_path=RESTORED)
        engine, _ = recover_engine(
            cast(Any, disk), config, config.settings(), self._frozen_clock(), seed=bytes(8)
        )
        value = partial(value_of, engine, disk, RESTORED)
        self._compare("a restore", engine, value, kept=self.durable)

    def _frozen_clock(self) -> Any:
        return SimpleNamespace(now_us=lambda: self._last_us, monotonic_us=lambda: self._last_us)

    def look_at_taker(self, life: Life, primary: Primary, engine: Engine) -> None:
        """Hold what a taker serves against the ledger, unless another one has taken over."""
        self.counts["epochs"] += 1
        epoch, machine = primary.chunks.epoch.epoch, life.machine
        if not life.alive or f"{EPOCHS}/{epoch + 1:010d}.json" in self.store.store.objects:
            return
        kept = self.durable
        if self._looked_at == epoch - 1:
            kept |= primary.cause == "seal" or (primary.cause == "restart" and machine.intact)
        self._compare("a taker", engine, partial(value_of, engine, life.disk, LOG), kept=kept)
        self.counts["kept"] += kept
        # what it has not, nobody has any more
        lost = sum(map(int.__gt__, self.acknowledged, self.stored))
        self.counts["lost"] += lost + len(self.jobs - self.given - self.stored_jobs)
        self.acknowledged, self.jobs = list(self.stored), self.jobs & self.stored_jobs | self.given
        self._looked_at, machine.intact = epoch, True
        self.audit()

    def _compare(
        self, who: str, engine: Engine, value: Callable[[Any], bytes], *, kept: bool
    ) -> None:
        """Look for all that got OK (``kept``), or for what the store has shown once."""
        for number, floor in enumerate(self.acknowledged if kept else list(self.stored)):
            entry = engine.store.find(b"r%d" % number)
            found = 0 if entry is None else int(value(entry))
            if not floor <= found <= self.tried[number]:
                raise BreachError(
                    f"{who} has {found} in register {number}; at least {floor} has to be there, and"
                    f" {self.tried[number]} was asked for"
                )
            # what the newest epoch reads stays
            self.stored[number] = found
            if self.durable:
                self.acknowledged[number] = found
        jobs = (self.jobs if kept else self.stored_jobs) - self.given
        lost = [key for key in jobs if engine.store.find(key) is None]
        if lost:
            raise BreachError(f"{who} has not {lost[:3]}, which got OK")
        self.stored_jobs |= {key for key in self.jobs if engine.store.find(key) is not None}
        again = [key for key in self.completed if engine.store.find(key) is not None]
        if again:
            raise BreachError(f"{who} has {again[:3]}, whose completion got OK")


def _no_wait(_tries: int, error: StoreUnavailableError) -> None:
    raise error


def simulate(world: World, seconds: float) -> Counter[str]:
    """Run a world on a mock clock; return what happened."""
    trio.run(world.run, seconds, clock=world.time)
    return world.counts
