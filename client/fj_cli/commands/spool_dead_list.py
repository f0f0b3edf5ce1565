"""``fj-cli spool dead list``: pieces in dead/, with their reasons."""

from __future__ import annotations

import click

from fastjournal.clock import SystemClock
from fj_cli.dead_pieces import code_of, fields_of, request_of, spool_argument
from fj_cli.instants import show_instant
from fj_cli.output import show_bytes, wants_json, write_json, write_table
from fj_cli.shared_options import DONE, NOTHING_TO_DO, json_option


@click.command("list")
@spool_argument
@click.option("--reason", metavar="CODE", help="Only pieces with this code.")
@json_option
def command(directory: str, reason: str | None, as_json: bool | None) -> int:
    """List the pieces in dead/ of the spool DIR: name, code, size, since when, key or URI.

    Exit code 75: there is none.
    """
    from fastjournal.spool.dead import DeadDirectory

    dead = DeadDirectory(directory)
    pieces = [piece for piece in dead.list() if reason is None or code_of(piece) == reason]
    if wants_json(as_json):
        for piece in pieces:
            write_json(fields_of(dead, piece))
    else:
        now_us = SystemClock().now_us()
        rows = []
        for piece in pieces:
            why, request = piece.reason, request_of(dead, piece)
            about = b"" if request is None else request.second_key or request.key
            put = "" if why is None else show_instant(why.put_us, now_us)
            size = "" if why is None else f"{why.bytes:,}"
            sentence = "" if why is None else why.reason
            rows.append((piece.name, code_of(piece), size, put, show_bytes(about), sentence))
        write_table(None, ("name", "code", "bytes", "since", "about", "reason"), rows)
    return DONE if pieces else NOTHING_TO_DO
