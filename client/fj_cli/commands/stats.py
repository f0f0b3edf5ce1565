"""``fj-cli stats``: counts of the daemon, a domain or an entry."""

from __future__ import annotations

import click

from fj_cli.options import NAME, b64_option, json_option, open_client, server_option
from fj_cli.output import show_bytes, show_field, wants_json, write_json, write_table


@click.command("stats")
@click.argument("what", type=NAME, default="", metavar="[DOMAIN|KEY]")
@click.option("--entry", is_flag=True, help="It is a key, though it has no ':'.")
@b64_option
@json_option
@server_option
@click.pass_context
def command(ctx: click.Context, what: bytes, entry: bool, as_json: bool | None) -> None:
    """Show counts of the daemon, of a DOMAIN, or all that is known of the entry under KEY.

    A name with a ':' is a key, for a domain has none.
    """
    with open_client(ctx) as client:
        fields = client.stats(what, data=entry or b":" in what)
    if wants_json(as_json):
        write_json(fields)
        return
    write_table(
        show_bytes(what) or None,
        ("name", "value"),
        [(name.removesuffix("_us"), show_field(name, value)) for name, value in fields.items()],
    )
