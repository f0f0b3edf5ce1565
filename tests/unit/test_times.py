"""Times of the public interface: units, exact conversion, and values that cannot be meant."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastjournal import BadRequestError, Client, Reconnect, Spool, SyncClient, build_journal_key
from fastjournal.client.core import calls
from fastjournal.client.core.calls import PagedCall
from fastjournal.client.core.worker_options import worker_options
from fastjournal.limits import DURATION_US_MAX, INSTANT_US_MAX, INSTANT_US_MIN
from fastjournal.spool.bulk import Work, WorkEncoder
from fastjournal.times import duration_us, expiry_us, instant_us, to_datetime, to_timedelta

NOW_US = 1_800_000_000_000_000
NOW = datetime(2027, 1, 15, 8, tzinfo=UTC)


def jobs(**fields: Any) -> object:
    return worker_options(**({"domain": "d", "count": 1, "lease": 60, "wait": None} | fields))


DURATIONS: dict[str, Callable[[Any], object]] = {
    "set ttl": lambda d: calls.set_("k", ttl=d),
    "lock timeout": lambda d: calls.lock("k", timeout=d),
    "next lease": lambda d: calls.next_(lease=d),
    "next wait": lambda d: calls.next_(wait=d),
    "peek lease": lambda d: calls.peek(lease=d),
    "get lease": lambda d: calls.get("k", lease=d),
    "range lease": lambda d: calls.range_(lease=d),
    "prefix lease": lambda d: calls.prefix("p", lease=d),
    "regex lease": lambda d: calls.regex("p", lease=d),
    "release delay": lambda d: calls.release("k", 1, delay=d),
    "touch ttl": lambda d: calls.touch("k", ttl=d),
    "touch ttl of a lease": lambda d: calls.touch("k", 1, ttl=d),
    "pause duration": lambda d: calls.pause("d", d),
    "limit interval": lambda d: calls.limit("d", interval=d),
    "limit lease": lambda d: calls.limit("d", lease=d),
    "jobs lease": lambda d: jobs(lease=d),
    "jobs wait": lambda d: jobs(wait=d),
    "jobs retry_delay": lambda d: jobs(retry_delay=d),
    "jobs retry_delay_max": lambda d: jobs(retry_delay=1, retry_delay_max=d),
    "jobs patience": lambda d: jobs(patience=d),
    "connect_timeout": lambda d: SyncClient(connect_timeout=d),
    "reply_timeout": lambda d: SyncClient(reply_timeout=d),
    "trio connect_timeout": lambda d: Client(connect_timeout=d),
    "trio reply_timeout": lambda d: Client(reply_timeout=d),
    "first_pause": lambda d: Reconnect(first_pause=d),
    "longest_pause": lambda d: Reconnect(longest_pause=d),
    "patience": lambda d: Reconnect(patience=d),
    "listener wait": lambda d: SyncClient().listen("k").wait(d),
}
WITHOUT_END = {"next wait", "jobs wait"}
INSTANTS: dict[str, Callable[[Any], object]] = {
    "set expires": lambda i: calls.set_("k", expires=i),
    "get expires": lambda i: calls.get("k", expires=i),
    "range expires": lambda i: calls.range_(expires=i),
    "prefix expires": lambda i: calls.prefix("p", expires=i),
    "regex expires": lambda i: calls.regex("p", expires=i),
    "key not_before": lambda i: build_journal_key("d", "x", not_before=i),
}


@pytest.mark.parametrize("name", DURATIONS)
@pytest.mark.parametrize("value", [True, "60", b"1", [1], NOW, Decimal(1)], ids=repr)
def test_duration_of_another_type_is_a_type_error(name: str, value: object) -> None:
    with pytest.raises(
        TypeError, match=r"is a number of seconds or a timedelta, not .*give seconds"
    ):
        DURATIONS[name](value)


@pytest.mark.parametrize("name", DURATIONS)
@pytest.mark.parametrize(
    "value",
    [-1, -0.5, timedelta(-1), math.nan, math.inf, -math.inf, 60_000_000, timedelta(367), 1e-7],
    ids=repr,
)
def test_duration_that_cannot_be_meant_is_a_value_error(name: str, value: object) -> None:
    if value == math.inf and name in WITHOUT_END:
        DURATIONS[name](value)
        return
    with pytest.raises(ValueError, match="give seconds, such as 90") as caught:
        DURATIONS[name](value)
    assert isinstance(caught.value, BadRequestError)


@pytest.mark.parametrize("name", [name for name in DURATIONS if name.endswith("lease")])
@pytest.mark.parametrize("value", [0.00001, 60_000_000, timedelta(days=367)], ids=repr)
def test_lease_of_microseconds_is_a_value_error(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=r"is under 0.001 s|is under 1 s|is over \d+ days"):
        DURATIONS[name](value)


@pytest.mark.parametrize("name", INSTANTS)
@pytest.mark.parametrize("value", [True, "now", timedelta(1), Decimal(1)], ids=repr)
def test_instant_of_another_type_is_a_type_error(name: str, value: object) -> None:
    with pytest.raises(TypeError, match=r"seconds or a datetime, not .*give time.time\(\) \+ 60"):
        INSTANTS[name](value)


@pytest.mark.parametrize("name", INSTANTS)
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0, "is before the year 2000"),
        (60, "is before the year 2000"),
        (-1.5, "is before the year 2000"),
        (NOW_US, "the unit is seconds"),
        (NOW_US / 1000, "the unit is seconds"),
        (2**64 - 1, "the unit is seconds"),
        (math.nan, "is not a number"),
        (math.inf, "is infinite"),
        (datetime(2999, 1, 1), "has no time zone .*tzinfo=UTC"),
        (datetime(1970, 1, 1, tzinfo=UTC), "is before the year 2000"),
    ],
    ids=repr,
)
def test_instant_that_cannot_be_meant_is_a_value_error(
    name: str, value: object, message: str
) -> None:
    if value == math.inf and name.endswith("expires"):
        return  # it means never
    with pytest.raises(ValueError, match=message) as caught:
        INSTANTS[name](value)
    assert isinstance(caught.value, BadRequestError)


@pytest.mark.parametrize("name", [name for name in INSTANTS if name.endswith("expires")])
def test_expiry_in_the_past_is_a_value_error(name: str) -> None:
    for value in (1_700_000_000, datetime.now(UTC) - timedelta(seconds=1)):
        with pytest.raises(ValueError, match=r"in the past .*timedelta\(minutes=1\)"):
            INSTANTS[name](value)
    INSTANTS[name](datetime.now(UTC) + timedelta(minutes=1))


@pytest.mark.parametrize("name", [name for name in INSTANTS if name.endswith("expires")])
def test_expiry_of_infinity_means_never(name: str) -> None:
    call = INSTANTS[name](math.inf)
    if isinstance(call, PagedCall):
        call = call.first
    assert isinstance(call, calls.Call)
    assert call.request.timeout == 0


def test_expiry_of_a_spool_is_compared_with_its_own_clock(tmp_path: Path) -> None:
    class Stopped:
        def now_us(self) -> int:
            return NOW_US

    with Spool(tmp_path / "spool", clock=Stopped()) as spool:
        spool.append(domain="d", expires=NOW + timedelta(seconds=1))
        spool.append(domain="d", expires=math.inf)
        for late in (NOW, NOW_US / 1e6 - 1):
            with pytest.raises(ValueError, match="is in the past"):
                spool.append(domain="d", expires=late)
        for early in (0, 60, datetime(1970, 1, 2, tzinfo=UTC)):
            with pytest.raises(ValueError, match=r"not_before .* is before the year 2000"):
                spool.append(domain="d", not_before=early)
        with pytest.raises(TypeError, match="ttl is a number of seconds or a timedelta"):
            spool.append(domain="d", ttl="60")  # type: ignore[arg-type] # that is the test


def test_conversion_of_a_float_gives_the_microseconds_that_were_meant() -> None:
    assert duration_us("d", 0.1) == 100_000
    assert duration_us("d", 0.3) == 300_000
    assert duration_us("d", 1e-6) == 1
    assert duration_us("d", 2.5e-6) == 2
    assert duration_us("d", timedelta(microseconds=7)) == 7
    assert instant_us("i", 1_800_000_000.123456) == 1_800_000_000_123_456
    assert instant_us("i", NOW) == NOW_US
    assert instant_us("i", NOW.astimezone(timezone(timedelta(hours=5, minutes=30)))) == NOW_US
    assert expiry_us("i", NOW, NOW_US - 1) == NOW_US


@given(st.integers(0, DURATION_US_MAX))
def test_conversion_of_a_duration_is_exact_in_both_directions(us: int) -> None:
    assert duration_us("d", to_timedelta(us)) == us
    assert duration_us("d", us // 1_000_000) == us // 1_000_000 * 1_000_000
    assert duration_us("d", us / 1e6) == us  # under 2**53, a float tells microseconds apart


@given(st.integers(INSTANT_US_MIN, INSTANT_US_MAX))
def test_conversion_of_an_instant_is_exact_in_both_directions(us: int) -> None:
    assert instant_us("i", to_datetime(us)) == us
    if us < 2**52:
        assert instant_us("i", us / 1e6) == us


def test_instant_after_the_year_9999_is_shown_as_its_end() -> None:
    last = to_datetime(INSTANT_US_MAX)
    assert last == datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC)
    assert to_datetime(2**64 - 1) == last


@pytest.mark.parametrize("value", [False, "", 0.0, b""], ids=repr)
def test_not_before_us_of_another_type_is_a_type_error(value: Any, tmp_path: Path) -> None:
    with Spool(tmp_path / "spool") as spool, pytest.raises(TypeError, match="not_before_us"):
        spool.append(domain="d", not_before_us=value)


def _spooled(directory: Path, **fields: Any) -> bytes:
    with Spool(directory / "spool") as spool:
        return spool.append(domain="d", **fields)


NOT_BEFORE_US: dict[str, Callable[[Path, Any], bytes]] = {
    "key": lambda _, us: build_journal_key("d", "x", not_before_us=us),
    "append": lambda directory, us: _spooled(directory, not_before_us=us),
    "bulk": lambda _, us: WorkEncoder().encode(Work(domain="d", not_before_us=us))[0],
}
OTHER_UNITS = [
    (NOW_US * 1000, "after the year 9999; the unit is microseconds, and this looks like nanosec"),
    (NOW_US // 1000, "before the year 2000; the unit is microseconds, and this looks like millis"),
    (
        NOW_US // 10**6,
        "before the year 2000; the unit is microseconds, and this looks like seconds",
    ),
    (60, r"before the year 2000; the unit is microseconds \(give"),
    (-1, r"negative; the unit is microseconds \(give"),
    (2**64 - 1, "after the year 9999; the unit is microseconds"),
]


@pytest.mark.parametrize("name", NOT_BEFORE_US)
@pytest.mark.parametrize(("us", "message"), OTHER_UNITS)
def test_not_before_us_of_another_unit_is_a_value_error(
    name: str, us: int, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=f"not_before_us {us} is {message}") as caught:
        NOT_BEFORE_US[name](tmp_path, us)
    assert isinstance(caught.value, BadRequestError)
    assert caught.value.code == "bad-key"


@pytest.mark.parametrize("name", NOT_BEFORE_US)
def test_not_before_us_within_the_bounds_is_in_the_key(name: str, tmp_path: Path) -> None:
    for us in (0, INSTANT_US_MIN, INSTANT_US_MAX):
        assert NOT_BEFORE_US[name](tmp_path, us).startswith(b"d:128:%016d:" % us)


@pytest.mark.parametrize(
    ("value", "unit"),
    [(NOW_US // 1000, "milliseconds"), (NOW_US, "microseconds"), (NOW_US * 1000, "nanoseconds")],
)
def test_instant_in_seconds_of_another_unit_is_named(value: int, unit: str) -> None:
    for number in (value, float(value)):
        with pytest.raises(ValueError, match=f"the unit is seconds, and this looks like {unit}"):
            instant_us("not_before", number)


@pytest.mark.parametrize("name", ["set", "rename", "link", "add"])
def test_not_before_in_the_text_of_a_new_key_is_at_most_the_year_9999(name: str) -> None:
    def call(at: int, **options: bool) -> object:
        key = f"pages:128:{at:016}:id"
        if name == "set":
            return calls.set_(key, **options)
        if name == "add":
            return calls.add(key, create=True, **options)
        return (calls.rename if name == "rename" else calls.link)("old", key, **options)

    for at in (0, 5, INSTANT_US_MAX):  # a small one is a number, for the order of the work
        call(at)
    with pytest.raises(ValueError, match=r"'pages:128:1800000000000000000:id'.* nanosec") as caught:
        call(NOW_US * 1000)
    assert isinstance(caught.value, BadRequestError)
    assert caught.value.code == "bad-key"
    call(NOW_US * 1000, plain=True)


def test_timestamp_us_is_at_most_the_year_9999(tmp_path: Path) -> None:
    assert _spooled(tmp_path, timestamp_us=7).startswith(b"d:128:%016d:" % 7)
    for refused in (
        lambda us: _spooled(tmp_path, timestamp_us=us),
        lambda us: calls.set_("k", timestamp_us=us),
        lambda us: calls.delete("k", timestamp_us=us),
    ):
        with pytest.raises(ValueError, match=r"timestamp_us \d+ is after .* looks like nanosec"):
            refused(NOW_US * 1000)


@pytest.mark.parametrize("us", [0, NOW_US])
def test_not_before_in_both_units_is_a_value_error(us: int, tmp_path: Path) -> None:
    with Spool(tmp_path / "spool") as spool:
        with pytest.raises(ValueError, match="not_before or not_before_us, not both"):
            spool.append(domain="d", not_before=NOW, not_before_us=us)
        assert spool.append(domain="d", not_before_us=0, id="x") == b"d:128:" + b"0" * 16 + b":x"
    with pytest.raises(ValueError, match="not_before or not_before_us, not both"):
        build_journal_key("d", "x", not_before=NOW, not_before_us=us)
    assert build_journal_key("d", "x") == build_journal_key("d", "x", not_before_us=0)
