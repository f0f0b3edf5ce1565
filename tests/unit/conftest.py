"""The sentences about what functions mean hold also where values leave memory at once."""

from __future__ import annotations

import pytest

from tests.property.subject import EngineSubject


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test of the semantics twice: with values in memory, and on disk only."""
    if metafunc.module.__name__.rpartition(".")[2].startswith("test_semantics_"):
        metafunc.fixturenames.append("cold")
        metafunc.parametrize("cold", [False, True], ids=["warm", "cold"], indirect=True)


@pytest.fixture
def cold(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let values leave memory as soon as they may, or not."""
    monkeypatch.setattr(EngineSubject, "cold", request.param)
