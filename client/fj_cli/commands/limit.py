"""``fj-cli limit``: rate limit and concurrency limit of a domain."""

from __future__ import annotations

import click

from fj_cli.output import put_bytes, show_bytes, show_field, wants_json, write_fields, write_json
from fj_cli.shared_options import (
    DURATION,
    NAME,
    b64_option,
    json_option,
    open_client,
    server_option,
)
from fj_cli.shell_completion import complete_domain
from fj_cli.times import to_duration_or_none


@click.command("limit")
@click.argument("domain", type=NAME, shell_complete=complete_domain)
@click.option("--interval", "interval_us", type=DURATION, help="Least time between two deliveries.")
@click.option(
    "--jobs", type=click.IntRange(min=0), metavar="N", help="Most entries leased at once."
)
@click.option(
    "--lease", "lease_us", type=DURATION, help="Lease of a worker that asks for no other length."
)
@click.option(
    "--attempts", type=click.IntRange(min=0), metavar="N", help="Failed attempts until buried."
)
@b64_option
@json_option
@server_option
@click.pass_context
def command(
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
        named: dict[str, object] = {}
        put_bytes(named, "domain", domain)
        write_json(named | fields)
        return
    shown = [
        (name.removesuffix("_us"), show_field(name, value) if value else "no limit")
        for name, value in fields.items()
    ]
    write_fields(show_bytes(domain), shown)
