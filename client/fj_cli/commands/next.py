"""``fj-cli next`` and ``peek``: lease what is due, or show what NEXT would deliver now."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import click
import msgspec

from fastjournal.clock import SystemClock
from fastjournal.errors import BadRequestError, RefusedError
from fastjournal.limits import FAILED_ATTEMPTS_MAX, JOB_LEASE_US_MIN, PAIRS_MAX
from fastjournal.time_texts import format_when
from fj_cli.output import note, note_nothing_due, released_unless_written, write_jobs
from fj_cli.shared_options import (
    DOMAIN,
    DONE,
    DURATION,
    LEASE,
    NAME,
    NOTHING_TO_DO,
    ParsedType,
    complete_domain,
    lease_option,
    on_daemon,
    open_client,
    ours_among,
    refuse_options,
    to_microseconds,
)
from fj_cli.text import FOREVER_US, to_duration, to_wait

if TYPE_CHECKING:
    from fastjournal.client import Entry, SyncClient

FOREVER = "forever"


_Domains: TypeAlias = bytes | tuple[bytes, ...]

WAIT = ParsedType("duration", lambda text: FOREVER_US if text == FOREVER else to_microseconds(text))
"""A duration, or ``forever``; its value is in microseconds, see FOREVER_US."""


def _domains(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the arguments and options that say of which domains work is wanted."""
    for parameter in (
        click.option("--prefix", type=NAME, help="All domains whose names begin so, in turns."),
        click.option(
            "--ordered", is_flag=True, help="Serve the first DOMAIN that has work; else in turns."
        ),
        click.argument(
            "domains", metavar="[DOMAIN]...", type=DOMAIN, nargs=-1, shell_complete=complete_domain
        ),
    ):
        command = parameter(command)
    return command


def _selection(
    ctx: click.Context, domains: tuple[bytes, ...], *, ordered: bool, prefix: bytes | None
) -> _Domains:
    """Return the domains as the clients take them."""
    if ordered and len(domains) < 2:
        raise click.UsageError("--ordered needs several DOMAINs", ctx)
    if prefix and domains:
        raise click.UsageError("give DOMAINs or --prefix, not both", ctx)
    return domains if len(domains) > 1 else b"".join(domains)


class ExecCommand(click.Command):
    """Command with ``--exec``: all arguments after it are the command to run."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the command off the end, and parse the rest as usual."""
        if "--exec" in args:
            at = args.index("--exec") + 1
            ctx.meta["fj_cli.exec"] = args[at:]
            args = args[:at]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Show where the command goes."""
        return [*super().collect_usage_pieces(ctx), "[--exec CMD [ARG]...]"]


@click.command(
    "next",
    cls=ExecCommand,
    epilog="""\b
CMD gets the value on standard input, and these variables in its environment, where they apply:
  FASTJOURNAL_KEY, FASTJOURNAL_URI, FASTJOURNAL_UNIQUE, FASTJOURNAL_DOMAIN, FASTJOURNAL_PRIORITY,
  FASTJOURNAL_ID, FASTJOURNAL_NOT_BEFORE_US, FASTJOURNAL_ATTEMPTS (failed ones so far),
  FASTJOURNAL_VALUE (where it is short), FASTJOURNAL_VALUE_TYPE.
  A variable with a zero byte is in base64, under its name with _B64.
  So that CMD can use fj-cli on the same daemon: FASTJOURNAL_SERVER, FASTJOURNAL_AUTH_FILE,
  FASTJOURNAL_TLS_CA, FASTJOURNAL_TLS_CERT, FASTJOURNAL_TLS_KEY (absolute paths, no secret).
CMD may run again for the same entry, so it should be idempotent. If the lease is lost while CMD
runs, CMD is ended, because another worker may have the entry. Reports go to standard error.
The worker waits 5 minutes for a daemon that is away, also at the start; then exit code 69. A job
whose lease has ended by then counts as lost: its command is ended, and it is delivered again.
SIGTERM, Ctrl-C or a closed terminal: nothing new starts, running commands finish. A second SIGTERM
or Ctrl-C ends them: SIGTERM to each with all that it started, SIGKILL after --kill-after.
Ctrl-Z (SIGTSTP, SIGTTIN, SIGTTOU): the commands stop too. When the worker is continued, it renews
each lease before its command goes on; a command whose lease is lost is ended.
As process 1 of a container it waits for orphans too; see the guide for consumers.
A CMD that fails, is killed, or takes longer than --timeout is a failed attempt: the daemon counts
it and keeps the reason with the last line of standard error ('fj-cli explain KEY'). Standard error
goes through a pipe, and on to that of the worker as it comes.
If descriptors, processes or memory are short, the start of CMD is tried again, which is no failed
attempt. Reports that nobody reads, or that do not fit on the disk, stop nothing.""",
)
@_domains
@click.option(
    "--count",
    type=click.IntRange(1, PAIRS_MAX),
    help="At most that many entries.  [default: 1; with --exec all]",
)
@lease_option
@click.option("--wait", type=WAIT, help="Wait that long for work ('forever': without end).")
@click.option("--delete", is_flag=True, help="Complete the entries once they are written.")
@click.option("--exec", "execute", is_flag=True, help="Run CMD for each entry; complete on exit 0.")
@click.option(
    "--jobs", type=click.IntRange(1, 1024), default=1, show_default=False, help="Commands at once."
)
@click.option(
    "--max-attempts",
    type=click.IntRange(0, FAILED_ATTEMPTS_MAX),
    default=0,
    show_default=False,
    help="Bury an entry that has failed that often; 0: as its domain says (fj-cli limit).",
)
@click.option(
    "--retry-delay",
    type=DURATION,
    default="10s",
    help="Delay after the first failure; doubled each time.",
)
@click.option("--retry-delay-max", type=DURATION, default="3d")
@click.option(
    "--timeout",
    type=DURATION,
    help="End CMD after that long: a failed attempt.  [default: no timeout]",
)
@click.option(
    "--kill-after",
    type=DURATION,
    default="10s",
    help="From SIGTERM to SIGKILL for a CMD that is ended.",
)
@on_daemon
def next_command(ctx: click.Context, /, domains: tuple[bytes, ...], **options: Any) -> int:
    """Lease what is due in each DOMAIN, or in any domain, in turns, and print it.

    Exit code 75: nothing is due. An entry that is not completed ('fj-cli delete KEY --token TOKEN')
    comes back when its lease ends.

    With --exec this is a whole worker: it runs CMD for each entry, extends the lease while CMD
    runs, completes the entry when CMD exits 0, and else gives it back with a growing delay.
    """
    domain = _selection(ctx, domains, ordered=options["ordered"], prefix=options["prefix"])
    if not options["execute"]:
        _refuse_worker_options(ctx)
        return _print_next(ctx, domain, options)
    argv = ctx.meta["fj_cli.exec"]
    dashed = argv[:1] == ["--"]  # which ends the options, as everywhere
    argv = argv[dashed:]
    if not argv:
        raise click.UsageError("--exec is followed by the command to run", ctx)
    if options["delete"]:
        raise click.UsageError("--exec completes entries itself: leave out --delete", ctx)
    if not dashed:
        refuse_options(ctx, argv, "--exec")
    if options["timeout"] == 0:
        raise click.UsageError("--timeout is more than 0; leave it out for none", ctx)
    if options["lease"] < JOB_LEASE_US_MIN:
        raise click.UsageError("--lease is at least 1s with --exec", ctx)
    return _work(ctx, domain, argv, options)


def _refuse_worker_options(ctx: click.Context) -> None:
    names = ("jobs", "max_attempts", "retry_delay", "retry_delay_max", "timeout", "kill_after")
    for name in names:
        if ctx.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            raise click.UsageError(f"--{name.replace('_', '-')} needs --exec", ctx)


def _program(ctx: click.Context, argv: list[str]) -> str:
    """Return the path of the program to run; an error also names options that look like ours."""
    from fj_cli.worker import find_program

    try:
        return find_program(argv[0])
    except BadRequestError as error:
        meant = ours_among(ctx, argv[1:])
        if meant:
            hint = f"{error.hint}; {', '.join(meant)} behind --exec is an argument of the program"
            raise BadRequestError(error.message, hint=hint) from error
        raise


def _print_next(ctx: click.Context, domain: _Domains, options: dict[str, Any]) -> int:
    with open_client(ctx) as client:
        jobs = client.next(
            domain,
            ordered=options["ordered"],
            prefix=options["prefix"],
            count=options["count"] or 1,
            lease=to_duration(options["lease"]),
            wait=to_wait(options["wait"]),
            meta=True,
        )
        if not jobs:
            note_nothing_due(jobs.next_at_us)
            return NOTHING_TO_DO
        token = jobs.token or 0
        leases = [(job.key, token) for job in jobs]
        with released_unless_written(client, leases):
            if options["delete"]:
                write_jobs([_completed(job) for job in jobs], None, options["as_json"])
            else:
                until = format_when(token, SystemClock().now_us())
                title = f"leased until {until}, token {token}"
                write_jobs(jobs, title, options["as_json"])
        if options["delete"]:
            _complete(client, leases)
    return DONE


def _completed(job: Entry) -> Entry:
    """Return an entry as it is without its lease."""
    meta = job.meta and msgspec.structs.replace(job.meta, worked_on_until_us=0)
    return msgspec.structs.replace(job, token=None, meta=meta)


def _complete(client: SyncClient, leases: list[tuple[bytes, int]]) -> None:
    """Complete jobs that were written.

    Raises:
        RefusedError: The first one that the daemon refuses, for instance because its lease is over.
    """
    from fastjournal.client.core import calls

    for outcome in client.call_many([calls.delete(key, token=token) for key, token in leases]):
        if isinstance(outcome, RefusedError):
            raise outcome


def _work(ctx: click.Context, domain: _Domains, argv: list[str], options: dict[str, Any]) -> int:
    import trio

    from fastjournal.client.core.client_credentials import credentials_of
    from fastjournal.client.core.settings import variables_of
    from fj_cli.job import CommandPlan
    from fj_cli.shared_options import settings_of
    from fj_cli.worker import ExecWorker, WorkerPlan

    settings = settings_of(ctx)
    plan = WorkerPlan(
        server=settings["server"],
        credentials=credentials_of(settings),
        daemon=variables_of(settings),
        domain=domain,
        ordered=options["ordered"],
        prefix=options["prefix"],
        command=CommandPlan(
            argv=[_program(ctx, argv), *argv[1:]],
            timeout_us=options["timeout"],
            kill_after_us=options["kill_after"],
        ),
        jobs=options["jobs"],
        count=options["count"],
        lease_us=options["lease"],
        wait_us=options["wait"],
        max_attempts=options["max_attempts"],
        retry_delay_us=options["retry_delay"],
        retry_delay_us_max=options["retry_delay_max"],
        as_json=bool(options["as_json"]),
    )
    return trio.run(ExecWorker(plan).run)


COUNT_MAX = 500
"""Entries to show: as many as the daemon returns to one request."""


@click.command("peek")
@_domains
@click.option(
    "--count", type=click.IntRange(1, COUNT_MAX), default=1, help="At most that many entries."
)
@click.option("--lease", type=DURATION, default=LEASE, help="As given to 'next'.")
@on_daemon
def peek_command(ctx: click.Context, /, domains: tuple[bytes, ...], **options: Any) -> int:
    """Show what 'next' would lease now in each DOMAIN, or in any, in turns; lease nothing.

    The order is that of 'next', and nothing changes: neither the times of the entries nor the
    turns of the domains. For one paused DOMAIN it shows what would come without the pause.

    One 'next' has one length of the lease. So with --lease 0, which is the default lease of each
    domain, the list ends before an entry of a domain with another one ('limit --lease').

    Exit code 75: nothing is due.
    """
    selects = {"ordered": options["ordered"], "prefix": options["prefix"]}
    domain = _selection(ctx, domains, **selects)
    paused_until = 0
    with open_client(ctx) as client:
        lease = to_duration(options["lease"])
        jobs = client.peek(domain, **selects, count=options["count"], lease=lease, meta=True)
        if isinstance(domain, bytes) and domain:
            stats = client.domain_stats(domain)
            paused_until = max(stats.paused_until_us, stats.daemon_paused_until_us)
    if paused_until:
        note(f"paused until {format_when(paused_until, SystemClock().now_us())}")
    if not jobs.pairs:
        note_nothing_due(jobs.next_at_us)
        return NOTHING_TO_DO
    write_jobs(jobs, None, options["as_json"])
    return DONE
