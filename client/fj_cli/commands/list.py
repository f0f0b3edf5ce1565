"""``fj-cli list``: the keys that stand there, in byte order."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from fj_cli.listing import limit_option, page_size, write_list
from fj_cli.output import (
    entry_fields,
    put_bytes,
    show_bytes,
    show_field,
    show_value,
    state_words,
)
from fj_cli.shared_options import NAME, b64_option, json_option, open_client, server_option

if TYPE_CHECKING:
    from fastjournal.client import Entry, SyncClient


@click.command("list")
@click.option("--prefix", type=NAME, metavar="P", help="Keys that begin with P.")
@click.option("--from", "first", type=NAME, metavar="A", help="Keys from A on.")
@click.option("--to", "last", type=NAME, metavar="B", help="Keys up to B, included.")
@click.option("--regex", metavar="RE", help="Keys in which RE (RE2 syntax, bytes) is found.")
@click.option("--data", is_flag=True, help="Show the values too.")
@click.option("--meta", is_flag=True, help="Show states and times too.")
@limit_option("Keys")
@b64_option
@json_option
@server_option
@click.pass_context
def command(
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
        page = page_size(limit)
        write_list(
            _find(client, prefix, first, last, regex, page=page, data=data, meta=meta),
            limit,
            as_json,
            fields=lambda entry: _fields(entry, data),
            columns=_columns(data, meta),
            row=lambda entry: _row(entry, data, meta),
        )


def _find(
    client: SyncClient,
    prefix: bytes | None,
    first: bytes | None,
    last: bytes | None,
    regex: str | None,
    *,
    page: int,
    data: bool,
    meta: bool,
) -> Iterator[Entry]:
    if regex is not None:
        return client.regex(os.fsencode(regex), page=page, data=data, meta=meta)
    if prefix is not None:
        return client.prefix(prefix, page=page, data=data, meta=meta)
    start, end = first or b"", last or b""
    return client.range(start, end, page=page, data=data, meta=meta)


def _fields(entry: Entry, data: bool) -> dict[str, Any]:
    """Return the JSON object: that of get, and the key under which the entry was found."""
    fields: dict[str, Any] = {}
    put_bytes(fields, "found", entry.key)
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
    row = [show_bytes(entry.key), show_bytes(entry.second_key), fields["type"]]
    if data:
        row.append(show_value(entry))
    if meta:
        row.append(state_words(entry))
        names = ("written_us", "attempts")
        row += [show_field(name, fields[name]) for name in names]
    return row
