"""Advice of errors, as a command line needs it: options in the place of arguments of Python."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from fastjournal.client.core.failures import advise_of_options
from fastjournal.errors import FastjournalError, RefusedError
from fastjournal.keys import PLAIN_HINT
from fastjournal.time_texts import WRITE_DURATION
from fastjournal.times import DURATION_HINT, EARLIER_INSTANT_HINT, INSTANT_HINT, MICROSECONDS_HINT

_FOR_OPTIONS = {
    DURATION_HINT: WRITE_DURATION,
    INSTANT_HINT: "write a later one, like 2030-11-20T12:00Z or +10m",
    EARLIER_INSTANT_HINT: "write an earlier one, like 2030-11-20T12:00Z or +10m",
    MICROSECONDS_HINT: "write microseconds since 1970, or not_before, like 2030-11-20T12:00Z",
    PLAIN_HINT: "use 'fj-cli set --queue' for work, or --plain if it is meant",
}

_OF_REFUSALS = {
    "not-found": "'fj-cli list --prefix' shows what is there, 'fj-cli explain' a deleted key",
    "exists": "--overwrite replaces it, where the command has it",
    "type-mismatch": "'fj-cli get' shows its type",
    "worked-on": "'fj-cli explain' says until when",
    "locked": "'fj-cli explain' says until when",
    "forbidden": "use a token with this right and this domain: --auth-file",
    "auth-required": "give a token: --auth-file",
    "auth-failed": "give the token that the daemon knows: --auth-file",
    "bad-regex": "the syntax is that of RE2; quote it for the shell",
}
"""By code, for refusals that say what is wrong and not what to do."""


@contextmanager
def hints(by_code: Mapping[str, str]) -> Iterator[None]:
    """Give refusals with these codes the hint of a command, in the place of that of all."""
    try:
        yield
    except RefusedError as error:
        error.hint = by_code.get(error.code, error.hint)
        raise


def advise(error: FastjournalError) -> None:
    """Give an error the hint of a command line."""
    if error.hint is not None:
        error.hint = _FOR_OPTIONS.get(error.hint, error.hint)
        advise_of_options(error)
    elif isinstance(error, RefusedError):
        error.hint = _OF_REFUSALS.get(error.code)
