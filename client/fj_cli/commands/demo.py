"""``fj-cli demo``: real change events through all parts, with the daemon killed midway."""

from __future__ import annotations

import shutil
import sys
import tempfile
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import click

from fastjournal.entry_points import check_extra
from fj_cli.output import note
from fj_cli.shared_options import DURATION, REFUSED
from fj_cli.termination import TerminatedError, unwound

NEEDED = ("pyspark", "pyarrow", "pandas", "numpy")
"""Packages of the report."""


@click.command("demo")
@click.option(
    "--no-spark",
    is_flag=True,
    help="Leave out the report by Spark, which takes half a minute and needs fastjournal[spark].",
)
@click.option(
    "--delay",
    type=DURATION,
    default="90d",
    help="How long a page has to be left alone before it is worked on.",
)
@click.option(
    "--events",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Play the events of this file; without it, those of the package.",
)
@click.option("--seed", type=int, default=1, help="Seed of the kills.")
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep everything here, in a new directory; without it, it is kept only after a failure.",
)
def demo_command(
    no_spark: bool, delay: int, events: Path | None, seed: int, directory: Path | None
) -> None:
    """Play real changes of two documentation sites through all parts, and count.

    The package has 10,000 changes. A checkout has 122,237, which make demo plays. Several producers
    spool them, the forwarder sends them, workers lease and complete; the daemon is killed with
    SIGKILL twice and started again. At the end a table compares the executions with the number
    computed straight from the file: exit code 1 where they differ. Then the newest changes are
    spread over four weeks and worked off by simulated workers, a daemon starts on their log, and
    fj-nightly reports what was slow yesterday, why, and since when; without the packages of Spark
    the report is left out.
    """
    for extra in ("daemon", "forwarder"):
        check_extra(extra)
    temporary = directory is None
    if directory is None:
        directory = Path(tempfile.mkdtemp(prefix="fastjournal-demo-"))
    else:
        try:
            directory.mkdir(parents=True)
        except FileExistsError as error:
            raise click.UsageError(
                f"--directory: {directory} is there already: name a new one"
            ) from error
    good = False
    with unwound():
        try:
            good = _play(
                directory,
                delay // 1_000_000,
                seed,
                events,
                spark=not no_spark,
                temporary=temporary,
            )
        except (KeyboardInterrupt, TerminatedError):
            good = temporary  # nobody asks what happened
            raise
        finally:
            if temporary and good:
                shutil.rmtree(directory)
                note(f"{directory} is removed; --directory keeps log, report and all")
            elif not good:
                note(f"log files and data of this run are in {directory}")
    if not good:
        sys.exit(REFUSED)


def _play(
    directory: Path,
    delay_s: int,
    seed: int,
    events: Path | None,
    *,
    spark: bool,
    temporary: bool,
) -> bool:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from fj_cli.demo.history import Weeks
    from fj_cli.demo.play import Play, print_result
    from fj_cli.demo.players import expected_executions, load_changes

    changes = load_changes(events)
    jobs = len(expected_executions(changes, delay_s))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        events_bar = progress.add_task("events spooled and forwarded", total=len(changes))
        jobs_bar = progress.add_task("jobs leased and completed", total=jobs)

        def show(events: int, completed: int) -> None:
            progress.update(events_bar, completed=events)
            progress.update(jobs_bar, completed=completed)

        play = Play(directory, delay_s=delay_s, seed=seed, events=events, on_progress=show)
        with closing(play):
            result = play.run()
    print_result(result, Console())
    missing = [name for name in NEEDED if find_spec(name) is None]
    if spark and missing:
        note(f"no report: it needs {missing[0]} (pip install 'fastjournal[spark]')")
    elif spark and result.good:
        with Console(stderr=True).status("simulating four weeks of the same changes"):
            weeks = Weeks(directory / "weeks", changes)
        report = weeks.report()
        kept = Path(tempfile.gettempdir(), f"{directory.name}.html") if temporary else report
        if temporary:
            shutil.copy(report, kept)
        click.echo(f"report of four simulated weeks, on what was slow yesterday: {kept}")
    return result.good
