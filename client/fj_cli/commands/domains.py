"""``fj-cli domains``, ``limit``, ``purge`` and ``kick``: domains, and entries of one."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click
import msgspec

from fastjournal.clock import SystemClock
from fastjournal.limits import PAIRS_MAX
from fastjournal.time_texts import format_relative
from fj_cli.output import (
    bytes_field,
    confirm,
    limit_option,
    note,
    page_size,
    show_bytes,
    show_domain,
    show_field,
    wants_json,
    write_fields,
    write_json,
    write_list,
    write_result,
)
from fj_cli.progress import ProgressBar
from fj_cli.shared_options import (
    DOMAIN,
    DONE,
    DURATION,
    NAME,
    NOTHING_TO_DO,
    complete_domain,
    domain_argument,
    on_daemon,
    open_client,
)
from fj_cli.text import to_duration_or_none

if TYPE_CHECKING:
    from fastjournal.client import DomainStats, SyncClient

COLUMNS = (
    *("domain", "due", "delayed", "leased", "buried", "oldest due"),
    *("paused", "interval", "jobs"),
)


@click.command("domains")
@click.argument("prefix", type=DOMAIN, default="", shell_complete=complete_domain)
@limit_option("Domains")
@on_daemon
def domains_command(ctx: click.Context, prefix: bytes, limit: int, as_json: bool | None) -> None:
    """List the domains, or those that begin with PREFIX, in byte order, with their counts.

    These are the domains that have entries, a pause or a limit of their own. If the daemon has
    tokens, the list has the domains that the token covers. Every command shows and takes the domain
    of a host with a port as example.org:8080; in JSON and in keys it is example.org%3A8080.
    """
    with open_client(ctx) as client:
        found = client.domains(prefix, page=page_size(limit))
        write_list(found, limit, as_json, fields=_fields, columns=COLUMNS, row=_row)


def _fields(stats: DomainStats) -> dict[str, Any]:
    counts = msgspec.structs.asdict(stats)
    return bytes_field("domain", counts.pop("name")) | counts


def _row(stats: DomainStats) -> list[str]:
    counts = (stats.due, stats.delayed, stats.worked_on, stats.buried)
    optional = {name: getattr(stats, name) for name in ("oldest_due_us", "interval_us", "jobs_max")}
    oldest, interval, jobs = (
        show_field(name, number) if number else "" for name, number in optional.items()
    )
    paused_us = stats.paused_until_us
    paused = format_relative(paused_us, SystemClock().now_us()) if paused_us else ""
    counted = (f"{count:,}" for count in counts)
    return [show_domain(stats.name), *counted, oldest, paused, interval, jobs]


@click.command("limit")
@domain_argument
@click.option("--interval", "interval_us", type=DURATION, help="Least time between two deliveries.")
@click.option(
    "--jobs", type=click.IntRange(min=0), metavar="N", help="Most entries leased at once."
)
@click.option(
    "--lease", "lease_us", type=DURATION, help="Lease of a worker that asks for no other length."
)
@click.option(
    "--attempts",
    type=click.IntRange(min=-1),
    metavar="N",
    help="Failed attempts until buried; -1: never.",
)
@on_daemon
def limit_command(
    ctx: click.Context, /, domain: bytes, as_json: bool | None, **given: int | None
) -> None:
    """Set the limits of DOMAIN, for all workers together; without options, show them.

    Limits that are not named stay as they are; 0 is the daemon's default. The limits outlive
    a restart of the daemon. Workers keep the leases that they have.
    """
    with open_client(ctx) as client:
        if any(number is not None for number in given.values()):
            client.limit(
                domain,
                interval=to_duration_or_none(given["interval_us"]),
                jobs=given["jobs"],
                lease=to_duration_or_none(given["lease_us"]),
                attempts=given["attempts"],
            )
            return
        stats = client.domain_stats(domain)
    fields = {
        "interval_us": stats.interval_us,
        "jobs": stats.jobs_max,
        "lease_us": stats.lease_us,
        "attempts": stats.attempts_max,
    }
    if wants_json(as_json):
        write_json(bytes_field("domain", domain) | fields)
        return
    shown = [
        (name.removesuffix("_us"), show_field(name, value) if value else "no limit")
        for name, value in fields.items()
    ]
    write_fields(show_domain(domain), shown)


@click.command("purge")
@domain_argument
@click.option("--yes", is_flag=True, help="Do not ask first; then the right write is enough.")
@on_daemon
def purge_command(ctx: click.Context, domain: bytes, yes: bool, as_json: bool | None) -> int:
    """Delete all entries of DOMAIN that nobody works on: waiting, delayed and buried ones.

    Leased entries stay, and those that another connection has locked. Exit code 75: there was
    nothing to delete.
    """
    with open_client(ctx) as client, ProgressBar("deleting") as bar:
        there = None if yes else _confirm(client.domain_stats(domain), domain)
        purged = 0
        # entries that came since the question are not deleted unasked where there was nothing
        while there != 0 and (number := client.purge(domain, count=PAIRS_MAX)):
            purged += number
            bar.update(purged, None if there is None else max(there, purged))
    write_result(as_json, {"purged": purged}, f"{purged} purged", note)
    return DONE if purged else NOTHING_TO_DO


def _confirm(stats: DomainStats, domain: bytes) -> int:
    """Ask whether to delete the entries of a domain; return how many there are."""
    there = stats.entries - stats.worked_on
    if there:
        entries = "1 entry" if there == 1 else f"{there:,} entries"
        confirm(f"Delete {entries} of {show_domain(domain)}?", "it deletes entries")
    return there


@click.command("kick")
@click.argument("key", type=NAME, required=False)
@click.option(
    "--domain",
    type=DOMAIN,
    shell_complete=complete_domain,
    help="Buried entries of this domain instead, most urgent first.",
)
@click.option("--count", type=click.IntRange(1), help="At most that many.  [default: 1]")
@click.option("--all", "everything", is_flag=True, help="All that are buried there now.")
@on_daemon
def kick_command(
    ctx: click.Context,
    key: bytes | None,
    domain: bytes | None,
    count: int | None,
    everything: bool,
    as_json: bool | None,
) -> int:
    """Make the buried entry under KEY ready again, or some of a domain.

    Exit code 75: nothing was buried.
    """
    if (key is None) == (domain is None):
        raise click.UsageError("give either a KEY or --domain", ctx)
    if (count is not None or everything) and domain is None:
        raise click.UsageError("--count and --all need --domain", ctx)
    if count is not None and everything:
        raise click.UsageError("give either --count or --all", ctx)
    from fj_cli.advice import hints

    missing = {}
    if key is not None and b":" not in key:
        missing["not-found"] = (
            f"if it is a domain: fj-cli kick --domain {shlex.quote(show_bytes(key))}"
        )
    with hints(missing), open_client(ctx) as client:
        if domain is None:
            kicked = client.kick(key or b"")
        else:
            if everything:
                count = client.domain_stats(domain).buried
            kicked = _kick_domain(client, domain, 1 if count is None else count)
    write_result(as_json, {"kicked": kicked}, f"{kicked} kicked", note)
    return DONE if kicked else NOTHING_TO_DO


def _kick_domain(client: SyncClient, domain: bytes, count: int) -> int:
    """Kick up to ``count`` entries in as many requests as the daemon needs; return how many."""
    kicked = 0
    while kicked < count:
        number = client.kick_domain(domain, count=min(count - kicked, PAIRS_MAX))
        if number == 0:
            break
        kicked += number
    return kicked
