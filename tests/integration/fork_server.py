"""Fork server: a process that has imported a program, and forks for each start of it.

``programs.py`` runs this file as a script, once for each program in each pytest process. It imports
nothing of the tests. A start takes two forks: the process in between ends at once, so the program
becomes a child of pytest (a subreaper at that moment), which waits for it as for any other child.

The server is what a start of the installed script is after its imports and before it calls the
entry point: one thread, no log handlers, no event loop, no open file. ``serve`` returns in the
child only. The child ends as an interpreter does, but for one step: it leaves its objects to the
kernel (``end``), for to free them copies each page that it shares with the server. All children of
one server share three things that a new interpreter would have for itself: the seed of hashes of
strings, the imported objects, which garbage collection does not look at (``gc.freeze``), and in
``/proc`` the command line and environment of the server.
"""

from __future__ import annotations

import atexit
import codecs
import ctypes
import fcntl
import gc
import importlib
import io
import json
import os
import pkgutil
import random
import signal
import socket
import sys
import termios
import threading
from collections.abc import Callable, Sequence
from typing import Any

MESSAGE_BYTES_MAX = 1 << 16
"""Longest request to start: a longer one is for a new interpreter."""

_PR_SET_PDEATHSIG = 1

_prctl = ctypes.CDLL(None, use_errno=True).prctl


def main() -> None:
    """Import the program and serve; in a child, be the program."""
    channel_fd, script, target, *preload = sys.argv[1:]
    channel = socket.socket(fileno=int(channel_fd))
    sys.path[0] = os.path.dirname(script)
    program = load(target)
    for name in preload:
        load_modules(name)
    generators = [one for one in gc.get_objects() if isinstance(one, random.Random)]
    check_nothing_leaks(channel.fileno())
    gc.collect()
    gc.freeze()
    # Ctrl-C is for pytest and the programs: the server ends when its channel does
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    serve(channel)
    for generator in generators:
        if not isinstance(generator, random.SystemRandom):
            generator.seed()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        status = program()
    except SystemExit as ending:
        status = ending.code
    end(status)


def end(status: object) -> None:
    """Exit as ``sys.exit`` does, but free no object at the end.

    The natural end remains where more belongs to it: text as exit code, threads that are waited
    for, output that cannot be written.
    """
    waited_for = [one for one in threading.enumerate() if not one.daemon]
    if isinstance(status, int | None) and waited_for == [threading.main_thread()]:
        atexit._run_exitfuncs()
        try:
            for stream in (sys.stdout, sys.stderr):
                if not stream.closed:
                    stream.flush()
        except (OSError, ValueError):
            sys.exit(status)
        # as the interpreter gives a number to the system
        os._exit((status or 0) & 0xFF)
    sys.exit(status)


def load_modules(name: str) -> None:
    """Import a module; ``package.*``: all modules below a package."""
    package = name.removesuffix(".*")
    module = importlib.import_module(package)
    if package != name:
        for found in pkgutil.walk_packages(module.__path__, f"{package}."):
            importlib.import_module(found.name)


def load(target: str) -> Callable[[], object]:
    """Return the object that an entry point names: ``module:attribute``."""
    module, _, name = target.partition(":")
    loaded: Callable[[], object] = getattr(importlib.import_module(module), name)
    return loaded


def check_nothing_leaks(channel_fd: int) -> None:
    """Refuse to serve if an import has left something that children would inherit."""
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, f"locks of other threads stay locked after a fork: {threads}"
    paths = {int(name): f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")}
    # the directory that is being listed is gone when it is looked at
    paths = {fd: os.path.realpath(path) for fd, path in paths.items() if os.path.exists(path)}
    # libffi from 3.5 on keeps its own library open, for the code that it maps
    open_files = {fd for fd, path in paths.items() if "/libffi.so" not in path}
    assert open_files <= {0, 1, 2, channel_fd}, f"an import leaves files open: {open_files}"


def serve(channel: socket.socket) -> None:
    """Fork for each start that is asked for; return in the children only, which are prepared."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(channel, MESSAGE_BYTES_MAX, 3)
        if not message:
            # pytest has closed the channel, or has died
            os._exit(0)
        is_adopted, adopted = os.pipe()
        read_pid, write_pid = os.pipe()
        between = os.fork()
        if between == 0:
            program = os.fork()
            if program:
                os.write(write_pid, b"%d" % program)
                os._exit(0)
            for fd in (adopted, read_pid, write_pid):
                os.close(fd)
            channel.close()
            # closed once the process between has ended
            os.read(is_adopted, 1)
            os.close(is_adopted)
            become(descriptors, **json.loads(message))
            return
        for fd in (write_pid, is_adopted, *descriptors):
            os.close(fd)
        pid = os.read(read_pid, 20)
        os.waitpid(between, 0)
        os.close(adopted)
        os.close(read_pid)
        channel.send(pid)


def die_with(parent: int) -> None:
    """Let this process be killed when its parent dies, or at once if it has another by now."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def become(
    descriptors: list[int],
    parent: int,
    args: list[str],
    cwd: str,
    env: dict[str, str],
    *,
    in_front: bool = False,
    ignored: Sequence[int] = (),
) -> None:
    """Take over what a start gives to a process."""
    die_with(parent)
    for number, fd in enumerate(descriptors):
        os.dup2(fd, number)
    for fd in descriptors:
        os.close(fd)
    if in_front:
        os.setsid()
        fcntl.ioctl(1, termios.TIOCSCTTY, 0)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        renew_stream(name, mode, env.get("PYTHONIOENCODING", ""))
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.argv[:] = args
    sys.orig_argv[:] = [sys.executable, *args]


def renew_stream(name: str, mode: str, wanted: str) -> None:
    """Make a standard stream as a starting interpreter does, from what the descriptor is now.

    Args:
        name: In ``sys``.
        mode: Mode of its file, without the letter for bytes.
        wanted: ``PYTHONIOENCODING``: encoding, and behind a colon what is done with errors.
    """
    old = getattr(sys, name)
    encoding, _, errors = wanted.partition(":")
    encoding = codecs.lookup(encoding).name if encoding else old.encoding
    if name == "stderr" or not wanted:
        errors = old.errors
    number = ("stdin", "stdout", "stderr").index(name)
    buffering = 0 if old.write_through and mode == "w" else -1
    binary: Any = open(number, mode + "b", buffering, closefd=False)  # noqa: SIM115 - sys.std*
    getattr(binary, "raw", binary).name = f"<{name}>"
    by_line = old.line_buffering or (os.isatty(number) and not old.write_through)
    stream = io.TextIOWrapper(
        binary, encoding, errors or "strict", "\n", by_line, old.write_through
    )
    stream.mode = mode
    setattr(sys, name, stream)
    setattr(sys, f"__{name}__", stream)


if __name__ == "__main__":
    main()
