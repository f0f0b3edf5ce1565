"""``fj-cli add``: add to a number (a counter)."""

from __future__ import annotations

import click

from fj_cli.output import put_bytes, wants_json, write_json, write_line
from fj_cli.shared_options import (
    NAME,
    NumberParamType,
    b64_option,
    json_option,
    open_client,
    plain_option,
    server_option,
)


class Amount(NumberParamType):
    """An integer, or a number with a point: the entry has to be of the same type."""

    name = "number"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | float:
        """Return the number."""
        text = str(value)
        try:
            return int(text) if text.lstrip("+-").isdigit() else float(text)
        except ValueError:
            self.fail(f"{text!r} is no number", param, ctx)


@click.command("add", context_settings={"ignore_unknown_options": True})
@click.argument("key", type=NAME)
@click.argument("amount", type=Amount(), default="1")
@click.option("--create", is_flag=True, help="Begin at 0 where there is no entry.")
@plain_option
@b64_option
@json_option
@server_option
@click.pass_context
def command(
    ctx: click.Context,
    key: bytes,
    amount: int | float,
    create: bool,
    plain: bool,
    as_json: bool | None,
) -> None:
    """Add AMOUNT (1 unless given) to the number under KEY, and print the sum.

    An integer is added to an integer, a number with a point to a float.
    """
    from fj_cli.advice import hints

    missing = {"not-found": "--create begins at 0 where there is no entry"}
    with hints(missing), open_client(ctx) as client:
        value = client.add(key, amount, create=create, plain=plain).decoded()
    if wants_json(as_json):
        fields: dict[str, object] = {}
        put_bytes(fields, "key", key)
        write_json(fields | {"value": value})
    else:
        write_line(str(value))
