"""Messages of ``fastjournald`` while it starts."""

from __future__ import annotations

import logging

import pytest

from fastjournal.cmdlog.recovery.inspect_log import Progress
from fastjournald.main import _progress


def test_progress_of_a_recovery_is_one_line_of_names_and_values(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "fastjournald"):
        _progress(Progress(segment="000000007.log", bytes_done=50, bytes=200, records=1234))
    assert caplog.messages == [
        "event=recovering segment=000000007.log bytes=50 of=200 records=1234"
    ]
