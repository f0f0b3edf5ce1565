"""``fj-cli ping``: round trip times of requests that do nothing (NOP)."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import click

from fastjournal.times import format_duration
from fj_cli.output import wants_json, write_json, write_line
from fj_cli.shared_options import DURATION, json_option, open_client, server_option


@click.command("ping")
@click.option(
    "--count", type=click.IntRange(1, 1_000_000), default=4, show_default=True, help="Requests."
)
@click.option(
    "--interval", type=DURATION, default="1s", show_default=True, help="Pause between two of them."
)
@json_option
@server_option
@click.pass_context
def command(ctx: click.Context, count: int, interval: int, as_json: bool | None) -> None:
    """Measure the round trip to the daemon and back, and how far its clock is from this one.

    The daemon neither reads nor writes anything for it. The first line includes no connect.
    """
    in_json = wants_json(as_json)
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
            if in_json:
                fields = {"sequence": sequence, "round_trip_us": trip_us}
                write_json(fields | {"clock_ahead_us": ahead_us})
            else:
                write_line(f"{sequence}: {format_duration(trip_us)}, {_clock(ahead_us)}")
    if in_json:
        summary = {"count": count, "min_us": min(trips), "max_us": max(trips)}
        write_json(summary | {"mean_us": sum(trips) // count})
    else:
        least, mean, most = (
            format_duration(us) for us in (min(trips), sum(trips) // count, max(trips))
        )
        write_line(f"round trip of {count}: least {least}, mean {mean}, most {most}")


def _clock(ahead_us: int) -> str:
    if abs(ahead_us) < 1_000:
        return "clocks agree"
    return f"its clock is {format_duration(abs(ahead_us))} {'ahead' if ahead_us > 0 else 'behind'}"
