"""The command line: the group ``fj-cli`` and the names of its subcommands."""

from __future__ import annotations

import sys
from typing import Any

import click

from fastjournal.options import version_option
from fastjournal.stdio import drop
from fj_cli.lazy import LazyGroup
from fj_cli.shared_options import DONE, server_option

_C = "fj_cli.commands."

COMMANDS = {
    "next": (_C + "next", "Lease what is due, or work it off with --exec."),
    "peek": (_C + "peek", "Show what next would lease, and lease nothing."),
    "set": (_C + "set", "Set a key, or add work to a domain."),
    "get": (_C + "get", "Show the entry under a key."),
    "list": (_C + "list", "List keys: all, or a prefix, a range or an expression."),
    "domains": (_C + "domains", "List the domains with their counts."),
    "add": (_C + "add", "Add to a number: a counter."),
    "not": (_C + "not_", "Flip a boolean: a flag."),
    "truncate": (_C + "truncate", "Cut or fill up a buffer or a string."),
    "rename": (_C + "rename", "Change the primary key of an entry."),
    "link": (_C + "link", "Add one more key to an entry."),
    "lock": (_C + "lock", "Hold the lock of an entry while a command runs."),
    "touch": (_C + "touch", "Move the expiry of an entry, or renew a lease."),
    "delete": (_C + "delete", "Delete an entry, or complete a job with its token."),
    "release": (_C + "release", "Release the lease of an entry."),
    "bury": (_C + "bury", "Bury an entry: a dead letter."),
    "kick": (_C + "kick", "Make buried entries ready again."),
    "purge": (_C + "purge", "Delete the entries of a domain that nobody works on."),
    "limit": (_C + "limit", "Set or show the rate and concurrency limits of a domain."),
    "pause": (_C + "pause", "Deliver no entry of a domain for a while."),
    "resume": (_C + "resume", "End the pause of a domain."),
    "watch": (_C + "watch", "Print changes as they happen."),
    "stats": (_C + "stats", "Show counts of the daemon, a domain or an entry."),
    "explain": (_C + "explain", "Say why an entry is not delivered now, and what to do."),
    "top": (_C + "top", "Show domains, rates and the sync time, live."),
    "ping": (_C + "ping", "Measure the round trip to the daemon."),
    "bench": (_C + "bench", "Measure latency and throughput of a running daemon."),
    "snapshot": (_C + "snapshot", "Have the daemon take a snapshot."),
    "export": (_C + "export", "Write a snapshot as Parquet, or for another queue."),
    "import": (_C + "import_", "Import the pending jobs of another queue into the daemon."),
    "spool": (_C + "spool", "Look at a local spool."),
    "log": (_C + "log", "Look at a command log, or repair it, without a daemon."),
    "token": (_C + "token", "Make tokens for AUTH."),
    "demo": (_C + "demo", "Send real change events through all programs, and count."),
}


class Root(LazyGroup):
    """The whole command line."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a subcommand; a reader of the output that has seen enough is no failure."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            drop(sys.stdout)
            return DONE


@click.group(
    name="fj-cli",
    cls=Root,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Durations: 90s, 5m, 1h30m, 250ms. Instants: 2026-11-20T12:00Z (UTC where no zone is given),
+10m from now, @1763640000.
In JSON, bytes that are not UTF-8 are in base64, in a field with _b64 behind its name; --b64 takes
keys, URIs and domains in that form. Floats that are not finite are "NaN", "Infinity", "-Infinity".
Exit codes: 0 done, 1 refused or damage found, 2 usage, 69 cannot connect, 74 I/O error,
75 nothing to do.
Completion: eval "$(_FJ_CLI_COMPLETE=bash_source fj-cli)"; zsh_source and fish_source too.""",
)
@version_option("fj-cli")
@server_option
def cli() -> None:
    """Everything that a person or a script does with a fastjournal daemon."""
