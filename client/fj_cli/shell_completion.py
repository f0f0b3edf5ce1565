"""Shell completion of names that the daemon knows."""

from __future__ import annotations

import os
import shlex
from itertools import islice

import click

from fastjournal.errors import FastjournalError
from fj_cli.shared_options import open_client

_NAMES_MAX = 100
"""Names that are offered: a shell shows no more at once in any useful way."""


def complete_domain(ctx: click.Context, _param: click.Parameter, begun: str) -> list[str]:
    """Return domains that begin with what was typed; none if no daemon answers.

    A name that is not text, or that a shell does not take as it is, is left out: a shell may put
    it on the line without quotes, and domains are names of strangers.
    """
    try:
        with open_client(ctx) as client:
            found = islice(client.domains(os.fsencode(begun), page=_NAMES_MAX), _NAMES_MAX)
            names = [domain.name for domain in found]
    except (FastjournalError, OSError):
        return []  # whoever presses Tab wants no sentence in the middle of the line
    shown = [name.decode("utf-8", "replace") for name in names]
    return [name for name in shown if shlex.quote(name) == name and name[:1] != "-"]
