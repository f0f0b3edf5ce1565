"""Scan worker: a process that reads, checks and decodes segments while the daemon replays others.

``python -m fastjournald.recovery.scan_worker`` is the process. The daemon requests segments on its
standard input, a number and a slot each. The worker packs the segment into that slot of shared
memory (``cmdlog.recovery.segment_reader``), and answers on its standard output with the head, or
with zeros if the segment is damaged or unreadable. It ends with its input.

If the worker fails, the daemon continues alone, with the same result, and logs the reason: it
cannot be started (TasksMax, no memory), it was killed, or does not answer. The worker asks the
system to kill it first when memory runs out.
"""

from __future__ import annotations

import gc
import logging
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from mmap import mmap
from pathlib import Path
from struct import Struct

from fastjournal import _native
from fastjournal.cmdlog.format.layout import NO_TIME, TIME_BYTES, segment_name
from fastjournal.cmdlog.recovery.segment_reader import (
    PACKED_SEGMENT_BYTES_MAX,
    PackedSegment,
    pack_segment,
    packed_bytes_max,
)
from fastjournal.disk import OsDisk
from fastjournal.errors import LogFailedError
from fastjournal.loglines import LogEvent, Sentence
from fastjournal.stderr_queue import queue_stderr

SLOTS = 3
"""Segments that it may have packed: one is replayed, one is ready, one is under way."""
LOG_BYTES_MIN = 64 << 20
"""A smaller log is replayed before a worker has started."""
ANSWER_SECONDS_MAX = 120.0
"""The slowest disk in use gives a segment in less."""
OOM_SCORE_ADJ = "900"

_REQUEST = Struct(">IB")
_ANSWER = Struct(f">IQIQQQ{TIME_BYTES}s{TIME_BYTES}s")
LOG = logging.getLogger("fastjournald")


def start_scan_worker(directory: str, sizes: Sequence[int]) -> ScanWorker | None:
    """Start a worker, if it saves time; None: it does not, or cannot be started, which is logged.

    Native leaves scan and decode a segment faster than what a worker has packed is unpacked.

    Args:
        directory: Directory of the log.
        sizes: Bytes of its segments.
    """
    if _native.leaves is not None:
        return None
    packable = [size for size in sizes if size <= PACKED_SEGMENT_BYTES_MAX]
    if len(packable) < 2 or sum(packable) < LOG_BYTES_MIN or len(os.sched_getaffinity(0)) < 2:
        return None
    try:
        return ScanWorker(directory, packed_bytes_max(max(packable)))
    except (OSError, ValueError) as error:
        LOG.warning(LogEvent("scan-worker-not-started", reason=Sentence(error)))
        return None


class ScanWorker:
    """Handle of the process. It implements ``segment_reader.SegmentPacker``.

    Args:
        directory: Directory of the log.
        slot_bytes: Room for a packed segment.
        python: Interpreter of the process.
        answer_seconds_max: A worker that answers nothing for so long is ended.

    Raises:
        OSError: The process cannot be started, or there is no memory.
    """

    def __init__(
        self,
        directory: str,
        slot_bytes: int,
        *,
        python: str = sys.executable,
        answer_seconds_max: float = ANSWER_SECONDS_MAX,
    ) -> None:
        self._slot_bytes = slot_bytes
        self._answer_seconds_max = answer_seconds_max
        self._free = list(range(SLOTS))
        self._asked: dict[int, int] = {}
        """Segment to slot, until it is answered."""
        self._answers: dict[int, tuple[PackedSegment, int]] = {}
        """Segment to answer and slot, until it is taken."""
        self._taken: dict[int, int] = {}
        self._failed = False
        descriptor = os.memfd_create("fastjournald-scan")
        try:
            os.ftruncate(descriptor, SLOTS * slot_bytes)
            self._memory = memoryview(mmap(descriptor, SLOTS * slot_bytes))
            command = (python, "-P", "-m", __name__, directory)
            # a Ctrl-C is for the daemon, which ends its worker
            self._process = subprocess.Popen(
                (*command, str(descriptor), str(slot_bytes)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                pass_fds=(descriptor,),
                start_new_session=True,
            )
        finally:
            os.close(descriptor)

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    def ask(self, number: int) -> bool:
        """Request a segment; False: the worker has no free slot, or has ended."""
        if self._failed or not self._free:
            return False
        assert self._process.stdin is not None
        slot = self._free.pop()
        try:
            self._process.stdin.write(_REQUEST.pack(number, slot))
        except OSError:
            self._fail()
            return False
        self._asked[number] = slot
        return True

    def is_packing(self, number: int) -> bool:
        """Whether it was asked for a segment, and has not answered."""
        while number in self._asked and self._receive(0):
            pass
        return number in self._asked

    def wait(self) -> None:
        """Wait until the worker has answered or has ended."""
        seconds = self._answer_seconds_max
        if not self._receive(seconds) and not self._failed:
            self._fail(f"no answer in {seconds:g} seconds")

    def take(self, number: int) -> tuple[PackedSegment, memoryview] | None:
        """Return its answer, which stays until ``release``; None: there is none."""
        packed, slot = self._answers.pop(number, (None, 0))
        if packed is None:
            return None
        if not packed.bytes:
            self._free.append(slot)
            return None
        self._taken[number] = slot
        begin = slot * self._slot_bytes
        return packed, self._memory[begin : begin + self._slot_bytes]

    def release(self, number: int) -> None:
        """Give the room of a segment back."""
        self._free.append(self._taken.pop(number))

    def close(self) -> None:
        """Kill the process, and wait for its end."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()

    def _receive(self, seconds: float) -> bool:
        """Wait for an answer for so many seconds; False: there was none."""
        stream = self._process.stdout
        assert stream is not None
        if self._failed or not select.select((stream,), (), (), seconds)[0]:
            return False
        # shorter than PIPE_BUF: it arrives whole
        answer = stream.read(_ANSWER.size)
        if len(answer) != _ANSWER.size:
            self._fail()
            return False
        packed = PackedSegment(*_ANSWER.unpack(answer))
        self._answers[packed.number] = packed, self._asked.pop(packed.number)
        return True

    def _fail(self, reason: str = "") -> None:
        """Go on without the process: what it has not answered, it never will."""
        self._failed = True
        self._asked.clear()
        if reason:
            self._process.kill()
        status = self._process.wait()
        LOG.warning(
            LogEvent(
                "scan-worker-failed",
                status=status,
                reason=Sentence(reason or ("killed" if status < 0 else "it ended")),
                hint="the daemon goes on alone",
            )
        )


# --- the process --------------------------------------------------------------------------------


def serve(directory: str, memory: memoryview, slot_bytes: int) -> None:
    """Answer requests on standard input until it ends."""
    disk = OsDisk()
    while len(request := os.read(0, _REQUEST.size)) == _REQUEST.size:
        number, slot = _REQUEST.unpack(request)
        begin = slot * slot_bytes
        packed = None
        # the daemon reads it, too, and says what is wrong
        with suppress(LogFailedError):
            data = disk.read(f"{directory}/{segment_name(number)}")
            packed = pack_segment(number, data, memory[begin : begin + slot_bytes])
            del data
        os.write(
            1, _ANSWER.pack(*(packed or PackedSegment(number, 0, 0, 0, 0, 0, NO_TIME, NO_TIME)))
        )


def main() -> None:
    """Run the process."""
    directory, descriptor, slot_bytes = sys.argv[1:]
    # the daemon waits for an answer while a traceback waits for a reader
    queue_stderr()
    gc.disable()
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE_ADJ)
    memory = mmap(int(descriptor), SLOTS * int(slot_bytes))
    # an answer to a daemon that has ended
    with suppress(BrokenPipeError):
        serve(directory, memoryview(memory), int(slot_bytes))


if __name__ == "__main__":
    main()
