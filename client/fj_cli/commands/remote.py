"""``fj-cli remote``: creation, status, verification and restore of a remote log, without a daemon;
checkpoint and handover, which a daemon carries out.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click
import msgspec

from fastjournal.clock import SystemClock
from fastjournal.numeric import exponential_backoff
from fastjournal.time_texts import format_when
from fj_cli.cli import LazyGroup
from fj_cli.output import counted, note, wants_json, write_json, write_result, write_table
from fj_cli.progress import ProgressBar
from fj_cli.shared_options import DONE, INSTANT, json_option, open_client, server_option
from fj_cli.termination import unwound

if TYPE_CHECKING:
    from fastjournal.errors import StoreUnavailableError
    from fastjournal.remote.restore import RemoteContents

REPEATS_MAX = 8
"""Repeats of a request before the command gives up, half a minute in all."""

REQUEST_SECONDS = 60.0
"""Time-out of one request: slow lines restore, too."""

_PAUSE_S = 0.2, 8.0
"""Pause before the first repeat, and the longest."""

SUBCOMMANDS = {
    "create": ("remote", "Begin an empty one, for daemons with empty directories."),
    "status": ("remote", "Show who writes it, since when, and its newest checkpoint."),
    "verify": ("remote", "Read and check all of it, and say what a restore brings."),
    "restore": ("remote", "Write it into a new directory, on which a daemon starts."),
    "checkpoint": ("remote", "Have the daemon store a checkpoint."),
    "handover": ("remote", "Have the daemon end, so that a standby takes over."),
}


@click.group("remote", cls=LazyGroup, lazy=SUBCOMMANDS, words="remote")
def remote_command() -> None:
    """Look at a remote log: a command log in an object store. Its daemon has --remote-log.

    URL is s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or
    file:///directory. The environment has region, credentials and endpoint (AWS_...). Commands with
    URL ask the store; checkpoint and handover ask the daemon.
    """


_url_argument = click.argument("url", metavar="URL")
_until_option = click.option(
    "--until",
    "until_us",
    type=INSTANT,
    help="The state at this instant of the writer.  [default: the newest]",
)


@click.command("create")
@_url_argument
@json_option
def remote_create_command(url: str, as_json: bool | None) -> int:
    """Begin the remote log URL without entries; nothing may be below it.

    The first daemon with --remote-log URL and an empty directory is the primary then. A daemon
    whose directory has a log needs no such command: it begins the remote log with what it has.
    """
    import secrets
    import socket
    import uuid

    from fastjournal.remote.checkpoints import create_log
    from fastjournal.remote.objects import NONCE_BYTES, Epoch
    from fastjournal.remote.open_store import ADOPTION_NAMES, open_store, require_promises
    from fastjournal.remote.store import repeating, run

    store = open_store(url, timeout_seconds=REQUEST_SECONDS)
    require_promises(store, secrets.token_bytes(NONCE_BYTES), names=ADOPTION_NAMES)
    nonce, log = secrets.token_bytes(NONCE_BYTES), str(uuid.uuid4())
    epoch = Epoch(0, log, socket.gethostname(), nonce, -1)
    run(create_log(epoch, SystemClock().now_us()), repeating(store, _wait))
    if wants_json(as_json):
        write_json({"log": log})
    note(f"{url} is the empty remote log {log}")
    return DONE


@click.command("checkpoint")
@json_option
@server_option
@click.pass_context
def remote_checkpoint_command(ctx: click.Context, as_json: bool | None) -> None:
    """Have the daemon store a checkpoint; prints its epoch and number when it is stored.

    A restore, a standby and Spark read the newest checkpoint, and the chunks behind it.
    """
    with open_client(ctx) as client:
        name = client.remote_checkpoint()
    write_result(as_json, {"checkpoint": name}, name)


@click.command("handover")
@server_option
@click.pass_context
def remote_handover_command(ctx: click.Context) -> None:
    """Have the daemon end as by SIGTERM, and seal its epoch, so that a standby takes over at once.

    Without a standby, whichever daemon starts next takes over.
    """
    with open_client(ctx) as client:
        client.remote_handover()
    note("the daemon ends; a standby takes over")


@click.command("status")
@_url_argument
@json_option
def remote_status_command(url: str, as_json: bool | None) -> int:
    """Show the state of the remote log URL, from a few objects of it.

    The age of the last chunk is by the clocks of the writer and of this machine.
    """
    from fastjournal.remote.open_store import open_store
    from fastjournal.remote.status import read_status
    from fastjournal.remote.store import repeating, run

    store = open_store(url, timeout_seconds=REQUEST_SECONDS)
    status = run(read_status(), repeating(store, _wait))
    if wants_json(as_json):
        write_json(msgspec.structs.asdict(status))
        return DONE
    now_us = SystemClock().now_us()
    rows = {
        "log": status.log,
        "epoch": f"{status.epoch}{', sealed: nobody writes' if status.sealed else ''}",
        "writer": f"{status.node} {' '.join(status.addresses)}".strip(),
        "last chunk": format_when(status.written_us, now_us),
        "checkpoint": f"{status.checkpoint}, {format_when(status.checkpoint_us, now_us)}: "
        f"{counted(status.segments, 'segment')}, {status.segment_bytes:,} bytes",
        "behind it": f"{counted(status.chunks, 'chunk')}, {status.chunk_bytes:,} bytes",
    }
    write_table(None, ("what", "state"), rows.items())
    return DONE


@click.command("verify")
@_url_argument
@_until_option
@json_option
def remote_verify_command(url: str, until_us: int | None, as_json: bool | None) -> int:
    """Read all that a restore of URL would read, check it, and say what it brings.

    Checked are the names, the checksums of segments and chunks, that no chunk is missing up to the
    end, and who wrote them. The records are not replayed: a restore does that.
    """
    from fastjournal.remote.open_store import open_store
    from fastjournal.remote.restore import verify_remote

    store = open_store(url, timeout_seconds=REQUEST_SECONDS)
    with ProgressBar("verifying", unit="bytes") as bar:
        contents = verify_remote(
            store, wait=_wait, until_us=until_us, on_progress=lambda done: bar.update(done, None)
        )
    _tell(contents, as_json, f"{url} is whole")
    return DONE


@click.command("restore")
@_url_argument
@click.argument("directory", metavar="DIR", type=click.Path(path_type=str))
@_until_option
@json_option
def remote_restore_command(
    url: str, directory: str, until_us: int | None, as_json: bool | None
) -> int:
    """Write the remote log URL into the new directory DIR; a daemon starts on it.

    DIR must not exist, or be empty. It gets its name when all of it is written and checked, and the
    log was replayed once; until then it is DIR.partial. Start the daemon as the owner of DIR.
    """
    from fastjournal.disk import OsDisk
    from fastjournal.remote.open_store import open_store
    from fastjournal.remote.restore import restore_remote

    store = open_store(url, timeout_seconds=REQUEST_SECONDS)
    with unwound(), ProgressBar("restoring", unit="bytes") as bar:
        contents = restore_remote(
            store,
            OsDisk(),
            directory.rstrip("/") or "/",
            wait=_wait,
            now_us=SystemClock().now_us(),
            until_us=until_us,
            on_progress=lambda done: bar.update(done, None),
        )
    _tell(contents, as_json, f"{directory} is restored")
    return DONE


def _tell(contents: RemoteContents, as_json: bool | None, done: str) -> None:
    if wants_json(as_json):
        write_json(msgspec.structs.asdict(contents))
    parts = [
        counted(contents.segments, "segment"),
        counted(contents.chunks, "chunk"),
        f"{contents.bytes:,} bytes",
        f"written by {contents.node} in epoch {contents.epoch}",
        f"up to {format_when(contents.time_us, SystemClock().now_us())}",
    ]
    if contents.records is not None:
        parts.insert(2, counted(contents.records, "record"))
    note(f"{done}: {', '.join(parts)}")


def _wait(tries: int, error: StoreUnavailableError) -> None:
    if tries > REPEATS_MAX:
        raise error
    time.sleep(exponential_backoff(*_PAUSE_S, tries - 1))
