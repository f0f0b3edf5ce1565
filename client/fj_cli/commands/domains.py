"""``fj-cli domains``: list of the domains with their counts, in byte order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fastjournal.clock import SystemClock
from fj_cli.instants import show_relative
from fj_cli.listing import limit_option, page_size, write_list
from fj_cli.output import put_bytes, show_bytes, show_field
from fj_cli.shared_options import NAME, b64_option, json_option, open_client, server_option
from fj_cli.shell_completion import complete_domain

if TYPE_CHECKING:
    from fastjournal.client import DomainStats

COLUMNS = (
    *("domain", "due", "delayed", "leased", "buried", "oldest due"),
    *("paused", "interval", "jobs"),
)


@click.command("domains")
@click.argument("prefix", type=NAME, default="", shell_complete=complete_domain)
@limit_option("Domains")
@b64_option
@json_option
@server_option
@click.pass_context
def command(ctx: click.Context, prefix: bytes, limit: int, as_json: bool | None) -> None:
    """List the domains, or those that begin with PREFIX, in byte order, with their counts.

    These are the domains that have entries, a pause or a limit of their own. If the daemon has
    tokens, the list has the domains that the token covers.
    """
    with open_client(ctx) as client:
        found = client.domains(prefix, page=page_size(limit))
        write_list(found, limit, as_json, fields=_fields, columns=COLUMNS, row=_row)


def _fields(stats: DomainStats) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    put_bytes(fields, "domain", stats.name)
    for name in stats.__struct_fields__:
        if name != "name":
            fields[name] = getattr(stats, name)
    return fields


def _row(stats: DomainStats) -> list[str]:
    counts = (stats.due, stats.delayed, stats.worked_on, stats.buried)
    optional = {
        "oldest_due_us": stats.oldest_due_us,
        "paused_until_us": stats.paused_until_us,
        "interval_us": stats.interval_us,
        "jobs_max": stats.jobs_max,
    }
    return [
        show_bytes(stats.name),
        *(f"{count:,}" for count in counts),
        *(_show(name, number) if number else "" for name, number in optional.items()),
    ]


def _show(name: str, number: int) -> str:
    if name == "paused_until_us":
        return show_relative(number, SystemClock().now_us())
    return show_field(name, number)
