"""Subject of tests of semantics: the engine and the naive model, values in memory or on disk only.

Tests of semantics run a second time on the engine (``cold``): there everything is persistent, and
each value leaves memory at once. Those in which the engine looks at no value that a request before
has left are marked ``warm_only``, with nothing more, and run once; those that are about what is not
persistent are marked with the reason. Both are held: a ``warm_only`` test without a reason fails if
an older value is looked at, and a cold run fails if none is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from tests.property.model import Model
from tests.property.model_parts import Rules
from tests.property.subject import EngineSubject, Subject
from tests.property.value_watch import ValueWatch


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests of semantics twice."""
    if metafunc.module.__name__.rpartition(".")[2].startswith("test_semantics_"):
        metafunc.parametrize("cold", [False, True], ids=["warm", "cold"], indirect=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out the cold runs that would repeat the warm ones, and those of the naive model."""
    items[:] = [
        item
        for item in items
        if not (
            isinstance(item, pytest.Function)
            and hasattr(item, "callspec")
            and item.callspec.params.get("cold")
            and (
                any(value is Model for value in item.callspec.params.values())
                or item.get_closest_marker("warm_only") is not None
            )
        )
    ]


@pytest.fixture(autouse=True)
def _sync_in_the_event_loop(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy machine would let syncs run in threads, and the mock clock jump meanwhile."""
    if "autojump_clock" in request.fixturenames:
        monkeypatch.setattr("fastjournald.group_commit.commit.INLINE_SECONDS_MAX", math.inf)


@pytest.fixture(params=[EngineSubject, Model], ids=["engine", "model"])
def s(request: pytest.FixtureRequest) -> Subject:
    """Subject with the usual rules."""
    return Subject(request.param(Rules()))


@pytest.fixture(autouse=True)
def cold(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let values leave memory as soon as they may, or not."""
    is_cold = getattr(request, "param", False)
    warm_only = request.node.get_closest_marker("warm_only")
    if not is_cold and (warm_only is None or warm_only.args):
        yield
        return
    watch = ValueWatch(marks=not is_cold)
    watch.install(monkeypatch)
    monkeypatch.setattr(EngineSubject, "cold", is_cold)
    monkeypatch.setattr(EngineSubject, "persists", is_cold)
    monkeypatch.setattr(EngineSubject, "watch", watch)
    yield
    if is_cold:
        assert watch.looks, "no value was read: mark the test warm_only"
    else:
        assert not watch.looks, "a value was read: it may be on the disk only, drop warm_only"
