"""Queue of standard error: backpressure of its reader never reaches the program.

A pipe without a reading process, a stopped terminal (Ctrl-S) or a journal that hangs blocks each
write. So a line is written at once only if that waits for no reader. All others are added to a
bounded queue, and a thread writes them: log records with their level, and through ``sys.stderr``
all other text, also the tracebacks of the interpreter. Each level has a bound of its own, so no
level crowds out another. Lines that do not fit, or that the system refuses, are dropped and
counted. A mark is in the queue at the place of the first of them: there the thread writes their
number.

The descriptor stays blocking, because other processes share it: one write that may not wait has a
flag of its own (``RWF_NOWAIT``), which Linux knows for pipes and sockets, and not for terminals.
"""

from __future__ import annotations

import atexit
import io
import os
import select
import stat
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from errno import EOPNOTSUPP
from functools import partial
from queue import SimpleQueue
from typing import TypeAlias, cast

from fastjournal.limits import STDERR_LEVEL_BYTES_MAX, STDERR_LINE_OVERHEAD, STDERR_SECONDS_MAX

CRITICAL = 50
"""Level of text that no logger wrote: tracebacks, and the last line before an exit."""

_ERROR = 40
"""Level of text that other processes wrote."""

_LEVEL_STEP = 10
"""Between two levels of ``logging``; one in between counts as the level below it."""

_PART_MAX = 64 * 1024
"""Length of a text without the end of its line that waits for that, in characters or bytes."""

_AT_END = -1
"""Offset with which ``pwritev2`` writes as ``write`` does."""

_MARK = b"\0\n"
"""Line in the pipe of other processes after all their output."""

_Item: TypeAlias = tuple[int, bytes, bool] | threading.Event | None
"""Lines, with their level and whether they are the rest of a line; an event that says that the
thread came there; or the mark."""


class QueuedStderr(io.TextIOBase):
    """Text stream for ``sys.stderr`` that never waits; a thread writes to the descriptor.

    Args:
        descriptor: Standard error.
        encoding: Its encoding; a character that it does not have is escaped.
        level_bytes_max: Bytes of lines of one level that wait to be written.
    """

    def __init__(
        self, descriptor: int, encoding: str, *, level_bytes_max: int = STDERR_LEVEL_BYTES_MAX
    ) -> None:
        self._descriptor = descriptor
        self._encoding = encoding
        self._level_bytes_max = level_bytes_max
        self._is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        self._has_nowait = hasattr(os, "RWF_NOWAIT") and hasattr(os, "pwritev")
        self._is_torn = False
        """The beginning of a line was written, and not its end."""
        self._is_over = False
        """The interpreter ends: a thread may have ended within the lock, so nobody takes it."""
        self.dropped = 0
        """Lines that were dropped since the start."""
        self.describe: Callable[[Counter[int]], str] = _describe
        """Returns the line that says how many lines were dropped, by level."""
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        """Begin with nothing: the thread and the lines of a parent are not those of a child."""
        # reentrant: a signal handler may write in the midst of a write
        self._lock = threading.RLock()
        self._items: SimpleQueue[_Item] = SimpleQueue()
        self._waiting: Counter[int] = Counter()
        """Bytes by level."""
        self._untold: Counter[int] = Counter()
        """Dropped lines that were not reported yet, by level."""
        self._is_marked = False
        self._part = ""
        self._thread: threading.Thread | None = None
        self._shared: int | None = None
        """The descriptor that child processes write to, a pipe."""
        self._end = threading.Event()
        """Set when all before the last ``drain`` is written."""

    @property
    def encoding(self) -> str:  # type: ignore[override] # a variable in the stubs
        """Encoding of the descriptor."""
        return self._encoding

    @property
    def errors(self) -> str:  # type: ignore[override] # the same
        """Treatment of a character that the encoding does not have."""
        return "backslashreplace"

    @property
    def bytes_waiting(self) -> int:
        """Bytes that wait to be written, as counted."""
        with self._lock:
            return self._waiting.total()

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def isatty(self) -> bool:
        """Whether the descriptor is a terminal."""
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        """Whether it takes text: always."""
        return True

    # --- lines come in, and nobody waits ----------------------------------------------------------

    def put(self, line: str, level: int = CRITICAL) -> None:
        """Have a line written, given without its end, or drop it where its level has no room."""
        self._put(f"{line}\n", level)

    def has_room(self, size: int, level: int) -> bool:
        """Whether a level takes so many bytes now."""
        with self._lock:
            waiting = self._waiting[_kind_of(level)]
        return waiting + size + STDERR_LINE_OVERHEAD <= self._level_bytes_max

    def write(self, text: str) -> int:
        """Have text written as soon as its line ends, or at ``flush``; return its length."""
        if not self._is_over:
            with self._lock:
                lines, end, self._part = (self._part + text).rpartition("\n")
                if end:
                    self._put(lines + end, CRITICAL)
                if len(self._part) > _PART_MAX:
                    self.flush()
        return len(text)

    def flush(self) -> None:
        """Have text written whose line has not ended."""
        if self._is_over:
            return
        with self._lock:
            part, self._part = self._part, ""
            if part:
                self._put(part, CRITICAL)

    def drain(self, seconds: float) -> None:
        """Wait until all that came so far is written, but no longer than this."""
        self.flush()
        if self._thread is None:
            return
        self._end = threading.Event()
        if self._shared is None:
            self._items.put(self._end)
        else:
            os.write(self._shared, _MARK)
        self._end.wait(seconds)

    def finish(self) -> None:
        """Drain for ``STDERR_SECONDS_MAX``, and take nothing more: the interpreter ends."""
        self.drain(STDERR_SECONDS_MAX)
        self._is_over = True

    def take_children(self) -> None:
        """Take what child processes write to the descriptor: a write of theirs never waits either.

        They get a pipe in its place, which a thread reads.
        """
        self._shared, self._descriptor = self._descriptor, os.dup(self._descriptor)
        reading, writing = os.pipe()
        os.dup2(writing, self._shared)
        os.close(writing)
        threading.Thread(target=self._copy, args=(reading,), name="children", daemon=True).start()
        self._start()

    def _copy(self, reading: int) -> None:
        with open(reading, "rb") as pipe:
            for part in iter(partial(pipe.readline, _PART_MAX), b""):
                text = part.removesuffix(_MARK).decode(self._encoding, "backslashreplace")
                if text:
                    self._put(text, _ERROR)
                if part.endswith(_MARK):
                    self._items.put(self._end)

    def _put(self, text: str, level: int) -> None:
        self.put_bytes(text.encode(self._encoding, "backslashreplace"), level)

    def put_bytes(self, data: bytes, level: int) -> None:
        """Have bytes written as they are, or drop them where their level has no room."""
        if self._is_over:
            return
        size = len(data) + STDERR_LINE_OVERHEAD
        kind = _kind_of(level)
        with self._lock:
            fits, is_rest = self._waiting[kind] + size <= self._level_bytes_max, False
            if not fits:
                self._drop(kind)
            elif not (self._waiting.total() or self._untold):
                rest = self._write_at_once(data)
                if not rest:
                    return
                is_rest = len(rest) < len(data)
                data, size = rest, len(rest) + STDERR_LINE_OVERHEAD
            if self._untold and not self._is_marked:
                self._is_marked = True
                self._items.put(None)
            if fits:
                self._waiting[kind] += size
                self._items.put((kind, data, is_rest))
            self._start()

    def _write_at_once(self, data: bytes) -> bytes:
        """Write if that waits for no reader; return the rest, of which the thread finds out."""
        try:
            if self._is_file:
                return data[os.write(self._descriptor, data) :]
            if self._has_nowait:
                return data[os.pwritev(self._descriptor, [data], _AT_END, os.RWF_NOWAIT) :]
        except OSError as error:
            self._has_nowait = error.errno != EOPNOTSUPP
        return data

    def _start(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="stderr", daemon=True)
            # the system has no thread to spare: the next line tries again
            with suppress(RuntimeError):
                thread.start()
                self._thread = thread

    def _drop(self, kind: int) -> None:
        self._untold[kind] += 1
        self.dropped += 1

    # --- the thread, which may wait ---------------------------------------------------------------

    def _run(self) -> None:
        while True:
            item = self._items.get()
            if item is None:
                self._tell_dropped()
            elif isinstance(item, threading.Event):
                item.set()
            else:
                kind, data, is_rest = item
                is_written = self._write(data, is_rest=is_rest)
                with self._lock:
                    self._waiting[kind] -= len(data) + STDERR_LINE_OVERHEAD
                    if not is_written:
                        self._drop(kind)

    def _tell_dropped(self) -> None:
        with self._lock:
            self._is_marked = False
            dropped, self._untold = self._untold, Counter()
        line = f"{self.describe(dropped)}\n".encode(self._encoding, "backslashreplace")
        if not self._write(line):
            with self._lock:
                self._untold += dropped

    def _write(self, data: bytes, *, is_rest: bool = False) -> bool:
        """Write all of it; whether the system took it."""
        if self._is_torn:
            data = b"\n" + data
        left = memoryview(data)
        try:
            while left:
                try:
                    left = left[os.write(self._descriptor, left) :]
                except BlockingIOError:
                    # another process that shares the descriptor made it non-blocking
                    select.select((), (self._descriptor,), ())
        except OSError:
            # its reader has ended, or its disk is full: that may end
            self._is_torn = self._is_torn or is_rest or len(left) < len(data)
            return False
        self._is_torn = False
        return True


def _kind_of(level: int) -> int:
    return min(level // _LEVEL_STEP * _LEVEL_STEP, CRITICAL)


def queue_stderr(*, with_children: bool = False) -> None:
    """Make standard error a queue, from now until the end of the process.

    At any exit, the last lines are waited for, ``STDERR_SECONDS_MAX`` at most. A stream without a
    descriptor, which another program has put there, stays.

    Args:
        with_children: Child processes write to the queue, too.
    """
    try:
        descriptor = sys.stderr.fileno()
    except OSError:
        return
    stderr = QueuedStderr(descriptor, sys.stderr.encoding)
    if with_children:
        stderr.take_children()
    sys.stderr.flush()
    sys.stderr = cast("io.TextIOWrapper", stderr)
    atexit.register(stderr.finish)


def lines_dropped() -> int:
    """Return how many lines this process has dropped; 0 where standard error is no queue."""
    return sys.stderr.dropped if isinstance(sys.stderr, QueuedStderr) else 0


def bytes_waiting() -> int:
    """Return the bytes that wait to be written; 0 where standard error is no queue."""
    return sys.stderr.bytes_waiting if isinstance(sys.stderr, QueuedStderr) else 0


def _describe(dropped: Counter[int]) -> str:
    return f"{dropped.total()} lines could not be written"
