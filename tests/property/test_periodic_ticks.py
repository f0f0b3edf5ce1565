"""Periodic tasks against a model: hosts come and go, the clock jumps, and each tick is one job.

The daemon is the real engine with a virtual clock, the hosts are the real setters of ticks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial

import anyio
from hypothesis import given, settings
from hypothesis import strategies as st

from fastjournal.client import Call, Client, Written, calls
from fastjournal.keys import parse_journal_key
from fastjournal.tasks.periodic import Periodic, TickSetter, next_ticks, parse_schedule
from fastjournald.testing import FastjournalDaemon

START = datetime(2026, 10, 24, 22, 0, tzinfo=UTC)
"""Three hours before clocks are set back in Berlin."""

LINES = ("* * * * *", "*/7 * * * *", "30 2,3 * * *", "5-50/15 * * * *")
ERROR_S = 900
"""Bound on how wrong the clock may be: a quarter of ``tombstone-ttl``."""


def enqueue(name: str) -> Call[Written]:
    return calls.enqueue("q", name, priority=7)


SCHEDULES = [parse_schedule(line, "Europe/Berlin") for line in LINES]
PERIODICS = [
    Periodic(id=str(n), schedule=schedule, enqueue=partial(enqueue, str(n)))
    for n, schedule in enumerate(SCHEDULES)
]


class Host:
    """A worker program: it looks at the clock when it said it would, unless it is suspended."""

    def __init__(self, started_us: int) -> None:
        self.started_us = started_us
        self.setter = TickSetter(PERIODICS)
        self.looks_at_us = 0
        self.is_suspended = False


class World:
    """The daemon, its hosts and its worker, and what is known about each tick."""

    def __init__(self, daemon: FastjournalDaemon, client: Client) -> None:
        self.daemon = daemon
        self.client = client
        self.hosts: list[Host] = []
        self.error_s = 0
        """Seconds by which the clock is ahead of the time that has passed."""
        self.set_ever: set[bytes] = set()
        self.done: list[bytes] = []

    @property
    def now_us(self) -> int:
        return self.daemon._now_us

    @property
    def up(self) -> list[Host]:
        return [host for host in self.hosts if not host.is_suspended]

    async def look(self, host: Host) -> None:
        pause_s = await host.setter.look(self.client)
        host.looks_at_us = self.now_us + int(pause_s * 1e6)

    async def note_entries(self) -> None:
        async for entry in self.client.prefix(b"q:"):
            self.set_ever.add(entry.key)

    async def pass_time(self, seconds: int) -> None:
        """Let time pass: each tick of it is there, if a host is up.

        But for those before its start, to which the clock was set back.
        """
        begin_us, end_us = self.now_us, self.now_us + seconds * 1_000_000
        served_us = min((host.started_us for host in self.up), default=None)
        while self.up and (host := min(self.up, key=lambda up: up.looks_at_us)):
            if host.looks_at_us > end_us:
                break
            self.daemon.advance(max(host.looks_at_us - self.now_us, 0) / 1e6)
            await self.look(host)
        self.daemon.advance(max(end_us - self.now_us, 0) / 1e6)
        await self.note_entries()
        if served_us is not None:
            after_us = max(begin_us, served_us)
            last_us = end_us - 10_000  # the looks themselves take microseconds
            for periodic in PERIODICS:
                for tick in next_ticks(periodic.schedule, after_us, last_us):
                    key = f"q:007:{tick:016d}:{periodic.id}".encode()
                    assert key in self.set_ever, f"missed {key!r}"

    async def step(self, seconds: int) -> None:
        """Set the daemon's clock. Each host that is up looks soon after."""
        step_us = seconds * 1_000_000
        self.error_s += seconds
        self.daemon._now_us += step_us
        self.daemon._engine.clock_stepped(self.now_us, step_us)
        self.daemon.advance(0)
        for host in self.up:
            await self.look(host)

    async def work(self, fails: bool) -> None:
        """Work off what is due: no tick a second time, none before its instant."""
        await self.note_entries()
        async for job in self.client.jobs("q", wait=0):
            parts = parse_journal_key(job.key)
            assert parts is not None
            assert parts.not_before_us <= self.now_us
            assert parts.id == job.value
            assert job.key not in self.done, f"{job.key!r} is a second job of its tick"
            if fails:
                await job.fail("no luck")
            else:
                self.done.append(job.key)

    async def act(
        self, data: st.DataObject, actions: list[str], steps_s: st.SearchStrategy[int]
    ) -> None:
        """Have something happen."""
        match data.draw(st.sampled_from(actions)):
            case "pass":
                await self.pass_time(data.draw(st.integers(1, 400)))
            case "step":
                await self.step(data.draw(steps_s))
            case "work":
                await self.work(fails=False)
            case "fail":
                await self.work(fails=True)
            case "start" if len(self.hosts) < 4:
                self.hosts.append(Host(self.now_us))
                await self.look(self.hosts[-1])
            case "kill" if self.hosts:
                self.hosts.remove(data.draw(st.sampled_from(self.hosts)))
            case "suspend" if self.hosts:
                data.draw(st.sampled_from(self.hosts)).is_suspended = True
            case "resume" if suspended := [host for host in self.hosts if host.is_suspended]:
                suspended[0].is_suspended = False
                await self.look(suspended[0])


async def live(scenario: Callable[[World], Awaitable[None]]) -> None:
    with FastjournalDaemon(start=START) as daemon:
        async with daemon.client() as client:
            world = World(daemon, client)
            await scenario(world)
            await world.work(fails=False)


ALWAYS = ["pass", "pass", "pass", "step", "step", "work", "work", "fail", "kill"]


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_each_tick_is_one_job_where_hosts_come_and_go(data: st.DataObject) -> None:
    async def scenario(world: World) -> None:
        for _ in range(data.draw(st.integers(3, 20))):
            steps_s = st.integers(-world.error_s, ERROR_S - world.error_s)
            await world.act(data, [*ALWAYS, "start", "start", "suspend", "resume"], steps_s)

    anyio.run(live, scenario, backend="trio")


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_each_tick_is_one_job_whatever_the_clock_does_while_its_hosts_run(
    data: st.DataObject,
) -> None:
    async def scenario(world: World) -> None:
        for _ in range(3):
            await world.act(data, ["start"], st.nothing())
        for _ in range(data.draw(st.integers(3, 20))):
            set_right = st.just(-world.error_s)
            steps_s = st.sampled_from([-3700, -400, 400, 3700]) | st.integers(-9000, 9000)
            await world.act(data, ALWAYS, steps_s | set_right if world.error_s else steps_s)

    anyio.run(live, scenario, backend="trio")
