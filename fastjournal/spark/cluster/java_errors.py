"""Errors that Spark raises, in one sentence: the root cause in the stack traces of Java.

The text of an exception of py4j has the whole chain, ``Caused by: CLASS: MESSAGE`` last. Those that
PySpark translates have it as an attribute. A task in Python adds the traceback of its worker.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from fastjournal import errors
from fastjournal.errors import CannotConnectError, LogFailedError

_CLASS = r"(?P<kind>[\w$]+(?:\.[\w$]+)+)"
_CAUSED = re.compile(rf"^Caused by: {_CLASS}(?:: (?P<message>.*))?$", re.M)
_RAISED = re.compile(
    rf"\A(?:An error occurred while calling .*\n: )?{_CLASS}: (?P<message>.*)$", re.M
)
_IN_PYTHON = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*(?P<line>\S.*)")
_INPUT_OUTPUT = re.compile(
    r"java\.io\.(IOException|FileNotFoundException)|java\.nio\.file\..*|org\.apache\.hadoop\.fs\..*"
)
_IN_PYTHON_INPUT_OUTPUT = re.compile(
    r"(OSError|PermissionError|FileNotFoundError|IsADirectoryError|NotADirectoryError): "
)
_FULL = re.compile("No space left|quota exceeded", re.I)
_IN_WORKER = re.compile(r"fastjournal\.errors\.(\w+): (.*)")


class RootCause(NamedTuple):
    """Exception that began a chain of exceptions."""

    text: str
    """One line."""
    of_input_output: bool
    """Whether something could not be read or written."""


def root_cause(error: Exception) -> RootCause:
    """Return the root cause of an exception that Spark raised."""
    told = str(error).strip()
    trace = f"{told}\n{getattr(error, '_stackTrace', None) or ''}"
    if worker := list(_IN_PYTHON.finditer(trace)):
        line = worker[-1]["line"].strip()
        return RootCause(line, bool(_IN_PYTHON_INPUT_OUTPUT.match(line)))
    found = [*_RAISED.finditer(trace), *_CAUSED.finditer(trace)]
    if not found:
        return RootCause(told.split("\n")[0], False)
    kind, message = found[-1]["kind"], (found[-1]["message"] or "").strip()
    name = kind.rpartition(".")[2]
    is_plain = name == "IOException" and message
    text = message if is_plain else f"{name}: {message}" if message else name
    return RootCause(text, bool(_INPUT_OUTPUT.fullmatch(kind)))


@contextmanager
def translating_output(place: str) -> Iterator[None]:
    """Raise what keeps Spark from reading and writing in the block as a ``LogFailedError``.

    Args:
        place: Path or URI of the table that it writes.
    """
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - PySpark is an extra
    from pyspark.errors import PySparkException  # noqa: PLC0415 - PySpark is an extra

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        cause = root_cause(error)
        if not cause.of_input_output:
            raise
        hint = None
        if _FULL.search(cause.text):
            hint = (
                "free space there, or in the directory of Spark's temporary files, SPARK_LOCAL_DIRS"
            )
        raise LogFailedError(
            f"Spark cannot write the table: {cause.text}", path=place, hint=hint
        ) from error


@contextmanager
def translating_start(master: str | None) -> Iterator[None]:
    """Raise what keeps a session from its start in the block as a ``CannotConnectError``.

    Args:
        master: Spark's master, for the text; None: none was given.
    """
    from py4j.protocol import Py4JError  # noqa: PLC0415 - PySpark is an extra
    from pyspark.errors import PySparkException  # noqa: PLC0415 - PySpark is an extra

    try:
        yield
    except (PySparkException, Py4JError) as error:
        where = "" if master is None else f" with the master {master}"
        text = root_cause(error).text
        raise CannotConnectError(f"Spark does not start{where}: {text}") from error


@contextmanager
def translating_workers() -> Iterator[None]:
    """Raise what a worker of the block reported of fastjournal as the error that it was there.

    Spark wraps it into the texts of two stack traces.
    """
    from pyspark.errors import PySparkException  # noqa: PLC0415 - PySpark is an extra

    try:
        yield
    except PySparkException as error:
        found = _IN_WORKER.search(str(error))
        kind = None if found is None else getattr(errors, found[1], None)
        if found is None or kind is None:
            raise
        raise kind(found[2]) from error
