"""Live screen of fj-cli top: order, rates and drawing, from samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import structs
from rich.console import Console

from fastjournal.client.core.stats import DaemonStats, DomainStats, WorkerStats
from fj_cli.top_screen import FIRST_PART, PART, DomainRounds, Rates, Sample, Screen, rates_between

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
    for figure in ("123,456", "12,345", "1,234,567", "1w", "paused 1h"):
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


def test_domains_of_parts_are_ordered_together_and_leave_with_the_round_that_misses_them() -> None:
    def named(*names: str, **figures: int) -> list[DomainStats]:
        return [DomainStats(name=name.encode(), **figures) for name in names]

    def take(at: int, part: list[DomainStats], again: Any = (), *, ends: bool = False) -> str:
        newer = sample(at, *part)
        screen.take(structs.replace(newer, again=list(again), ends_round=ends))
        text = drawn(screen, 80, 24)[-1]
        assert screen.shown == [domain.name for domain in screen.ordered()]
        return text

    screen = Screen("s")
    assert take(1, named("a", "b", due=1)).startswith("2 of 2+ domains")
    assert take(2, named("y", "z", due=9), ends=True).startswith("4 of 4 domains")
    assert screen.shown == [b"y", b"z", b"a", b"b"]
    # the next round: a is gone, c is new, z is on the screen and read anew, x is unknown
    take(4, named("b", "c", entries=8), named("z", "x", due=5, entries=6))
    assert screen.shown == [b"y", b"z", b"a", b"b", b"c"]
    assert "+3" in "\n".join(drawn(screen, 80, 24)), "6 entries more in 2 seconds"
    assert take(5, named("y", "z", due=9), ends=True).startswith("4 of 4 domains")
    assert screen.shown == [b"y", b"z", b"b", b"c"]


def test_domains_of_another_filter_leave_at_once() -> None:
    screen = Screen("s")
    screen.take(sample(1, DomainStats(name=b"a"), DomainStats(name=b"b")))
    newer = sample(2, DomainStats(name=b"bb"))
    screen.take(structs.replace(newer, prefix=b"b", ends_round=False))
    assert [domain.name for domain in screen.ordered()] == [b"bb"]


def test_rounds_read_many_domains_first_and_then_a_part_with_each_sample() -> None:
    scans: list[bytes] = []
    number = FIRST_PART + PART + 1

    def scan(prefix: bytes) -> Iterator[DomainStats]:
        scans.append(prefix)
        return iter([DomainStats(name=b"%07d" % n) for n in range(number)])

    rounds = DomainRounds(scan)
    lengths = [(len(part), ends) for part, ends in (rounds.next_part(b"") for _ in range(4))]
    assert lengths == [(FIRST_PART, False), (PART, False), (1, True), (PART, False)]
    assert (len(rounds.next_part(b"x")[0]), scans) == (FIRST_PART, [b"", b"", b"x"])


def test_order_follows_the_change_of_entries() -> None:
    screen = Screen("s")
    screen.take(sample(1, DomainStats(name=b"a", entries=5), DomainStats(name=b"b", entries=5)))
    screen.take(sample(3, DomainStats(name=b"a", entries=5), DomainStats(name=b"b", entries=1)))
    while screen.sort != "change":
        assert screen.press("s")
    assert [domain.name for domain in screen.ordered()] == [b"b", b"a"]
    assert "-2" in "\n".join(drawn(screen, 80, 24))
    assert not screen.press("q")
