"""Progress bars: only where somebody waits for long, and watches."""

from __future__ import annotations

import io
import sys

import pytest

from fj_cli.progress import ProgressBar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_progress_bar_is_shown_after_the_first_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal, clock = Terminal(), Clock()
    monkeypatch.setattr(sys, "stderr", terminal)
    with ProgressBar("verifying", unit="bytes", clock=clock) as bar:
        clock.now += 0.9
        bar.update(1, 2)
        assert terminal.getvalue() == ""
        clock.now += 0.2
        bar.update(1_000_000, 2_000_000)
    assert "verifying" in terminal.getvalue()
    assert "1.0/2.0 MB" in terminal.getvalue()


def test_progress_bar_is_shown_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    file, clock = io.StringIO(), Clock()
    monkeypatch.setattr(sys, "stderr", file)
    with ProgressBar("verifying", clock=clock) as bar:
        clock.now += 60
        bar.update(1, None)
    assert file.getvalue() == ""
