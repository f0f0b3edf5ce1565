"""Job counts: the steps that are saved for many jobs at once change no figure."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastjournal.cmdlog.format.endings import pack_ending
from fastjournal.cmdlog.format.packed_entry import pack_facts
from fastjournald.histogram import Histogram
from fastjournald.tables.domain import Domain
from fastjournald.tables.entry import Entry, Extra
from fastjournald.tables.job_counts import JobCounts, JobCountsTable
from fastjournald.tables.lease_holders import LeaseHolder, LeaseOperation

NOW = 1_790_000_000_000_000
LEASED_BYTES = 21


def entry_of(domain: Domain, due: int, *, logged: bool) -> Entry:
    """Return an entry that is leased, with the facts of its lease if the log has it."""
    leased = pack_ending(1, 7, 1, due, NOW)[:LEASED_BYTES] if logged else b""
    facts = pack_facts(1, due, 7, due, min(due, NOW - 10**9), 1)
    return Entry(facts, b"a:1:%d:x" % due, None, b"v", domain, Extra(leased=leased, due=due))


DUES = st.integers(NOW - 2**40, NOW + 100) | st.integers(NOW - 2000, NOW + 1)
JOBS = st.lists(st.tuples(st.integers(0, 2), DUES, st.booleans()), min_size=1, max_size=70)


@given(JOBS, st.booleans(), st.sampled_from([0, NOW - 5_000_000, NOW - 1, NOW]))
def test_jobs_delivered_and_completed_together_are_counted_as_each_alone(
    jobs: list[tuple[int, int, bool]], all_logged: bool, since: int
) -> None:
    domains = [Domain(b"d%d" % number) for number in range(3)]
    table = JobCountsTable({domain.name: domain for domain in domains})
    entries = [entry_of(domains[at], due, logged=all_logged or log) for at, due, log in jobs]
    lease = LeaseOperation(since, LeaseHolder("worker", "session"), domains[0])
    table.deliver(entries, NOW)
    table.complete(entries, lease, NOW)
    for at, domain in enumerate(domains):
        waits = [max(0, NOW - due) for job_at, due, _ in jobs if job_at == at]
        counts = table.by_domain.get(domain.name, JobCounts())
        check(counts.waited_us, waits)
        check(counts.run_us, [NOW - since] * len(waits) if since else [])
        assert counts.completed == len(waits)
    check(table.total().waited_us, [max(0, NOW - due) for _, due, _ in jobs])
    assert table.total().completed == len(jobs)


def check(found: Histogram, values: Sequence[int]) -> None:
    expected = Histogram(40, 10)
    for value in values:
        expected.add(value)
    assert found.cumulative() == expected.cumulative()
    assert (found.total, found.number) == (expected.total, expected.number)


def test_domain_that_gives_its_counts_up_counts_from_0_and_the_sum_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fastjournald.tables.job_counts.COUNTED_DOMAINS_MAX", 4)
    domains = [Domain(b"d%d" % number) for number in range(5)]
    table = JobCountsTable({domain.name: domain for domain in domains})
    for number, domain in enumerate(domains[:4]):
        table.of(domain).completed += number
    table.of(domains[0]).attempts_failed += 1
    # no room: its completions are in the sum only, until it fails
    table.of(domains[4]).completed += 10
    assert b"d4" not in table.by_domain
    table.of_failing(domains[4]).attempts_failed += 1
    # the two without a failure and with the fewest completions
    assert sorted(table.by_domain) == [b"d0", b"d3", b"d4"]
    assert [domains[1].counts, domains[2].counts] == [None, None]
    assert table.of(domains[1]).completed == 0
    assert table.total().completed == 0 + 1 + 2 + 3 + 10
    assert sorted(table.most(2)) == [b"d0", b"d4"]


def test_domains_that_come_later_are_counted_apart_after_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fastjournald.tables.job_counts.COUNTED_DOMAINS_MAX", 4)
    monkeypatch.setattr("fastjournald.tables.job_counts._PASSED_MAX", 10)
    table = JobCountsTable({})
    for number in range(100):
        table.of(Domain(b"d%d" % number)).completed += 1
    assert len(table.by_domain) <= 4
    assert max(table.by_domain) > b"d8"
    assert table.begun < 30
    assert table.total().completed == 100
