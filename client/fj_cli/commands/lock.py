"""``fj-cli lock``: hold the lock of an entry while a command runs."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from fastjournal.errors import BadRequestError, FastjournalError, RefusedError
from fj_cli.advice import hints
from fj_cli.output import note
from fj_cli.shared_options import (
    DURATION,
    NAME,
    b64_option,
    open_client,
    refuse_options,
    server_option,
)
from fj_cli.text import to_duration

if TYPE_CHECKING:
    from fastjournal.client import SyncClient
    from fj_cli.command_group import CommandGroup

_LOST = dict.fromkeys(
    ("not-owner", "not-found"), "the command was ended, because another may have had the entry"
)
"""Advice where a renewal says that the lock is lost."""

_LOOK_S = 0.1
"""Pause between two tries to get a lock that another connection holds."""


@click.command("lock", context_settings={"allow_interspersed_args": False})
@click.option(
    "--time",
    "time_us",
    type=DURATION,
    default="60s",
    help="Length of the lock, which is renewed while CMD runs.",
)
@click.option(
    "--wait",
    type=DURATION,
    default="0",
    show_default=False,
    help="Wait that long for another's lock.",
)
@click.argument("key", type=NAME)
@click.argument("argv", nargs=-1, required=True, metavar="CMD...", type=click.UNPROCESSED)
@b64_option
@server_option
@click.pass_context
def lock_command(
    ctx: click.Context, key: bytes, time_us: int, wait: int, argv: tuple[str, ...]
) -> int:
    """Run CMD while this connection holds the lock of the entry under KEY.

    Others' writes get 'locked', and NEXT does not deliver the entry. The exit code is that of
    CMD. If the lock is lost, CMD is ended with all that it started, because another may hold it or
    have held it. Then the exit code is 1 (the lock ended before it was renewed, for instance
    because this machine slept) or 69 (the connection ended). Ctrl-C is for CMD: the lock is held
    until CMD has ended. Ctrl-Z stops both; CMD goes on once the lock is renewed. CMD cannot write
    the entry either: its writes are another connection's.
    """
    from fj_cli.command_group import running
    from fj_cli.termination import unwound
    from fj_cli.worker import find_program

    if argv[0] == "--":  # which ends the options, as everywhere
        argv = argv[1:]
        if not argv:
            raise click.UsageError("-- is followed by the command to run", ctx)
    else:
        refuse_options(ctx, argv, "KEY", "; --time is the length of the lock")
    if time_us < 1_000_000:
        raise click.UsageError("--time is at least 1s", ctx)
    program = [find_program(argv[0]), *argv[1:]]
    with open_client(ctx) as client, unwound():
        _lock(client, key, time_us, wait)
        with ExitStack() as stack:
            try:
                group = stack.enter_context(running(program))
            except OSError as error:
                raise BadRequestError(f"cannot run {argv[0]}: {error.strerror}") from error
            return _hold(client, key, time_us, group)


def _lock(client: SyncClient, key: bytes, time_us: int, wait_us: int) -> None:
    deadline = time.monotonic() + wait_us / 1e6
    while True:
        try:
            client.lock(key, timeout=to_duration(time_us))
            return
        except RefusedError as error:
            if error.code != "locked" or time.monotonic() >= deadline:
                raise
        time.sleep(_LOOK_S)  # the daemon has no request that waits for a lock


def _hold(client: SyncClient, key: bytes, time_us: int, group: CommandGroup) -> int:
    """Renew the lock until the command ends; return its exit code as a shell has it."""
    while (code := group.wait(time_us / 3e6)) is None:
        with hints(_LOST):
            client.lock(key, timeout=to_duration(time_us), renew=True)
    try:
        client.unlock(key)
    except FastjournalError as error:
        note(f"fj-cli: the lock ended before the command did: {error}")
        return 1
    return 128 - code if code < 0 else code
