"""``fj-cli export``: a snapshot's live entries as Parquet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from fastjournal.errors import ConfigError
from fj_cli.options import json_option
from fj_cli.output import wants_json, write_json, write_line
from fj_cli.progress import ProgressBar
from fj_cli.termination import unwound

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastjournal.spark.export import ExportManifest


@click.command("export")
@click.argument("snapshot")
@click.argument("destination", metavar="URI|PATH")
@json_option
def command(snapshot: str, destination: str, as_json: bool | None) -> None:
    """Write the live entries of SNAPSHOT as Parquet into the directory URI or PATH.

    SNAPSHOT is the path that 'fj-cli snapshot' printed. The destination is on any file system that
    pyarrow reaches: a path, file:, s3:, gs: or hdfs:. The rows are sorted by domain, compressed
    with zstd, about a million in a row group; _manifest.json names the snapshot, and _SUCCESS is
    written last. Needs no Java.
    """
    export_snapshot = _load()
    with unwound(), ProgressBar("exporting", unit="bytes") as bar:
        manifest = export_snapshot(snapshot, destination, on_progress=bar.update)
    if wants_json(as_json):
        write_json(msgspec.to_builtins(manifest))
        return
    for file in manifest.files:
        write_line(
            f"{destination.rstrip('/')}/{file.name}: {file.rows:,} rows, {file.bytes:,} bytes"
        )


def _load() -> Callable[..., ExportManifest]:
    try:
        from fastjournal.spark.export import export_snapshot
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"export needs {error.name}, which is not installed",
            hint="pip install 'fastjournal[spark]'",
        ) from error
    return export_snapshot
