"""``fj-cli get``: show the entry under a key."""

from __future__ import annotations

import sys

import click

from fj_cli.options import NAME, b64_option, json_option, open_client, server_option
from fj_cli.output import (
    entry_fields,
    show_field,
    show_value,
    wants_json,
    write_json,
    write_table,
)


@click.command("get")
@click.argument("key", type=NAME)
@click.option("--raw", is_flag=True, help="Write the value's bytes and nothing else.")
@b64_option
@json_option
@server_option
@click.pass_context
def command(ctx: click.Context, key: bytes, raw: bool, as_json: bool | None) -> None:
    """Show the entry under KEY, any of its keys. It is not leased."""
    with open_client(ctx) as client:
        entry = client.get(key, meta=not raw)
    if raw:
        sys.stdout.buffer.write(entry.value)
        return
    fields = entry_fields(entry)
    if wants_json(as_json):
        write_json(fields)
        return
    fields.pop("value_b64", None)
    fields["value"] = show_value(entry, None)
    rows = [(name.removesuffix("_us"), show_field(name, fields[name])) for name in fields]
    write_table(None, ("field", "value"), [row for row in rows if row[1]])
