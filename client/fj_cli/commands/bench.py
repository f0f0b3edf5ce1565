"""``fj-cli bench`` and ``ping``: latency, throughput and round trip times of a running daemon.

The load is SET, NEXT and DELETE of jobs in a domain of its own.

All that it writes is deleted at the end, also after a signal, and leaves no tombstones.
"""

from __future__ import annotations

import secrets
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar

import click
import msgspec
import trio

from fastjournal.client import Client
from fastjournal.errors import FastjournalError, RefusedError
from fastjournal.keys import build_journal_key
from fastjournal.time_texts import format_duration
from fj_cli.output import note, wants_json, write_json, write_line, write_result, write_table
from fj_cli.shared_options import DONE, DURATION, daemon_of, json_option, open_client, server_option

T = TypeVar("T")

_CLEAN_S = 30.0
"""How long the end waits for the daemon to delete what is left."""

_CLEAN_AGAIN_S = 0.2
"""Pause between two tries of that."""

_PASSING = ("busy", "read-only", "rate-limited")
"""Refusals that may end while it waits."""

_LEASE_S = 60
"""A run that is killed leaves no entry leased for longer."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """Load to generate."""

    connections: int
    jobs: int
    """Jobs of all connections together."""
    value_bytes: int
    persist: bool


class RequestTimes:
    """Durations of the requests of one function, in microseconds."""

    def __init__(self) -> None:
        self._us: list[int] = []

    def __len__(self) -> int:
        return len(self._us)

    async def measure(self, request: Callable[[], Awaitable[T]]) -> T:
        """Send a request, and note how long the reply took."""
        began = time.perf_counter_ns()
        reply = await request()
        self._us.append((time.perf_counter_ns() - began) // 1000)
        return reply

    def quantile(self, share: float) -> int:
        """Return the duration that so large a share of the requests did not exceed."""
        ordered = sorted(self._us)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Bench:
    """One run against a daemon.

    Args:
        load: Load to generate.
        new_client: Returns a client of the daemon that is not connected.
    """

    def __init__(self, load: Load, new_client: Callable[[], Client]) -> None:
        self._load = load
        self._new_client = new_client
        self.domain = f"bench-{secrets.token_hex(4)}"
        self._left: set[bytes] = set()
        """Keys that may be there."""
        self._number = 0
        self.times = {"set": RequestTimes(), "next": RequestTimes(), "delete": RequestTimes()}
        self.seconds = 0.0
        self._failure: FastjournalError | None = None
        self.signal: int | None = None
        """Signal that ended the run before its time."""
        self.may_be_left = False
        """The daemon may not have deleted all entries."""

    async def run(self) -> None:
        """Generate the load, and clean up.

        Raises:
            FastjournalError: The daemon is not there, or refuses something.
        """
        try:
            with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._stop_at_signal, signals, nursery.cancel_scope)
                    await self._generate()
                    nursery.cancel_scope.cancel()
        finally:
            if self._left:
                self.may_be_left = True
                with trio.move_on_after(_CLEAN_S, shield=True):
                    await self._clean()
        if self._failure is not None:
            raise self._failure

    async def _stop_at_signal(self, signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
        async for number in signals:
            self.signal = number
            scope.cancel()
            return

    async def _generate(self) -> None:
        began = time.perf_counter()
        try:
            async with trio.open_nursery() as nursery:
                for _ in range(self._load.connections):
                    nursery.start_soon(self._connection, nursery.cancel_scope)
        finally:
            self.seconds = time.perf_counter() - began

    async def _connection(self, scope: trio.CancelScope) -> None:
        try:
            async with self._new_client() as client:
                while self._number < self._load.jobs:
                    self._number += 1
                    await self._job(client, self._number)
        except FastjournalError as error:
            self._failure = self._failure or error
            scope.cancel()

    async def _job(self, client: Client, number: int) -> None:
        """Set a job, lease one (this, or that of another connection), and complete that."""
        load = self._load
        key = build_journal_key(self.domain, str(number))
        value = secrets.token_bytes(load.value_bytes)
        self._left.add(key)
        try:
            await self.times["set"].measure(lambda: client.set(key, value, persist=load.persist))
        except RefusedError as error:
            if error.code != "not-persisted":  # which says nothing of the memory
                self._left.discard(key)
            raise
        jobs = await self.times["next"].measure(lambda: client.next(self.domain, lease=_LEASE_S))
        for job in jobs:
            complete = partial(client.delete, job.key, token=jobs.token, overwrite=True)
            await self.times["delete"].measure(complete)
            self._left.discard(job.key)

    async def _clean(self) -> None:
        """Delete what is left, until the daemon has none of it: a last SET may be on its way.

        PURGE would leave what is leased.
        """
        try:
            async with self._new_client() as client:
                while True:
                    refusal = await self._delete_left(client)
                    if not (await client.domain_stats(self.domain)).entries:
                        self.may_be_left = False
                        return
                    if refusal is not None:
                        self._failure = self._failure or refusal
                        if refusal.code not in _PASSING:
                            return
                    await trio.sleep(_CLEAN_AGAIN_S)
        except FastjournalError as error:
            self._failure = self._failure or error

    async def _delete_left(self, client: Client) -> RefusedError | None:
        """Delete each key that may be there; return a refusal, if there was one."""
        for key in self._left:
            try:
                await client.delete(key, overwrite=True)
            except RefusedError as error:
                if error.code != "not-found":
                    return error
        return None


_QUANTILES = {"p50_us": 0.5, "p90_us": 0.9, "p99_us": 0.99, "max_us": 1.0}


@click.command("bench")
@click.option("--count", type=click.IntRange(1), default=1000, help="Jobs in all.")
@click.option(
    "--connections",
    type=click.IntRange(1, 1000),
    default=1,
    help="Clients at once; each waits for every reply.",
)
@click.option("--size", type=click.IntRange(0, 1_000_000), default=100, help="Bytes of a value.")
@click.option("--no-persist", is_flag=True, help="In memory only: without the log and its syncs.")
@json_option
@server_option
@click.pass_context
def bench_command(
    ctx: click.Context,
    count: int,
    connections: int,
    size: int,
    no_persist: bool,
    as_json: bool | None,
) -> int:
    """Set, lease and complete jobs in a domain of their own, and show latency and throughput.

    The daemon serves others meanwhile, so a large load slows them. All that is written is deleted
    at the end, also after Ctrl-C, and leaves no tombstones; the log grows by it until compaction.
    A token needs the rights read, write and next for domains that begin with 'bench-'. If entries
    may be left, because the daemon went away or refuses to delete them, it names their domain.
    """
    import trio

    from fastjournal.client import Client
    from fj_cli.commands.bench import Bench, Load

    address, credentials = daemon_of(ctx)
    load = Load(connections=connections, jobs=count, value_bytes=size, persist=not no_persist)
    bench = Bench(
        load, lambda: Client(address, tls=credentials.tls, auth=credentials.auth, reconnect=None)
    )
    try:
        trio.run(bench.run)
    finally:
        if bench.may_be_left:
            note(f"fj-cli: entries may be left: fj-cli purge {bench.domain} --yes")
    _write(bench.times, bench.seconds, as_json)
    if bench.signal is not None:
        deleted = "" if bench.may_be_left else f"; the entries of {bench.domain} are deleted"
        note(f"fj-cli: ended by a signal{deleted}")
        return 128 + bench.signal
    return DONE


def _write(times: dict[str, RequestTimes], seconds: float, as_json: bool | None) -> None:
    measured = {name: each for name, each in times.items() if len(each)}
    rows = []
    for name, each in measured.items():
        rate = len(each) / seconds
        quantiles = {q: each.quantile(share) for q, share in _QUANTILES.items()}
        if wants_json(as_json):
            write_json({"function": name, "count": len(each), "per_second": rate} | quantiles)
        shown = (format_duration(us) for us in quantiles.values())
        rows.append((name, f"{len(each):,}", f"{rate:,.0f}", *shown))
    if wants_json(as_json):
        jobs = len(times["delete"])
        write_json({"function": "job", "count": jobs, "per_second": jobs / seconds})
        return
    columns = ("function", "count", "per second", *(name[:-3] for name in _QUANTILES))
    write_table(None, columns, rows)
    jobs = len(times["delete"])
    write_line(f"{jobs:,} jobs in {seconds:.2f} s: {jobs / seconds:,.0f} a second")


@click.command("ping")
@click.option("--count", type=click.IntRange(1, 1_000_000), default=4, help="Requests.")
@click.option("--interval", type=DURATION, default="1s", help="Pause between two of them.")
@json_option
@server_option
@click.pass_context
def ping_command(ctx: click.Context, count: int, interval: int, as_json: bool | None) -> None:
    """Measure the round trip to the daemon and back, and how far its clock is from this one.

    The daemon neither reads nor writes anything for it. The first line includes no connect.
    """
    trips: list[int] = []
    with open_client(ctx) as client:
        for sequence in range(1, count + 1):
            if sequence > 1 and interval:
                time.sleep(interval / 1e6)  # --interval
            sent, began = datetime.now(UTC), time.perf_counter_ns()
            clock = client.nop()
            trip_us = (time.perf_counter_ns() - began) // 1000
            trips.append(trip_us)
            ahead_us = (clock - sent) // timedelta(microseconds=1) - trip_us // 2
            write_result(
                as_json,
                {"sequence": sequence, "round_trip_us": trip_us, "clock_ahead_us": ahead_us},
                f"{sequence}: {format_duration(trip_us)}, {_clock(ahead_us)}",
            )
    least_us, most_us, mean_us = min(trips), max(trips), sum(trips) // count
    least, mean, most = map(format_duration, (least_us, mean_us, most_us))
    write_result(
        as_json,
        {"count": count, "min_us": least_us, "max_us": most_us, "mean_us": mean_us},
        f"round trip of {count}: least {least}, mean {mean}, most {most}",
    )


def _clock(ahead_us: int) -> str:
    if abs(ahead_us) < 1_000:
        return "clocks agree"
    return f"its clock is {format_duration(abs(ahead_us))} {'ahead' if ahead_us > 0 else 'behind'}"
