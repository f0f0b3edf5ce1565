"""Python of Spark's workers in tests: forks of one process that has imported what they need.

A session starts a daemon for each kind of work (plan, pushdown, tasks, ...), each daemon forks its
workers, and each stream starts a Python of its own. They would import PySpark, Arrow, pandas and
fastjournal again and again: up to 1.5 s of processor time each, and most of what short tasks cost.

``PythonWorkers`` is the pytest process's end: it starts this module as the process that forks, and
writes the executable file that Spark takes for the interpreter (``python_stand_in.py``). Each
fork has standard streams, environment, directory and hash seed as Spark gives them to it. Tests
that start a Java machine of their own show that workers find and import all that they need.

Before a fork there is one thread, as in ``tests/integration/fork_server.py``.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tests.integration.fork_server import (
    MESSAGE_BYTES_MAX,
    become,
    check_nothing_leaks,
    die_with,
)
from tests.integration.programs import ONE_THREAD

DAEMON = "pyspark.daemon"
"""Module that forks workers; the name of theirs is its argument."""

HASH_SEED = {"PYTHONHASHSEED": "0"}
"""As Spark gives it to workers."""

IMPORTED = (
    "pyspark.worker",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.data_source_pushdown_filters",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.streaming.datasource",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "fastjournal.spark.data_source.source",
    "fastjournal.spark.data_source.source",
    "fastjournal.spark.storage.store_frames",
)


class FreezingCollector:
    """Stands for the module ``gc``: what a collection leaves is looked at by no later one.

    PySpark's workers collect garbage after every task, and tests have hundreds of small ones.
    """

    @staticmethod
    def collect() -> None:
        """Collect garbage."""
        gc.collect()
        gc.freeze()


class PythonWorkers:
    """The process that forks, and the interpreter that stands for it.

    Args:
        directory: For the interpreter and a socket; it exists.
    """

    def __init__(self, directory: Path) -> None:
        self.interpreter = directory / "python"
        """For ``PYSPARK_PYTHON``."""
        self._place = directory / "workers"
        self._server: subprocess.Popen[bytes] | None = None
        stand_in = Path(__file__).with_name("python_stand_in.py")
        command = [sys.executable, "-I", "-S", str(stand_in), str(self._place)]
        self.interpreter.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        self.interpreter.chmod(0o755)

    def start(self) -> None:
        """Start the process, unless it runs."""
        if self._server is not None:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.bind(str(self._place))
            # connections wait until the imports are done
            listening.listen(64)
            self._server = subprocess.Popen(
                [sys.executable, "-m", __name__, str(os.getpid())],
                cwd=Path(__file__).parents[2],
                env=os.environ | ONE_THREAD | HASH_SEED,
                stdin=listening,
                stdout=subprocess.DEVNULL,
            )

    def stop(self) -> None:
        """End the process, and what it has forked, if it runs."""
        if self._server is not None:
            self._server.kill()
            self._server.wait()
            self._server = None
            self._place.unlink()


class Fork(NamedTuple):
    """A process that was forked."""

    pid: int
    ended: int
    """Descriptor that can be read once it has ended."""
    channel: socket.socket
    """Connection of the process that it stands for."""


def serve() -> list[str]:
    """Fork for each connection; return the arguments in the children only, which are prepared."""
    listening = socket.socket(fileno=os.dup(0))
    selector = selectors.PollSelector()
    selector.register(listening, selectors.EVENT_READ)
    forks: set[Fork] = set()
    while True:
        for key, _ in selector.select():
            fork = key.data
            if fork is None:
                fork = fork_for(listening, forks)
                if isinstance(fork, list):
                    return fork
                forks.add(fork)
                selector.register(fork.ended, selectors.EVENT_READ, fork)
                selector.register(fork.channel, selectors.EVENT_READ, fork)
            elif key.fd == fork.ended:
                forks.remove(fork)
                selector.unregister(fork.ended)
                if fork.channel in selector.get_map():
                    selector.unregister(fork.channel)
                tell_end(fork)
            elif fork in forks:
                # Spark has ended what it takes for the interpreter
                selector.unregister(fork.channel)
                signal.pidfd_send_signal(fork.ended, signal.SIGTERM)


def fork_for(listening: socket.socket, forks: set[Fork]) -> Fork | list[str]:
    """Fork for the next connection; return the process, or in it the arguments."""
    channel, _ = listening.accept()
    message, descriptors, _, _ = socket.recv_fds(channel, MESSAGE_BYTES_MAX, 3)
    parent, pid = os.getpid(), os.fork()
    if pid:
        for fd in descriptors:
            os.close(fd)
        return Fork(pid, os.pidfd_open(pid), channel)
    for other in forks:
        os.close(other.ended)
        other.channel.close()
    channel.close()
    listening.close()
    given = json.loads(message)
    become(descriptors, parent, **given)
    return list(given["args"])


def tell_end(fork: Fork) -> None:
    """Tell the exit code of a process that has ended, if anybody waits for it."""
    _, status = os.waitpid(fork.pid, 0)
    code = os.waitstatus_to_exitcode(status)
    with fork.channel, suppress(ConnectionError):
        # of a signal as a shell says it
        fork.channel.send(b"%d" % (code if code >= 0 else 128 - code))
    os.close(fork.ended)


def main() -> None:
    """Import and serve; in a child, run what Spark wants to be run."""
    die_with(int(sys.argv[1]))
    for name in IMPORTED:
        importlib.import_module(name)
    check_nothing_leaks(0)
    gc.collect()
    gc.freeze()
    _, module, *args = serve()
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[0:1] = [os.getcwd(), *filter(None, paths)]
    sys.argv[:] = [module, *args]
    status = 0
    try:
        run(module)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except Exception:  # noqa: BLE001 - whatever it is, it is told, and the process ends
        traceback.print_exc()
        status = 1
    # not to the end of the interpreter: what is imported is not collected
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def run(module: str) -> None:
    """Run a module as the interpreter does with ``-m``; the daemon with another collector."""
    if module == DAEMON:
        from pyspark import daemon

        daemon.gc = FreezingCollector
        daemon.manager()
    else:
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
