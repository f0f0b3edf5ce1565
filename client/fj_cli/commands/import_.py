"""``fj-cli import``: the pending jobs of another queue, in batches, with counts; the same for each.

An item is a GET of its key and a SET with its own timestamp; the GET returns the entry before. NEXT
must not deliver a buried item before its burial: it is set under a plain key of its domain,
``<domain>:import:...``, buried there, and renamed. An import that stops half way is continued by
the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import click
import msgspec

from fastjournal.client.core import calls
from fastjournal.client.core.calls import Call
from fastjournal.clock import SystemClock
from fastjournal.disk import OsDisk
from fastjournal.errors import CannotConnectError, FastjournalError, RefusedError
from fastjournal.limits import (
    DURATION_US_MAX,
    IMPORT_BATCH_BYTES,
    IMPORT_BATCH_ITEMS,
    KEY_BYTES_MAX,
    LIMIT_MAX,
)
from fastjournal.protocol import Function
from fastjournal.time_texts import format_duration
from fastjournal.times import to_timedelta
from fj_cli.cli import LazyGroup
from fj_cli.output import counted, note, show_bytes, write_each
from fj_cli.progress import ProgressBar
from fj_cli.shared_options import (
    DONE,
    REFUSED,
    Decorated,
    directory_argument,
    json_option,
    open_client,
    server_option,
)

if TYPE_CHECKING:
    from fastjournal.client import SyncClient
    from fastjournal.foreign import ForeignJournal, Item

_THE_DAEMON_STOPS = ("read-only", "busy", "shutting-down")
"""Refusals that every further item would get too."""

_uri_option = click.option(
    "--uri-from-body",
    is_flag=True,
    help="The value is also the URI where it has 1 to 4,096 bytes: of equal ones the newest stays.",
)
set_limits_option = click.option(
    "--set-limits",
    is_flag=True,
    help="The longest time to run and the most attempts of a queue's jobs become limits of the"
    " domain.",
)


def import_options(command: Decorated) -> Decorated:
    """Add the argument and the options of every import."""
    command = click.pass_context(server_option(json_option(_uri_option(command))))  # type: ignore[assignment] # click knows only whole signatures
    return directory_argument(command)


class ImportCounts(msgspec.Struct):
    """Counts of an import."""

    read: int = 0
    """Items of the journal that were looked at: the sum of the next four."""
    imported: int = 0
    already_there: int = 0
    """The entry exists, was completed since, or its URI has newer work."""
    expired: int = 0
    refused: int = 0
    damaged: int = 0
    """Places of the journal that cannot be read."""


def read_and_import(
    ctx: click.Context,
    open_journal: Callable[..., AbstractContextManager[ForeignJournal]],
    directory: str,
    *,
    uri_from_body: bool,
    as_json: bool | None,
    set_limits: bool = False,
) -> int:
    """Read the journal in a directory, bring it into the daemon of the options, write the counts.

    Args:
        ctx: Context of the command.
        open_journal: One of ``fastjournal.foreign``.
        directory: Where the journal is.
        uri_from_body: The value is the URI, where it can be one.
        as_json: The counts as JSON; None: where standard output is no terminal.
        set_limits: The largest times to run and attempts become limits of their domains.

    Returns:
        The exit code.

    Raises:
        BadRequestError: The directory holds no such journal.
        CannotConnectError: Nobody listens there, or the connection was lost.
        RefusedError: The daemon takes nothing any more.
        LogError: The journal cannot be read.
    """
    with ExitStack() as kept:
        with ProgressBar("reading", unit="bytes") as bar:
            journal = kept.enter_context(open_journal(OsDisk(), directory, on_progress=bar.update))
        for fault in journal.faults:
            note(f"{fault.path} at offset {fault.offset}: {fault.message}")
        with open_client(ctx) as client, ProgressBar("importing") as bar:
            if set_limits:
                _set_limits(client, journal)
            counts = _import_all(client, journal, bar, uri_from_body=uri_from_body)
    _tell_queues(journal, set_limits=set_limits)
    write_each(
        [msgspec.structs.asdict(counts)],
        as_json,
        fields=lambda counted: counted | {"not_carried": journal.not_carried},
        columns=[name.replace("_", " ") for name in ImportCounts.__struct_fields__],
        row=lambda counted: [f"{number:,}" for number in counted.values()],
    )
    return REFUSED if counts.refused or counts.damaged else DONE


def _import_all(
    client: SyncClient, journal: ForeignJournal, bar: ProgressBar, *, uri_from_body: bool
) -> ImportCounts:
    importer = Importer(client, SystemClock().now_us, uri_from_body=uri_from_body)
    counts = importer.counts
    counts.damaged = sum(fault.damage for fault in journal.faults)
    try:
        importer.add_all(journal.items(), lambda: bar.update(counts.read, journal.count))
    except (FastjournalError, KeyboardInterrupt):
        note(
            f"fj-cli: stopped after {counts.imported:,} of {journal.count:,}, which stay;"
            " import again to finish"
        )
        raise
    return counts


def _set_limits(client: SyncClient, journal: ForeignJournal) -> None:
    for queue in journal.queues:
        if queue.ttr_us is not None:
            attempts = min(queue.attempts, LIMIT_MAX) or None
            lease = to_timedelta(min(queue.ttr_us[-1], DURATION_US_MAX))
            client.limit(queue.domain, lease=lease, attempts=attempts)


def _tell_queues(journal: ForeignJournal, *, set_limits: bool) -> None:
    """Report the times to run, and facts of the queues that are not in entries."""
    for queue in journal.queues:
        if queue.ttr_us is None:
            continue
        least, median, most = map(format_duration, queue.ttr_us)
        text = f"queue {show_bytes(queue.domain)}: {counted(queue.items, 'job')}"
        times = most if least == most else f"{least} to {most}, median {median}"
        text += f", time to run {times}"
        if queue.attempts:
            text += f", at most {counted(queue.attempts, 'attempt')}"
        if set_limits and queue.ttr_us[-1] > DURATION_US_MAX:
            text += f"; the lease is cut to {format_duration(DURATION_US_MAX)}"
        if set_limits and queue.others:
            text += f"; not carried over: other values of {counted(queue.others, 'job')}"
        note(text)
    for name, number in journal.not_carried.items():
        note(f"not carried over: {name.replace('_', ' ')}: {number:,}")


class Importer:
    """Puts items into a daemon.

    Args:
        client: Connected.
        now_us: Gives the present, for what has expired.
        uri_from_body: The value is the URI, where it can be one.
    """

    def __init__(
        self, client: SyncClient, now_us: Callable[[], int], *, uri_from_body: bool
    ) -> None:
        self.counts = ImportCounts()
        self._client = client
        self._now_us = now_us
        self._uri_from_body = uri_from_body

    def add_all(self, items: Iterable[Item], on_progress: Callable[[], None]) -> None:
        """Put all items there, in their order; report refused ones on standard error.

        Raises:
            CannotConnectError: The connection was lost.
            RefusedError: The daemon takes nothing any more.
            LogError: The journal can no longer be read.
        """
        batch: list[Item] = []
        size = 0
        for item in items:
            if 0 < item.expires <= self._now_us():
                self.counts.read += 1
                self.counts.expired += 1
                continue
            if batch and (
                len(batch) == IMPORT_BATCH_ITEMS or size + len(item.value) > IMPORT_BATCH_BYTES
            ):
                self._add(batch)
                on_progress()
                batch, size = [], 0
            batch.append(item)
            size += len(item.value)
        self._add(batch)
        on_progress()

    def _add(self, batch: list[Item]) -> None:
        waiting = [item for item in batch if item.reason is None]
        asked: list[Call[Any]] = []
        for item in waiting:
            asked += calls.get(item.key, data=False), self._set(item, item.key)
        answers = self._ask(asked)
        for item, before, written in zip(waiting, answers[::2], answers[1::2], strict=True):
            self._count(item, written, stood=not isinstance(before, RefusedError))
        self._add_buried([item for item in batch if item.reason is not None])

    def _add_buried(self, items: list[Item]) -> None:
        left = []
        found = self._ask([calls.get(item.key, data=False) for item in items])
        for item, before in zip(items, found, strict=True):
            if isinstance(before, RefusedError) and before.code == "not-found":
                left.append(item)
            else:
                self._count(item, before, stood=True)
        left = self._go_on(left, lambda item: self._set(item, _aside(item.key)))
        for step in (_bury, _rename):
            kept = self._go_on(left, step)
            keys = {item.key for item in left} - {item.key for item in kept}
            self._ask([calls.delete(_aside(key), overwrite=True) for key in keys])
            left = kept
        for item in left:
            self._count(item, None, stood=False)

    def _go_on(self, items: list[Item], step: Callable[[Item], Call[Any]]) -> list[Item]:
        """Take a step with each item; return those it succeeded for, count the others."""
        kept = []
        for item, answer in zip(items, self._ask([step(item) for item in items]), strict=True):
            if isinstance(answer, RefusedError):
                self._count(item, answer, stood=False)
            else:
                kept.append(item)
        return kept

    def _set(self, item: Item, key: bytes) -> Call[Any]:
        uri = item.value if self._uri_from_body else b""
        call = calls.set_(
            key,
            item.value,
            uri=uri if 0 < len(uri) <= KEY_BYTES_MAX and uri != key else None,
            timestamp_us=item.timestamp,
        )
        # The value in the other journal: it may end before the request is sent.
        call.request.timeout = item.expires or None
        return call

    def _count(self, item: Item, answer: object, *, stood: bool) -> None:
        counts = self.counts
        counts.read += 1
        if not isinstance(answer, RefusedError):
            if stood:
                counts.already_there += 1
            else:
                counts.imported += 1
        elif answer.code == "stale" or (answer.code == "exists" and stood):
            counts.already_there += 1
        else:
            counts.refused += 1
            note(f"{item.path} at offset {item.offset}: refused: {answer}")

    def _ask(self, many: list[Call[Any]]) -> list[Any]:
        """Send all; a value over the daemon's max-value ends the connection, so make another."""
        try:
            answers: list[Any] = self._client.call_many(many) if many else []
        except CannotConnectError:
            if len(many) == 1 or not any(one.request.function == Function.SET for one in many):
                raise
            # which of them it was shows when they go one by one; sent again, they change nothing
            self._reconnect()
            answers = []
            for one in many:
                answers += self._ask([one])
            return answers
        for answer in answers:
            if isinstance(answer, RefusedError) and answer.code in _THE_DAEMON_STOPS:
                raise answer
        if any(
            isinstance(answer, RefusedError) and answer.code == "too-large" for answer in answers
        ):
            self._reconnect()
        return answers

    def _reconnect(self) -> None:
        self._client.close()
        self._client.connect()


def _aside(key: bytes) -> bytes:
    """Return a plain key of the same domain, the same one each time, that is no longer than a key.

    A hash of the rest takes no more bytes than the shortest rest that there is.
    """
    domain, _, rest = key.partition(b":")
    aside = b"%b:import:%b" % (domain, rest)
    if len(aside) <= KEY_BYTES_MAX:
        return aside
    return b"%b:import:%b" % (domain, blake2b(rest, digest_size=7).hexdigest().encode())


def _bury(item: Item) -> Call[Any]:
    return calls.bury(_aside(item.key), reason=item.reason or "")


def _rename(item: Item) -> Call[Any]:
    return calls.rename(_aside(item.key), item.key, timestamp_us=item.timestamp)


SUBCOMMANDS = {
    "beanstalkd": ("import_", "The jobs of a beanstalkd's binlog."),
    "kestrel": ("import_", "The items of a Kestrel's journals."),
    "workq": ("import_", "The jobs of a workq-server's command log."),
}


@click.group("import", cls=LazyGroup, lazy=SUBCOMMANDS, words="import")
def import_command() -> None:
    """Import the pending jobs of another queue into the daemon, as persistent work.

    A second import changes nothing, or finishes an interrupted one.
    """


@click.command("beanstalkd")
@set_limits_option
@import_options
def import_beanstalkd_command(ctx: click.Context, directory: str, **options: Any) -> int:
    """Set an entry for each job in the binlog DIR of a beanstalkd, which has to be stopped.

    A tube becomes a domain; a delayed job waits for its instant, a buried one stays buried, a
    reserved one is ready. Priorities over 255 are cut to 255. DIR is only read. Ends with counts;
    exit code 1 where something was refused or is damaged.
    """
    from fastjournal.foreign import open_beanstalkd

    return read_and_import(ctx, open_beanstalkd, directory, **options)


@click.command("kestrel")
@click.option(
    "--opcode-8",
    "opcode8",
    type=click.Choice(["auto", "continue", "state-dump"]),
    default="auto",
    help="Meaning of opcode 8; auto: the one with which the rest of its file can be read.",
)
@import_options
def import_kestrel_command(ctx: click.Context, directory: str, opcode8: Any, **options: Any) -> int:
    """Set an entry for each waiting item of the journals DIR of a Kestrel, which has to be stopped.

    A queue becomes a domain; items of open transactions wait too. DIR is only read. Ends with
    counts; exit code 1 where something was refused or is damaged.
    """
    from fastjournal.foreign import open_kestrel

    return read_and_import(ctx, partial(open_kestrel, opcode8=opcode8), directory, **options)


@click.command("workq")
@set_limits_option
@import_options
def import_workq_command(ctx: click.Context, directory: str, **options: Any) -> int:
    """Set an entry for each live job of the log DIR of a workq-server, which has to be stopped.

    Domain, priority, not-before, expiry and value are those of a daemon that starts on the log;
    failed jobs are buried. Attempts and leases are not carried over. DIR is only read. Ends with
    counts; exit code 1: a job was refused, or the log is damaged.
    """
    from fastjournal.foreign import open_workq

    return read_and_import(ctx, open_workq, directory, **options)
