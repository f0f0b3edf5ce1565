"""Reader of Spark Connect: answers for the view ``entries`` with its plan, as a classic one does.

A client of Spark Connect has no plan of a frame to ask, so the reader looks at its own options.
Other views, and their errors, are left to the server: the client need not reach their directories.
"""

from __future__ import annotations

import json
from typing import Any, cast

from pyspark.sql.connect.dataframe import DataFrame
from pyspark.sql.connect.readwriter import DataFrameReader

from fastjournal.spark.data_source.source import FastjournalSource
from fastjournal.spark.data_source.view_reader import load_view
from fastjournal.spark.query.source_options import Options


class ConnectReader(DataFrameReader):
    """Reader of a registered session of Spark Connect: knows the view ``entries`` too."""

    def load(
        self,
        path: str | list[str] | None = None,
        format: str | None = None,
        schema: Any = None,
        **options: Any,
    ) -> DataFrame:
        """Load a table, as ``DataFrameReader.load`` does."""
        frame = super().load(path, format, schema, **options)
        if (self._format or "").lower() != FastjournalSource.name():
            return frame
        given = dict(self._options)
        if isinstance(path, list):
            given["paths"] = json.dumps(path)
        elif path is not None:
            given["path"] = path
        if Options(given).view != "entries":
            return frame
        return cast(DataFrame, load_view(frame, given))
