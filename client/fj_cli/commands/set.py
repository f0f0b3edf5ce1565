"""``fj-cli set`` and ``add``: set a key, add work to a domain, add to a number (a counter)."""

from __future__ import annotations

import os
from typing import Any

import click

from fastjournal.clock import unique_timestamp
from fastjournal.errors import BadRequestError
from fastjournal.keys import (
    deduplication_key,
    default_id,
    journal_key_of,
    looks_like_journal_key,
    parse_journal_key,
)
from fastjournal.program import open_input
from fj_cli.advice import hints
from fj_cli.output import bytes_field, note, show_bytes, write_result
from fj_cli.shared_options import (
    DURATION,
    EXPIRY,
    INSTANT,
    NAME,
    ParsedType,
    check_empty,
    on_daemon,
    open_client,
    plain_option,
    priority_option,
    queue_option,
    to_expiry,
)
from fj_cli.text import to_duration_or_none

_TTL_US_MIN = 1_000
"""The reply to the SET takes about as long; 0 would be no ttl at all."""
_TRUTHS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


@click.command("set")
@click.argument("words", nargs=-1, metavar="[KEY] [VALUE|-]")
@queue_option("Add work to this queue (domain); then KEY is built and not given.")
@click.option(
    "--key",
    "job",
    type=NAME,
    metavar="KEY",
    help="A job under its whole key; it replaces a waiting one, never one that is worked on.",
)
@click.option(
    "--id", "id_", type=NAME, help="Last part of the key.  [default: made of time and URI]"
)
@click.option(
    "--uri", type=NAME, help="Resource of the work: one entry of a URI waits, the newest."
)
@click.option("--unique", type=NAME, help="Of one value one entry waits in its queue, the newest.")
@priority_option
@click.option("--delay", type=DURATION, help="The work starts no earlier than that from now.")
@click.option(
    "--not-before",
    type=INSTANT,
    help="The work starts no earlier; part of the key.  [default: now]",
)
@click.option("--expires", type=EXPIRY, help="The entry vanishes then; never: it stays.")
@click.option("--ttl", type=DURATION, help="Each read moves the expiry to that long from now.")
@click.option("--empty", is_flag=True, help="There is no VALUE: it is empty.")
@click.option("--overwrite", is_flag=True, help="Replace what stands under the key.")
@plain_option
@click.option("--no-persist", is_flag=True, help="In memory only: gone when the daemon stops.")
@click.option(
    "--type",
    "type_",
    type=click.Choice(["buffer", "string", "integer", "float", "boolean", "void"]),
    help="[default: string for an argument, buffer for standard input]",
)
@on_daemon
def set_command(ctx: click.Context, /, words: tuple[str, ...], **options: Any) -> None:
    """Set KEY to VALUE, or with --queue, --uri or --key add work to a queue; prints the key.

    VALUE '-' is read from standard input; --empty says that there is none. With --uri and neither
    KEY nor --queue, the host of the URI is the queue. With --uri a single word is VALUE, unless it
    is a journal key, or --plain says that it is a KEY: give KEY and VALUE for a plain key with a
    URI. With --key the job has that name: while it is worked on, the answer is worked-on.
    """
    ttl = options["ttl"]
    if ttl is not None and ttl < _TTL_US_MIN:
        raise click.UsageError("--ttl is at least 1ms: no read would find the entry", ctx)
    key, value_word = _split(ctx, words, options)
    if options["type_"] != "void":
        check_empty(ctx, value_word, options["empty"], "; - reads it from standard input")
    timestamp = unique_timestamp()
    uri, domain = options["uri"], options["domain"]
    if key is None:
        from fastjournal.keys import domain_of

        not_before, id_ = options["not_before"], options["id_"]
        if options["delay"] is not None:
            if not_before is not None:
                raise click.UsageError("--delay and --not-before exclude each other", ctx)
            not_before = timestamp + options["delay"]
        domain = domain_of(uri) if domain is None else domain
        uri = deduplication_key(domain, uri, options["unique"])
        key = journal_key_of(
            domain,
            default_id(timestamp, uri, os.urandom(4).hex()) if id_ is None else id_,
            timestamp if not_before is None else not_before,  # INSTANT has checked it
            options["priority"],
        )
    value = _value(value_word, options["type_"])
    persist, expires = not options["no_persist"], to_expiry(options["expires"])
    with hints(_WORKED_ON), open_client(ctx) as client:
        if options["job"] is not None:
            written = client.enqueue(
                None,
                value,
                uri=uri,
                unique=options["unique"],
                key=key,
                persist=persist,
                expires=expires,
                timestamp_us=timestamp,
            )
        else:
            written = client.set(
                key,
                value,
                uri=uri,
                persist=persist,
                overwrite=options["overwrite"],
                expires=expires,
                ttl=to_duration_or_none(ttl),
                timestamp_us=timestamp,
                plain=options["plain"],
            )
    fields = bytes_field("key", key) | {"timestamp_us": timestamp, "outcome": written.outcome}
    if written.took_uri_from:
        fields |= bytes_field("took_uri_from", written.took_uri_from)
        gone, queue = (
            show_bytes(written.took_uri_from),
            show_bytes(written.took_uri_from.partition(b":")[0]),
        )
        note(
            f"fj-cli: this took its URI from {gone}, a job of the queue {queue}: of a URI one job"
            " waits, over all queues; --unique in place of --uri is for one in each queue"
        )
    write_result(options["as_json"], fields, show_bytes(key))


def _split(
    ctx: click.Context, words: tuple[str, ...], options: dict[str, Any]
) -> tuple[bytes | None, str | None]:
    """Return the key (None: to be built) and the word for the value."""
    if options["job"] is not None:
        _refuse_given(ctx, _EXCLUDED_BY_KEY, "excluded by --key")
        if len(words) > 1:
            raise click.UsageError("too many arguments: there is VALUE, since --key has KEY", ctx)
        return options["job"], words[0] if words else None
    keyed = options["domain"] is None and not (
        options["uri"] is not None and _is_value(ctx, words, plain=options["plain"])
    )
    if keyed:
        _refuse_given(ctx, ("unique", *_PARTS), "for --queue, or --uri without a KEY")
        if not words:
            raise click.UsageError("give a KEY, --queue, --uri or --key", ctx)
    if len(words) > keyed + 1:
        wanted = "KEY and VALUE" if keyed else "VALUE, since --queue builds the key"
        raise click.UsageError(f"too many arguments: there is {wanted}", ctx)
    rest = words[1:] if keyed else words
    return NAME.convert(words[0], None, ctx) if keyed else None, rest[0] if rest else None


_PARTS = ("id_", "priority", "delay", "not_before")
_EXCLUDED_BY_KEY = ("domain", *_PARTS, "ttl", "overwrite", "plain")
_WORKED_ON = {
    "worked-on": "set it again after that, or put it into a spool, whose forwarder does: fj-cli"
    " spool put DIR --key; 'fj-cli explain' says until when"
}


def _refuse_given(ctx: click.Context, names: tuple[str, ...], why: str) -> None:
    """Refuse options that are given."""
    for name in names:
        if ctx.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            option = {"domain": "queue"}.get(name, name.strip("_").replace("_", "-"))
            raise click.UsageError(f"--{option} is {why}", ctx)


def _is_value(ctx: click.Context, words: tuple[str, ...], *, plain: bool) -> bool:
    """Whether the words beside --uri are the value of work, and the key is to be built.

    A single word that is no journal key is no key either: a plain entry under the text of the value
    would be a job that no worker gets. One that looks like a journal key is refused as a key.
    """
    if words in ((), ("-",)):
        return True
    if len(words) > 1 or plain:
        return False
    try:
        key = NAME.convert(words[0], None, ctx)
    except click.BadParameter:  # no base64: so it is no key
        return True
    return parse_journal_key(key) is None and not looks_like_journal_key(key)


def _value(word: str | None, type_: str | None) -> bytes | str | int | float | bool | None:
    if type_ == "void":
        if word is not None:
            raise BadRequestError("a void value has no data", hint="leave VALUE out")
        return None
    data = os.fsencode(word or "")
    if word == "-":
        data = open_input().read()
    if type_ is None:
        type_ = "buffer" if word is None or word == "-" else "string"
    if type_ == "buffer":
        return data
    try:
        text = data.decode()
        if type_ == "integer":
            return int(text)
        if type_ == "float":
            return float(text)
        return _TRUTHS[text.strip().lower()] if type_ == "boolean" else text
    except (ValueError, KeyError) as error:
        raise BadRequestError(
            f"the value is no {type_}", code="bad-value", hint="give another --type"
        ) from error


def _amount(text: str) -> int | float:
    """Return an integer, or a number with a point: the entry has to be of the same type."""
    try:
        return int(text) if text.lstrip("+-").isdigit() else float(text)
    except ValueError as error:
        raise BadRequestError(f"{text!r} is no number") from error


@click.command("add", context_settings={"ignore_unknown_options": True})
@click.argument("key", type=NAME)
@click.argument("amount", type=ParsedType("number", _amount), default="1")
@click.option("--create", is_flag=True, help="Begin at 0 where there is no entry.")
@plain_option
@on_daemon
def add_command(
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
    missing = {"not-found": "--create begins at 0 where there is no entry"}
    with hints(missing), open_client(ctx) as client:
        value = client.add(key, amount, create=create, plain=plain).decoded()
    write_result(as_json, bytes_field("key", key) | {"value": value}, str(value))
