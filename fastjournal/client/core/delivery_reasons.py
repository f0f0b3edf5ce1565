"""Reasons for which an entry is not delivered now, and what to do, for people. Pure.

``fj-cli explain`` shows them, and the daemon's page of an entry.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import msgspec

from fastjournal.client.core.stats import EntryExplanation
from fastjournal.time_texts import format_duration

HIDDEN = "an entry that your token does not cover"
_IF_GONE = "if the worker is gone:"


class DeliveryReason(msgspec.Struct, frozen=True, kw_only=True):
    """One reason for which an entry is not delivered now."""

    code: str
    text: str
    since_us: int | None = None
    """None: the daemon does not keep it; the log may."""
    until_us: int | None = None
    """None: until an action of an operator or a client."""
    advice: tuple[str, ...] = ()


def state_of(entry: EntryExplanation) -> str:
    """Return the state in words: due, delayed, locked, leased, buried, plain or deleted."""
    if entry.state == "delayed" and entry.locked_until_us > entry.now_us:
        return "locked"
    return state_word(entry.state)


def state_word(state: str) -> str:
    """Return the word for a state of STATS that every command shows."""
    return {"ready": "due", "worked on": "leased"}.get(state, state)


def reasons_of(entry: EntryExplanation, *, shows_token: bool = True) -> list[DeliveryReason]:
    """Return why an entry is not delivered now, the most important first; none: it is due.

    Args:
        entry: Its state.
        shows_token: Advice may have the lease token. Else ``worked_on_until_us`` may be rounded.
    """
    reasons = {
        "worked on": _leased,
        "buried": _buried,
        "deleted": _deleted,
        "plain": _plain,
        "delayed": _delayed,
    }.get(entry.state)
    found = list(reasons(entry)) if reasons is not None else []
    if not shows_token:
        found = list(map(_without_token, found))
    if entry.state in ("ready", "delayed"):
        found += _held(entry)
    return found


def order_text(entry: EntryExplanation) -> str:
    """Return what an entry waits for that nothing holds back: its turn."""
    before = entry.ready_before
    if not before:
        return "not waiting for anything: due now, the first of its domain"
    entries = "1 entry" if before == 1 else f"{before:,} entries"
    return f"not waiting for anything: due now, {entries} before it in its domain"


def _leased(entry: EntryExplanation) -> Iterator[DeliveryReason]:
    key = _key(entry)
    gone = bool(entry.worked_on_by) and not entry.worker_connected
    text = f"leased to the worker {entry.worked_on_by}" if entry.worked_on_by else "leased"
    if gone:
        text += ", whose connection has ended"
    elif not entry.worked_on_by:
        text += " since before the daemon's start"
    if entry.attempts:
        text += f", after {_times(entry.attempts, 'failed attempt')}"
    if entry.superseded:
        text += "; a newer entry has its URI, so it is dropped when the lease ends"
        if entry.superseded_by is not None:
            text += f": {entry.superseded_by or HIDDEN}"
    if 0 < entry.expires_us <= entry.now_us:
        text += "; its expiry is over, so it goes when the lease ends"
    yield DeliveryReason(
        code="leased",
        text=text,
        since_us=entry.worked_on_since_us or None,
        until_us=entry.lease_ends_us or entry.worked_on_until_us,
        advice=(
            "wait for its worker, or for the end of the lease",
            f"{_IF_GONE} fj-cli release {key} {entry.worked_on_until_us}",
        ),
    )


def _buried(entry: EntryExplanation) -> Iterator[DeliveryReason]:
    failures = entry.attempts
    text = f"buried after {_times(failures, 'failed attempt')}" if failures else "buried"
    if entry.buried_reason:
        text += f": {entry.buried_reason}"
    key = _key(entry)
    yield DeliveryReason(
        code="buried",
        text=text,
        advice=(f"repair the cause, then: fj-cli kick {key}", f"or drop it: fj-cli delete {key}"),
    )


def _deleted(entry: EntryExplanation) -> Iterator[DeliveryReason]:
    yield DeliveryReason(
        code="tombstone",
        text="completed, deleted or replaced; its tombstone keeps older SETs of this key out",
        since_us=entry.deleted_us,
        until_us=entry.tombstone_until_us,
        advice=(
            "set it anew: fj-cli set takes a new timestamp, which wins over the tombstone",
            f"a SET is stale up to timestamp {entry.timestamp_us}: look at the producer's clock",
        ),
    )


def _plain(_entry: EntryExplanation) -> Iterator[DeliveryReason]:
    yield DeliveryReason(
        code="plain",
        text="it has no journal key <domain>:<priority>:<instant>:<id>, so it is no job",
        advice=("add work with: fj-cli set --domain DOMAIN VALUE",),
    )


def _delayed(entry: EntryExplanation) -> Iterator[DeliveryReason]:
    now = entry.now_us
    if entry.locked_until_us > now:
        yield DeliveryReason(
            code="locked",
            text="locked by a connection",
            since_us=entry.locked_since_us or None,
            until_us=entry.locked_until_us,
            advice=("wait: the lock ends with its connection, UNLOCK, or by time",),
        )
    if entry.uri_leased_by is not None:
        look = f"look at it: fj-cli explain {_word(entry.uri_leased_by)}"
        yield DeliveryReason(
            code="uri-in-work",
            text=f"its URI is in work elsewhere: {entry.uri_leased_by or HIDDEN} is leased",
            since_us=entry.uri_leased_since_us or None,
            until_us=entry.uri_leased_until_us,
            advice=(
                "wait for that worker: one resource is never worked on twice at a time",
                *([look] if entry.uri_leased_by else []),
            ),
        )
    if entry.not_before_us > now:
        yield _not_before(entry)


def _not_before(entry: EntryExplanation) -> DeliveryReason:
    until = entry.not_before_us
    untouched = entry.accessed_us <= entry.modified_us
    if 0 < entry.first_due_us < until:
        bound = entry.postpone_us_max
        limit = f", at most {format_duration(bound)} (max-postpone)" if bound else ""
        return DeliveryReason(
            code="postponed",
            text=f"put off by newer SETs of its URI{limit}",
            since_us=entry.first_due_us,
            until_us=until,
            advice=("set it with a shorter delay, or wait",),
        )
    if entry.last_error is not None and not untouched:
        return DeliveryReason(
            code="back-off",
            text=f"{_times(entry.attempts, 'failed attempt')}, the last: {entry.last_error}",
            until_us=until,
            advice=("wait for the next attempt, or repair the cause",),
        )
    return DeliveryReason(
        code="delayed",
        text="delayed by its key or by a release with a delay",
        since_us=entry.modified_us if untouched else None,
        until_us=until,
        advice=("wait, or set it anew with an earlier instant",),
    )


def _held(entry: EntryExplanation) -> Iterator[DeliveryReason]:
    """Yield what holds the whole domain back."""
    domain = _word(entry.domain or "")
    if entry.domain_paused_until_us > entry.now_us:
        yield DeliveryReason(
            code="paused",
            text=f"the domain {entry.domain} is paused",
            until_us=entry.domain_paused_until_us,
            advice=(f"wait, or end the pause: fj-cli resume {domain}",),
        )
    if entry.domain_waits_until_us > entry.now_us:
        interval = format_duration(entry.domain_interval_us)
        yield DeliveryReason(
            code="limited",
            text=f"rate limit of the domain {entry.domain}: one delivery each {interval}",
            since_us=entry.domain_delivered_us or None,
            until_us=entry.domain_waits_until_us,
            advice=(f"wait, or change it: fj-cli limit {domain} --interval ...",),
        )
    if entry.domain_is_full:
        jobs = _times(entry.domain_worked_on, "entry", "entries")
        yield DeliveryReason(
            code="limited",
            text=f"concurrency limit of the domain {entry.domain}: {jobs} leased,"
            f" {entry.domain_jobs_max} allowed",
            since_us=entry.domain_delivered_us or None,
            until_us=entry.domain_held_until_us or None,
            advice=(f"wait for a worker, or change it: fj-cli limit {domain} --jobs ...",),
        )
    if entry.read_only:
        yield DeliveryReason(
            code="read-only",
            text="the daemon's disk is nearly full, so it delivers nothing",
            advice=("free space on the daemon's disk",),
        )


def _without_token(reason: DeliveryReason) -> DeliveryReason:
    advice = tuple(text for text in reason.advice if not text.startswith(_IF_GONE))
    return msgspec.structs.replace(reason, advice=advice)


def _key(entry: EntryExplanation) -> str:
    return _word(entry.keys[0])


def _word(text: str) -> str:
    return shlex.quote(text)


def _times(number: int, one: str, many: str | None = None) -> str:
    return f"1 {one}" if number == 1 else f"{number:,} {many or one + 's'}"
