from __future__ import annotations

import re
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastjournal.cmdlog.format.layout import NO_TIME, Command
from fastjournal.cmdlog.format.layout import SEGMENT_HEADER as HEADER
from fastjournal.cmdlog.format.records import encode_head, encode_job, encode_time
from fastjournal.cmdlog.format.workq import (
    TTL_MS_MAX,
    TTR_MS_MAX,
    is_job_id,
    is_workq_name,
    make_job_id,
    workq_name,
    workq_priority,
    workq_ttl_ms,
    workq_ttr_ms,
)
from fastjournal.testing.workq_rules import assert_workq_accepts

u64 = st.integers(0, 2**64 - 1)
domains = st.binary(min_size=1, max_size=4000) | st.from_regex(rb"[A-Za-z0-9_.-]+", fullmatch=True)


@pytest.mark.parametrize(
    ("domain", "name"),
    [
        (b"pages", b"pages"),
        (b"en.wikipedia.org", b"en.wikipedia.org"),
        (b"A-b_c.9", b"A-b_c.9"),
        (b"n" * 255, b"n" * 255),
        (b"fj", b"fj"),
        (b"n" * 256, b"fj.d." + b"n" * 200 + b".e127edf6"),
        (b"fj.kv", b"fj.d.fj.kv.babe0d2b"),
        (b"two words", b"fj.d.two_words.fe53cdb0"),
        ("\u00fcber".encode(), b"fj.d.__ber.916c9638"),
    ],
)
def test_domain_is_a_workq_name_or_is_escaped(domain: bytes, name: bytes) -> None:
    assert workq_name(domain) == name


@given(domains)
def test_name_of_any_domain_is_one_that_workq_takes(domain: bytes) -> None:
    name = workq_name(domain)
    assert is_workq_name(name)
    assert name == domain or re.fullmatch(rb"fj\.d\..{1,200}\.[0-9a-f]{8}", name)
    assert name not in {b"fj.op", b"fj.kv"}


def test_domains_that_look_alike_once_escaped_keep_different_names() -> None:
    assert len({workq_name(domain) for domain in (b"a b", b"a\tb", b"a/b", b"a" * 300)}) == 4


def test_priorities_are_turned_round() -> None:
    assert [workq_priority(priority) for priority in (0, 128, 255)] == [128, 0, -127]


def test_lease_is_cut_to_what_workq_runs() -> None:
    assert workq_ttr_ms(90_000_000) == 90_000
    assert [workq_ttr_ms(lease) for lease in (0, 999, 2**64 - 1)] == [1, 1, TTR_MS_MAX]


def test_time_to_live_counts_from_creation_and_is_cut() -> None:
    created = 1_795_165_389_000_000
    assert workq_ttl_ms(0, created) == TTL_MS_MAX
    assert workq_ttl_ms(created + 5_000_999, created) == 5000
    assert workq_ttl_ms(created, created) == workq_ttl_ms(1, created) == 1
    assert workq_ttl_ms(2**64 - 1, created) == TTL_MS_MAX


@given(st.binary(min_size=16, max_size=16))
def test_job_id_of_any_16_bytes_becomes_a_uuid_version_4(data: bytes) -> None:
    job_id = make_job_id(data)
    assert is_job_id(job_id)
    assert UUID(bytes=job_id).version == 4
    assert UUID(bytes=job_id) == UUID(bytes=data, version=4)


@given(st.binary(max_size=20))
def test_id_is_a_uuid_version_4_or_it_is_not(data: bytes) -> None:
    expected = len(data) == 16 and UUID(bytes=data).version == 4
    assert is_job_id(data) is expected


@given(domains, u64, u64, u64, st.integers(0, 255))
def test_workq_takes_jobs_of_whatever_the_engine_asks_for(
    domain: bytes, lease: int, expires: int, created: int, priority: int
) -> None:
    ttl_ms = workq_ttl_ms(expires, created)
    ttr_ms = workq_ttr_ms(lease)
    head = encode_head(workq_name(domain), ttr_ms, ttl_ms, workq_priority(priority), 0, 0)
    time = encode_time(created)
    record = encode_job(Command.ADD, time, make_job_id(bytes(16)), head, b"", NO_TIME, time)
    state = assert_workq_accepts([HEADER + record])
    assert len(state.jobs) == 1
