"""Command logs and snapshots for Spark: data source, jobs, export.

    import fastjournal.spark

    spark = fastjournal.spark.start_session()     # or: fastjournal.spark.register(your_session)
    spark.read.format("fastjournal").option("view", "entries").load("/path/of/a/snapshot")

session, data_source, query       session, registration, options of the views
records, live_entries, history    readers of the views
decoding, storage, execution, cluster   records to columns, files, tasks, Java
nightly, export                   the nightly report; Parquet without Spark

PySpark and pyarrow (the extra ``spark``) are loaded when something here is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastjournal.spark.data_source.registration import entries, register
    from fastjournal.spark.export.snapshot_export import export_snapshot
    from fastjournal.spark.history.events_view import event_span, events
    from fastjournal.spark.session import start_session

__all__ = ["entries", "event_span", "events", "export_snapshot", "register", "start_session"]

# No module here has one of these names: once imported, it would hide the function.
_HOMES = {
    "entries": "data_source.registration",
    "event_span": "history.events_view",
    "events": "history.events_view",
    "export_snapshot": "export.snapshot_export",
    "register": "data_source.registration",
    "start_session": "session",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
