"""Program of test_fork_server.py: reports the state that a process starts in, as JSON, or ends."""

from __future__ import annotations

import atexit
import gc
import io
import json
import locale
import logging
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

GENERATOR = random.Random(1)
"""As those of trio: made once, at the import, and then used by the whole process."""

STATUS = ("Umask", "SigBlk", "SigIgn", "SigCgt", "Threads", "NoNewPrivs", "Seccomp", "Cap")


def main() -> None:
    """End as the argument says; else write the report to standard output, the input to error."""
    if len(sys.argv) == 2:
        print("not flushed so far", end=" ")
        ENDINGS[sys.argv[1]]()
        return
    report = {
        **{name: function() for name, function in REPORTS.items()},
        "drawn": [random.random(), GENERATOR.random()],
        "pid": os.getpid(),
    }
    print(json.dumps(report), flush=True)
    sys.stderr.write(sys.stdin.read())
    sys.exit(7)


def streams() -> dict[str, Any]:
    """Return all that can be seen of the standard streams, before they are used."""
    return {stream.name: describe(stream) for stream in (sys.stdin, sys.stdout, sys.stderr)}


def describe(stream: Any) -> list[Any]:
    """Return how a stream was made."""
    assert isinstance(stream, io.TextIOWrapper)
    layers = (stream, stream.buffer, getattr(stream.buffer, "raw", stream.buffer))
    return [
        [(type(one).__name__, one.name, one.mode, one.seekable(), one.fileno()) for one in layers],
        [one.isatty() for one in layers],
        (stream.encoding, stream.errors, stream.newlines),
        (stream.line_buffering, stream.write_through),
        (stream is getattr(sys, f"__{stream.name[1:-1]}__"), layers[-1].closefd),
    ]


def files() -> dict[str, str]:
    """Return the open descriptors, and the kind of what they are open on."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}").partition(":")[0]
        except FileNotFoundError:
            # the directory that was listed
            continue
    return found


def status() -> list[str]:
    """Return what the kernel says of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return [line for line in lines if line.startswith(STATUS)]


def handlers() -> dict[str, str]:
    """Return what each signal does."""
    return {
        str(number): str(signal.getsignal(number)).partition(" at ")[0]
        for number in signal.valid_signals()
    }


def named(pid: int) -> int | str:
    """Return a number of a process, or that it is this one."""
    return "this" if pid == os.getpid() else pid


REPORTS = {
    "streams": streams,
    "files": files,
    "status": status,
    "handlers": handlers,
    "blocked": lambda: sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "limits": lambda: Path("/proc/self/limits").read_text(),
    "argv": lambda: [sys.argv, sys.orig_argv[1:]],
    "path": lambda: sys.path,
    "flags": lambda: [repr(sys.flags), sys.dont_write_bytecode, sys.getswitchinterval()],
    "environment": lambda: dict(os.environ),
    "directory": os.getcwd,
    "family": lambda: [named(pid) for pid in (os.getppid(), os.getpgrp(), os.getsid(0))],
    "in front": lambda: named(os.tcgetpgrp(1)) if os.isatty(1) else None,
    "priority": lambda: os.getpriority(0, 0),
    "children": lambda: Path("/proc/self/task", str(os.getpid()), "children").read_text(),
    "threads": lambda: [one.name for one in threading.enumerate()],
    "log": lambda: [repr(logging.root), repr(logging.root.handlers), list(logging.root.filters)],
    "warnings": lambda: repr(warnings.filters),
    "garbage": lambda: [gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.garbage],
    "hooks": lambda: [repr(sys.excepthook), repr(sys.gettrace()), repr(sys.getprofile())],
    "place": lambda: [locale.setlocale(locale.LC_ALL), time.tzname, sys.getrecursionlimit()],
}


ENDINGS: dict[str, Callable[[], object]] = {
    "nothing": lambda: None,
    "number": lambda: sys.exit(3),
    "large number": lambda: sys.exit(-300),
    "text": lambda: sys.exit("why"),
    "error": lambda: 1 / 0,
    "signal": lambda: signal.raise_signal(signal.SIGTERM),
    "at exit": lambda: atexit.register(print, "at exit"),
    "thread": lambda: threading.Thread(target=outlive_main).start(),
    "daemon thread": lambda: threading.Thread(target=threading.Event().wait, daemon=True).start(),
    "output closed": lambda: [stream.close() for stream in (sys.stdout, sys.stderr)],
    "output lost": lambda: os.close(1),
}


def outlive_main() -> None:
    """Print after the main thread has ended."""
    threading.main_thread().join()
    print("thread")
