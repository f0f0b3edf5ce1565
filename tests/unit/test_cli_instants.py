"""Instants for people: local time, and how far from now."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from fastjournal.time_texts import (
    format_local,
    format_relative,
    format_stamp,
    format_when,
    parse_instant,
)

NOW = 1_795_449_600_000_000
"""2026-11-23T16:00:00Z."""
SECOND = 1_000_000


@pytest.fixture(autouse=True)
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC-1")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("distance", "shown"),
    [
        (0, "now"), (999, "now"), (1_500, "in 1ms"), (-59 * SECOND, "59s ago"),
        (60 * SECOND, "in 1m"), (3 * 60 * SECOND + 29 * SECOND, "in 3m"),
        (3 * 60 * SECOND + 59 * SECOND, "in 4m"), (300 * SECOND - 50_000, "in 5m"),
        (999_600, "in 1s"), (59 * SECOND + 500_000, "in 59s"), (59 * SECOND + 500_001, "in 1m"),
        (-3599 * SECOND, "1h ago"), (23 * 3600 * SECOND + 1801 * SECOND, "in 1d"),
        (-2 * 3600 * SECOND, "2h ago"), (86_400 * SECOND, "in 1d"),
        (-4000 * 86_400 * SECOND, "4,000d ago"),
    ],
)  # fmt: skip
def test_relative_instant_has_its_largest_unit(distance: int, shown: str) -> None:
    assert format_relative(NOW + distance, NOW) == shown


def test_local_instant_of_another_day_has_its_date() -> None:
    assert format_local(NOW, NOW) == "17:00:00+01:00"
    assert format_local(NOW + 6 * 3600 * SECOND, NOW) == "23:00:00+01:00"
    assert format_local(NOW + 7 * 3600 * SECOND, NOW) == "2026-11-24 00:00+01:00"
    assert format_when(NOW - 60 * SECOND, NOW) == "16:59:00+01:00 (1m ago)"


def test_instant_beyond_the_calendar_is_shown_in_seconds() -> None:
    assert format_local(2**64 - 1, NOW).startswith(("@18446744073709", "586", "+586"))


def test_line_that_is_kept_has_its_date_in_local_time() -> None:
    assert format_stamp(NOW + 5_250_999) == "2026-11-23T17:00:05.250+01:00"


@pytest.mark.parametrize(
    ("zone", "shown"), [("UTC", "Z"), ("XYZ4:30", "-04:30"), ("<+14>-14", "+14:00")]
)
def test_local_instant_with_its_date_reads_back_the_same(
    monkeypatch: pytest.MonkeyPatch, zone: str, shown: str
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    text = format_local(NOW, NOW + 40 * 86_400 * SECOND)
    assert text.endswith(shown)
    assert parse_instant(text, 0) == NOW
    assert parse_instant(format_stamp(NOW + 250_000), 0) == NOW + 250_000
