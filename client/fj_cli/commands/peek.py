"""``fj-cli peek``: what NEXT would hand out, without leasing it.

The protocol has no function for that, and the order of keys is the order of work only where keys
have the canonical form and nothing was delayed. So this reads the metadata of a whole domain, and
asks the daemon about the foremost candidates: whether one is held back by a lock or by work on its
URI is not in the metadata.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

from fj_cli.options import (
    DONE,
    NAME,
    NOTHING_TO_DO,
    b64_option,
    json_option,
    open_client,
    server_option,
)
from fj_cli.output import note, write_jobs
from fj_cli.progress import ProgressBar
from fj_cli.times import format_instant

if TYPE_CHECKING:
    from fastjournal.client import Entry, SyncClient

COUNT_MAX = 1000
"""Entries to show: a screen is what this is for."""

_HELD_BACK_MAX = 1000
"""Candidates that may turn out to be held back before fewer entries are shown than there are."""

_ASKED_AT_ONCE = 100


@click.command("peek")
@click.argument("domain", type=NAME)
@click.option(
    "--count",
    type=click.IntRange(1, COUNT_MAX),
    default=1,
    show_default=True,
    help="At most that many entries.",
)
@b64_option
@json_option
@server_option
@click.pass_context
def command(ctx: click.Context, domain: bytes, count: int, as_json: bool | None) -> int:
    """Show what 'next' would lease of DOMAIN now, in that order; it is not leased.

    This reads the metadata of all that DOMAIN has, a page at a time, so it takes a while where that
    is much, and what changes meanwhile may be missed. Entries of the same priority and instant may
    come in another order than 'next' has. Reading an entry that has a ttl keeps it alive, as get
    does. Of a paused domain it shows what would come were it not paused.

    Exit code 75: nothing is due.
    """
    if not domain or b":" in domain:
        raise click.UsageError("DOMAIN is a name without ':'", ctx)
    with open_client(ctx) as client:
        entries = list(_foremost(client, domain, count))
        paused_until = client.domain_stats(domain).paused_until
    if paused_until:
        note(f"paused until {format_instant(paused_until)}")
    if not entries:
        note("nothing is due")
        return NOTHING_TO_DO
    write_jobs(entries, None, as_json)
    return DONE


def _foremost(client: SyncClient, domain: bytes, count: int) -> Iterator[Entry]:
    """Return what is ready in a domain, most urgent first, with values."""
    from fastjournal.client.core import calls
    from fastjournal.errors import RefusedError

    now_us, total = client.nop(), client.domain_stats(domain).entries
    with ProgressBar("looking") as bar:
        found = client.prefix(domain + b":", data=False, meta=True)
        candidates = heapq.nsmallest(
            count + _HELD_BACK_MAX, _due(found, now_us, bar, total), key=_urgency
        )
    left = count
    for at in range(0, len(candidates), _ASKED_AT_ONCE):
        some = [entry.key for entry in candidates[at : at + _ASKED_AT_ONCE]]
        known = client.call_many(calls.entry_stats(key) for key in some)
        ready = [
            key
            for key, stats in zip(some, known, strict=True)
            if not isinstance(stats, RefusedError)
            and stats.state == "ready"
            and stats.keys[0] == key.decode("utf-8", "backslashreplace")
        ]
        for entry in client.call_many(calls.get(key, meta=True) for key in ready[:left]):
            if not isinstance(entry, RefusedError):
                left -= 1
                yield entry
        if not left:
            return


def _due(entries: Iterable[Entry], now_us: int, bar: ProgressBar, total: int) -> Iterator[Entry]:
    """Return what may be ready, as far as the metadata tells."""
    from fastjournal.protocol import State

    for number, entry in enumerate(entries):
        bar.update(number, total)
        meta = entry.meta
        assert meta is not None, "asked for"
        if (
            meta.state & State.JOURNAL
            and not meta.state & (State.BURIED | State.LOCKED)
            and not meta.worked_on_until
            and meta.not_before <= now_us
        ):
            yield entry


def _urgency(entry: Entry) -> tuple[int, int, int]:
    assert entry.meta is not None, "asked for"
    return entry.meta.priority, entry.meta.not_before, entry.meta.created
