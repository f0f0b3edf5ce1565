"""``fj-cli lock``: hold the lock of an entry while a command runs."""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING

import click

from fastjournal.errors import BadRequestError, FastjournalError, RefusedError
from fastjournal.times import to_timedelta
from fj_cli.options import DURATION, NAME, b64_option, open_client, server_option
from fj_cli.output import note

if TYPE_CHECKING:
    from fastjournal.client import SyncClient

_LOOK_S = 0.1
"""Pause between two tries to get a lock that another connection holds."""


@click.command("lock", context_settings={"allow_interspersed_args": False})
@click.option(
    "--time",
    "time_us",
    type=DURATION,
    default="60s",
    show_default=True,
    help="Length of the lock, which is renewed while CMD runs.",
)
@click.option("--wait", type=DURATION, default="0", help="Wait that long for another's lock.")
@click.argument("key", type=NAME)
@click.argument("argv", nargs=-1, required=True, metavar="CMD...", type=click.UNPROCESSED)
@b64_option
@server_option
@click.pass_context
def command(ctx: click.Context, key: bytes, time_us: int, wait: int, argv: tuple[str, ...]) -> int:
    """Run CMD while this connection holds the lock of the entry under KEY.

    Others' writes get 'locked', and NEXT does not deliver the entry. The exit code is that of
    CMD. If the lock is lost (the connection ended), CMD is ended, because another may hold it;
    then the exit code is 1 or 69. CMD cannot write the entry either: its writes are another
    connection's.
    """
    from fj_cli.termination import unwound
    from fj_cli.worker import find_program

    if time_us < 1_000_000:
        raise click.UsageError("--time is at least 1s", ctx)
    program = [find_program(argv[0]), *argv[1:]]
    with open_client(ctx) as client, unwound():
        _lock(client, key, time_us, wait)
        try:
            process = subprocess.Popen(program)
        except OSError as error:
            raise BadRequestError(f"cannot run {argv[0]}: {error.strerror}") from error
        try:
            return _hold(client, key, time_us, process)
        finally:
            _end(process)


def _lock(client: SyncClient, key: bytes, time_us: int, wait_us: int) -> None:
    deadline = time.monotonic() + wait_us / 1e6
    while True:
        try:
            client.lock(key, timeout=to_timedelta(time_us))
            return
        except RefusedError as error:
            if error.code != "locked" or time.monotonic() >= deadline:
                raise
        time.sleep(_LOOK_S)


def _hold(client: SyncClient, key: bytes, time_us: int, process: subprocess.Popen[bytes]) -> int:
    """Renew the lock until the command ends; return its exit code as a shell has it."""
    while True:
        try:
            code = process.wait(time_us / 3e6)
        except subprocess.TimeoutExpired:
            client.lock(key, timeout=to_timedelta(time_us))
            continue
        except KeyboardInterrupt:
            # the terminal has sent it to the command too, which decides
            code = process.wait()
        try:
            client.unlock(key)
        except FastjournalError as error:
            note(f"fj-cli: the lock ended before the command did: {error}")
            return 1
        return 128 - code if code < 0 else code


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command that still runs: the lock is lost, or a signal ends this program."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
