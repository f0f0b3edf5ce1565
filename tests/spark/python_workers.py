"""Python of Spark's workers in tests: they look at what they have imported only once.

PySpark's workers collect garbage after every task, and tests have hundreds of small ones: most of
their time went to looking at the modules that they had imported, again and again.

This file is run in the place of the interpreter, with the arguments that Spark gives one.
"""

from __future__ import annotations

import gc
import os
import shlex
import sys
from pathlib import Path

DAEMON = ["-m", "pyspark.daemon"]
"""Arguments of the process that forks workers, before the name of their module."""


class FreezingCollector:
    """Stands for the module ``gc``: what a collection leaves is looked at by no later one."""

    @staticmethod
    def collect() -> None:
        """Collect garbage."""
        gc.collect()
        gc.freeze()


def write_interpreter(path: Path) -> Path:
    """Write an executable file that runs this one, for ``PYSPARK_PYTHON``; return its path."""
    path.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, __file__])} "$@"\n')
    path.chmod(0o755)
    return path


def main(args: list[str]) -> None:
    """Run the daemon of Spark's workers, or anything else in the interpreter itself."""
    if args[:2] != DAEMON:
        os.execv(sys.executable, [sys.executable, *args])
    from pyspark import daemon

    sys.argv = [str(daemon.__file__), *args[2:]]
    daemon.gc = FreezingCollector
    daemon.manager()


if __name__ == "__main__":
    main(sys.argv[1:])
