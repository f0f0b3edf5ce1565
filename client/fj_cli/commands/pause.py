"""``fj-cli pause``: deliver no entry of a domain for a while."""

from __future__ import annotations

import click

from fj_cli.shared_options import DURATION, NAME, b64_option, open_client, server_option
from fj_cli.shell_completion import complete_domain
from fj_cli.times import to_duration


@click.command("pause")
@click.argument("domain", type=NAME, shell_complete=complete_domain)
@click.argument("duration", type=DURATION)
@b64_option
@server_option
@click.pass_context
def command(ctx: click.Context, domain: bytes, duration: int) -> None:
    """Pause DOMAIN: deliver no entry of it for DURATION; 0 is 'fj-cli resume'.

    Leased entries can be completed. The pause outlives a restart of the daemon.
    """
    with open_client(ctx) as client:
        client.pause(domain, to_duration(duration))
