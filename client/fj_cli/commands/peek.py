"""``fj-cli peek``: what NEXT would deliver now, without a lease."""

from __future__ import annotations

import click

from fastjournal.clock import SystemClock
from fj_cli.instants import show_instant
from fj_cli.output import note, note_nothing_due, write_jobs
from fj_cli.shared_options import (
    DONE,
    DURATION,
    LEASE,
    NAME,
    NOTHING_TO_DO,
    b64_option,
    json_option,
    open_client,
    server_option,
)
from fj_cli.shell_completion import complete_domain
from fj_cli.times import to_duration_or_none

COUNT_MAX = 500
"""Entries to show: as many as the daemon returns to one request."""


@click.command("peek")
@click.argument("domain", type=NAME, default="", shell_complete=complete_domain)
@click.option(
    "--count",
    type=click.IntRange(1, COUNT_MAX),
    default=1,
    show_default=True,
    help="At most that many entries.",
)
@click.option(
    "--lease", type=DURATION, default=LEASE, show_default=True, help="As given to 'next'."
)
@b64_option
@json_option
@server_option
@click.pass_context
def command(ctx: click.Context, domain: bytes, count: int, lease: int, as_json: bool | None) -> int:
    """Show what 'next' would lease now in DOMAIN, or in any domain in turns; lease nothing.

    The order is that of 'next', and nothing changes: neither the times of the entries nor the
    turns of the domains. For a paused DOMAIN it shows what would come without the pause.

    One 'next' has one length of the lease. So with --lease 0, which is the default lease of each
    domain, the list ends before an entry of a domain with another one ('limit --lease').

    Exit code 75: nothing is due.
    """
    with open_client(ctx) as client:
        jobs = client.peek(domain, count=count, lease=to_duration_or_none(lease or None), meta=True)
        paused_until = client.domain_stats(domain).paused_until_us if domain else 0
    if paused_until:
        note(f"paused until {show_instant(paused_until, SystemClock().now_us())}")
    if not jobs.pairs:
        note_nothing_due(jobs.next_at_us)
        return NOTHING_TO_DO
    write_jobs(jobs, None, as_json)
    return DONE
