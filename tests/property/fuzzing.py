"""Fuzzing of the codec, guided by the lines that an input reaches; what is new is kept.

    python -m tests.property.fuzzing [SECONDS] [SEED]      (make fuzz)

An input is kept as a file in tests/unit/data/fuzz/ where it reaches a line that none before it
did, or where it breaks a rule of ``check``. tests/unit/test_protocol_fuzz.py replays all of them.
The native leaves read each input too, and have to return what the functions in Python return. Where
a compiler is, they are compiled to count their blocks: a new block keeps an input as a line does.
"""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from hashlib import sha256
from pathlib import Path
from types import FrameType
from typing import Any

from fastjournal import _native
from fastjournal.protocol import (
    ClientConnection,
    Flag,
    Function,
    Meta,
    Pair,
    ProtocolError,
    Query,
    Reply,
    Request,
    ServerConnection,
    Signal,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
)
from fastjournal.protocol.constants import QUERY_SHIFT

KEPT = Path(__file__).parent.parent / "unit" / "data" / "fuzz"
KINDS = ("requests", "replies")
VALUE_BYTES_MAX = 300
REPLY_BYTES_MAX = 2000
ALLOWED_BYTES = 200_000
"""Memory that decoding may take for each of these inputs, whatever their size fields claim."""
INPUT_BYTES_MAX = 2000

BUILD = Path(__file__).parents[2] / "hatch_build.py"
COUNTER = "FASTJOURNAL_FUZZ_COUNTER"
"""Variable that names the library which counts blocks."""
COUNTER_SOURCE = """
#include <stdint.h>
unsigned blocks_reached;
static uint8_t reached[1 << 20];
void __sanitizer_cov_trace_pc(void) {
    uint8_t *block = &reached[(uintptr_t)__builtin_return_address(0) & ((1 << 20) - 1)];
    blocks_reached += !*block;
    *block = 1;
}
"""

Line = tuple[str, int]
Outcome = tuple[list[Request | Reply], str]


@contextmanager
def without_leaves() -> Iterator[None]:
    """Let the functions in Python do all."""
    leaves, _native.leaves = _native.leaves, None
    try:
        yield
    finally:
        _native.leaves = leaves


def blocks_reached() -> int:
    """Return how many blocks of the native leaves were ever run; 0: they do not count them."""
    if COUNTER not in os.environ:
        return 0
    return ctypes.c_uint.in_dll(ctypes.CDLL(os.environ[COUNTER]), "blocks_reached").value


def connection_of(kind: str) -> ServerConnection | ClientConnection:
    if kind == "requests":
        return ServerConnection(value_bytes_max=VALUE_BYTES_MAX)
    return ClientConnection(reply_bytes_max=REPLY_BYTES_MAX)


def decode(kind: str, pieces: Iterable[bytes]) -> Outcome:
    """Feed the pieces and the end; return the messages, and how it ended."""
    connection = connection_of(kind)
    for piece in pieces:
        connection.receive_data(piece)
    connection.receive_data(b"")
    messages: list[Request | Reply] = []
    while True:
        try:
            event = connection.next_event()
        except ProtocolError as error:
            # the identifier of a wrong magic is known only where it came in the same piece
            return messages, error.code
        if isinstance(event, Signal):
            assert event is Signal.CONNECTION_CLOSED
            return messages, "closed"
        messages.append(event)


def check(kind: str, data: bytes) -> None:
    """Hold the codec to its promises on these bytes.

    Raises:
        AssertionError: A promise is broken; any other exception breaks one too.
    """
    whole = decode(kind, [data] if data else [])
    with without_leaves():
        assert decode(kind, [data] if data else []) == whole
    assert decode(kind, [data[at : at + 1] for at in range(len(data))]) == whole
    for at in range(1, len(data), max(1, len(data) // 16)):
        assert decode(kind, [data[:at], data[at:]]) == whole
    if kind == "requests":
        # no byte counts for two of them, and none is made up: the encoder takes the smallest widths
        assert sum(len(encode_request(message)) for message in whole[0]) <= len(data)
    for message in whole[0]:
        if isinstance(message, Request):
            assert len(message.value) <= VALUE_BYTES_MAX
            again = decode_request(encode_request(message))
            # only the widths may differ, and those are no fields
            assert encode_request(again) == encode_request(message)
        else:
            encoded = encode_reply(message)
            assert encode_reply(decode_reply(encoded)) == encoded
            with without_leaves():
                assert encode_reply(message) == encoded


def check_memory(kind: str, data: bytes) -> None:
    """Decode under a tracer: claims of the input must not be allocated."""
    tracemalloc.start()
    try:
        decode(kind, [data] if data else [])
        assert tracemalloc.get_traced_memory()[1] < ALLOWED_BYTES
    finally:
        tracemalloc.stop()


def lines_of(kind: str, data: bytes) -> set[Line]:
    """Return the lines of the codec that decoding this reaches, with the leaves and without."""
    lines: set[Line] = set()

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        file = frame.f_code.co_filename
        if "/protocol/" not in file:
            return None
        if event == "line":
            lines.add((Path(file).name, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        half = len(data) // 2
        for context in (nullcontext, without_leaves):
            with context():
                decode(kind, [data] if data else [])
                decode(kind, [piece for piece in (data[:half], data[half:]) if piece])
    finally:
        sys.settrace(before)
    return lines


def seeds(kind: str) -> list[bytes]:
    """Return messages to begin with: all fields, none, and both widths."""
    if kind == "requests":
        bare = Request(Function.NOP)
        full = Request(
            *(Function.SET, 7, Flag.PERSIST, 9, b"key", b"uri", 1, b"value"), timeout=1, ttl=2
        )
        wide = Request(Function.GET, key=b"k" * 300, second_key=b"", count=3)
        regex = Request(Function.GET, flags=Query.REGEX << QUERY_SHIFT, key=b".")
        large = Request(Function.SET, key=b"k", value_type=1, value=b"v" * 290)
        return [encode_request(one) for one in (bare, full, wide, regex, large)]
    pair = Pair(b"key", 1, b"value", b"other", Meta(1, 2, 3))
    return [
        encode_reply(one)
        for one in (
            Reply(1),
            Reply(1, error="not-found nothing there"),
            Reply(1, Flag.TWO_KEYS, 2, "", 3, 4, b"cursor", [pair, pair]),
            Reply(1, pairs=[Pair(b"k" * 300, 2, b"v" * 300)]),
            Reply(1, pairs=[]),
        )
    ]


def changed(draw: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """Change an input a little, or mix it with another."""
    made = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 4))):
        at = draw.randrange(len(made) + 1)
        match draw.randrange(7):
            case 0 if made:
                made[min(at, len(made) - 1)] ^= 1 << draw.randrange(8)
            case 1:
                made[at : at + draw.choice((1, 1, 2, 4))] = draw.choice(
                    (b"\0", b"\xff", b"\0\0", b"\xff\xff", b"\x7f", b"\xff\xff\xff\xff")
                )
            case 2:
                made[at:at] = draw.randbytes(draw.choice((1, 2, 8)))
            case 3:
                del made[at : at + draw.choice((1, 1, 2, 8, 1000))]
            case 4:
                made += draw.choice(others)
            case 5:
                made[at:] = draw.choice(others)[at:]
            case _:
                # the flags of either message
                made[6:10] = draw.randbytes(len(made[6:10]))
    return bytes(made[:INPUT_BYTES_MAX])


def kept(kind: str) -> Iterator[tuple[Path, bytes]]:
    """Return the inputs that were found so far."""
    for path in sorted((KEPT / kind).glob("*.bin")):
        yield path, path.read_bytes()


def keep(kind: str, data: bytes) -> Path:
    path = KEPT / kind / f"{sha256(data).hexdigest()[:16]}.bin"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def fuzz(kind: str, seconds: float, seed: int) -> list[Path]:
    """Look for inputs that reach something new, and keep them.

    Args:
        kind: "requests" or "replies".
        seconds: How long.
        seed: Seed of all choices.

    Returns:
        New findings.
    """
    draw = random.Random(seed)
    inputs = [data for _, data in kept(kind)]
    for data in inputs:
        check(kind, data)
    reached = set().union(*(lines_of(kind, data) for data in inputs))
    new: list[Path] = []
    candidates = seeds(kind)
    end = time.monotonic() + seconds
    while candidates or time.monotonic() < end:
        blocks = blocks_reached()
        data = candidates.pop() if candidates else changed(draw, draw.choice(inputs), inputs)
        try:
            check(kind, data)
            check_memory(kind, data)
        except Exception:
            # any failure is a find, and the caller is to see it
            print(f"{kind}: a failure is kept in {keep(kind, data)}")
            raise
        lines = lines_of(kind, data)
        if not lines <= reached or blocks_reached() > blocks or not inputs:
            reached |= lines
            inputs.append(data)
            new.append(keep(kind, data))
    return new


def main(seconds: float = 60.0, seed: int | None = None) -> None:
    """Fuzz both decoders, half of the time each."""
    seed = time.time_ns() if seed is None else seed
    for kind in KINDS:
        found = fuzz(kind, seconds / 2, seed)
        print(f"{kind}: {len(found)} new inputs, seed {seed}, {blocks_reached()} blocks of C")


def run_counted(arguments: list[str]) -> int:
    """Run this program with native leaves that count their blocks; return its exit status.

    Raises:
        subprocess.CalledProcessError: The compiler cannot do that.
    """
    with tempfile.TemporaryDirectory() as directory:
        counter = Path(directory) / "counter.so"
        command = ["cc", "-shared", "-fPIC", "-O2", "-x", "c", "-", "-o", str(counter)]
        subprocess.run(command, input=COUNTER_SOURCE, text=True, check=True)
        build = [sys.executable, str(BUILD), directory, "-fsanitize-coverage=trace-pc"]
        subprocess.run(build, check=True)
        environment = os.environ | {
            COUNTER: str(counter),
            "LD_PRELOAD": str(counter),
            _native.SWITCH: directory,
        }
        return subprocess.run(
            [sys.executable, "-m", "tests.property.fuzzing", *arguments],
            env=environment,
            check=False,
        ).returncode


if __name__ == "__main__":
    if COUNTER not in os.environ and _native.leaves is not None and shutil.which("cc"):
        sys.exit(run_counted(sys.argv[1:]))
    main(*(float(text) for text in sys.argv[1:2]), *(int(text) for text in sys.argv[2:3]))
