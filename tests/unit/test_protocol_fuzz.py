"""All inputs that fuzzing found (make fuzz) keep to the promises of the codec."""

from __future__ import annotations

import sys
from dis import findlinestarts
from pathlib import Path
from types import CodeType

import pytest

from fastjournal import _native
from fastjournal.protocol import replies, requests
from tests.property.fuzzing import KINDS, check, check_memory, fuzz, kept, lines_of

FOUND = [
    pytest.param(kind, data, id=f"{kind}-{path.stem}")
    for kind in KINDS
    for path, data in kept(kind)
]


@pytest.mark.parametrize(("kind", "data"), FOUND)
def test_found_input_is_decoded_or_refused(kind: str, data: bytes) -> None:
    check(kind, data)
    check_memory(kind, data)


def test_fuzzing_of_some_seconds_finds_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.property.fuzzing.KEPT", tmp_path)
    for kind in KINDS:
        assert fuzz(kind, seconds=0.5, seed=1)


NEVER_REACHED = {"return start, 0"}
"""Lines of read_pairs for a reply without pairs: its caller does not call it then."""
if _native.leaves is None:
    NEVER_REACHED |= {
        "start = _native.leaves.read_requests(data, self._value_size_max, ready)",
        "if start == len(data):",
    }


def lines(code: CodeType) -> set[int]:
    """The lines of a function; its first is not run but called."""
    return {line for _, line in findlinestarts(code) if line is not None} - {code.co_firstlineno}


@pytest.mark.skipif(sys.gettrace() is not None, reason="a debugger traces the lines")
@pytest.mark.parametrize(
    ("kind", "module", "code"),
    [
        ("requests", "requests.py", requests.RequestReader.read.__code__),
        ("replies", "replies.py", replies.ReplyReader.read.__code__),
        ("replies", "replies.py", replies.read_pairs.__code__),
    ],
)
def test_found_inputs_reach_every_line_of_the_decoders(
    kind: str, module: str, code: CodeType
) -> None:
    reached = {
        line for _, data in kept(kind) for name, line in lines_of(kind, data) if name == module
    }
    missed = lines(code) - reached
    source = Path(code.co_filename).read_text().splitlines()
    assert {source[line - 1].strip() for line in missed} <= NEVER_REACHED
