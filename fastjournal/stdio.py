"""Standard input, output and error of a program: closed ones, and text that they cannot hold."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import sys
from typing import BinaryIO, TextIO

_STREAMS = (("stdin", "r", os.O_WRONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_WRONLY))
"""How a closed one is opened. To read standard input fails then, and to write to standard output;
standard error is dropped."""


def prepare_stdio() -> None:
    """Make standard input, output and error safe to use; call it before anything is opened.

    A descriptor that is closed is occupied: else the next socket would get its number, and texts
    for people would go there. A character that an encoding cannot hold is escaped.
    """
    for fd, (name, mode, flags) in enumerate(_STREAMS):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, flags), True)
        if getattr(sys, name) is None:
            # as Python opens them: the descriptor outlives the object
            stream = open(fd, mode, encoding="utf-8", closefd=False)  # noqa: SIM115 - stays
            setattr(sys, name, stream)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def open_input() -> BinaryIO:
    """Return standard input, whose reads wait for all of it.

    Raises:
        OSError: It is closed, or can only be written.
    """
    stream = sys.stdin.buffer
    if fcntl.fcntl(stream, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY:
        raise OSError("standard input is closed, so there is nothing to read")
    os.set_blocking(stream.fileno(), True)  # else a read returns where the writer is slow
    return stream


def holds_unicode(stream: TextIO) -> bool:
    """Whether a stream can hold all text."""
    return (stream.encoding or "").lower().replace("-", "").startswith("utf")


def drop(stream: TextIO) -> None:
    """Let nothing more go to a stream, not even what Python flushes at exit."""
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def drop_what_fails() -> None:
    """Drop what standard output and error do not take: it is too late to tell anybody."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            drop(stream)
