"""``fj-cli bench`` and ``ping``: latency, throughput and round trip times of a running daemon."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from fastjournal.time_texts import format_duration
from fj_cli.output import note, wants_json, write_json, write_line, write_result, write_table
from fj_cli.shared_options import DONE, DURATION, daemon_of, json_option, open_client, server_option

if TYPE_CHECKING:
    from fj_cli.benching import RequestTimes

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
    from fj_cli.benching import Bench, Load

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
