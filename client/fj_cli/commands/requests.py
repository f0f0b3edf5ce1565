"""Subcommands of one request: each declares its name, its arguments, the call and the output.

``delete``, ``link``, ``not``, ``pause``, ``release``, ``rename``, ``resume``, ``snapshot``,
``touch`` and ``truncate``; beside them ``bury``, which looks at its words before it connects, and
``token``, which needs no daemon.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from fastjournal.clock import SystemClock
from fastjournal.errors import ConfigError, RefusedError
from fastjournal.limits import PAIRS_MAX
from fastjournal.time_texts import format_when
from fj_cli.examples import with_examples
from fj_cli.output import (
    bytes_field,
    note,
    released_unless_written,
    show_domain,
    write_line,
    write_result,
)
from fj_cli.shared_options import (
    DOMAIN,
    DURATION,
    NAME,
    b64_option,
    complete_domain,
    json_option,
    open_client,
    plain_option,
    server_option,
)
from fj_cli.text import to_duration, to_duration_or_none

if TYPE_CHECKING:
    from fastjournal.client import SyncClient

_KEY = click.argument("key", type=NAME)
_NEW_KEY = click.argument("new_key", type=NAME)
_DURATION = click.argument("duration", type=DURATION)
_IF_TOKEN = click.option("--token", type=click.IntRange(0), help="Only if this is its lease token.")


_Answer = tuple[bool | None, dict[str, Any], str]
"""Arguments of ``write_result``."""


def _request(
    name: str, *parameters: Callable[[Any], Any]
) -> Callable[[Callable[..., _Answer | None]], click.Command]:
    """Declare a subcommand of one request.

    Args:
        name: Name of the subcommand.
        parameters: Its arguments and options, in the order of its help.

    Returns:
        A decorator of the call. It takes a connected client and the parameters; what it returns is
        written when the connection is closed. Its docstring is the help.
    """

    def declare(call: Callable[..., _Answer | None]) -> click.Command:
        @wraps(call)
        def run(ctx: click.Context, /, **given: Any) -> None:
            with open_client(ctx) as client:
                answer = call(client, **given)
            if answer is not None:
                write_result(*answer)

        declared: Any = click.pass_context(run)
        for parameter in reversed((*parameters, server_option)):
            declared = parameter(declared)
        return click.command(name)(declared)

    return declare


@_request("not", _KEY, b64_option, json_option)
def not_command(client: SyncClient, key: bytes, as_json: bool | None) -> _Answer:
    """Flip the boolean under KEY, and print what it is now."""
    value = client.flip(key).decoded()
    return as_json, bytes_field("key", key) | {"value": value}, "true" if value else "false"


@_request("truncate", _KEY, click.argument("size", type=click.IntRange(0, 2**63 - 1)), b64_option)
def truncate_command(client: SyncClient, key: bytes, size: int) -> None:
    """Cut the buffer or string under KEY to SIZE bytes, or fill it up with zero bytes."""
    client.truncate(key, size)


@_request(
    "rename",
    _KEY,
    _NEW_KEY,
    click.option("--overwrite", is_flag=True, help="Replace what has NEW_KEY as its primary key."),
    plain_option,
    b64_option,
)
def rename_command(
    client: SyncClient, key: bytes, new_key: bytes, overwrite: bool, plain: bool
) -> None:
    """Change the primary key of an entry from KEY to NEW_KEY; value and all else stay.

    A journal key makes it work, any other key makes it plain data. KEY keeps a tombstone.
    """
    client.rename(key, new_key, overwrite=overwrite, plain=plain)


@_request("link", _KEY, _NEW_KEY, plain_option, b64_option)
def link_command(client: SyncClient, key: bytes, new_key: bytes, plain: bool) -> None:
    """Add NEW_KEY as one more key of the entry under KEY. Deleting by any key deletes all."""
    client.link(key, new_key, plain=plain)


@_request(
    "touch",
    _KEY,
    _DURATION,
    click.option(
        "--token", type=click.IntRange(0), help="Renew this lease; the new token is printed."
    ),
    b64_option,
    json_option,
)
def touch_command(
    client: SyncClient, key: bytes, duration: int, token: int | None, as_json: bool | None
) -> None:
    """Let the entry under KEY expire in DURATION; with --token, let its lease end then."""
    renewed = client.touch(key, token, ttl=to_duration(duration))
    if renewed is None:
        return
    fields = bytes_field("key", key) | {"token": renewed, "worked_on_until_us": renewed}
    until = format_when(renewed, SystemClock().now_us())
    with released_unless_written(client, [(key, renewed)]):
        write_result(as_json, fields, f"leased until {until}, token {renewed}")


@_request(
    "delete",
    _KEY,
    _IF_TOKEN,
    click.option(
        "--no-tombstone", is_flag=True, help="Leave no trace: older writes may come back."
    ),
    b64_option,
)
def delete_command(client: SyncClient, key: bytes, token: int | None, no_tombstone: bool) -> None:
    """Delete the entry under KEY with all its keys; with --token: complete the job."""
    client.delete(key, token=token, overwrite=no_tombstone)


@_request(
    "release",
    _KEY,
    click.argument("token", type=click.IntRange(0)),
    click.option("--delay", type=DURATION, help="It is due again after that long."),
    b64_option,
)
def release_command(client: SyncClient, key: bytes, token: int, delay: int | None) -> None:
    """Release the lease TOKEN of the entry under KEY: it is due again."""
    client.release(key, token, delay=to_duration_or_none(delay))


@click.command("bury")
@click.argument("words", nargs=-1, required=True, metavar="KEY")
@_IF_TOKEN
@click.option(
    "--reason",
    default="",
    show_default=False,
    metavar="TEXT",
    help="Why; 'fj-cli stats KEY' shows it.",
)
@b64_option
@server_option
@click.pass_context
def bury_command(
    ctx: click.Context, words: tuple[str, ...], token: int | None, reason: str
) -> None:
    """Bury the entry under KEY: NEXT does not deliver it until it is kicked.

    Without --token this ends a lease, and whoever works on it cannot complete it any more.
    """
    # no argument of one word: the second was meant as the reason, which is said before a connect
    if len(words) > 1:
        raise click.UsageError(f"too many arguments: write --reason {shlex.quote(words[1])}", ctx)
    key = NAME.convert(words[0], None, ctx)
    with open_client(ctx) as client:
        client.bury(key, token, reason=reason)


_OR_ALL = click.argument(
    "words", nargs=-1, metavar="DOMAIN|--all [DURATION]", shell_complete=complete_domain
)
_ALL = click.option("--all", "everything", is_flag=True, help="All domains, those to come too.")


@click.command("pause")
@_OR_ALL
@_ALL
@b64_option
@server_option
@click.pass_context
def pause_command(ctx: click.Context, words: tuple[str, ...], everything: bool) -> None:
    """Pause DOMAIN: deliver no entry of it for DURATION; 0 is 'fj-cli resume'.

    A DOMAIN may be paused before it has entries; a note says that it has none.

    With --all no entry of any domain is delivered, until 'fj-cli resume --all' if there is no
    DURATION; pauses of single domains stay. Leased entries can be completed. A pause outlives a
    restart of the daemon.
    """
    name = _named(ctx, words[: 0 if everything else 1], everything=everything)
    durations = words[0 if everything else 1 :]
    if len(durations) > 1:
        raise click.UsageError(f"too many arguments: {durations[1]!r} is not expected", ctx)
    if not durations and not everything:
        raise click.UsageError("write for how long: fj-cli pause DOMAIN 10m", ctx)
    time = to_duration(DURATION.convert(durations[0], None, ctx)) if durations else None
    with open_client(ctx) as client:
        if name is None:
            client.pause_all(time)
        else:
            assert time is not None
            is_unknown = bool(time) and _is_unknown(client, name)
            client.pause(name, time)
            if is_unknown:
                note(
                    f"fj-cli: there is no domain {show_domain(name)} now: no entry, limit or worker"
                    " ('fj-cli domains' lists them); the pause is set"
                )


@click.command("resume")
@click.argument("words", nargs=-1, metavar="DOMAIN|--all", shell_complete=complete_domain)
@_ALL
@b64_option
@server_option
@click.pass_context
def resume_command(ctx: click.Context, words: tuple[str, ...], everything: bool) -> None:
    """End the pause of DOMAIN, if there is one; with --all that of all domains together."""
    name = _named(ctx, words, everything=everything)
    with open_client(ctx) as client:
        if name is None:
            client.resume_all()
        else:
            client.resume(name)


def _is_unknown(client: SyncClient, name: bytes) -> bool:
    """Whether nothing is known of a domain; without the right read nothing can be said."""
    try:
        first = next(iter(client.domains(name, page=1)), None)  # in byte order: itself, if it is
        return (first is None or first.name != name) and not client.domain_stats(name).next_waiting
    except RefusedError:
        return False


def _named(ctx: click.Context, words: tuple[str, ...], *, everything: bool) -> bytes | None:
    """Return the domain that is named; None: all."""
    if len(words) > 1 or (words and everything):
        raise click.UsageError("give either one DOMAIN or --all", ctx)
    if everything:
        return None
    if not words or not (name := DOMAIN.convert(words[0], None, ctx)):
        raise click.UsageError("give a DOMAIN, or --all for all domains together", ctx)
    return name


@_request(
    "snapshot",
    click.option(
        "--keep",
        type=click.IntRange(1, PAIRS_MAX),
        metavar="N",
        help="Remove all but the newest N, this one among them.  [default: remove none]",
    ),
    json_option,
)
def snapshot_command(client: SyncClient, keep: int | None, as_json: bool | None) -> _Answer:
    """Have the daemon take a snapshot of its log; prints the path on the daemon's machine."""
    path = client.snapshot(keep=keep)
    return as_json, {"path": path}, path


@click.group("token")
def token_command() -> None:
    """Make tokens for AUTH, without a daemon."""


@token_command.command("new", epilog=with_examples("token new", None))
@click.argument("file", type=click.Path(dir_okay=False))
def new(file: str) -> None:
    """Write a new token to FILE, mode 0600.

    Print the line for the daemon's file of tokens. The token itself is shown nowhere: --auth-file
    FILE uses it, and the daemon keeps its hash.
    """
    import hashlib
    import secrets

    token = secrets.token_urlsafe(32)
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise ConfigError("exists: remove it first, or name another file", path=file) from error
    with open(descriptor, "w", encoding="ascii") as out:
        out.write(f"{token}\n")
    write_line(f'token_sha256 = "{hashlib.sha256(token.encode()).hexdigest()}"')
