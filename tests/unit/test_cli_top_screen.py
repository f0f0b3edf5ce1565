"""Live screen of fj-cli top: order, rates and drawing, from samples."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from fastjournal.client.core.results import DaemonStats, DomainStats, WorkerStats
from fj_cli.top_screen import Rates, Sample, Screen, rates_between

SECOND = 1_000_000
LARGE = DomainStats(
    name=b"a.host.with.a.long.name.example.org",
    entries=1_400_000,
    due=123_456,
    delayed=1_234_567,
    worked_on=12_345,
    buried=12_345,
    oldest_due_us=10**12,
    paused_until_us=5000 * SECOND,
)


def sample(at: int, *domains: DomainStats, **figures: Any) -> Sample:
    return Sample(at_us=at * SECOND, daemon=DaemonStats(**figures), domains=list(domains))


def drawn(screen: Screen, width: int, height: int) -> list[str]:
    console = Console(width=width, height=height)
    with console.capture() as capture:
        console.print(screen.draw(height, width))
    return capture.get().splitlines()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40)])
def test_screen_fits_and_cuts_no_figure(width: int, height: int) -> None:
    screen = Screen("unix:/run/x")
    many = [DomainStats(name=b"d%d" % number, due=number) for number in range(100)]
    screen.take(sample(1000, LARGE, *many))
    lines = drawn(screen, width, height)
    assert len(lines) == height
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    for figure in ("123,456", "12,345", "1,234,567", "1w", "paused 1 h"):
        assert figure in text
    assert lines[-1].startswith(f"{height - 6} of 101 domains")


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40)])
def test_screen_fits_workers_below_domains_or_alone(width: int, height: int) -> None:
    name = "[2001:db8:1234:5678:9abc:def0:1234:5678]:65535 (a token \x1b[2J of many letters)"
    workers = [
        WorkerStats(name=name, worked_on=123_456 - number, since_us=SECOND, domain="d" * 200)
        for number in range(99)
    ]
    daemon = DaemonStats(workers=[*workers, WorkerStats(name="pid=1 uid=0 gid=0", waiting=2)])
    domains = [DomainStats(name=b"d%d" % number, due=number) for number in range(100)]
    screen = Screen("unix:/run/x")
    screen.take(Sample(at_us=1000 * SECOND, daemon=daemon, domains=domains))
    beside = drawn(screen, width, height)
    assert screen.press("w")
    alone = drawn(screen, width, height)
    for lines in (beside, alone):
        assert len(lines) == height
        assert max(map(len, lines)) <= width
        assert "123,456" in "\n".join(lines)
        assert "\x1b" not in "\n".join(lines)
    assert sum("[2001:db8" in line for line in alone) == height - 6
    assert 0 < sum("[2001:db8" in line for line in beside) < sum("d9" in line for line in beside)


def test_screen_escapes_what_could_disturb_a_terminal() -> None:
    screen = Screen("unix:/run/x")
    screen.take(sample(1, DomainStats(name=b"x\x1b[2J\x9b", due=1)))
    text = "\n".join(drawn(screen, 120, 24))
    assert "\x1b[2J" not in text
    assert "\\x1b[2J" in text


def test_rates_are_differences_a_second() -> None:
    before = sample(10, requests=100, set_requests=10, syncs=4, sync_us=4000, uptime_us=SECOND)
    after = sample(12, requests=300, set_requests=20, syncs=8, sync_us=12000, uptime_us=3 * SECOND)
    rates = rates_between(before, after)
    assert (rates.requests, rates.sets, rates.syncs, rates.sync_us) == (100, 5, 2, 2000)


def test_rates_of_the_first_sample_and_over_a_restart_are_zero() -> None:
    before = sample(10, requests=100, uptime_us=9 * SECOND)
    assert rates_between(None, before) == Rates()
    assert rates_between(before, sample(12, requests=200, uptime_us=SECOND)) == Rates()
    assert rates_between(before, before) == Rates()


def test_order_follows_the_change_of_entries() -> None:
    screen = Screen("s")
    screen.take(sample(1, DomainStats(name=b"a", entries=5), DomainStats(name=b"b", entries=5)))
    screen.take(sample(3, DomainStats(name=b"a", entries=5), DomainStats(name=b"b", entries=1)))
    while screen.sort != "change":
        assert screen.press("s")
    assert [domain.name for domain in screen.ordered()] == [b"b", b"a"]
    assert "-2" in "\n".join(drawn(screen, 80, 24))
    assert not screen.press("q")
