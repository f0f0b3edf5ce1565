"""``fj-cli stats``, ``workers`` and ``explain``: counts, who works, why an entry waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from fastjournal.client.core.delivery_reasons import (
    NO_WORKER,
    DeliveryReason,
    order_text,
    reasons_of,
    state_of,
    state_word,
    took_uri_text,
)
from fastjournal.client.core.stats import unique_among
from fastjournal.clock import SystemClock
from fastjournal.errors import RefusedError
from fastjournal.keys import parse_journal_key, typed_domain
from fastjournal.time_texts import format_local, format_relative, format_when
from fj_cli.output import (
    INSTANTS,
    bytes_field,
    counted,
    note,
    show_bytes,
    show_domain,
    show_field,
    wants_json,
    write_each,
    write_fields,
    write_json,
    write_line,
)
from fj_cli.shared_options import (
    DOMAIN,
    DONE,
    NAME,
    NOTHING_TO_DO,
    REFUSED,
    complete_domain,
    on_daemon,
    open_client,
)

if TYPE_CHECKING:
    from fastjournal.client import EntryExplanation, SyncClient, WorkerStats
    from fj_cli.entry_history import HistoryEvent

_LABELS = {"worked_on": "leased", "jobs_max": "jobs"}
"""Words of the tables of other commands; JSON has the names of the protocol."""
_OPTIONAL = {
    *("oldest_due_us", "oldest_waiting_us", "interval_us", "jobs_max", "attempts_max"),
    *("deliveries", "jobs_completed", "attempts_failed", "leases_lost", "jobs_buried"),
    *("waited_us", "run_us", "clock_behind_us"),
    *("remote_epoch", "remote_lag_bytes", "remote_lag_us", "remote_checkpoint_age_us"),
    *("paused_until_us", "daemon_paused_until_us", "workers_busy"),
}
"""Counts of which 0 is none: a table leaves them out."""


@click.command("stats")
@click.argument(
    "what", type=NAME, default="", metavar="[DOMAIN|KEY]", shell_complete=complete_domain
)
@click.option("--entry", is_flag=True, help="It is a key, though it has no ':'.")
@on_daemon
def stats_command(ctx: click.Context, what: bytes, entry: bool, as_json: bool | None) -> None:
    """Show counts of the daemon, of a DOMAIN, or all that is known of the entry under KEY.

    A name with a ':' is a key, but for the domain of a host with a port: example.org:8080.
    """

    is_entry = entry or b":" in what
    with open_client(ctx) as client:
        domain = what if entry else typed_domain(what)
        if is_entry and domain != what and client.domain_stats(domain).entries:
            # a host with a port, as tables show it
            what, is_entry = domain, False
        found = client.stats(what, data=is_entry)
    # instants of the daemon's object do not say their unit
    fields = {f"{name}_us" if f"{name}_us" in INSTANTS else name: found[name] for name in found}
    if is_entry:
        fields["state"] = state_word(fields["state"])
        fields["unique"] = unique_among(fields["keys"])
    if what and not is_entry and not (fields["entries"] or fields["paused_until_us"]):
        note(f"fj-cli: the domain {show_domain(what)} has no entries and no pause")
    if wants_json(as_json):
        write_json(fields)
        return
    keys = fields.pop("keys", [])
    shown = [("" if number else "keys", key) for number, key in enumerate(keys)]
    if not is_entry:
        fields = {name: fields[name] for name in fields if fields[name] or name not in _OPTIONAL}
    shown += [
        (_LABELS.get(name, name.removesuffix("_us")), show_field(name, value))
        for name, value in fields.items()
    ]
    write_fields((show_bytes if is_entry else show_domain)(what) or None, shown)


@click.command("workers")
@click.option(
    "--queue",
    type=DOMAIN,
    shell_complete=complete_domain,
    help="Only those that work on this queue, wait for its work, or take it and are busy.",
)
@on_daemon
def workers_command(ctx: click.Context, queue: bytes | None, as_json: bool | None) -> int:
    """List the connections that work on jobs, or wait for work: who, on what, since when.

    'gone': the connection has ended, and its leases go on until their end. Workers that have leases
    come first, 100 are listed at most. It needs a token for all domains. Exit code 75: there is
    none; with --queue: nobody works on the queue, waits for its work, or took it last and is busy.
    """
    with open_client(ctx) as client:
        daemon = client.daemon_stats(workers=True)
        of_queue = None if queue is None else client.domain_stats(queue)
    workers = daemon.workers
    if queue is not None:
        name = queue.decode("utf-8", "backslashreplace")
        workers = [worker for worker in workers if worker.serves(name)]
    now_us = SystemClock().now_us()
    write_each(
        workers,
        as_json,
        fields=msgspec.to_builtins,
        columns=("worker", "state", "leased", "since", "queue", "waits for"),
        row=lambda worker: _worker_row(worker, now_us),
    )
    if daemon.workers_cut:
        note(f"fj-cli: there are more workers than these {len(daemon.workers)}")
    if queue is None or of_queue is None:
        return DONE if workers else NOTHING_TO_DO
    waits = counted(of_queue.next_waiting, "request")
    leased, due = counted(of_queue.worked_on, "job"), counted(of_queue.due, "job")
    note(f"{show_domain(queue)}: {leased} leased, {due} due, {waits} for work waiting")
    busy = of_queue.workers_busy
    if busy and not of_queue.next_waiting:
        takes = "1 worker takes" if busy == 1 else f"{busy:,} workers take"
        note(f"{takes} work of {show_domain(queue)}, all busy")
    return DONE if of_queue.worked_on or of_queue.next_waiting or busy else NOTHING_TO_DO


def _worker_row(worker: WorkerStats, now_us: int) -> list[str]:
    state = "working" if worker.worked_on else "idle"
    waits = [
        f"{name[:-1]}..." if name[-1:] == ":" else show_domain(name.encode()) or "any queue"
        for name in worker.waits_for
    ]
    return [
        worker.name,
        state if worker.connected else "gone",
        f"{worker.worked_on:,}",
        format_relative(worker.since_us, now_us) if worker.since_us else "",
        show_domain(worker.domain.encode()),
        ", ".join(waits),
    ]


@click.command("explain")
@click.argument("key", type=NAME, metavar="KEY|URI")
@click.option(
    "--log",
    "log_directory",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=str),
    help="Show the history from this command log or snapshot, too.",
)
@on_daemon
def explain_command(
    ctx: click.Context, key: bytes, log_directory: str | None, as_json: bool | None
) -> int:
    """Say why the entry under KEY or URI is not delivered now, since when and until when.

    It also says what to do, and with --log what happened to the entry so far. A URI leads to its
    newest entry. Exit code 1: there is no entry and no tombstone under this name.
    """

    with open_client(ctx) as client:
        entry = _find(client, key)
        near = [] if entry is not None else _near(client, key)
    events = [] if log_directory is None else _history(log_directory, key)
    if entry is None:
        reasons = [_missing(key, events, log_directory, near)]
    else:
        reasons = reasons_of(entry)
    reasons = [_with_history(reason, events) for reason in reasons]
    found = _Explanation(key, entry, reasons, events, log_directory)
    if wants_json(as_json):
        write_json(_fields(found))
    else:
        _write_text(found, SystemClock().now_us() if entry is None else entry.now_us)
    return REFUSED if entry is None and not events else DONE


class _Explanation(NamedTuple):
    """Answer of ``explain``."""

    key: bytes
    entry: EntryExplanation | None
    reasons: list[DeliveryReason]
    events: list[HistoryEvent]
    log_directory: str | None

    @property
    def state(self) -> str:
        """The state of the entry in a word."""
        return "missing" if self.entry is None else state_of(self.entry)


def _find(client: SyncClient, key: bytes) -> EntryExplanation | None:
    try:
        return client.explain(key)
    except RefusedError as error:
        if error.code != "not-found":
            raise
        return None


def _near(client: SyncClient, key: bytes) -> list[str]:
    """Return what may have been meant instead of a key that is not there."""
    # a GET of keys like it would move their expiries
    if b":" in key or not client.domain_stats(key).entries:
        return []
    name = show_bytes(key)
    return [f"{name} is a domain: fj-cli stats {name}, fj-cli peek {name}"]


def _history(directory: str, key: bytes) -> list[HistoryEvent]:
    from fastjournal.cmdlog.locks import lock_to_read
    from fastjournal.disk import OsDisk
    from fj_cli.entry_history import entry_history
    from fj_cli.records import segments_in

    disk = OsDisk()
    with lock_to_read(disk, directory):
        return list(entry_history(disk, directory, segments_in(disk, directory), key, None))


def _missing(
    key: bytes, events: list[HistoryEvent], log_directory: str | None, near: list[str]
) -> DeliveryReason:
    """Return why there is no entry, as far as it is in the log."""

    ended = next((event for event in reversed(events) if event.key), None)
    if ended is not None and ended.what == "expired":
        return DeliveryReason(
            code="expired",
            text="its expiry is over: the daemon removed it without a tombstone",
            since_us=ended.time_us,
            advice=("set it again, with a later --expires, or without one",),
        )
    if ended is not None:
        last = f"{ended.what} ({ended.text})" if ended.text else ended.what
        return DeliveryReason(
            code="gone",
            text=f"there is no entry any more; the last event of the log is: {last}",
            since_us=ended.time_us,
            advice=("set it again",),
        )
    hint = [] if log_directory is not None else ["look into the log: --log DIR"]
    causes = "never set, expired, in memory only before a restart, or deleted longer ago than"
    if parse_journal_key(key) is None:
        # a tombstone has the primary key alone
        causes = f"its job was completed or deleted (a URI has no tombstone), {causes}"
        hint.append("or explain the journal key of the job")
    return DeliveryReason(
        code="not-found",
        text=f"there is neither an entry nor a tombstone: {causes} tombstone-ttl",
        advice=(*near, *hint, "list keys: fj-cli list --prefix ..., domains: fj-cli domains"),
    )


_BEGINS = {
    "leased": ("leased",),
    "buried": ("buried",),
    "paused": ("domain paused",),
    "all-paused": ("all domains paused",),
    "back-off": ("failed",),
    "delayed": ("delayed",),
}
"""By the code of a reason, the event with which it began."""


def _with_history(reason: DeliveryReason, events: list[HistoryEvent]) -> DeliveryReason:
    """Return a reason with the instant at which it began, where the log has that."""
    begins = _BEGINS.get(reason.code, ())
    began = next((e.time_us for e in reversed(events) if e.what in begins), None)
    return reason if began is None else msgspec.structs.replace(reason, since_us=began)


def _fields(found: _Explanation) -> dict[str, Any]:
    entry, reasons = found.entry, found.reasons
    fields = bytes_field("asked", found.key) | {"state": found.state}
    if entry is not None:
        fields |= {
            "keys": entry.keys,
            "unique": entry.unique,
            "took_uri_from": entry.took_uri_from,
            "took_uri_us": entry.took_uri_us or None,
            "domain": entry.domain,
            "attempts": entry.attempts,
            "attempts_max": entry.attempts_max or None,
            "last_error": entry.last_error,
            "expires_us": entry.expires_us or None,
            "due_now": entry.state == "ready" and all(r.code in NO_WORKER for r in reasons),
            "ready_before": entry.ready_before if entry.state == "ready" else None,
        }
    fields["reasons"] = msgspec.to_builtins(reasons)
    history = [_event_fields(event) for event in found.events]
    return fields | {"history": None if found.log_directory is None else history}


def _event_fields(event: HistoryEvent) -> dict[str, Any]:
    fields: dict[str, Any] = {"time_us": event.time_us, "event": event.what}
    if event.key:
        fields |= bytes_field("key", event.key)
    fields |= {"until_us": event.until_us, "text": event.text or None}
    return fields | {"segment": event.segment, "offset": event.offset}


def _write_text(found: _Explanation, now_us: int) -> None:

    entry, log_directory = found.entry, found.log_directory
    keys = [show_bytes(found.key)] if entry is None else entry.keys
    lines = [keys[0], *(f"  also       {other}" for other in keys[1:])]
    if entry is not None and entry.unique is not None:
        lines.append(f"  unique     {entry.unique}, in its queue")
    if entry is not None and (took := took_uri_text(entry)):
        lines.append(f"  replaced   {took}, {format_when(entry.took_uri_us, now_us)}")
    lines.append(f"  state      {found.state}")
    if entry is not None and entry.attempts:
        of = f" of {entry.attempts_max}" if entry.attempts_max else ""
        lines.append(f"  attempts   {entry.attempts}{of} failed")
    if entry is not None and entry.expires_us:
        lines.append(f"  expires    {format_when(entry.expires_us, now_us)}")
    if entry is not None and not found.reasons:
        lines.append(order_text(entry))
    elif found.reasons:
        lines.append("Not delivered now:")
    for line in lines:
        write_line(line)
    for reason in found.reasons:
        _write_reason(reason, now_us, log_is_read=log_directory is not None)
    if log_directory is not None:
        _write_history(found.events, now_us, log_directory)


def _write_reason(reason: DeliveryReason, now_us: int, *, log_is_read: bool) -> None:
    write_line(f"  {reason.text}")
    times = [
        f"{word} {format_when(instant, now_us)}"
        for word, instant in (("since", reason.since_us), ("until", reason.until_us))
        if instant is not None
    ]
    if reason.since_us is None and reason.code in _BEGINS and not log_is_read:
        times.append("since when: only the log has that (--log DIR)")
    if times:
        write_line(f"    {', '.join(times)}")
    for advice in reason.advice:
        write_line(f"    > {advice}")


def _write_history(events: list[HistoryEvent], now_us: int, log_directory: str) -> None:
    if not events:
        write_line(f"The log in {log_directory} has nothing about it (any more).")
        return
    write_line(f"History from {log_directory}:")
    before = b""
    for event in events:
        time = "no time" if event.time_us is None else format_local(event.time_us, now_us)
        words = f"  {time:22}  {event.what}"
        if event.until_us is not None:
            words += f" until {format_when(event.until_us, now_us)}"
        if event.text:
            words += f": {event.text}"
        write_line(words)
        if event.key and event.key != before:
            write_line(f"  {'':22}  {show_bytes(event.key)}")
            before = event.key
