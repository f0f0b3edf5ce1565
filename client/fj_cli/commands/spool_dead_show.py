"""``fj-cli spool dead show``: one piece of dead/."""

from __future__ import annotations

import sys

import click

from fastjournal.clock import SystemClock
from fj_cli.dead_pieces import chosen, code_of, fields_of, request_of, spool_argument
from fj_cli.instants import show_instant
from fj_cli.output import put_bytes, show_bytes, wants_json, write_fields, write_json, write_line
from fj_cli.shared_options import DONE, json_option

_LINE_BYTES = 16
_DUMPED_MAX = 4096


@click.command("show")
@spool_argument
@click.argument("name", metavar="NAME")
@click.option("--raw", is_flag=True, help="Write the raw bytes, and nothing else.")
@json_option
def command(directory: str, name: str, raw: bool, as_json: bool | None) -> int:
    """Show the piece NAME of dead/ of the spool DIR: its reason, its request, its first bytes."""
    from fastjournal.spool.dead import DeadDirectory

    dead = DeadDirectory(directory)
    (piece,) = chosen(dead, [name], None, False)
    data, request = dead.read(piece.name), request_of(dead, piece)
    if raw:
        sys.stdout.buffer.write(data)
    elif wants_json(as_json):
        fields = fields_of(dead, piece)
        if request is not None and request.value is not None:
            put_bytes(fields, "value", request.value)
        write_json(fields)
    else:
        now_us = SystemClock().now_us()
        why = piece.reason
        shown = [("code", code_of(piece))]
        if why is not None:
            shown += [
                ("reason", why.reason),
                ("kind", why.kind),
                ("slot", f"{why.slot}, offset {why.offset}"),
                ("since", show_instant(why.put_us, now_us)),
            ]
        if request is not None:
            shown += [
                ("function", _name_of(request.function)),
                ("key", show_bytes(request.key)),
                ("uri", show_bytes(request.second_key or b"")),
                ("written", show_instant(request.timestamp, now_us)),
            ]
        write_fields(piece.name, shown)
        for at in range(0, min(len(data), _DUMPED_MAX), _LINE_BYTES):
            line = data[at : at + _LINE_BYTES]
            text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in line)
            write_line(f"{at:08x}  {line.hex(' '):{3 * _LINE_BYTES}}  {text}")
        if len(data) > _DUMPED_MAX:
            write_line(f"... {len(data) - _DUMPED_MAX:,} bytes more: --raw")
    return DONE


def _name_of(function: int) -> str:
    """Return the name of a protocol function; its number where there is none."""
    from fastjournal.protocol import Function

    return next((each.name for each in Function if each == function), str(function))
