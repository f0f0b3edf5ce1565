"""The command line: the group ``fj-cli`` and the names of its subcommands, loaded when they run."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from fastjournal.options import version_option
from fastjournal.printable import did_you_mean
from fastjournal.program import drop
from fj_cli.examples import with_examples
from fj_cli.shared_options import DONE, server_option

_EXAMPLES = "\nExamples:\n"

_OF_OTHERS = {
    **dict.fromkeys(("queues", "list-queues", "queue", "tubes", "topics"), "domains"),
    **dict.fromkeys(("enqueue", "put", "push", "publish", "send", "submit"), "set"),
    **dict.fromkeys(("retry", "requeue", "redrive"), "dead retry"),
    **dict.fromkeys(("failed", "dlq", "dead-letters"), "dead list"),
    **dict.fromkeys(("reserve", "pop", "receive", "consume", "work", "worker"), "next"),
    **dict.fromkeys(("ack", "complete", "remove", "rm"), "delete"),
    **dict.fromkeys(("status", "info"), "stats"),
    **dict.fromkeys(("empty", "flush", "clear", "drain"), "purge"),
}
"""Words of other queues: subcommands, and what they are here."""


class LazyGroup(click.Group):
    """A group of subcommands that are named here and defined elsewhere.

    Args:
        lazy: Name to module and one-line help. The module is one of ``fj_cli.commands``; its
            function is named after all words of the command, ``spool_dead_list_command``. The help
            is here so that listing the subcommands loads none of them.
        words: Words of the group itself: ``spool dead``.
    """

    def __init__(
        self, *args: Any, lazy: Mapping[str, tuple[str, str]], words: str = "", **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy
        self.words = words

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order in which they are declared."""
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load and return a subcommand."""
        if cmd_name not in self.lazy:
            return None
        module = import_module(f"fj_cli.commands.{self.lazy[cmd_name][0]}")
        words = f"{self.words} {cmd_name}".strip()
        command = getattr(module, f"{words.replace(' ', '_')}_command")
        assert isinstance(command, click.Command)
        if _EXAMPLES not in (command.epilog or ""):
            # not of the context: the end stays, and the next context may have another path
            command.epilog = with_examples(words, command.epilog)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the subcommand; a name that is none is an error that names the nearest."""
        if args[0] not in self.lazy and not args[0].startswith("-"):
            other = None if self.words else _OF_OTHERS.get(args[0].replace("_", "-"))
            meant = f"did you mean {other}?" if other else did_you_mean(args[0], self.lazy)
            ctx.fail(f"No such command {args[0]!r}: {meant or 'see --help'}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of subcommands without loading them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.lazy.items()])


COMMANDS = {
    "next": ("next", "Lease what is due, or work it off with --exec."),
    "peek": ("next", "Show what next would lease, and lease nothing."),
    "set": ("set", "Set a key, or add work to a domain."),
    "get": ("get", "Show the entry under a key."),
    "list": ("get", "List keys: all, or a prefix, a range or an expression."),
    "domains": ("domains", "List the domains with their counts."),
    "add": ("set", "Add to a number: a counter."),
    "not": ("requests", "Flip a boolean: a flag."),
    "truncate": ("requests", "Cut or fill up a buffer or a string."),
    "rename": ("requests", "Change the primary key of an entry."),
    "link": ("requests", "Add one more key to an entry."),
    "lock": ("lock", "Hold the lock of an entry while a command runs."),
    "touch": ("requests", "Move the expiry of an entry, or renew a lease."),
    "delete": ("requests", "Delete an entry, or complete a job with its token."),
    "release": ("requests", "Release the lease of an entry."),
    "bury": ("requests", "Bury an entry: a dead letter."),
    "kick": ("domains", "Make buried entries ready again."),
    "dead": ("dead", "Dead letters of queues: count, list, retry, drop."),
    "purge": ("domains", "Delete the entries of a domain that nobody works on."),
    "limit": ("domains", "Set or show the rate and concurrency limits of a domain."),
    "pause": ("requests", "Deliver no entry of a domain, or of all, for a while."),
    "resume": ("requests", "End the pause of a domain, or of all."),
    "watch": ("top", "Print changes as they happen."),
    "stats": ("stats", "Show counts of the daemon, a domain or an entry."),
    "workers": ("stats", "List who works on what, who is idle, and whether a queue is served."),
    "explain": ("stats", "Say why an entry is not delivered now, and what to do."),
    "top": ("top", "Show domains, rates and the sync time, live."),
    "ping": ("bench", "Measure the round trip to the daemon."),
    "bench": ("bench", "Measure latency and throughput of a running daemon."),
    "snapshot": ("requests", "Have the daemon take a snapshot."),
    "export": ("export", "Write a snapshot as Parquet, or for another queue."),
    "import": ("import_", "Import the pending jobs of another queue into the daemon."),
    "spool": ("spool", "Look at a local spool."),
    "log": ("log", "Look at a command log, or repair it, without a daemon."),
    "remote": ("remote", "Begin, look at or restore a log in an object store."),
    "token": ("requests", "Make tokens for AUTH."),
    "demo": ("demo", "Send real change events through all programs, and count."),
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
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "show_default": True,
    },
    epilog="""\b
Durations: 90s, 5m, 1h30m, 250ms; a number alone is seconds.
Instants: 2026-11-20T12:00Z (UTC where no zone is given), +10m from now, @1763640000.
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
