"""Questions on the terminal, before something is deleted or sent again."""

from __future__ import annotations

import sys

import click

from fj_cli.output import note


def confirm(question: str, consequence: str) -> None:
    """Ask on the terminal; without one, refuse.

    Args:
        question: A yes-or-no question.
        consequence: For the refusal: "it would drop 2 pieces".

    Raises:
        click.Abort: The answer is no, or Ctrl-C.
        click.UsageError: Standard input is no terminal.
    """
    if not sys.stdin.isatty():
        raise click.UsageError(f"{consequence}; give --yes", click.get_current_context())
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:
        note("")  # the shell goes on in a line of its own
        raise
    if not agreed:
        raise click.Abort
