"""``fj-cli spool dead retry``: put dead requests back into the spool."""

from __future__ import annotations

import click

from fj_cli.dead_pieces import Selection, request_of, selecting
from fj_cli.output import note, wants_json, write_json
from fj_cli.shared_options import DONE, NOTHING_TO_DO, REFUSED, json_option

_PIECES_MAX = 1000
"""Pieces of one drop-in."""


@click.command("retry")
@selecting
@json_option
def command(selection: Selection, as_json: bool | None) -> int:
    """Put the requests of pieces back into the spool DIR, as they were written, as a drop-in.

    They keep their timestamp: where newer work stands for them by now, they change nothing. Damage,
    and what is no request, stays in dead/ and is named. Killed in between, a request may be in the
    spool and in dead/. Exit code 1: a piece stayed; 75: there was none.
    """
    from fastjournal.spool.drop_in import write_drop_in
    from fastjournal.spool.format import encode_record

    directory, dead, pieces, _ = selection
    good = [piece for piece in pieces if request_of(dead, piece) is not None]
    selection.confirm("retry", good)
    retried = 0
    for at in range(0, len(good), _PIECES_MAX):
        batch = good[at : at + _PIECES_MAX]
        records = (encode_record(dead.read(piece.name)) for piece in batch)
        write_drop_in(directory, "retry", records)
        for piece in batch:
            dead.remove(piece.name)
        retried += len(batch)
    put_back = {piece.name for piece in good}
    stayed = [piece.name for piece in pieces if piece.name not in put_back]
    for name in stayed:
        note(f"fj-cli: {name}: no request can be made of it; it stays in dead/")
    if wants_json(as_json):
        write_json({"retried": retried, "stayed": len(stayed)})
    else:
        note(f"{retried} put back into the spool")
    return REFUSED if stayed else DONE if pieces else NOTHING_TO_DO
