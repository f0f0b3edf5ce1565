"""SQL of a registered session: what Spark's own statements leave undone for a Python data source.

``CREATE TEMPORARY VIEW ... USING fastjournal`` of the view ``entries`` gets the plan of that view,
which a data source cannot return. ``CREATE TABLE name (columns) USING fastjournal OPTIONS (...)``
gets its options: Spark 4 gives the options of a table to the inference of its schema only, and does
not infer one that the statement names. So they are put where an inferred schema has them. A
table of the view ``entries`` is refused, and removed again: Spark has created it by then.
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql.types import StructType

from fastjournal.spark.data_source.source import (
    TABLE_OPTIONS,
    FastjournalSource,
    keep_options,
    no_plan,
)
from fastjournal.spark.query.source_options import FOREIGN_JOURNALS, Options

_SESSION_CATALOG = "spark_catalog"
_EXTERNAL = "EXTERNAL"
"""Type of a table with a path; that of another one is a directory of the warehouse."""


def complete_statement(spark: Any, frame: Any) -> None:
    """Complete a statement that a session has run.

    Args:
        spark: The session.
        frame: Result of its ``sql``.
    """
    plan = frame._jdf.queryExecution().analyzed()
    statement = plan.getClass().getSimpleName()
    if statement == "CreateTempViewUsing":
        if _is_ours(plan.provider()):
            _replace_view(spark, plan)
    elif statement == "CreateTable":
        provider = plan.tableSpec().provider()
        if provider.isDefined() and _is_ours(provider.get()):
            _keep_options(spark, plan)


def _is_ours(provider: str) -> bool:
    return provider.lower() == FastjournalSource.name()


def _as_dict(spark: Any, options: Any) -> dict[str, str]:
    return dict(spark._jvm.scala.jdk.javaapi.CollectionConverters.asJava(options))


def _replace_view(spark: Any, plan: Any) -> None:
    """Make a temporary view of the plan of ``entries``, if it was made of that view."""
    given = _as_dict(spark, plan.options())
    if Options(given).view != "entries" or Options(given).foreign is not None:
        return
    reader = spark.read.format(FastjournalSource.name()).options(**given)
    if plan.userSpecifiedSchema().isDefined():
        reader = reader.schema(plan.userSpecifiedSchema().get().toDDL())
    found = reader.load()
    name = plan.tableIdent().table()
    if getattr(plan, "global")():
        found.createOrReplaceGlobalTempView(name)
    else:
        found.createOrReplaceTempView(name)


def _needs_plan(options: dict[str, str]) -> bool:
    """Whether options, which may be wrong, ask for the view ``entries`` of a log."""
    found = {name.lower(): value.lower() for name, value in options.items()}
    return found.get("view") == "entries" and found.get("journal") not in FOREIGN_JOURNALS


def _keep_options(spark: Any, plan: Any) -> None:
    """Put the options of a table with columns into the metadata of its first column."""
    jvm = spark._jvm
    if plan.name().catalog().name() != _SESSION_CATALOG:
        # another catalog keeps tables in its own way: a reader without options says what to do
        return
    identifier = plan.name().identifier()
    database = jvm.scala.Option.apply([*identifier.namespace()][-1])
    table_name = jvm.org.apache.spark.sql.catalyst.TableIdentifier(identifier.name(), database)
    catalog = spark._jsparkSession.sessionState().catalog()
    table = catalog.getTableMetadata(table_name)
    schema = StructType.fromJson(json.loads(table.schema().json()))
    # IF NOT EXISTS: the table may be an older one, or of another format
    is_ours = table.provider().isDefined() and _is_ours(table.provider().get())
    if not is_ours or not schema.fields or TABLE_OPTIONS in schema.fields[0].metadata:
        return
    options = _as_dict(spark, table.storage().properties())
    if _needs_plan(options):
        # it could not be read; its definition goes, and no file
        catalog.dropTable(table_name, True, False)
        raise no_plan()
    if table.tableType().name() == _EXTERNAL and table.storage().locationUri().isDefined():
        location = table.storage().locationUri().get()
        utilities = jvm.org.apache.spark.sql.catalyst.catalog.CatalogUtils
        options["path"] = utilities.URIToString(location)
    keep_options(schema, options)
    java_schema = jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json())
    catalog.alterTableDataSchema(table_name, java_schema)
