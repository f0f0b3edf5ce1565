"""Clean-up of ``fj-cli bench``, where the daemon does not delete what was written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from fastjournal.client import Client
from fastjournal.errors import RefusedError
from fj_cli.benching import Bench, Load


class Refusing:
    """A daemon that takes a SET, refuses NEXT, and refuses DELETE so often."""

    def __init__(self, code: str, times: int) -> None:
        self._code = code
        self._times = times
        self.entries = 0
        self.tries = 0

    async def __aenter__(self) -> Refusing:
        return self

    async def __aexit__(self, *_: object) -> None:
        await trio.lowlevel.checkpoint()

    async def set(self, _key: bytes, _value: bytes, **_: Any) -> None:
        await trio.lowlevel.checkpoint()
        if self.refuses_set:
            self.entries = int(self.refuses_set == "not-persisted")  # it is in memory
            raise RefusedError("the test refuses it", code=self.refuses_set)
        self.entries = 1

    refuses_set = ""

    async def next(self, _domain: str, **_: Any) -> None:
        await trio.lowlevel.checkpoint()
        raise RefusedError("the test refuses it", code="busy")

    async def delete(self, _key: bytes, **_: Any) -> None:
        await trio.lowlevel.checkpoint()
        self.tries += 1
        if self.tries <= self._times:
            raise RefusedError("the test refuses it", code=self._code)
        self.entries = 0

    async def domain_stats(self, _domain: str) -> SimpleNamespace:
        await trio.lowlevel.checkpoint()
        return SimpleNamespace(entries=self.entries)


@pytest.mark.parametrize(
    ("code", "times", "tries", "may_be_left"),
    [
        ("read-only", 3, range(4, 5), False),
        ("read-only", 10**9, range(10, 1000), True),
        ("forbidden", 10**9, range(1, 2), True),
    ],
)
def test_refused_clean_up_pauses_and_says_what_may_be_left(
    code: str, times: int, tries: range, may_be_left: bool
) -> None:
    daemon = Refusing(code, times)
    load = Load(connections=1, jobs=1, value_bytes=1, persist=False)
    bench = Bench(load, lambda: cast(Client, daemon))
    with pytest.raises(RefusedError, match="busy"):
        trio.run(bench.run, clock=MockClock(autojump_threshold=0))
    assert bench.may_be_left is may_be_left
    assert daemon.tries in tries


@pytest.mark.parametrize(("code", "may_be_left"), [("forbidden", False), ("not-persisted", True)])
def test_refused_set_leaves_nothing_unless_it_may_be_in_memory(
    code: str, may_be_left: bool
) -> None:
    daemon = Refusing("forbidden", 10**9)
    daemon.refuses_set = code
    load = Load(connections=2, jobs=4, value_bytes=1, persist=False)
    bench = Bench(load, lambda: cast(Client, daemon))
    with pytest.raises(RefusedError, match="the test refuses it"):
        trio.run(bench.run, clock=MockClock(autojump_threshold=0))
    assert bench.may_be_left is may_be_left
    assert bool(daemon.tries) is may_be_left
