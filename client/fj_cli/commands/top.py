"""``fj-cli top`` and ``watch``: domains, rates and the sync time, live; changes as they happen."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from fastjournal.clock import SystemClock
from fastjournal.errors import CannotConnectError, RefusedError
from fj_cli.output import bytes_field, wants_json, write_json
from fj_cli.shared_options import (
    DOMAIN,
    DONE,
    DURATION,
    NAME,
    complete_domain,
    daemon_of,
    on_daemon,
    open_client,
)

if TYPE_CHECKING:
    from fastjournal.client import SyncClient
    from fj_cli.top_screen import DomainRounds, Rates, Sample, Screen

JSON_DOMAINS_MAX = 1000
"""Domains of a sample for programs."""


@click.command("top")
@click.argument("prefix", type=DOMAIN, default="", shell_complete=complete_domain)
@click.option("--interval", type=DURATION, default="2s", help="Time between two samples.")
@click.option("--count", type=click.IntRange(1), help="End after so many samples.")
@on_daemon
def top_command(
    ctx: click.Context, prefix: bytes, interval: int, count: int | None, as_json: bool | None
) -> int:
    """Show domains, workers, rates, leased entries and the sync time, live.

    Only domains that begin with PREFIX are shown. If there are over 10,000, each sample reads a
    part of them: 'of 10000+ domains' says that the screen has not seen all so far. '+/s' is the
    growth of a domain in entries a second. Workers are connections that hold leases, with the
    number of these and the begin of the first, or wait for work. A daemon that goes away is waited
    for. Needs the right read; of the daemon's figures: for everything.

    \b
    Keys: q quit, s next order (due, leased, delayed, buried, oldest, change, name), r reverse,
          / type the beginning of names (Enter ends, Esc cancels), w only workers or all,
          p pause and go on.

    If standard input or output is no terminal, or with --json, each sample is one JSON object, and
    there is one unless --count says more. It has the 1,000 domains with most due entries. The first
    has no rates: they need two.
    """
    if interval < 100_000:
        raise click.UsageError("--interval is at least 100ms", ctx)
    if wants_json(as_json) or not sys.stdin.isatty():
        _write_samples(ctx, prefix, interval / 1e6, 1 if count is None else count)
    else:
        _show(ctx, prefix, interval / 1e6, count)
    return DONE


def _write_samples(ctx: click.Context, prefix: bytes, interval_s: float, count: int) -> None:
    from heapq import nsmallest

    from fj_cli.top_screen import PART, Sample, rates_between

    before: Sample | None = None
    with open_client(ctx) as client:
        for number in range(count):
            if number:
                time.sleep(interval_s)  # --interval
            most_due = nsmallest(
                JSON_DOMAINS_MAX,
                client.domains(prefix, page=PART),
                key=lambda domain: (-domain.due, domain.name),
            )
            daemon = client.daemon_stats(workers=True)
            sample = Sample(at_us=SystemClock().now_us(), daemon=daemon, domains=most_due)
            write_json(_fields(sample) | _rates(rates_between(before, sample)))
            before = sample


def _fields(sample: Sample) -> dict[str, Any]:
    import msgspec

    domains = []
    for domain in sample.domains:
        fields = bytes_field("domain", domain.name)
        names = ("due", "worked_on", "delayed", "buried", "oldest_due_us", "paused_until_us")
        domains.append(fields | {name: getattr(domain, name) for name in names})
    daemon = msgspec.to_builtins(sample.daemon)
    return {"time_us": sample.at_us, **daemon, "domain_list": domains}


def _rates(rates: Rates) -> dict[str, Any]:
    return {
        "requests_per_second": rates.requests,
        "set_per_second": rates.sets,
        "next_per_second": rates.nexts,
        "delete_per_second": rates.deletes,
        "sync_mean_us": rates.sync_us,
    }


# --- the live screen ------------------------------------------------------------------------------


def _show(ctx: click.Context, prefix: bytes, interval_s: float, count: int | None) -> None:
    from rich.console import Console
    from rich.live import Live

    from fj_cli.termination import unwound
    from fj_cli.top_screen import Screen

    screen, console = Screen(daemon_of(ctx)[0], prefix), Console()
    source = _SampleSource(ctx)
    with (
        unwound(),
        _keys() as keys,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        taken = 0
        try:
            while True:
                if not screen.frozen:
                    taken += source.read_into(screen)
                live.update(screen.draw(console.height, console.width), refresh=True)
                if count is not None and taken >= count:
                    return
                if not _wait(screen, keys, live, console, interval_s):
                    return
        except KeyboardInterrupt:
            return
        finally:
            source.close()


class _SampleSource:
    """Samples of the daemon, over a connection that is reconnected when it is lost."""

    def __init__(self, ctx: click.Context) -> None:
        self._ctx = ctx
        self._client: SyncClient | None = None
        self._rounds: DomainRounds | None = None

    def read_into(self, screen: Screen) -> int:
        """Show the next sample, or that the daemon is away; return how many were taken.

        Raises:
            RefusedError: The daemon refuses figures to this token; a busy one is asked again.
        """
        try:
            screen.take(self._sample(*self._connected(), screen))
        except (CannotConnectError, RefusedError) as error:
            if isinstance(error, CannotConnectError):
                self.close()
            elif error.code != "busy":
                raise
            screen.error = f"{error.message}; trying again"
            return 0
        return 1

    def _connected(self) -> tuple[SyncClient, DomainRounds]:
        from fj_cli.top_screen import PART, DomainRounds

        if self._client is None or self._rounds is None:
            client = open_client(self._ctx)
            client.__enter__()
            self._client = client
            self._rounds = DomainRounds(lambda prefix: iter(client.domains(prefix, page=PART)))
        return self._client, self._rounds

    @staticmethod
    def _sample(client: SyncClient, rounds: DomainRounds, screen: Screen) -> Sample:
        from itertools import islice

        from fj_cli.top_screen import Sample

        part, ends_round = rounds.next_part(screen.prefix)
        read = {domain.name for domain in part}
        # a name is the first of those that begin with it
        named = ((name, client.domains(name, page=1)) for name in screen.shown if name not in read)
        again = [first for name, found in named for first in islice(found, 1) if first.name == name]
        daemon = client.daemon_stats(workers=True)
        return Sample(
            at_us=SystemClock().now_us(),
            daemon=daemon,
            domains=part,
            again=again,
            ends_round=ends_round,
            prefix=screen.prefix,
        )

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._client is not None:
            self._client.close()
            self._client = None


def _wait(screen: Screen, keys: int, live: Any, console: Any, interval_s: float) -> bool:
    """Act on keys until the next sample is due, or a key asks for one; whether to go on."""
    deadline = time.monotonic() + interval_s
    while (left := deadline - time.monotonic()) > 0:
        readable, _, _ = select.select([keys], [], [], left)
        if not readable:
            break
        data = os.read(keys, 64)
        if not data:
            return False  # the terminal is gone
        prefix = screen.prefix
        for key in data.decode("utf-8", "surrogateescape"):
            if not screen.press(key):
                return False
        live.update(screen.draw(console.height, console.width), refresh=True)
        if screen.prefix != prefix:
            break
    return True


@contextmanager
def _keys() -> Iterator[int]:
    """Give single keys of the terminal, without an echo, and put its mode back at the end."""
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    # a stopped and continued program finds the mode of the shell: it sets its own again
    resumed = signal.signal(signal.SIGCONT, lambda *_: tty.setcbreak(descriptor))
    try:
        tty.setcbreak(descriptor)
        yield descriptor
    finally:
        signal.signal(signal.SIGCONT, resumed)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


@click.command("watch")
@click.argument("key", type=NAME, required=False)
@click.option("--prefix", type=NAME, metavar="TEXT", help="All keys that begin so.")
@click.option("--regex", metavar="RE", help="All keys in which this is found (RE2 syntax).")
@on_daemon
def watch_command(
    ctx: click.Context,
    key: bytes | None,
    prefix: bytes | None,
    regex: str | None,
    as_json: bool | None,
) -> None:
    """Print each change of KEY, or of all keys, until Ctrl-C or until nobody reads it.

    A line says when it came, whether the key was set or is gone, and the value. Changes that follow
    faster than they are printed are one line, with the last value. A line 'missed' says that some
    may be missing: the connection was lost, and made anew.
    """
    expression = None if regex is None else os.fsencode(regex)
    given = {"key": key, "prefix": prefix, "regex": expression}
    query: dict[str, Any] = {name: text for name, text in given.items() if text is not None}
    if len(query) > 1:
        raise click.UsageError("give one of KEY, --prefix and --regex", ctx)

    import trio

    from fastjournal.client import Client
    from fj_cli.watching import watch

    address, credentials = daemon_of(ctx)
    client = Client(address, tls=credentials.tls, auth=credentials.auth)
    in_json = wants_json(as_json)
    trio.run(lambda: watch(client, query or {"prefix": b""}, as_json=in_json))
