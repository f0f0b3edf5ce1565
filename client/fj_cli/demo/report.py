"""Report of the demonstration, as printed."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from fj_cli.demo.play import DemoResult


def print_result(result: DemoResult, console: Console) -> None:
    """Print what went in, what came out, and how fast."""
    seconds = result.seconds
    on_disk = result.log_bytes + result.spooled_bytes
    table = Table(title="From a changed page to a finished job", title_justify="left")
    table.add_column("what")
    table.add_column("number", justify="right")
    table.add_column("which is")
    for what, number, meaning in (
        ("events", f"{result.events:,}", "changes in the file, spooled and forwarded"),
        (
            "entries",
            f"{result.entries:,}",
            "left of them in the daemon, de-duplicated",
        ),
        ("executions", f"{result.executions:,}", "jobs completed under their lease token"),
        ("expected", f"{result.expected:,}", "executions computed straight from the file"),
        ("lost", f"{result.lost:,}", "expected, but not worked on"),
        ("doubled", f"{result.doubled:,}", "worked on more often than expected"),
        ("daemon killed", f"{result.kills:,}", "times by SIGKILL, and started again"),
        ("leases lost", f"{result.lost_leases:,}", "by workers, over it"),
        ("seconds", f"{seconds:,.1f}", "from the first event to the last job"),
        ("requests/s", f"{result.requests / seconds:,.0f}", "all requests, over all that time"),
        ("bytes/s", f"{on_disk / seconds:,.0f}", "written to spool and command log"),
    ):
        table.add_row(what, number, meaning)
    console.print(table)
    if result.good:
        console.print("every page was worked on exactly as often as its changes ask for")
    else:
        console.print("[bold red]executions differ from what the file asks for[/]")
