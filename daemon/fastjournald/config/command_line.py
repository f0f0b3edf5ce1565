"""Command line of the daemon: a flag for each option of the configuration file, and two more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fastjournal.options import flag
from fastjournald.config.options import DECLARED, DeclaredOption

if TYPE_CHECKING:
    NumberParamType = click.ParamType[int | float]
else:
    # generic only since click 8.4
    NumberParamType = click.ParamType


class _Number(NumberParamType):
    """Number of an option, without a unit; its bounds are those of the file."""

    def __init__(self, declared: DeclaredOption) -> None:
        self.name = declared.unit
        self._declared = declared

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | float:
        """Return the number."""
        try:
            number: int | float = self._declared.kind(str(value))
        except ValueError:
            self.fail(f"{str(value)!r}: {self._declared.hint}", param, ctx)
        return number


def _flag(declared: DeclaredOption) -> click.Option:
    kind: click.ParamType[Any] | None = None
    if declared.choices:
        kind = click.Choice(declared.choices)
    elif declared.hint:
        kind = _Number(declared)
    is_flag = declared.kind is bool
    return click.Option(
        [flag(declared.name)],
        type=kind,
        is_flag=is_flag,
        default=None,
        multiple=declared.kind is list,
        metavar=declared.unit or None,
        help=f"{declared.help}  {declared.shown}".rstrip(),
    )


_LISTEN, *_OTHERS = map(_flag, DECLARED.values())

OPTIONS: list[click.Parameter] = [
    click.Option(
        ["--config"], metavar="FILE", help="TOML file with these options, _ for -; flags win."
    ),
    _LISTEN,
    click.Option(
        ["--check-config"],
        is_flag=True,
        help="Check options and files, and exit: 0 no error, 64 errors.",
    ),
    *_OTHERS,
]
