"""fj-cli ping against a daemon whose clock is far away."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Self

import pytest
from click.testing import CliRunner

from fj_cli.cli import cli
from fj_cli.commands import bench


class Daemon:
    """A daemon whose machine has lost its clock."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def nop(self) -> datetime:
        return datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC)


def test_ping_shows_a_clock_of_1970(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "open_client", lambda _ctx: Daemon())
    arguments = ["ping", "--count", "1", "--json"]
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    ahead_us = json.loads(result.stdout.splitlines()[0])["clock_ahead_us"]
    years = ahead_us / (365.25 * 86_400_000_000)
    assert -200 < years < -50
