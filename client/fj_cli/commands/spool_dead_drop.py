"""``fj-cli spool dead drop``: delete pieces of dead/."""

from __future__ import annotations

import click

from fj_cli.dead_pieces import Selection, selecting
from fj_cli.output import note, wants_json, write_json
from fj_cli.shared_options import DONE, NOTHING_TO_DO, json_option


@click.command("drop")
@selecting
@json_option
def command(selection: Selection, as_json: bool | None) -> int:
    """Delete pieces of dead/ of the spool DIR for good: bytes and reason.

    Exit code 75: there was none.
    """
    pieces = selection.pieces
    selection.confirm("drop", pieces)
    for piece in pieces:
        selection.dead.remove(piece.name)
    if wants_json(as_json):
        write_json({"dropped": len(pieces)})
    else:
        note(f"{len(pieces)} dropped")
    return DONE if pieces else NOTHING_TO_DO
