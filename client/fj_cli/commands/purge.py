"""``fj-cli purge``: delete the entries of a domain that nobody works on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fastjournal.limits import PAIRS_MAX
from fj_cli.confirmation import confirm
from fj_cli.output import note, show_bytes, wants_json, write_json
from fj_cli.progress import ProgressBar
from fj_cli.shared_options import (
    DONE,
    NAME,
    NOTHING_TO_DO,
    b64_option,
    json_option,
    open_client,
    server_option,
)
from fj_cli.shell_completion import complete_domain

if TYPE_CHECKING:
    from fastjournal.client import DomainStats


@click.command("purge")
@click.argument("domain", type=NAME, shell_complete=complete_domain)
@click.option("--yes", is_flag=True, help="Do not ask first; then the right write is enough.")
@b64_option
@json_option
@server_option
@click.pass_context
def command(ctx: click.Context, domain: bytes, yes: bool, as_json: bool | None) -> int:
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
    if wants_json(as_json):
        write_json({"purged": purged})
    else:
        note(f"{purged} purged")
    return DONE if purged else NOTHING_TO_DO


def _confirm(stats: DomainStats, domain: bytes) -> int:
    """Ask whether to delete the entries of a domain; return how many there are."""
    there = stats.entries - stats.worked_on
    if there:
        entries = "1 entry" if there == 1 else f"{there:,} entries"
        confirm(f"Delete {entries} of {show_bytes(domain)}?", "it deletes entries")
    return there
