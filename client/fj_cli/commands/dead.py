"""``fj-cli dead``: dead letters of queues, by error: counted, listed, retried, deleted.

All is done page by page: what a page has is retried or deleted before the next is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from fastjournal.client.core.delivery_reasons import error_group, error_line
from fastjournal.clock import SystemClock
from fastjournal.errors import RefusedError
from fastjournal.time_texts import format_relative
from fj_cli.cli import LazyGroup
from fj_cli.output import (
    bytes_field,
    confirm,
    counted,
    note,
    second_key_fields,
    show_bytes,
    show_domain,
    show_second_key,
    write_each,
    write_result,
)
from fj_cli.progress import ProgressBar
from fj_cli.shared_options import (
    DOMAIN,
    DONE,
    DURATION,
    NOTHING_TO_DO,
    REFUSED,
    complete_domain,
    on_daemon,
    open_client,
)

if TYPE_CHECKING:
    from fastjournal.client import DeadLetter, SyncClient

SUBCOMMANDS = {
    "list": ("dead", "Count dead letters by queue and error, or list them."),
    "retry": ("dead", "Make dead letters ready again."),
    "drop": ("dead", "Delete dead letters for good."),
}

_PAGE = 500
_GROUPS_MAX = 1000
"""Groups that are told apart, so that memory has a bound; the rest are one."""
OTHERS = "other errors"

_GONE = {"not-found", "stale", "locked", "worked-on"}
"""Codes of a dead letter that another client has changed meanwhile, or holds."""


@click.group("dead", cls=LazyGroup, lazy=SUBCOMMANDS, words="dead")
def dead_command() -> None:
    """Dead letters of queues: jobs that failed for good, or were buried."""


class _Found(NamedTuple):
    """A dead letter and its queue."""

    queue: bytes
    letter: DeadLetter


class Selection(NamedTuple):
    """Dead letters that the options choose."""

    queues: tuple[bytes, ...]
    """Empty: all."""
    error: str
    """Part of the error, or of its group, in lower case; empty: any."""
    older_us: int
    number_max: int | None
    """None: all."""

    def pages(self, client: SyncClient) -> Iterator[list[_Found]]:
        """Yield them, some at a time, in the order of work of each queue."""
        left = math.inf if self.number_max is None else self.number_max
        until_us = SystemClock().now_us() - self.older_us
        for queue in self.queues or _queues_with_dead_letters(client):
            page: list[_Found] = []
            for letter in client.dead_letters(queue, page=_PAGE):
                if letter.created_us <= until_us and self._has_error(letter.error):
                    page.append(_Found(queue, letter))
                    left -= 1
                if page and (len(page) == _PAGE or not left):
                    yield page
                    page = []
                if not left:
                    return
            if page:
                yield page

    def _has_error(self, error: str) -> bool:
        wanted = self.error
        return not wanted or wanted in error.lower() or wanted in error_group(error).lower()


def _queues_with_dead_letters(client: SyncClient) -> Iterator[bytes]:
    return (stats.name for stats in client.domains(page=_PAGE) if stats.buried)


_FILTERS = (
    click.option(
        "--queue",
        "queues",
        type=DOMAIN,
        multiple=True,
        shell_complete=complete_domain,
        help="Only of this queue; repeatable.",
    ),
    click.option(
        "--error",
        default="",
        show_default=False,
        metavar="TEXT",
        help="Only with this in the error.",
    ),
    click.option("--older", type=DURATION, help="Only jobs that were set so long ago, or longer."),
)


def selecting(command: Callable[..., int]) -> Callable[..., int]:
    """Declare the filters; the command gets a ``Selection``."""

    @wraps(command)
    def select(
        queues: tuple[bytes, ...],
        error: str,
        older: int | None,
        count: int | None,
        **others: Any,
    ) -> int:
        queues = tuple(dict.fromkeys(queues))
        return command(Selection(queues, error.strip().lower(), older or 0, count), **others)

    declared: Callable[..., int] = select
    for declare in reversed(_FILTERS):
        declared = declare(declared)
    return declared


class Group(msgspec.Struct):
    """Dead letters of a queue whose errors are alike."""

    queue: bytes
    error: str
    count: int = 0
    oldest_us: int = 0
    """When the first of them was set."""
    newest_us: int = 0
    key: bytes = b""
    """Key of the oldest."""

    def add(self, letter: DeadLetter) -> None:
        """Count one."""
        created = letter.created_us
        self.count += 1
        if not self.key or created < self.oldest_us:
            self.oldest_us, self.key = created, letter.key
        self.newest_us = max(self.newest_us, created)


def groups_of(pages: Iterator[list[_Found]]) -> list[Group]:
    """Return the groups of dead letters, the largest first."""
    groups: dict[tuple[bytes, str], Group] = {}
    with ProgressBar("reading") as bar:
        read = 0
        for page in pages:
            for queue, letter in page:
                name = queue, error_group(letter.error)
                if name not in groups and len(groups) >= _GROUPS_MAX:
                    name = b"", OTHERS
                if (group := groups.get(name)) is None:
                    group = groups[name] = Group(*name)
                group.add(letter)
            read += len(page)
            bar.update(read, None)
    return sorted(groups.values(), key=lambda group: (-group.count, group.queue, group.error))


@click.command("list")
@selecting
@click.option("--each", is_flag=True, help="List each dead letter, not only counts.")
@click.option(
    "--count", type=click.IntRange(1), help="At most that many dead letters.  [default: all]"
)
@on_daemon
def dead_list_command(
    ctx: click.Context, selection: Selection, each: bool, as_json: bool | None
) -> int:
    """Count the dead letters by queue and error, most first; with --each list them.

    Errors that differ in numbers only are one: '#' stands for the numbers. One of over 500
    characters is cut, and whole with --each. The age is since a job was set. Nothing changes.
    Exit code 75: there is none.
    """
    with open_client(ctx) as client:
        pages = selection.pages(client)
        if not each:
            groups = groups_of(pages)
            _write_groups(groups, as_json)
            return DONE if groups else NOTHING_TO_DO
        any_found = False
        for page in pages:
            any_found = True
            _write_letters(page, as_json)
    return DONE if any_found else NOTHING_TO_DO


def _write_groups(groups: list[Group], as_json: bool | None) -> None:
    now_us = SystemClock().now_us()
    write_each(
        groups,
        as_json,
        fields=lambda group: (
            bytes_field("queue", group.queue)
            | {"error": group.error, "count": group.count}
            | {"oldest_us": group.oldest_us, "newest_us": group.newest_us}
            | bytes_field("key", group.key)
        ),
        columns=("queue", "error", "count", "oldest", "newest", "key of the oldest"),
        row=lambda group: [
            show_domain(group.queue),
            group.error,
            f"{group.count:,}",
            format_relative(group.oldest_us, now_us),
            format_relative(group.newest_us, now_us),
            show_bytes(group.key),
        ],
    )


def _write_letters(page: list[_Found], as_json: bool | None) -> None:
    now_us = SystemClock().now_us()
    write_each(
        page,
        as_json,
        fields=lambda found: (
            bytes_field("queue", found.queue)
            | bytes_field("key", found.letter.key)
            | second_key_fields(found.letter.key, found.letter.uri)
            | {"error": found.letter.error, "attempts": found.letter.attempts}
            | {"created_us": found.letter.created_us}
        ),
        columns=("key", "URI or unique", "attempts", "set", "error"),
        row=lambda found: [
            show_bytes(found.letter.key),
            show_second_key(found.letter.key, found.letter.uri),
            str(found.letter.attempts),
            format_relative(found.letter.created_us, now_us),
            error_line(found.letter.error),
        ],
    )


def changing(past: str) -> Callable[[Callable[[DeadLetter], Any]], Callable[..., int]]:
    """Make a function that returns the call for a dead letter a command, with all its options.

    Args:
        past: What was done, as a word; what is to be done is the command's name.
    """

    def declare_command(call: Callable[[DeadLetter], Any]) -> Callable[..., int]:
        @wraps(call)
        def command(ctx: click.Context, selection: Selection, all_: bool, **how: Any) -> int:
            chosen = bool(selection.queues or selection.error or selection.older_us)
            if chosen == all_:
                raise click.UsageError(
                    "--all is without --queue, --error and --older"
                    if all_
                    else "give some of --queue, --error and --older, or --all",
                    ctx,
                )
            return _change(ctx, selection, call, past, **how)

        declared: Callable[..., int] = on_daemon(command)
        for declare in (
            click.option("--yes", is_flag=True, help="Do not ask first."),
            click.option("--dry-run", is_flag=True, help="Show which, and change nothing."),
            click.option(
                "--count", type=click.IntRange(1), help="At most that many.  [default: all]"
            ),
            click.option("--all", "all_", is_flag=True, help="All dead letters of all queues."),
        ):
            declared = declare(declared)
        return selecting(declared)

    return declare_command


@click.command("retry")
@changing("retried")
def dead_retry_command(letter: DeadLetter) -> Any:
    """Make dead letters ready again: those of the queues, with the error, of the age.

    Their attempts are counted anew, the last error stays. Exit code 1: some were changed by others
    meanwhile; 75: there was none.
    """
    from fastjournal.client.core import calls

    return calls.kick(letter.key)


@click.command("drop")
@changing("dropped")
def dead_drop_command(letter: DeadLetter) -> Any:
    """Delete dead letters for good: those of the queues, with the error, of the age.

    One that was set anew meanwhile stays. Exit code 1: some were changed by others meanwhile; 75:
    there was none.
    """
    from fastjournal.client.core import calls

    return calls.delete(letter.key, timestamp_us=letter.timestamp_us)


def _change(
    ctx: click.Context,
    selection: Selection,
    call: Callable[[DeadLetter], Any],
    past: str,
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool | None,
) -> int:
    """Ask, and make the call for each dead letter; return the exit code."""
    verb = ctx.command.name or ""
    with open_client(ctx) as client:
        there = None
        if dry_run or not yes:
            groups = groups_of(selection.pages(client))
            there = sum(group.count for group in groups)
            what = counted(there, "dead letter")
            if dry_run:
                _write_groups(groups, as_json)
                note(f"fj-cli: would {verb} {what}")
                return DONE if there else NOTHING_TO_DO
            if there:
                confirm(f"{verb.capitalize()} {what}?", f"it would {verb} {what}")
        changed, stayed = 0, 0
        if there != 0:
            changed, stayed = _call_each(client, selection, call, (verb, there))
    if stayed:
        note(f"fj-cli: {stayed:,} stay: others have changed or locked them meanwhile")
    fields = {past: changed, "stayed": stayed}
    write_result(as_json, fields, f"{changed:,} {past}", note)
    return REFUSED if stayed else DONE if changed else NOTHING_TO_DO


def _call_each(
    client: SyncClient,
    selection: Selection,
    call: Callable[[DeadLetter], Any],
    shown: tuple[str, int | None],
) -> tuple[int, int]:
    """Return how many were changed, and how many stayed as others have changed them.

    Raises:
        RefusedError: The daemon refused it for another reason.
    """
    verb, total = shown
    changed = stayed = 0
    with ProgressBar(verb) as bar:
        for page in selection.pages(client):
            for outcome in client.call_many([call(found.letter) for found in page]):
                if isinstance(outcome, RefusedError) and outcome.code not in _GONE:
                    raise outcome
                # KICK: 0, it is not buried any more
                if isinstance(outcome, RefusedError) or outcome == 0:
                    stayed += 1
                else:
                    changed += 1
            bar.update(changed + stayed, total)
    return changed, stayed
