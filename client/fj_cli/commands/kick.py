"""``fj-cli kick``: make buried entries ready again."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from fastjournal.limits import PAIRS_MAX
from fj_cli.output import note, show_bytes, wants_json, write_json
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
    from fastjournal.client import SyncClient


@click.command("kick")
@click.argument("key", type=NAME, required=False)
@click.option(
    "--domain",
    type=NAME,
    shell_complete=complete_domain,
    help="Buried entries of this domain instead, most urgent first.",
)
@click.option("--count", type=click.IntRange(1), help="At most that many.  [default: 1]")
@click.option("--all", "everything", is_flag=True, help="All that are buried there now.")
@b64_option
@json_option
@server_option
@click.pass_context
def command(
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
    if wants_json(as_json):
        write_json({"kicked": kicked})
    else:
        note(f"{kicked} kicked")
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
