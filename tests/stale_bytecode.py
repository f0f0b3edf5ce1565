"""Bytecode of test modules: one process writes what is stale, before the others load it.

Pytest rewrites the asserts of a test module when it loads it, and keeps the result beside the
bytecode. In a fresh clone each process of `make test` would do that for every module.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

STALE_MAX = 20
"""Modules that each process may rewrite for itself: to wait for another one costs as much."""


@contextmanager
def bytecode_written_once() -> Iterator[None]:
    """Load the test modules in the block: alone, while the bytecode of many is stale."""
    with open(__file__, "rb") as lock:
        if stale_modules() > STALE_MAX:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if stale_modules() <= STALE_MAX:
                fcntl.flock(lock, fcntl.LOCK_UN)
        yield


def stale_modules() -> int:
    """Return the number of test modules that pytest has not rewritten as they are now."""
    ending = f".{sys.implementation.cache_tag}-pytest-{pytest.__version__}.pyc"
    stale = 0
    for directory in TESTS.iterdir():
        written = modification_times(directory / "__pycache__", ending)
        for name, time in modification_times(directory, ".py").items():
            stale += name.startswith("test_") and written.get(name, 0.0) < time
    return stale


def modification_times(directory: Path, ending: str) -> dict[str, float]:
    """Return when the files with this ending were changed, by their names without it."""
    if not directory.is_dir():
        return {}
    with os.scandir(directory) as files:
        return {
            file.name.removesuffix(ending): file.stat().st_mtime
            for file in files
            if file.name.endswith(ending)
        }
