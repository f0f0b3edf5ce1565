"""``fj-cli export``: a snapshot's live entries as Parquet, or as the journal of another queue."""

from __future__ import annotations

import click
import msgspec

from fastjournal.errors import ConfigError
from fj_cli.output import counted, note, wants_json, write_json, write_line
from fj_cli.progress import ProgressBar
from fj_cli.shared_options import json_option
from fj_cli.termination import unwound


@click.command("export")
@click.argument("snapshot")
@click.argument("destination", metavar="URI|PATH")
@click.option(
    "--to",
    "to",
    type=click.Choice(["parquet", "beanstalkd", "kestrel", "workq"]),
    default="parquet",
    help="Format: Parquet files, or the journal of another queue.",
)
@click.option(
    "--binlog-version",
    type=click.Choice(["7", "5"]),
    help="Version of the binlog of --to beanstalkd; 5: of release 1.4.6.  [default: 7]",
)
@json_option
@click.pass_context
def export_command(
    ctx: click.Context,
    snapshot: str,
    destination: str,
    to: str,
    binlog_version: str | None,
    as_json: bool | None,
) -> None:
    """Write the live entries of SNAPSHOT as Parquet, or as the journal of another queue.

    SNAPSHOT is the path that 'fj-cli snapshot' printed. Parquet goes into the directory URI or
    PATH on any file system that pyarrow reaches: a path, file:, s3:, gs: or hdfs:. The rows are
    sorted by domain, compressed with zstd, about a million in a row group; _manifest.json names the
    snapshot, and _SUCCESS is written last. Needs no Java.

    A journal goes into the directory PATH, which must not exist: its server starts on it. Ends with
    counts of what the format does not hold. beanstalkd 1.5 and later start on a binlog of either
    version, release 1.4.6 on version 5.
    """
    if binlog_version is not None and to != "beanstalkd":
        raise click.UsageError("--binlog-version needs --to beanstalkd", ctx)
    if to != "parquet":
        _export_journal(snapshot, destination, to, binlog_version, as_json)
        return
    try:
        from fastjournal.spark.export.snapshot_export import export_snapshot
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"export needs {error.name}, which is not installed",
            hint="pip install 'fastjournal[spark]'",
        ) from error
    with unwound(), ProgressBar("exporting", unit="bytes") as bar:
        manifest = export_snapshot(snapshot, destination, on_progress=bar.update)
    if wants_json(as_json):
        write_json(msgspec.to_builtins(manifest))
        return
    for file in manifest.files:
        write_line(
            f"{destination.rstrip('/')}/{file.name}: {file.rows:,} rows, {file.bytes:,} bytes"
        )


def _export_journal(
    snapshot: str, destination: str, to: str, binlog_version: str | None, as_json: bool | None
) -> None:
    from fastjournal.clock import SystemClock
    from fastjournal.disk import OsDisk
    from fastjournal.foreign.beanstalkd import VERSION, VERSION_OLD
    from fastjournal.foreign.formats import Format
    from fastjournal.foreign.journal_export import export_journal

    with unwound(), ProgressBar("reading", unit="bytes") as bar:
        done = export_journal(
            OsDisk(),
            snapshot,
            destination,
            Format(to),
            now_us=SystemClock().now_us(),
            binlog_version=VERSION_OLD if binlog_version == str(VERSION_OLD) else VERSION,
            on_progress=bar.update,
        )
    if done.advice is not None:
        note(done.advice)
    if wants_json(as_json):
        write_json(msgspec.to_builtins(done))
        return
    entries = f"{done.written:,} of {done.read:,} entries"
    write_line(f"{destination}: {entries} in {counted(done.files, 'file')}, {done.bytes:,} bytes")
    for what, counts in (("left out", done.left_out), ("not carried over", done.not_carried)):
        for name, number in counts.items():
            write_line(f"{what}: {name.replace('_', ' ')}: {number:,}")
