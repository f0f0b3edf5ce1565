"""``fj-cli spool dead``: dead letters of a local spool: which ones, shown, sent again, deleted."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from fastjournal.clock import SystemClock
from fastjournal.errors import ProtocolError, SpoolFailedError
from fastjournal.time_texts import format_when
from fj_cli.cli import LazyGroup
from fj_cli.output import (
    bytes_field,
    confirm,
    counted,
    note,
    second_key_fields,
    show_bytes,
    show_second_key,
    wants_json,
    write_each,
    write_fields,
    write_json,
    write_line,
    write_result,
)
from fj_cli.shared_options import DONE, NOTHING_TO_DO, REFUSED, directory_argument, json_option

if TYPE_CHECKING:
    from fastjournal.protocol import Request
    from fastjournal.spool.dead import DeadDirectory, DeadPiece

SUBCOMMANDS = {
    "list": ("spool_dead", "List the pieces in dead/, and why."),
    "show": ("spool_dead", "Show one piece: reason, request, bytes."),
    "retry": ("spool_dead", "Put requests back into the spool."),
    "drop": ("spool_dead", "Delete pieces for good."),
}


@click.group("dead", cls=LazyGroup, lazy=SUBCOMMANDS, words="spool dead")
def spool_dead_command() -> None:
    """Dead letters of a spool: records that no daemon takes, and damage."""


NO_REASON = "unknown"
"""Code of a piece without a readable reason."""


class Selection(NamedTuple):
    """Pieces that a command changes, as its arguments choose them."""

    directory: str
    """The spool."""
    dead: DeadDirectory
    pieces: list[DeadPiece]
    is_confirmed: bool
    """Whether ``--yes`` was given: do not ask."""

    def confirm(self, action: str, pieces: Sequence[DeadPiece]) -> None:
        """Ask on a terminal before anything is changed; without one ``--yes`` is needed."""
        if pieces and not self.is_confirmed:
            what = counted(len(pieces), "piece")
            confirm(f"{action.capitalize()} {what} of dead/?", f"it would {action} {what}")


def selecting(command: Callable[..., int]) -> Callable[..., int]:
    """Declare DIR and the arguments that choose pieces; the command gets a ``Selection``."""

    @wraps(command)
    def select(
        directory: str,
        names: tuple[str, ...],
        reason: str | None,
        all_: bool,
        yes: bool,
        **others: Any,
    ) -> int:
        from fastjournal.spool.dead import DeadDirectory

        dead = DeadDirectory(directory)
        pieces = chosen(dead, names, reason, all_)
        return command(Selection(directory, dead, pieces, yes), **others)

    declared: Callable[..., int] = select
    for declare in (
        click.option("--yes", is_flag=True, help="Do not ask first."),
        click.option("--all", "all_", is_flag=True, help="All pieces."),
        click.option("--reason", metavar="CODE", help="All pieces with this code."),
        click.argument("names", nargs=-1, metavar="[NAME]..."),
        directory_argument,
    ):
        declared = declare(declared)
    return declared


def code_of(piece: DeadPiece) -> str:
    """Return the error code of a piece."""
    return NO_REASON if piece.reason is None else piece.reason.code


def chosen(
    dead: DeadDirectory, names: Sequence[str], reason: str | None, all_: bool
) -> list[DeadPiece]:
    """Return the pieces that the arguments name.

    Raises:
        click.UsageError: They name none, or one that is not there.
    """
    if bool(names) + (reason is not None) + all_ != 1:
        raise click.UsageError("give one of NAME, --reason CODE and --all")
    pieces = dead.list()
    if not names:
        return [piece for piece in pieces if all_ or code_of(piece) == reason]
    by_name = {piece.name: piece for piece in pieces}
    wanted = [name.removesuffix(".bin").removesuffix(".json") for name in names]
    if missing := [name for name in wanted if name not in by_name]:
        raise click.UsageError(f"no piece {missing[0]!r} in dead/: see fj-cli spool dead list")
    return [by_name[name] for name in dict.fromkeys(wanted)]


def request_of(dead: DeadDirectory, piece: DeadPiece) -> Request | None:
    """Return the request of a piece; None: it is no frame, no request, or cannot be read."""
    from fastjournal.protocol import decode_request

    if piece.reason is not None and piece.reason.kind != "frame":
        return None
    with contextlib.suppress(ProtocolError, SpoolFailedError):
        return decode_request(dead.read(piece.name))
    return None


def fields_of(dead: DeadDirectory, piece: DeadPiece) -> dict[str, Any]:
    """Return a piece as JSON has it, with key and URI of its request."""
    why = {"code": NO_REASON} if piece.reason is None else msgspec.structs.asdict(piece.reason)
    fields = {"name": piece.name, **why}
    request = request_of(dead, piece)
    if request is not None:
        fields["function"] = request.function
        fields["timestamp_us"] = request.timestamp
        fields |= bytes_field("key", request.key)
        fields |= second_key_fields(request.key, request.second_key)
    return fields


@click.command("list")
@directory_argument
@click.option("--reason", metavar="CODE", help="Only pieces with this code.")
@json_option
def spool_dead_list_command(directory: str, reason: str | None, as_json: bool | None) -> int:
    """List the pieces in dead/ of the spool DIR: name, code, size, since when, key or URI.

    Exit code 75: there is none.
    """
    from fastjournal.spool.dead import DeadDirectory

    dead = DeadDirectory(directory)
    pieces = [piece for piece in dead.list() if reason is None or code_of(piece) == reason]
    now_us = SystemClock().now_us()
    write_each(
        pieces,
        as_json,
        fields=lambda piece: fields_of(dead, piece),
        columns=("name", "code", "bytes", "since", "about", "reason"),
        row=lambda piece: _row(dead, piece, now_us),
    )
    return DONE if pieces else NOTHING_TO_DO


def _row(dead: DeadDirectory, piece: DeadPiece, now_us: int) -> list[str]:
    why, request = piece.reason, request_of(dead, piece)
    about = ""
    if request is not None:
        about = show_second_key(request.key, request.second_key or request.key)
    if why is None:
        return [piece.name, NO_REASON, "", "", about, ""]
    put = format_when(why.put_us, now_us)
    return [piece.name, why.code, f"{why.bytes:,}", put, about, why.reason]


_LINE_BYTES = 16
_DUMPED_MAX = 4096


@click.command("show")
@directory_argument
@click.argument("name", metavar="NAME")
@click.option("--raw", is_flag=True, help="Write the raw bytes, and nothing else.")
@json_option
def spool_dead_show_command(directory: str, name: str, raw: bool, as_json: bool | None) -> int:
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
            fields |= bytes_field("value", request.value)
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
                ("since", format_when(why.put_us, now_us)),
            ]
        if request is not None:
            shown += [
                ("function", _name_of(request.function)),
                ("key", show_bytes(request.key)),
                ("URI or unique", show_second_key(request.key, request.second_key)),
                ("written", format_when(request.timestamp, now_us)),
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


_PIECES_MAX = 1000
"""Pieces of one drop-in."""


@click.command("retry")
@selecting
@json_option
def spool_dead_retry_command(selection: Selection, as_json: bool | None) -> int:
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
    fields = {"retried": retried, "stayed": len(stayed)}
    write_result(as_json, fields, f"{retried} put back into the spool", note)
    return REFUSED if stayed else DONE if pieces else NOTHING_TO_DO


@click.command("drop")
@selecting
@json_option
def spool_dead_drop_command(selection: Selection, as_json: bool | None) -> int:
    """Delete pieces of dead/ of the spool DIR for good: bytes and reason.

    Exit code 75: there was none.
    """
    pieces = selection.pieces
    selection.confirm("drop", pieces)
    for piece in pieces:
        selection.dead.remove(piece.name)
    write_result(as_json, {"dropped": len(pieces)}, f"{len(pieces)} dropped", note)
    return DONE if pieces else NOTHING_TO_DO
