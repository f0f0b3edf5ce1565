"""``fj-cli get`` and ``list``: the entry under a key; the keys of many, in byte order."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from fj_cli.output import (
    bytes_field,
    entry_fields,
    limit_option,
    page_size,
    released_unless_written,
    show_bytes,
    show_field,
    show_second_key,
    show_value,
    state_words,
    wants_json,
    write_fields,
    write_json,
    write_list,
)
from fj_cli.shared_options import (
    DURATION,
    EXPIRY,
    NAME,
    on_daemon,
    open_client,
    to_expiry,
)
from fj_cli.text import to_duration_or_none

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
@on_daemon
def get_command(
    ctx: click.Context,
    key: bytes,
    raw: bool,
    probe: bool,
    lease: int | None,
    expires: float | None,
    as_json: bool | None,
) -> None:
    """Show the entry under KEY, any of its keys. It is not leased, unless --lease is given.

    The format is told where a string is a JSON object or array.
    """
    if raw and (probe or lease is not None):
        raise click.UsageError("--raw writes the value alone: leave out --probe and --lease", ctx)
    if lease is not None and expires is not None:
        raise click.UsageError("give either --lease or --expires", ctx)
    from fj_cli.advice import hints

    # a lease misses an entry that is there only if it is buried
    missing = {"not-found": "if it is buried: fj-cli kick KEY; 'fj-cli explain' says what it is"}
    with hints(missing if lease is not None else {}), open_client(ctx) as client:
        asked = to_duration_or_none(lease)
        entry = client.get(
            key, data=not probe, meta=not raw, lease=asked, expires=to_expiry(expires)
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


@click.command("list")
@click.option("--prefix", type=NAME, metavar="P", help="Keys that begin with P.")
@click.option("--from", "first", type=NAME, metavar="A", help="Keys from A on.")
@click.option("--to", "last", type=NAME, metavar="B", help="Keys up to B, included.")
@click.option("--regex", metavar="RE", help="Keys in which RE (RE2 syntax, bytes) is found.")
@click.option("--data", is_flag=True, help="Show the values too.")
@click.option("--meta", is_flag=True, help="Show states and times too.")
@limit_option("Keys")
@on_daemon
def list_command(
    ctx: click.Context,
    prefix: bytes | None,
    first: bytes | None,
    last: bytes | None,
    regex: str | None,
    data: bool,
    meta: bool,
    limit: int,
    as_json: bool | None,
) -> None:
    """List keys in byte order: all, or those of a prefix, a range or an expression.

    An entry comes under each of its keys, also its URI. Reading an entry that has a ttl keeps it
    alive, as get does.
    """
    ways = [prefix is not None, first is not None or last is not None, regex is not None]
    if sum(ways) > 1:
        raise click.UsageError("--prefix, --from and --to, and --regex exclude each other")
    with open_client(ctx) as client:
        if regex is not None:
            scan = partial(client.regex, os.fsencode(regex))
        elif prefix is not None:
            scan = partial(client.prefix, prefix)
        else:
            scan = partial(client.range, first or b"", last or b"")
        write_list(
            scan(page=page_size(limit), data=data, meta=meta),
            limit,
            as_json,
            fields=lambda entry: _fields(entry, data),
            columns=_columns(data, meta),
            row=lambda entry: _row(entry, data, meta),
        )


def _fields(entry: Entry, data: bool) -> dict[str, Any]:
    """Return the JSON object: that of get, and the key under which the entry was found."""
    fields = bytes_field("found", entry.key)
    fields |= entry_fields(entry)
    if not data:
        fields.pop("value", None)
        fields.pop("value_b64", None)
    return fields


def _columns(data: bool, meta: bool) -> list[str]:
    columns = ["key", "other key", "type"]
    if data:
        columns.append("value")
    if meta:
        columns += ["state", "written", "attempts"]
    return columns


def _row(entry: Entry, data: bool, meta: bool) -> list[str]:
    fields = _fields(entry, data)
    row = [show_bytes(entry.key), show_second_key(entry.key, entry.second_key), fields["type"]]
    if data:
        row.append(show_value(entry))
    if meta:
        row.append(state_words(entry))
        names = ("written_us", "attempts")
        row += [show_field(name, fields[name]) for name in names]
    return row
