"""Standard input, output and error of a program: closed ones, and text that they cannot hold."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import TextIO

_STREAMS = (("stdin", "r", os.O_RDONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_WRONLY))
"""How a closed one is opened. To write to standard output fails then; standard error is dropped."""


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
