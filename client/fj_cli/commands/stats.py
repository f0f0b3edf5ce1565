"""``fj-cli stats``: counts of the daemon, a domain or an entry."""

from __future__ import annotations

import click

from fj_cli.output import (
    INSTANTS,
    note,
    show_bytes,
    show_field,
    wants_json,
    write_fields,
    write_json,
)
from fj_cli.shared_options import NAME, b64_option, json_option, open_client, server_option
from fj_cli.shell_completion import complete_domain

_LABELS = {"worked_on": "leased", "jobs_max": "jobs"}
"""Words of the tables of other commands; JSON has the names of the protocol."""
_OPTIONAL = {"oldest_due_us", "interval_us", "jobs_max", "attempts_max", "clock_behind_us"}
"""Counts of which 0 is none: a table leaves them out."""


@click.command("stats")
@click.argument(
    "what", type=NAME, default="", metavar="[DOMAIN|KEY]", shell_complete=complete_domain
)
@click.option("--entry", is_flag=True, help="It is a key, though it has no ':'.")
@b64_option
@json_option
@server_option
@click.pass_context
def command(ctx: click.Context, what: bytes, entry: bool, as_json: bool | None) -> None:
    """Show counts of the daemon, of a DOMAIN, or all that is known of the entry under KEY.

    A name with a ':' is a key, for a domain has none.
    """
    from fastjournal.client.core.delivery_reasons import state_word

    is_entry = entry or b":" in what
    with open_client(ctx) as client:
        found = client.stats(what, data=is_entry)
    # instants of the daemon's object do not say their unit
    fields = {f"{name}_us" if f"{name}_us" in INSTANTS else name: found[name] for name in found}
    if is_entry:
        fields["state"] = state_word(fields["state"])
    if what and not is_entry and not (fields["entries"] or fields["paused_until_us"]):
        note(f"fj-cli: the domain {show_bytes(what)} has no entries and no pause")
    if wants_json(as_json):
        write_json(fields)
        return
    keys = fields.pop("keys", [])
    shown = [("" if number else "keys", key) for number, key in enumerate(keys)]
    if not is_entry:
        fields = {name: fields[name] for name in fields if fields[name] or name not in _OPTIONAL}
    shown += [
        (_LABELS.get(name, name.removesuffix("_us")), show_field(name, value))
        for name, value in fields.items()
    ]
    write_fields(show_bytes(what) or None, shown)
