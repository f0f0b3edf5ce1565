"""Spark session: its start, ready for fastjournal, and quiet; forms of master URLs.

Java takes seconds to start, and reports a wrong master by a stack trace; one that does not listen
after more than a minute. So the form is checked before, and whether a master listens.
"""

from __future__ import annotations

import os
import re
import socket
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from fastjournal.errors import BadRequestError, CannotConnectError
from fastjournal.spark.cluster.java import prepare_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


CONNECT_TIMEOUT_S = 10.0
"""For each address of a standalone master."""

_N = r"\s*[1-9][0-9]*\s*"
_LOCAL = rf"local(\[([1-9][0-9]*|\*)(\s*,{_N})?\])?"
_LOCAL_CLUSTER = rf"local-cluster\[{_N},{_N},{_N}\]"
_ADDRESS = r"(\[[0-9a-fA-F:.]+\]|[^\s,:/\[\]]+):[0-9]{1,5}"
_STANDALONE = re.compile(rf"spark://({_ADDRESS}(,{_ADDRESS})*)")
_FORMS = re.compile(rf"{_LOCAL}|{_LOCAL_CLUSTER}|{_STANDALONE.pattern}|yarn|k8s://\S+")


def check_master(master: str | None, option: str = "master") -> None:
    """Check the form of a master URL.

    Args:
        master: Spark's master URL; None: none is given.
        option: Name of the option in the error.

    Raises:
        BadRequestError: Spark knows no such one.
    """
    if master is not None and not _FORMS.fullmatch(master):
        raise BadRequestError(
            f"{option} {master!r} is no master of Spark",
            hint="local[N], local[*], local-cluster[N,CORES,MEMORY], spark://HOST:PORT, yarn "
            "or k8s://ADDRESS",
        )


def check_listens(master: str | None) -> None:
    """Check that a standalone master (``spark://``) listens; others are not asked.

    Raises:
        CannotConnectError: It does not, at none of its addresses.
    """
    standalone = None if master is None else _STANDALONE.fullmatch(master)
    if standalone is None:
        return
    failures = []
    for address in standalone[1].split(","):
        host, _, port = address.rpartition(":")
        try:
            connection = (host.strip("[]"), int(port))
            socket.create_connection(connection, timeout=CONNECT_TIMEOUT_S).close()
        except (OSError, OverflowError) as error:
            failures.append(str(error))
        else:
            return
    raise CannotConnectError(f"no Spark master listens at {master}: {', '.join(failures)}")


SMALL_BYTES = 256 * 1024 * 1024
"""Below it, starting and compiling cost more than the work."""
SMALL_OPTIONS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}
"""For ``start_session``, on snapshots of at most ``SMALL_BYTES``: takes half of the time."""

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_SETTINGS = {
    # the default, INT96, wraps instants after the year 2262, and has no statistics
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}


def start_session(
    master: str | None = None, *, name: str = "fastjournal", options: dict[str, str] | None = None
) -> SparkSession:
    """Return a session with the data source registered; the running one where there is one.

    Args:
        master: Spark's master URL; None: what ``spark-submit`` gave, else ``local[*]``.
        name: Shown in Spark's lists of applications.
        options: Further Spark settings.

    Raises:
        BadRequestError: The master is none that Spark knows.
        JavaMissingError: There is no Java of version 17 or newer.
    """
    check_master(master)
    prepare_environment()
    from pyspark.sql import SparkSession  # noqa: PLC0415 - PySpark is an extra

    from fastjournal.spark.data_source.registration import register  # noqa: PLC0415 - imports PySpark

    builder = SparkSession.builder.appName(name)
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if master is None and not submitted:
        master = "local[*]"
    if master is not None:
        builder = builder.master(master)
    settings = dict(options or {})
    if not submitted:
        settings = {**_SETTINGS, **settings}
        if master is not None and master.startswith("local"):
            # Without it Spark warns where the host's name leads to a loopback address.
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            # Spark splits these options at blanks, and a URI has none
            quiet = Path(str(files("fastjournal.spark.cluster") / "log4j2.properties")).as_uri()
            quietly = f"-Dlog4j2.configurationFile={quiet}"
            settings[_JAVA_OPTIONS] = f"{quietly} {settings.get(_JAVA_OPTIONS, '')}".strip()
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def is_local(master: str) -> bool:
    """Return whether Spark's master URL names one process of this machine."""
    return master == "local" or master.startswith("local[")


def may_be_cluster(master: str | None) -> bool:
    """Return whether a session may have executors in other processes than its driver.

    Args:
        master: As ``start_session`` takes it; what ``spark-submit`` gave shows in the session only.
    """
    if master is None:
        return "PYSPARK_GATEWAY_PORT" in os.environ
    return not is_local(master)
