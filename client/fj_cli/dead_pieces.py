"""Pieces of a spool's dead/: which ones a command is about, and what they are for people."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from fastjournal.errors import ProtocolError, SpoolFailedError
from fj_cli.confirmation import confirm
from fj_cli.output import counted, put_bytes

if TYPE_CHECKING:
    from fastjournal.protocol import Request
    from fastjournal.spool.dead import DeadDirectory, DeadPiece

NO_REASON = "unknown"
"""Stands for the code of a piece without a readable reason."""

spool_argument = click.argument(
    "directory", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=str)
)


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
        from fastjournal.spool.dead import DeadDirectory  # noqa: PLC0415 - not for the help

        dead = DeadDirectory(directory)
        pieces = chosen(dead, names, reason, all_)
        return command(Selection(directory, dead, pieces, yes), **others)

    declared: Callable[..., int] = select
    for declare in (
        click.option("--yes", is_flag=True, help="Do not ask first."),
        click.option("--all", "all_", is_flag=True, help="All pieces."),
        click.option("--reason", metavar="CODE", help="All pieces with this code."),
        click.argument("names", nargs=-1, metavar="[NAME]..."),
        spool_argument,
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
    from fastjournal.protocol import decode_request  # noqa: PLC0415 - not for drop

    if piece.reason is not None and piece.reason.kind != "frame":
        return None
    with contextlib.suppress(ProtocolError, SpoolFailedError):
        return decode_request(dead.read(piece.name))
    return None


def fields_of(dead: DeadDirectory, piece: DeadPiece) -> dict[str, Any]:
    """Return a piece as JSON has it, with key and URI of its request."""
    fields: dict[str, Any] = {"name": piece.name}
    if piece.reason is not None:
        fields |= msgspec.structs.asdict(piece.reason)
    else:
        fields |= {"code": NO_REASON}
    request = request_of(dead, piece)
    if request is not None:
        fields["function"] = request.function
        fields["timestamp_us"] = request.timestamp
        put_bytes(fields, "key", request.key)
        if request.second_key is not None:
            put_bytes(fields, "uri", request.second_key)
    return fields
