"""Live screen of ``fj-cli top``: samples of the daemon, the order of its domains, the drawing.

Pure except for rich, which measures and draws: the terminal and the clock belong to the command.

A list of all domains in each sample would load a daemon that has 100,000 of them. So a sample
continues where the one before has ended, and the rows on the screen are read again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fastjournal.client.core.stats import DaemonStats, DomainStats, WorkerStats
from fastjournal.keys import typed_domain
from fastjournal.time_texts import format_duration, format_relative, format_when
from fj_cli.output import show_bytes, show_domain
from fj_cli.text import safe_text

FIRST_PART = 10_000
"""Domains of the first sample, which is to show the largest ones: half a second of a daemon."""

PART = 1_000
"""Domains of each further sample."""

LAG_US_MIN = 1_000_000
"""A change that is not stored for so long is shown: a request of a store takes less."""

KNOWN_MAX = 100_000
"""Domains whose figures are kept: some 50 MB."""


class DomainRounds:
    """Scans of the domains of one connection, one after the other, each read in parts.

    Args:
        scan: Begins a scan of the domains whose names begin with a prefix.
    """

    def __init__(self, scan: Callable[[bytes], Iterator[DomainStats]]) -> None:
        self._scan = scan
        self._prefix = b""
        self._rest: Iterator[DomainStats] | None = None
        self._part = FIRST_PART

    def next_part(self, prefix: bytes) -> tuple[list[DomainStats], bool]:
        """Return the next domains, and whether the scan has ended with them."""
        if prefix != self._prefix:
            self._prefix, self._rest, self._part = prefix, None, FIRST_PART
        if self._rest is None:
            self._rest = self._scan(prefix)
        found = list(islice(self._rest, self._part))
        is_end = len(found) < self._part
        if is_end:
            self._rest = None
        self._part = PART
        return found, is_end


class _Known(msgspec.Struct, frozen=True):
    stats: DomainStats
    at_us: int
    change: float
    """Growth in entries a second, since it was read before."""


class KnownDomains:
    """Newest figures of each domain, as the rounds so far have read them."""

    def __init__(self) -> None:
        self._known: dict[bytes, _Known] = {}
        self._seen: set[bytes] = set()
        """Domains of the current round."""
        self._round_began_us: int | None = None
        self._last_began_us: int | None = None
        """Begin of the last round that has ended; None: none has."""

    def __len__(self) -> int:
        return len(self._known)

    @property
    def is_whole(self) -> bool:
        """Whether these are all domains of the daemon, by a whole round."""
        return self._last_began_us is not None and len(self._known) < KNOWN_MAX

    def stats(self) -> list[DomainStats]:
        """Return the figures of all domains, in no order."""
        return [known.stats for known in self._known.values()]

    def change_of(self, name: bytes) -> float:
        """Return by how many entries a second a domain grows."""
        return self._known[name].change

    def take(
        self,
        at_us: int,
        part: Collection[DomainStats],
        again: Collection[DomainStats] = (),
        *,
        ends_round: bool,
    ) -> None:
        """Add figures.

        Args:
            at_us: Instant at which they were read.
            part: Domains of the current round.
            again: Domains that were known, read besides.
            ends_round: The round ends with this part: a domain that it has not seen is removed.
        """
        if self._round_began_us is None:
            self._round_began_us = at_us
        for stats in part:
            if stats.name in self._known or len(self._known) < KNOWN_MAX:
                self._note(stats, at_us)
            self._seen.add(stats.name)
        for stats in again:
            if stats.name in self._known:
                self._note(stats, at_us)
        if ends_round:
            for name in self._known.keys() - self._seen:
                del self._known[name]
            self._seen.clear()
            self._last_began_us, self._round_began_us = self._round_began_us, None

    def _note(self, stats: DomainStats, at_us: int) -> None:
        before = self._known.get(stats.name)
        # one that the last round did not see has come since
        since_us = self._last_began_us if before is None else before.at_us
        entries = 0 if before is None else before.stats.entries
        seconds = 0.0 if since_us is None else (at_us - since_us) / 1e6
        change = (stats.entries - entries) / seconds if seconds > 0 else 0.0
        self._known[stats.name] = _Known(stats, at_us, change)


SORTS = ("due", "leased", "delayed", "buried", "oldest", "change", "name")
_LINES_AROUND = 6
"""Lines of the screen other than the rows of its tables."""

_WORKERS_HEAD = 3
"""Lines of the head of the table of workers."""

_WORKERS_SHARE = 3
"""Part of the rows, one in so many, that workers have at most beside domains."""

_NAME_CHARACTERS = 28
_NAME_CHARACTERS_MIN = 8
_WORKER_CHARACTERS = 32
_HEADS = {"change": "+/s"}


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of the daemon at one instant."""

    at_us: int
    daemon: DaemonStats
    domains: list[DomainStats]
    """Next part of a round over the domains with the prefix."""
    again: list[DomainStats] = []
    """Domains of the screen that the part may not include."""
    ends_round: bool = True
    prefix: bytes = b""


class Rates(msgspec.Struct, frozen=True):
    """Requests a second between two samples, and how long a sync took."""

    requests: float = 0
    sets: float = 0
    nexts: float = 0
    deletes: float = 0
    sync_us: int | None = None
    """Mean of a sync; None: there was none."""


def rates_between(before: Sample | None, after: Sample) -> Rates:
    """Return the rates; zeros for the first sample, and where the daemon has restarted."""
    if before is None or after.at_us <= before.at_us:
        return Rates()
    old, new = before.daemon, after.daemon
    if new.uptime_us < old.uptime_us or new.requests < old.requests:
        return Rates()
    seconds = (after.at_us - before.at_us) / 1e6
    syncs = new.syncs - old.syncs
    return Rates(
        requests=(new.requests - old.requests) / seconds,
        sets=(new.set_requests - old.set_requests) / seconds,
        nexts=(new.next_requests - old.next_requests) / seconds,
        deletes=(new.delete_requests - old.delete_requests) / seconds,
        sync_us=(new.sync_us - old.sync_us) // syncs if syncs else None,
    )


class Screen:
    """Live screen: its samples, order and filter, and how keys change them.

    Args:
        server: Address of the daemon.
        prefix: Domains that begin with it are shown.
    """

    def __init__(self, server: str, prefix: bytes = b"") -> None:
        self._server = server
        self.prefix = prefix
        self.sort = SORTS[0]
        self.reverse = False
        self.frozen = False
        """The figures stay as they are."""
        self.workers_only = False
        """Workers have all rows."""
        self.typed: str | None = None
        """Filter that is being typed; None: none is."""
        self.error = ""
        self.shown: list[bytes] = []
        """Domains on the screen."""
        self._before: Sample | None = None
        self._sample: Sample | None = None
        self._known = KnownDomains()

    def take(self, sample: Sample) -> None:
        """Show a newer sample."""
        self._before, self._sample, self.error = self._sample, sample, ""
        if self._before is not None and self._before.prefix != sample.prefix:
            self._known = KnownDomains()
        self._known.take(sample.at_us, sample.domains, sample.again, ends_round=sample.ends_round)

    def press(self, key: str) -> bool:
        """Act on a key; return whether the program continues."""
        if self.typed is not None:
            self._type(key)
        elif key in ("q", "\x03", "\x04"):
            return False
        elif key == "s":
            self.sort = SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)]
        elif key == "r":
            self.reverse = not self.reverse
        elif key == "w":
            self.workers_only = not self.workers_only
        elif key in ("p", " "):
            self.frozen = not self.frozen
        elif key in ("/", "f"):
            self.typed = ""
        return True

    def _type(self, key: str) -> None:
        assert self.typed is not None
        if key in ("\r", "\n"):
            typed, self.typed = self.typed.encode("utf-8", "surrogateescape"), None
            self.prefix = typed_domain(typed)
        elif key == "\x1b":
            self.typed = None
        elif key in ("\x7f", "\b"):
            self.typed = self.typed[:-1]
        elif key.isprintable():
            self.typed += key

    def ordered(self) -> list[DomainStats]:
        """Return the domains in the order of the screen."""
        found = sorted(self._known.stats(), key=lambda domain: domain.name)
        if self.sort != "name":
            # the largest first; equal ones in the order of their names
            found.sort(key=self._weight, reverse=True)
        return found[::-1] if self.reverse else found

    def _weight(self, domain: DomainStats) -> float:
        return {
            "due": domain.due,
            "leased": domain.worked_on,
            "delayed": domain.delayed,
            "buried": domain.buried,
            "oldest": domain.oldest_due_us,
            "change": abs(self._known.change_of(domain.name)),
        }[self.sort]

    # --- drawing --------------------------------------------------------------------------------

    def draw(self, height: int, width: int) -> RenderableType:
        """Return the screen, at most that many lines and columns."""
        if self._sample is None:
            return Text(self.error or f"asking {self._server} ...")
        rows, workers = max(1, height - _LINES_AROUND), self._workers()
        if self.workers_only:
            return Group(*self._head(), self._worker_table(workers[:rows], width), self._foot(0))
        shown = workers[: max(0, rows // _WORKERS_SHARE - _WORKERS_HEAD + 1)]
        if not shown:
            return Group(*self._head(), self._table(rows, width), self._foot(rows))
        rows -= len(shown) + _WORKERS_HEAD
        parts = (self._table(rows, width), Text(""), self._worker_table(shown, width))
        return Group(*self._head(), *parts, self._foot(rows))

    def _head(self) -> list[RenderableType]:
        assert self._sample is not None
        daemon, rates = self._sample.daemon, rates_between(self._before, self._sample)
        sync = "none" if rates.sync_us is None else format_duration(rates.sync_us)
        lines = [
            f"{self._server}  up {format_duration(daemon.uptime_us)}"
            f"  {daemon.connections} connections  log {daemon.log_bytes / 1e6:,.0f} MB",
            f"{daemon.entries:,} entries: {daemon.due:,} due, {daemon.delayed:,} delayed,"
            f" {daemon.worked_on:,} leased, {daemon.buried:,} buried",
            f"a second: {rates.requests:,.0f} requests, {rates.sets:,.0f} set,"
            f" {rates.nexts:,.0f} next, {rates.deletes:,.0f} delete; sync {sync}",
        ]
        if daemon.remote_epoch:
            lines[0] += f"  primary of epoch {daemon.remote_epoch}, {_lag(daemon)}"
        if daemon.read_only:
            lines[2] = "the disk is nearly full: the daemon takes and delivers nothing new"
        elif daemon.paused_until_us > self._sample.at_us:
            until = format_when(daemon.paused_until_us, self._sample.at_us)
            lines[2] = f"all domains are paused, until {until}: fj-cli resume --all"
        if self.error:
            lines[2] = self.error
        return [Text(safe_text(line), no_wrap=True, overflow="ellipsis") for line in lines]

    def _table(self, rows: int, width: int) -> Table:
        """Return the table of domains; where room is short, names give way, and no figure."""
        shown = self.ordered()[:rows]
        self.shown = [domain.name for domain in shown]
        names = ("due", "leased", "delayed", "buried", "oldest", "change", "held")
        heads = [_HEADS.get(name, name) + "*" * (name == self.sort) for name in names]
        figures = [self._figures_of(domain) for domain in shown]
        table, room = _empty_table(heads, figures, width)
        table.add_column("domain" + "*" * (self.sort == "name"), no_wrap=True)
        for head in heads:
            right = head != "held"
            table.add_column(head, justify="right" if right else "left", no_wrap=True)
        for domain, cells in zip(shown, figures, strict=True):
            table.add_row(Text(show_domain(domain.name, room)), *cells)
        return table

    def _workers(self) -> list[WorkerStats]:
        """Return the workers: those with most leases first, then those that wait."""
        assert self._sample is not None
        workers = self._sample.daemon.workers
        return sorted(workers, key=lambda worker: (-worker.worked_on, worker.since_us, worker.name))

    def _worker_table(self, workers: list[WorkerStats], width: int) -> Table:
        """Return the table of workers; where room is short, names of domains give way."""
        assert self._sample is not None
        daemon = self._sample.daemon
        number = f"{len(daemon.workers)}{'+' * daemon.workers_cut}"
        heads = (f"worker ({len(workers)} of {number})", "leased", "since", "state")
        rows = [
            (
                show_bytes(worker.name.encode(), _WORKER_CHARACTERS),
                f"{worker.worked_on:,}",
                format_duration(max(0, self._sample.at_us - worker.since_us)).split()[0]
                if worker.since_us
                else "",
                "waits" if worker.waiting else "" if worker.connected else "disconnected",
            )
            for worker in workers
        ]
        table, room = _empty_table(heads, rows, width)
        for head in heads:
            right = head in ("leased", "since")
            table.add_column(head, justify="right" if right else "left", no_wrap=True)
        table.add_column("domain", no_wrap=True)
        for worker, row in zip(workers, rows, strict=True):
            table.add_row(*map(Text, row), Text(show_domain(worker.domain.encode(), room)))
        return table

    def _figures_of(self, domain: DomainStats) -> list[str]:
        change = self._known.change_of(domain.name)
        counts = (domain.due, domain.worked_on, domain.delayed, domain.buried)
        return [
            *(f"{number:,}" for number in counts),
            format_duration(domain.oldest_due_us).split()[0] if domain.oldest_due_us else "",
            f"{change:+.0f}" if change else "",
            self._hold_of(domain),
        ]

    def _hold_of(self, domain: DomainStats) -> str:
        assert self._sample is not None
        if domain.paused_until_us > self._sample.at_us:
            left = format_relative(domain.paused_until_us, self._sample.at_us)
            return f"paused {left.removeprefix('in ')}"
        if domain.jobs_max and domain.worked_on >= domain.jobs_max:
            return f"{domain.jobs_max} jobs"
        return ""

    def _foot(self, rows: int) -> Text:
        assert self._sample is not None
        if self.typed is not None:
            return Text(safe_text(f"domains that begin with: {self.typed}_"), no_wrap=True)
        state = "  PAUSED" if self.frozen else ""
        if self.workers_only:
            return Text(f"workers{state}  q quit  w domains  p pause", no_wrap=True)
        number = len(self._known)
        shown = f"{min(rows, number)} of {number}{'' if self._known.is_whole else '+'} domains"
        if self.prefix:
            shown += f" {show_bytes(self.prefix, _NAME_CHARACTERS)}*"
        keys = "q quit  s sort  r reverse  / filter  w workers  p pause"
        return Text(f"{shown}{state}  {keys}", no_wrap=True, overflow="ellipsis")


def _lag(daemon: DaemonStats) -> str:
    """Return how far the object store is behind; by a second and more it is no usual request."""
    if daemon.remote_lag_us < LAG_US_MIN:
        return "stored"
    lag = format_duration(daemon.remote_lag_us)
    return f"{daemon.remote_lag_bytes / 1e6:,.1f} MB not stored since {lag}"


def _empty_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], width: int
) -> tuple[Table, int]:
    """Return a table, and the characters that these columns leave for one of names."""
    taken = sum(max(map(len, column)) + 2 for column in zip(heads, *rows, strict=True))
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    return table, max(_NAME_CHARACTERS_MIN, width - taken - 2)
