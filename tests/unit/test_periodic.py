"""Cron schedules: their ticks where clocks change, and the sentences for lines that are none."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastjournal.client import Call, Written
from fastjournal.errors import BadRequestError, RefusedError
from fastjournal.tasks import TaskMessage, Tasks, current_run
from fastjournal.tasks.periodic import (
    LOOK_S,
    Periodic,
    Ticker,
    TickSetter,
    next_ticks,
    parse_schedule,
    set_due_ticks,
)
from fastjournald.testing import FastjournalDaemon

MINUTE_US = 60_000_000
HOUR_US = 60 * MINUTE_US
DAY_US = 24 * HOUR_US


def us(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1_000_000


def ticks(line: str, zone: str, after: str, until: str) -> list[str]:
    found = next_ticks(parse_schedule(line, zone), us(after), us(until))
    return [f"{datetime.fromtimestamp(tick // 1_000_000, UTC):%m-%d %H:%M:%S}" for tick in found]


def test_ticks_are_after_the_first_instant_and_up_to_the_last() -> None:
    found = ticks("*/20 * * * *", "UTC", "2026-05-01T10:00", "2026-05-01T11:00")
    assert found == ["05-01 10:20:00", "05-01 10:40:00", "05-01 11:00:00"]
    assert ticks("* * * * *", "UTC", "2026-05-01T10:00", "2026-05-01T10:00") == []


def test_six_fields_begin_with_the_seconds() -> None:
    found = ticks("*/30 * * * * *", "UTC", "2026-05-01T10:00", "2026-05-01T10:01")
    assert found == ["05-01 10:00:30", "05-01 10:01:00"]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        # a time that comes twice in autumn: once, the first time
        ("30 2 * * *", ["10-25 00:30:00", "10-26 01:30:00"]),
        # a line with a star at the minute or the hour follows the time that passes
        ("*/30 2 * * *", [f"10-25 0{h}:{m}:00" for h in (0, 1) for m in ("00", "30")]),
        ("0 0 * * *", ["10-25 23:00:00"]),
    ],
)
def test_ticks_where_clocks_are_set_back(line: str, found: list[str]) -> None:
    until = "2026-10-26T02:00" if line[0] == "3" else "2026-10-26T00:00"
    assert ticks(line, "Europe/Berlin", "2026-10-24T22:30", until) == found


def test_ticks_where_clocks_are_set_ahead() -> None:
    span = ("2026-03-28T12:00", "2026-03-29T12:00")
    assert ticks("30 2 * * *", "Europe/Berlin", *span) == ["03-29 01:00:00"]
    assert ticks("*/5 2 * * *", "Europe/Berlin", *span) == []


def test_both_day_fields_hold_where_one_begins_with_a_star() -> None:
    odd_mondays = ticks("0 0 */2 * 1", "UTC", "2026-11-01T12:00", "2026-11-30T12:00")
    assert odd_mondays == ["11-09 00:00:00", "11-23 00:00:00"]
    either = ticks("0 0 13 * 5", "UTC", "2026-11-01T12:00", "2026-11-20T12:00")
    assert either == ["11-06 00:00:00", "11-13 00:00:00", "11-20 00:00:00"]


@pytest.mark.parametrize("line", ["0 0 31 2 *", "0 0 30 2 */2", "0 0 31 2,4,6 *", "0 0 0 31 6 *"])
def test_a_line_that_never_comes_is_an_error(line: str) -> None:
    with pytest.raises(BadRequestError, match="never comes: no month that it names has such a day"):
        parse_schedule(line, "UTC")


@pytest.mark.parametrize(
    "line", ["", "* * * *", "61 * * * *", "@daily", "0 0 32 1 *", "0 0 31 13 *", "* * * * * * *"]
)
def test_a_line_that_is_none_is_an_error(line: str) -> None:
    with pytest.raises(BadRequestError, match="is no cron line: ") as raised:
        parse_schedule(line, "UTC")
    assert "minute hour day-of-month month day-of-week" in (raised.value.hint or "")


def test_a_line_that_comes_once_in_decades_is_one() -> None:
    assert ticks("0 0 * 2 MON#5", "UTC", "2044-02-28", "2044-03-01") == ["02-29 00:00:00"]


@pytest.mark.parametrize("zone", ["Europe/Berlim", "", "../etc/passwd", "Europe"])
def test_an_unknown_zone_is_an_error(zone: str) -> None:
    with pytest.raises(BadRequestError, match="is no time zone of this machine"):
        parse_schedule("* * * * *", zone)


# --- against all minutes of a day ---------------------------------------------------------------


def expected(
    minutes: set[int] | None, hours: set[int] | None, zone: str, day: datetime
) -> set[int]:
    """Return the ticks of two days as Debian's cron has them, found by trying each minute."""
    info = ZoneInfo(zone)
    found = set()
    if minutes is None or hours is None:
        for minute in range(2 * 24 * 60):
            at = day + timedelta(minutes=minute + 1)
            local = at.astimezone(info)
            if (minutes is None or local.minute in minutes) and (
                hours is None or local.hour in hours
            ):
                found.add(int(at.timestamp()) * 1_000_000)
        return found
    for minute in range(-1440, 4 * 1440):
        naive = day.replace(tzinfo=None) + timedelta(minutes=minute)
        if naive.minute in minutes and naive.hour in hours:
            at = naive.replace(tzinfo=info).astimezone(UTC)
            while at.astimezone(info).replace(tzinfo=None) != naive:  # in a gap: its end
                naive += timedelta(minutes=1)
                at = naive.replace(tzinfo=info).astimezone(UTC)
            if day < at <= day + timedelta(days=2):
                found.add(int(at.timestamp()) * 1_000_000)
    return found


ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Havana",
    "America/Santiago",
    "Asia/Kathmandu",
    "Asia/Beirut",
    "Atlantic/Azores",
    "Africa/Casablanca",
    "Australia/Lord_Howe",
)


def changes(zone: str) -> list[datetime]:
    """Return days of 2026 in which clocks change, and one in which they do not."""
    info = ZoneInfo(zone)
    days = [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=n) for n in range(365)]
    return [days[0]] + [
        day
        for day in days[1:-1]
        if day.astimezone(info).utcoffset()
        != (day + timedelta(days=1)).astimezone(info).utcoffset()
    ]


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_ticks_are_those_of_all_minutes_tried(data: st.DataObject) -> None:
    zone = data.draw(st.sampled_from(ZONES))
    day = data.draw(st.sampled_from(changes(zone)))
    minutes = data.draw(st.none() | st.sets(st.integers(0, 59), min_size=1, max_size=3))
    hours = data.draw(st.none() | st.sets(st.integers(0, 23), min_size=1, max_size=3))
    if zone == "Australia/Lord_Howe" and minutes is None:
        hours = None  # see the next test
    line = " ".join(
        "*" if each is None else ",".join(map(str, sorted(each))) for each in (minutes, hours)
    )
    schedule = parse_schedule(f"{line} * * *", zone)
    begin = int(day.timestamp()) * 1_000_000
    found = next_ticks(schedule, begin, begin + 2 * DAY_US)
    assert found == sorted(expected(minutes, hours, zone, day))
    middle = begin + data.draw(st.integers(0, 2 * DAY_US))
    parts = next_ticks(schedule, begin, middle), next_ticks(schedule, middle, begin + 2 * DAY_US)
    assert [*parts[0], *parts[1]] == found


def test_half_an_hour_of_lord_howe_is_left_out_with_a_star_at_the_minute() -> None:
    found = ticks("*/10 2 * * *", "Australia/Lord_Howe", "2026-04-04T13:00", "2026-04-05T13:00")
    assert found == ["04-04 16:00:00", "04-04 16:10:00", "04-04 16:20:00"]


# --- which ticks a worker sets ------------------------------------------------------------------


def never_enqueued() -> Call[Written]:
    raise AssertionError("the ticker only decides")


def ticker(line: str = "* * * * *", **options: int) -> Ticker:
    schedule = parse_schedule(line, "UTC")
    return Ticker(Periodic(id="t", schedule=schedule, enqueue=never_enqueued, **options))


def look(each: Ticker, at: str) -> list[tuple[str | None, int]]:
    """Look at the clock, and settle: the tick to set, and how many beside it were missed."""
    tick_us, missed = each.due(us(at), DAY_US)
    each.settle(us(at), tick_us)
    found = [(None if tick_us is None else clock(tick_us), len(missed))]
    return [] if found == [(None, 0)] else found


def clock(at_us: int) -> str:
    return f"{datetime.fromtimestamp(at_us // 1_000_000, UTC):%H:%M}"


def test_first_look_sets_the_newest_tick_and_says_nothing_of_those_before() -> None:
    assert look(ticker(), "2026-05-01T10:07:30") == [("10:07", 0)]
    assert look(ticker("0 9 * * *"), "2026-05-01T09:29:59") == [("09:00", 0)]
    assert look(ticker("0 9 * * *"), "2026-05-01T09:30:00") == []


def test_a_tick_is_set_once_and_the_next_one_at_its_instant() -> None:
    each = ticker()
    assert look(each, "2026-05-01T10:07:00") == [("10:07", 0)]
    assert each.wake_us(us("2026-05-01T10:07:00")) == us("2026-05-01T10:07:10")
    assert each.wake_us(us("2026-05-01T10:07:55")) == us("2026-05-01T10:08:00")
    assert look(each, "2026-05-01T10:07:59") == []
    assert look(each, "2026-05-01T10:08:00") == [("10:08", 0)]


def test_a_tick_that_could_not_be_set_stays_due() -> None:
    each = ticker()
    assert each.due(us("2026-05-01T10:07:00"), DAY_US) == (us("2026-05-01T10:07:00"), [])
    assert look(each, "2026-05-01T10:07:05") == [("10:07", 0)]


def test_of_the_ticks_of_a_suspension_the_newest_is_set_and_the_others_are_counted() -> None:
    each = ticker("*/5 * * * *")
    look(each, "2026-05-01T10:00:00")
    assert look(each, "2026-05-01T11:01:00") == [("11:00", 11)]
    look(each, "2026-05-01T11:05:00")
    # counted for a day, so that a look has a bound
    assert look(each, "2026-07-01T11:05:00") == [("11:05", 287)]


def test_ticks_older_than_the_catch_up_are_counted_only() -> None:
    each = ticker("0 * * * *")
    look(each, "2026-05-01T10:00:00")
    assert look(each, "2026-05-01T13:45:00") == [(None, 3)]
    assert look(each, "2026-05-01T13:50:00") == []


def test_ticks_that_have_expired_are_not_set() -> None:
    each = ticker("*/5 * * * *", expires_us=60_000_000)
    assert look(each, "2026-05-01T10:00:59") == [("10:00", 0)]
    assert look(each, "2026-05-01T10:06:30") == [(None, 1)]


def test_a_clock_that_is_set_ahead_and_back_leaves_no_tick_out_and_sets_none_twice() -> None:
    each = ticker("*/5 * * * *")
    look(each, "2026-05-01T10:00:00")
    assert look(each, "2026-05-01T11:00:00") == [("11:00", 11)]
    assert look(each, "2026-05-01T10:04:00") == []
    assert look(each, "2026-05-01T10:05:00") == [("10:05", 0)]
    assert look(each, "2026-05-01T09:59:00") == []
    assert look(each, "2026-05-01T10:05:01") == []
    look(each, "2026-05-01T10:57:00")
    assert look(each, "2026-05-01T11:00:00") == []
    look(each, "2027-05-01T11:00:00")  # a year ahead
    assert look(each, "2026-05-01T11:05:00") == [("11:05", 0)]
    assert look(each, "2026-05-01T11:05:01") == []
    # one that was skipped has passed when the clock is right again
    assert look(each, "2026-05-01T12:00:00") == [("12:00", 10)]
    assert look(each, "2026-05-01T11:36:00") == [("11:35", 0)]
    assert look(each, "2026-05-01T11:36:01") == []


# --- of an application --------------------------------------------------------------------------


def test_run_pending_runs_the_newest_tick_once_by_the_clock_of_the_daemon() -> None:
    with FastjournalDaemon(start=datetime(2030, 1, 1, 12, 3, tzinfo=UTC)) as daemon:
        app = Tasks(queue="reports", producer=daemon.sync_client())
        ran: list[tuple[bytes, int]] = []

        @app.periodic("*/5 * * * *", args={"days": 7})
        @app.task(priority=3)
        def report(days: int) -> None:
            ran.append((current_run().job.key, days))

        assert [app.run_pending(daemon) for _ in range(2)] == [1, 0]
        daemon.advance(1000)
        assert app.run_pending(daemon, periodic=False) == 0
        assert [app.run_pending(daemon) for _ in range(2)] == [1, 0]
        ticks = [us("2030-01-01T12:00"), us("2030-01-01T12:15")]
        name = report.name.encode()
        assert ran == [(b"reports:003:%d:%b" % (tick, name), 7) for tick in ticks]


def test_a_tick_replaces_the_one_before_where_the_task_is_unique() -> None:
    with FastjournalDaemon() as daemon:
        client = daemon.sync_client()
        app = Tasks(producer=client)

        @app.periodic("* * * * *")
        @app.task(unique=True)
        def report() -> None: ...

        for _ in range(5):
            set_due_ticks(app.periodics, client)
            daemon.advance(60)
        assert len(list(client.prefix("default:"))) == 1
        assert app.run_pending(daemon) == 1


def test_a_tick_that_nobody_has_begun_expires() -> None:
    with FastjournalDaemon(start=datetime(2030, 1, 1, 12, 0, tzinfo=UTC)) as daemon:
        client = daemon.sync_client()
        app = Tasks(producer=client)

        @app.periodic("0 * * * *", expires=120)
        @app.task
        def report() -> None: ...

        set_due_ticks(app.periodics, client)
        assert len(list(client.prefix("default:"))) == 1
        daemon.advance(121)
        assert app.run_pending(daemon) == 0


def test_bad_periodic_tasks_are_errors_at_their_decoration() -> None:
    app = Tasks()

    @app.task
    def report(days: int) -> None: ...

    with pytest.raises(BadRequestError, match=r"wrong arguments for task .*days"):
        app.periodic("0 0 * * *")(report)
    with pytest.raises(BadRequestError, match=r"wrong arguments for task .*Expected `int`"):
        app.periodic("0 0 * * *", args={"days": "seven"})(report)
    with pytest.raises(BadRequestError, match="never comes"):
        app.periodic("0 0 31 2 *")
    with pytest.raises(BadRequestError, match="no time zone"):
        app.periodic("0 0 * * *", "Mars")
    with pytest.raises(BadRequestError, match=r"write @app.periodic above @app.task"):
        app.periodic("0 0 * * *")(report.function)  # type: ignore[arg-type]
    app.periodic("0 0 * * *", args={"days": 1})(report)
    with pytest.raises(BadRequestError, match=r"two periodic tasks have the id .*report") as raised:
        app.periodic("0 0 1 * *", args={"days": 31})(report)
    assert raised.value.hint == "give one another id=..."
    app.periodic("0 0 1 * *", args={"days": 31}, id="monthly")(report)
    assert [each.id for each in app.periodics] == [report.name, "monthly"]


def test_no_tick_is_set_that_is_older_than_half_the_life_of_a_tombstone() -> None:
    """A worker that starts later would set it again: its tombstone may be gone."""
    app = Tasks(queue="nightly")
    app.periodic("0 * * * *", catch_up=1800)(app.task(name="work")(lambda: None))
    start = datetime(2026, 5, 1, 9, 55, tzinfo=UTC)
    with FastjournalDaemon(start=start, tombstone_ttl=600) as daemon:
        for minutes, runs in ((9, 1), (7, 0), (44, 1)):  # 10:04, 10:11, 10:55
            daemon.advance(60 * minutes)
            if minutes == 44:
                daemon.advance(60 * 6)  # 11:01
            assert app.run_pending(daemon) == runs


def test_ticks_that_are_refused_for_one_reason_are_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        app = Tasks(queue="nightly")
        app.periodic("* * * * *")(app.task(name="work")(lambda: None))
        setter = TickSetter(app.periodics)
        with FastjournalDaemon() as daemon:
            async with daemon.client() as client:
                real = client.call

                async def refuse(call: Any) -> Any:
                    key = call.request.key or b""
                    if not key.startswith(b"nightly:"):
                        return await real(call)
                    raise RefusedError(f"no room for {key!r}", code="read-only")

                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(client, "call", refuse)
                    for _ in range(3):
                        await setter.look(client)
                        daemon.advance(60)
        assert caplog.text.count("event=ticks-not-set id=work") == 1

    anyio.run(main)


def test_a_tick_that_is_refused_holds_up_no_other_and_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refuses = [True]

    class Refusing:
        def on_enqueue(self, message: TaskMessage) -> None:
            if refuses[0] and message.task == "first":
                raise ValueError("no such tenant")

    async def main() -> None:
        app = Tasks(middleware=[Refusing()])
        for name in ("first", "second"):
            app.periodic("* * * * *")(app.task(name=name)(lambda: None))
        with FastjournalDaemon() as daemon:
            async with daemon.client() as client:
                setter = TickSetter(app.periodics)
                assert await setter.look(client) <= LOOK_S / 2
                await setter.look(client)
                assert [e.key.split(b":")[3] async for e in client.prefix(b"")] == [b"second"]
                assert caplog.text.count("event=ticks-not-set id=first") == 1
                assert "ValueError: no such tenant" in caplog.text
                refuses[0] = False
                await setter.look(client)
                assert len([e async for e in client.prefix(b"")]) == 2

    anyio.run(main)
