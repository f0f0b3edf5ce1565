"""Reasons for which an entry is not delivered now, and what to do, for people. Pure.

``fj-cli explain`` shows them, and the daemon's page of an entry.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

import msgspec

from fastjournal.client.core.stats import EntryExplanation
from fastjournal.keys import shown_domain
from fastjournal.limits import INSTANT_US_MAX
from fastjournal.time_texts import format_duration

HIDDEN = "an entry that your token does not cover"
_IF_GONE = "if the worker is gone:"


_GROUP_TEXT_MAX = 500
"""Characters of an error that tell its group: few enough for the address of a page."""
_GROUPS_KEPT = 1024
"""Lines of errors whose groups are remembered: many jobs fail with the same one."""

_VARIABLE = re.compile(
    r"0x[0-9a-f]+|[\w.+%-]+@[\w-]+(?:\.[\w-]+)*"
    r"|(?<!\w)'[^']+'(?!\w)|\"[^\"]+\""
    r"|(?<![\w#-])(?=[\w-]*[a-z])(?=[\w-]*\d)\w+(?:[-_]\w+)+"
    r"|(?<!\w)(?=[a-f-]*\d)[0-9a-f][0-9a-f-]{7,}(?!\w)"
    r"|(?<![\w.])(?<!http/)\d+(?:[.:,]\d+)*",
    re.IGNORECASE,
)
"""Addresses, also of e-mail, quoted words, identifiers, dates, numbers."""

_CODE = re.compile(
    r"\b(?:code|errno|exit|ftp|https?(?:/[\d.]+)?|[ls]mtp|refused|response|signal|status)"
    r"[\s:=(]{1,2}$"
    r"|error(?:\s|: ?\()$",
    re.IGNORECASE,
)
"""Word before a number that tells errors apart."""
_CODE_CHARACTERS = 40
"""More than such a word and what is behind it have."""
_STATUS = re.compile("[1-5][0-9]{2}")
"""Status code of HTTP, SMTP or FTP, which may begin an error."""
_WORD = re.compile(r"\S+")
_MAY_VARY = re.compile(r"[\d@]")


def error_group(text: str) -> str:
    """Return what an error has in common with those that are alike: its line, ``#`` for numbers.

    Exit and status codes stay. It is cut where it is long.
    """
    return _group_of_line(error_line(text)[:_GROUP_TEXT_MAX]) or "no error given"


@lru_cache(_GROUPS_KEPT)
def _group_of_line(line: str) -> str:
    """Return ``_VARIABLE.sub(_without_number, line)``, looked for only where it can be.

    All that varies is in a word with a digit or an ``@``, unless it is quoted.
    """
    if "'" in line or '"' in line:
        return _VARIABLE.sub(_without_number, line)
    parts: list[str] = []
    end = 0
    for word in _WORD.finditer(line):
        if _MAY_VARY.search(word[0]):
            for match in _VARIABLE.finditer(line, *word.span()):
                parts += line[end : match.start()], _without_number(match)
                end = match.end()
    return "".join(parts) + line[end:]


def error_line(text: str) -> str:
    """Return the line of an error that says what it is: the first one, of a traceback the last."""
    text = text.strip()
    is_traceback = text.startswith("Traceback ")
    return (text.rpartition("\n")[2] if is_traceback else text.partition("\n")[0]).strip()


def _without_number(match: re.Match[str]) -> str:
    number, at = match[0], match.start()
    before = max(0, at - _CODE_CHARACTERS)
    is_code = number.isdecimal() and _CODE.search(match.string, before, at) is not None
    return number if is_code or (not at and _STATUS.fullmatch(number)) else "#"


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
    if entry.state == "ready" and not found and entry.domain_next_waiting == 0:
        found.append(_no_worker(entry))
    return found


NO_WORKER: Final = ("no-worker", "workers-busy")
"""Codes of the reasons for which an entry that is due now is not taken."""


def order_text(entry: EntryExplanation) -> str:
    """Return what an entry waits for that nothing holds back: its turn."""
    return f"not waiting for anything: {_place(entry)}"


def _place(entry: EntryExplanation) -> str:
    before = entry.ready_before
    if not before:
        return "due now, the first of its domain"
    return f"due now, {_times(before, 'entry', 'entries')} before it in its domain"


def _no_worker(entry: EntryExplanation) -> DeliveryReason:
    """Return that nobody waits for work of the domain of an entry that is due."""
    name = shown_domain((entry.domain or "").encode()).decode()
    busy, leased = entry.domain_workers_busy, entry.domain_worked_on
    see = f"see them: fj-cli workers --queue {_word(name)}"
    if busy:
        takes = "worker takes" if busy == 1 else "workers take"
        text = f"{_place(entry)}; {busy:,} {takes} work of {name}, and all are busy"
        more = f"wait for one of them, or start more: {_start(name)}"
        return DeliveryReason(code="workers-busy", text=text, advice=(more, see))
    text = f"{_place(entry)}, but no worker waits for work of {name}"
    if leased:
        text += f"; {_times(leased, 'job')} of it {'is' if leased == 1 else 'are'} leased,"
        text += " so its workers may be busy"
    return DeliveryReason(code="no-worker", text=text, advice=(f"start one: {_start(name)}", see))


def _start(name: str) -> str:
    return f"fj-worker ... --queues {_word(name)}"


_ONE_OF_A_URI = "of a URI one job waits, over all queues"


def took_uri_text(entry: EntryExplanation) -> str:
    """Return which job of another queue gave way to an entry; empty: none that is known."""
    if entry.took_uri_from is None:
        return ""
    return f"it took its URI from {_of_queue(entry.took_uri_from)}: {_ONE_OF_A_URI}"


def _of_queue(key: str) -> str:
    return f"{key}, a job of the queue {key.partition(':')[0]}" if key else HIDDEN


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
        text += f": {error_line(entry.buried_reason)}"
    key = _key(entry)
    yield DeliveryReason(
        code="buried",
        text=text,
        advice=(f"repair the cause, then: fj-cli kick {key}", f"or drop it: fj-cli delete {key}"),
    )


def _deleted(entry: EntryExplanation) -> Iterator[DeliveryReason]:
    if entry.uri_taken_by is not None:
        by = entry.uri_taken_by
        yield DeliveryReason(
            code="replaced",
            text=f"replaced by {_of_queue(by)}, which has the same URI: {_ONE_OF_A_URI}",
            since_us=entry.deleted_us,
            advice=(
                "for one job in each queue, enqueue with unique=... in place of uri=... (fj-cli"
                " set --unique)",
                *([f"look at it: fj-cli explain {_word(by)}"] if by else []),
            ),
        )
        return
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
        failed = _times(entry.attempts, "failed attempt")
        return DeliveryReason(
            code="back-off",
            text=f"{failed}, the last: {error_line(entry.last_error)}",
            until_us=until,
            advice=("wait for the next attempt, or repair the cause",),
        )
    if entry.attempts > 1 and not untouched:
        return DeliveryReason(
            code="back-off",
            text=f"{_times(entry.attempts, 'lost lease')}: its workers ended, or did not renew it",
            until_us=until,
            advice=("see whether it kills its workers, or takes longer than their lease",),
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
    name = shown_domain((entry.domain or "").encode()).decode()
    domain = _word(name)
    if entry.daemon_paused_until_us > entry.now_us:
        until = entry.daemon_paused_until_us
        yield DeliveryReason(
            code="all-paused",
            text="all domains are paused",
            until_us=until if until <= INSTANT_US_MAX else None,
            advice=("wait, or end the pause: fj-cli resume --all",),
        )
    if entry.domain_paused_until_us > entry.now_us:
        yield DeliveryReason(
            code="paused",
            text=f"the domain {name} is paused",
            until_us=entry.domain_paused_until_us,
            advice=(f"wait, or end the pause: fj-cli resume {domain}",),
        )
    if entry.domain_waits_until_us > entry.now_us:
        interval = format_duration(entry.domain_interval_us)
        yield DeliveryReason(
            code="limited",
            text=f"rate limit of the domain {name}: one delivery each {interval}",
            since_us=entry.domain_delivered_us or None,
            until_us=entry.domain_waits_until_us,
            advice=(f"wait, or change it: fj-cli limit {domain} --interval ...",),
        )
    if entry.domain_is_full:
        jobs = _times(entry.domain_worked_on, "entry", "entries")
        yield DeliveryReason(
            code="limited",
            text=f"concurrency limit of the domain {name}: {jobs} leased,"
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
