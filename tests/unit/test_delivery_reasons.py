"""Reasons of fj-cli explain: one for each state of an entry, from one reply."""

from __future__ import annotations

import msgspec
import pytest

from fastjournal.client import EntryExplanation
from fastjournal.client.core.delivery_reasons import order_text, reasons_of, state_of

NOW = 1_000_000_000
KEY = "pages:128:1:it's"
DUE = EntryExplanation(keys=[KEY, "http://u/"], state="ready", now_us=NOW, domain="pages")


def with_fields(**fields: object) -> EntryExplanation:
    return msgspec.structs.replace(DUE, **fields)


def codes(entry: EntryExplanation) -> list[str]:
    return [reason.code for reason in reasons_of(entry)]


def test_due_entry_has_no_reason_and_a_place() -> None:
    assert reasons_of(DUE) == []
    assert state_of(DUE) == "due"
    assert "the first of its domain" in order_text(DUE)
    assert "1 entry before it" in order_text(with_fields(ready_before=1))
    assert "1,000 entries before it" in order_text(with_fields(ready_before=1000))


def test_due_entry_that_nobody_waits_for_says_so() -> None:
    (reason,) = reasons_of(with_fields(domain_next_waiting=0))
    assert reason.text == (
        "due now, the first of its domain, but no worker waits for work of pages"
    )
    assert reason.advice[0] == "start one: fj-worker ... --queues pages"
    (reason,) = reasons_of(with_fields(domain_next_waiting=0, domain_worked_on=2))
    assert reason.text.endswith("; 2 jobs of it are leased, so its workers may be busy")
    (reason,) = reasons_of(with_fields(domain_next_waiting=0, domain_workers_busy=2))
    assert "2 workers take work of pages, and all are busy" in reason.text


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"state": "delayed", "not_before_us": NOW + 1}, ["delayed"]),
        ({"domain_next_waiting": 0}, ["no-worker"]),
        ({"domain_next_waiting": 0, "domain_workers_busy": 1}, ["workers-busy"]),
        ({"domain_next_waiting": 1}, []),
        ({"domain_next_waiting": None}, []),
        ({"domain_next_waiting": 0, "domain_paused_until_us": NOW + 1}, ["paused"]),
        ({"state": "delayed", "domain_next_waiting": 0}, []),
        ({"state": "delayed", "not_before_us": NOW + 9, "first_due_us": NOW - 5}, ["postponed"]),
        (
            {"state": "delayed", "not_before_us": NOW + 9, "last_error": "e", "accessed_us": 5},
            ["back-off"],
        ),
        (
            {"state": "delayed", "not_before_us": NOW + 9, "attempts": 2, "accessed_us": 5},
            ["back-off"],
        ),
        ({"state": "delayed", "locked_until_us": NOW + 1}, ["locked"]),
        (
            {"state": "delayed", "locked_until_us": NOW + 1, "uri_leased_by": "x"},
            ["locked", "uri-in-work"],
        ),
        ({"domain_paused_until_us": NOW + 1}, ["paused"]),
        ({"domain_paused_until_us": NOW}, []),
        (
            {"daemon_paused_until_us": 2**64 - 1, "domain_paused_until_us": NOW + 1},
            ["all-paused", "paused"],
        ),
        ({"domain_waits_until_us": NOW + 1, "domain_is_full": True}, ["limited", "limited"]),
        ({"read_only": 1}, ["read-only"]),
        ({"state": "worked on", "domain_is_full": True}, ["leased"]),
        ({"state": "buried", "read_only": 1}, ["buried"]),
        ({"state": "deleted"}, ["tombstone"]),
        ({"state": "plain", "domain": None}, ["plain"]),
    ],
)
def test_reason_follows_from_the_fields(fields: dict[str, object], expected: list[str]) -> None:
    assert codes(with_fields(**fields)) == expected


@pytest.mark.parametrize(
    ("until_us", "word"), [(0, "delayed"), (NOW, "delayed"), (NOW + 1, "locked")]
)
def test_delayed_entry_is_locked_only_while_its_lock_holds(until_us: int, word: str) -> None:
    assert state_of(with_fields(state="delayed", locked_until_us=until_us)) == word


def test_advice_quotes_the_key_for_a_shell() -> None:
    (reason,) = reasons_of(with_fields(state="buried", attempts=2, buried_reason="no route"))
    assert reason.text == "buried after 2 failed attempts: no route"
    (without,) = reasons_of(with_fields(state="buried", attempts=0, buried_reason="exit 1"))
    assert without.text == "buried: exit 1"
    assert "fj-cli kick 'pages:128:1:it'\"'\"'s'" in reason.advice[0]


def test_superseded_and_expired_leases_say_what_follows() -> None:
    (reason,) = reasons_of(
        with_fields(state="worked on", superseded=True, superseded_by="newer", attempts=1)
    )
    assert "after 1 failed attempt" in reason.text
    assert reason.text.endswith("dropped when the lease ends: newer")
    (reason,) = reasons_of(with_fields(state="worked on", expires_us=NOW - 1))
    assert "its expiry is over" in reason.text
