"""Rates and groups of errors of the page: minutes, busiest domains, and what errors share."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastjournal.client.core import delivery_reasons
from fastjournal.client.core.delivery_reasons import error_group
from fastjournal.limits import PAGE_RATE_DOMAINS_MAX, PAGE_RATE_MINUTES, PAGE_UNSERVED_SECONDS
from fastjournal.protocol import Function
from fastjournald.observability.domain_totals import TimeSlices
from fastjournald.observability.page_figures import overview
from fastjournald.observability.rates import Counts, Rates, bars
from tests.observed_daemon import ObservedDaemon


class Counted:
    """Totals that a test raises."""

    def __init__(self) -> None:
        self.by_domain: dict[bytes, Counts] = {}

    def add(self, domain: bytes, number: int) -> None:
        before = self.by_domain.get(domain, Counts())
        self.by_domain[domain] = before._replace(completed=before.completed + number)

    def totals(self, domain: bytes | None) -> Counts | None:
        if domain is not None:
            return self.by_domain.get(domain)
        return Counts(completed=sum(counts.completed for counts in self.by_domain.values()))

    def rates(self) -> Rates:
        return Rates(self.totals, lambda: self.by_domain)


def completed(rates: Rates, domain: bytes | None = None) -> list[int]:
    series = rates.series(domain)
    assert series is not None
    assert list(series)[-3:] == ["delivered", "completed", "failed"]
    # which domain a SET is for is not counted
    assert ("set" in series) is (domain is None)
    return series["completed"]


def test_rates_are_differences_of_totals_of_the_last_hour() -> None:
    counted = Counted()
    counted.add(b"a", 100)
    rates = counted.rates()
    assert completed(rates) == [0]
    for minute in range(1, 70):
        counted.add(b"a", minute)
        counted.add(b"b", 1)
        assert completed(rates)[-1] == minute + 1
        rates.end_minute()
    assert completed(rates) == [*range(12, 71), 0]
    assert len(completed(rates)) == PAGE_RATE_MINUTES
    assert completed(rates, b"a") == [*range(11, 70), 0]
    assert completed(rates, b"b")[-3:] == [1, 1, 0]
    assert rates.series(b"c") is None


def test_rates_are_of_the_busiest_domains_and_end_with_a_quiet_hour() -> None:
    counted = Counted()
    rates = counted.rates()
    names = [b"%03d" % at for at in range(3 * PAGE_RATE_DOMAINS_MAX)]
    for at, name in enumerate(names, 1):
        counted.add(name, at)
    rates.end_minute()
    held = [name for name in names if len(completed(rates, name)) > 1]
    assert held == names[-PAGE_RATE_DOMAINS_MAX:]
    # one that becomes busy later takes the place of another
    counted.add(names[0], 1000)
    rates.end_minute()
    assert completed(rates, names[0]) == [1000, 0]
    assert len([name for name in names if len(completed(rates, name)) > 1]) == len(held)
    for _ in range(PAGE_RATE_MINUTES):
        rates.end_minute()
    assert [name for name in names if len(completed(rates, name)) > 1] == []
    del counted.by_domain[names[0]]
    rates.end_minute()
    assert rates.series(names[0]) is None


def test_rates_know_where_work_was_delivered_lately_and_survive_counts_that_begin_anew() -> None:
    counted = Counted()
    counted.by_domain[b"a"] = Counts(delivered=100, completed=100)
    rates = counted.rates()
    assert not rates.is_delivered(b"a")
    assert not rates.is_delivered(b"b")
    counted.by_domain[b"a"] = Counts(delivered=101, completed=100)
    counted.by_domain[b"b"] = Counts(delivered=1)
    for _ in range(2):
        assert rates.is_delivered(b"a")
        assert rates.is_delivered(b"b")
        rates.end_minute()
    assert not rates.is_delivered(b"a")
    # the domain gave up its counts meanwhile, and has new ones
    counted.by_domain[b"a"] = Counts(delivered=3, completed=2)
    assert rates.is_delivered(b"a")
    rates.end_minute()
    assert completed(rates, b"a") == [0, 0, 2, 0]


async def unserved(daemon: ObservedDaemon, delivered: bytes = b"") -> list[bytes]:
    """Return the domains that the page marks."""
    now, context = daemon.clock.instant_us, daemon.engine.context
    found = await overview(context, now, TimeSlices(), lambda name: name == delivered)
    assert found.unserved_number == len(found.unserved.names())
    return sorted(found.unserved.names())


async def test_domain_is_unserved_after_a_minute_in_which_nobody_takes_its_work() -> None:
    daemon = ObservedDaemon()
    for name in (b"left", b"held", b"paused"):
        daemon.set(name + b":1:0:a")
        daemon.set(name + b":1:0:b")
    assert daemon.ask(Function.NEXT, b"held", timeout=3_600_000_000) == ""
    assert daemon.ask(Function.PAUSE, b"paused", ttl=3_600_000_000) == ""
    assert await unserved(daemon) == []
    daemon.clock.step(PAGE_UNSERVED_SECONDS * 1_000_000)
    assert await unserved(daemon) == [b"left"]
    assert await unserved(daemon, b"left") == []
    # the worker of the one has gone
    daemon.engine.end_session("session")
    assert await unserved(daemon) == [b"held", b"left"]
    # somebody works for any domain, so its turn comes
    assert daemon.ask(Function.NEXT) == ""
    assert await unserved(daemon) == []
    daemon.clock.step(PAGE_UNSERVED_SECONDS * 1_000_000 + 1)
    # and while it is busy it is known to take them all
    assert await unserved(daemon) == []
    daemon.engine.end_session("session")
    assert await unserved(daemon) == [b"held", b"left"]
    assert daemon.ask(Function.PAUSE, ttl=3_600_000_000) == ""
    assert await unserved(daemon) == []


def test_bars_are_a_path_of_numbers_that_ends_at_the_right() -> None:
    assert bars([0, 0]) == ""
    assert bars([5, 0, 10], 36) == "M228 36v-18h3V36M236 36v-36h3V36"
    # one of many is seen
    assert bars([1, 10_000]).startswith("M232 36v-1h3")
    assert re.fullmatch(r"[Mvh VH0-9-]+", bars(list(range(PAGE_RATE_MINUTES))))


@pytest.mark.parametrize(
    ("text", "group"),
    [
        ("SMTP 550 5.1.1 no such user 12345", "SMTP 550 # no such user #"),
        ("HTTP 503", "HTTP 503"),
        ("HTTP Error 503: page 102", "HTTP Error 503: page #"),
        ("421 mailbox 102 is full", "421 mailbox # is full"),
        ("exit 137", "exit 137"),
        ("[Errno 113] no route to 10.0.0.5", "[Errno 113] no route to #"),
        ("HTTP/1.1 503 for https://a/7", "HTTP/1.1 503 for https://a/#"),
        ("404 Client Error for user 404", "404 Client Error for user #"),
        ("SMTPDataError: (550, b'no')", "SMTPDataError: (550, b'no')"),
        ("KeyError: 404", "KeyError: #"),
        ("no such user 550", "no such user #"),
        ("timeout after 12.5 s", "timeout after # s"),
        ("connect to 10.0.0.1:8080 failed", "connect to # failed"),
        ("no row 9f8a7c6d-1111-2222-3333-444455556666", "no row #"),
        ("<Job object at 0x7f00aa>", "<Job object at #>"),
        ("first\nsecond 7", "first"),
        ("Traceback (most recent call last):\n  File x, line 3\nKeyError: 7", "KeyError: #"),
        ("facade decade", "facade decade"),
        (
            "SMTP 550 no such user user7@example.org: mailbox 12 unavailable",
            "SMTP 550 no such user #: mailbox # unavailable",
        ),
        ("<ann.lee+x@mail.example.org>: refused", "<#>: refused"),
        ("no file 'report/7.pdf' here", "no file # here"),
        ('unknown template "welcome"', "unknown template #"),
        ("can't open, won't retry", "can't open, won't retry"),
        ("KeyError: 'name'", "KeyError: #"),
        ("order A-1234 and ORD_77b are closed", "order # and # are closed"),
        ("worker-7f3a lost eu-west-1", "# lost #"),
        ("utf-8 codec, x86_64", "# codec, #"),
        ("service refused: 403", "service refused: 403"),
        ("upstream refused: 503 for page 12", "upstream refused: 503 for page #"),
        ("time-out of read_only", "time-out of read_only"),
        ("x" * 600, "x" * 500),
        (f"{'x' * 130} HTTP 503 {'y' * 130} 7", f"{'x' * 130} HTTP 503 {'y' * 130} #"),
        ("", "no error given"),
    ],
)
def test_errors_that_are_alike_have_one_group(text: str, group: str) -> None:
    assert error_group(text) == group
    assert error_group(group) == group


PARTS = (
    "7",
    "user7@x.org",
    "'",
    '"',
    "exit ",
    "a-1",
    "0x7f",
    "http/1.1 ",
    " ",
    "-",
    "_",
    "é",
    "٣",
    "x",
)


@given(st.lists(st.sampled_from(PARTS), max_size=12).map("".join) | st.text(max_size=30))
def test_groups_of_errors_are_those_of_the_expression_over_the_whole_line(text: str) -> None:
    line = delivery_reasons.error_line(text)
    whole = delivery_reasons._VARIABLE.sub(delivery_reasons._without_number, line)
    assert error_group(text) == (whole or "no error given")
