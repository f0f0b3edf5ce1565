"""``fj-cli get``: show the entry under a key."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from fj_cli.output import (
    entry_fields,
    released_unless_written,
    show_field,
    show_value,
    state_words,
    wants_json,
    write_fields,
    write_json,
)
from fj_cli.shared_options import (
    DURATION,
    EXPIRY,
    NAME,
    b64_option,
    json_option,
    open_client,
    server_option,
    to_expiry,
)
from fj_cli.times import to_duration_or_none

if TYPE_CHECKING:
    from fastjournal.client import Entry


@click.command("get")
@click.argument("key", type=NAME)
@click.option("--raw", is_flag=True, help="Write the value's bytes and nothing else.")
@click.option("--probe", is_flag=True, help="Without the value: only its type and what is known.")
@click.option(
    "--lease", type=DURATION, help="Lease the entry for that long, due or not; prints the token."
)
@click.option("--expires", type=EXPIRY, help="Set its expiry to this instant; never: remove it.")
@b64_option
@json_option
@server_option
@click.pass_context
def command(
    ctx: click.Context,
    key: bytes,
    raw: bool,
    probe: bool,
    lease: int | None,
    expires: float | None,
    as_json: bool | None,
) -> None:
    """Show the entry under KEY, any of its keys. It is not leased, unless --lease is given."""
    if raw and (probe or lease is not None):
        raise click.UsageError("--raw writes the value alone: leave out --probe and --lease", ctx)
    if lease is not None and expires is not None:
        raise click.UsageError("give either --lease or --expires", ctx)
    from fj_cli.advice import hints

    # a lease misses an entry that is there only if it is buried
    missing = {"not-found": "if it is buried: fj-cli kick KEY; 'fj-cli explain' says what it is"}
    with hints(missing if lease is not None else {}), open_client(ctx) as client:
        entry = client.get(
            key,
            data=not probe,
            meta=not raw,
            lease=to_duration_or_none(lease),
            expires=to_expiry(expires),
        )
        if lease is not None:
            with released_unless_written(client, [(entry.key, entry.token or 0)]):
                _write(entry, probe=probe, as_json=as_json)
            return
    if raw:
        sys.stdout.buffer.write(entry.value)
        return
    _write(entry, probe=probe, as_json=as_json)


def _write(entry: Entry, *, probe: bool, as_json: bool | None) -> None:
    """Write an entry; ``probe``: without its value."""
    fields = entry_fields(entry)
    if probe:
        fields.pop("value", None)
    if wants_json(as_json):
        write_json(fields)
        return
    if not probe:
        fields.pop("value_b64", None)
        fields["value"] = show_value(entry, None)
    fields["state"] = state_words(entry)
    write_fields(
        None, [(name.removesuffix("_us"), show_field(name, fields[name])) for name in fields]
    )
