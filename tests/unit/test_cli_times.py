"""Durations and instants as people write them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastjournal.errors import BadRequestError
from fastjournal.time_texts import format_duration, format_instant, parse_duration, parse_instant

S = 1_000_000
NOW = 1_795_168_800 * S
"""2026-11-20T10:00:00Z."""


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("90s", 90 * S), ("5m", 300 * S), ("1h30m", 5400 * S), ("1h 30m", 5400 * S),
        ("1.5h", 5400 * S), ("2d", 172_800 * S), ("1w", 604_800 * S), ("250ms", 250_000),
        ("7us", 7), ("0.1s", 100_000), ("30", 30 * S), ("0.5", S // 2), ("0", 0), (" 5m ", 300 * S),
        ("18446744073709551615us", 2**64 - 1),
    ],
)  # fmt: skip
def test_duration_is_read(text: str, us: int) -> None:
    assert parse_duration(text) == us


def test_duration_just_below_a_second_is_one_second() -> None:
    assert [format_duration(us) for us in (999_400, 999_500, 999_999)] == ["999ms", "1s", "1s"]


@pytest.mark.parametrize(
    "text",
    ["", " ", "m", "5x", "-5m", "5m-", "1h30", "a minute", "1e3s", "\u0665m", "5m5", ".5s", "5.s"],
)
def test_duration_in_another_form_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadRequestError, match="90s, 5m") as caught:
        parse_duration(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    "text", ["0.0000001s", "0.0000001", "0.4us", "0s0.5us", "0." + "0" * 99 + "1"]
)
def test_duration_that_rounds_to_0_is_refused(text: str) -> None:
    with pytest.raises(BadRequestError, match=r"rounds to 0 microseconds \(write 0, or 1us"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["0", "0s", "0.000w0us"])
def test_duration_of_0_is_0(text: str) -> None:
    assert parse_duration(text) == 0


@pytest.mark.parametrize("text", ["18446744073709551616us", "99999999999999999999w", "9" * 500])
def test_duration_over_64_bits_is_refused(text: str) -> None:
    with pytest.raises(BadRequestError, match="outside the range"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("2026-11-20T10:00Z", NOW), ("2026-11-20T10:00:00.25Z", NOW + S // 4),
        ("2026-11-20T12:00+02:00", NOW), ("2026-11-20 10:00", NOW),
        ("2026-11-20", NOW - 36_000 * S), ("now", NOW), ("+10m", NOW + 600 * S),
        ("+1h30m", NOW + 5400 * S), ("@1795168800", NOW), ("@0.5", S // 2),
        ("1970-01-01T00:00Z", 0),
    ],
)  # fmt: skip
def test_instant_is_read(text: str, us: int) -> None:
    assert parse_instant(text, NOW) == us


@pytest.mark.parametrize("text", ["", "tomorrow", "2026-13-01", "12:00", "@", "@x", "1795168800x"])
def test_instant_in_another_form_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadRequestError, match="2026-11-20T12:00Z"):
        parse_instant(text, NOW)


@pytest.mark.parametrize("text", ["1969-12-31T23:59Z", "@99999999999999999999", "+600000000w"])
def test_instant_outside_64_bits_is_refused(text: str) -> None:
    with pytest.raises(BadRequestError, match="outside the range"):
        parse_instant(text, NOW)


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "0s"), (999, "999us"), (12_000, "12ms"), (2_500_000, "2.5s"), (90 * S, "1m 30s"),
        (5400 * S, "1h 30m"), (86_400 * S, "1d"), (86_401 * S, "1d 1s"), (700_000 * S, "1w 1d"),
    ],
)  # fmt: skip
def test_duration_is_shown_in_its_two_largest_units(us: int, text: str) -> None:
    assert format_duration(us) == text


def test_instant_is_shown_with_the_decimals_it_needs() -> None:
    assert format_instant(NOW) == "2026-11-20T10:00:00Z"
    assert format_instant(NOW + 5000) == "2026-11-20T10:00:00.005Z"
    assert format_instant(NOW + 5) == "2026-11-20T10:00:00.000005Z"
    assert format_instant(2**64 - 1) == "@18446744073710"


@given(st.integers(0, 250_000_000_000 * S))
def test_instant_that_is_shown_reads_back_the_same(us: int) -> None:
    assert parse_instant(format_instant(us), 0) == us


@given(st.text(max_size=20))
def test_duration_or_instant_of_any_text_is_read_or_refused(text: str) -> None:
    for parse in (parse_duration, lambda t: parse_instant(t, NOW)):
        us: int | None = None
        with contextlib.suppress(BadRequestError):
            us = parse(text)
        assert us is None or 0 <= us < 2**64
