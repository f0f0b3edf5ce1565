"""A click group that loads a subcommand's module when that subcommand is run."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from fj_cli.examples import with_examples

_EXAMPLES = "\nExamples:\n"


class LazyGroup(click.Group):
    """A group of subcommands that are named here and defined elsewhere.

    Args:
        lazy: Name to module and one-line help; the module has the command as ``command``. The help
            stands here so that listing the subcommands loads none of them.
    """

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order in which they are declared."""
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load and return a subcommand."""
        if cmd_name not in self.lazy:
            return None
        module = self.lazy[cmd_name][0]
        command = import_module(module).command
        assert isinstance(command, click.Command)
        if _EXAMPLES not in (command.epilog or ""):
            # not of the context: the end stays, and the next context may have another path
            name = module.rpartition(".")[2].strip("_").replace("_", " ")
            command.epilog = with_examples(name, command.epilog)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the subcommand; a name that is none is an error that names the nearest."""
        if args[0] not in self.lazy and not args[0].startswith("-"):
            from difflib import get_close_matches  # noqa: PLC0415 - only where needed

            near = get_close_matches(args[0], self.lazy, n=1)
            meant = f"did you mean {near[0]!r}?" if near else "see --help"
            ctx.fail(f"No such command {args[0]!r}: {meant}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of subcommands without loading them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.lazy.items()])
