"""Numeric arguments: what is no number of their kind is refused before anything is sent."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from fastjournal import BadRequestError, Client, Reconnect, SyncClient, build_journal_key
from fastjournal.client.core import calls
from fastjournal.client.core.worker_options import WorkerOptions
from fastjournal.numeric import check_integer


class Indexed:
    """An integer of another library, as numpy has them."""

    def __index__(self) -> int:
        return 7


def options(**fields: Any) -> WorkerOptions:
    given = {"domain": "d", "count": 1, "lease_us": 10**6, "wait_us": None, "retry_delay_us": None}
    return WorkerOptions(**(given | fields))


INTEGERS: dict[str, Callable[[Any], object]] = {
    "priority": lambda n: build_journal_key("d", "x", priority=n),
    "not_before_us": lambda n: build_journal_key("d", "x", not_before_us=n),
    "set expires": lambda n: calls.set_("k", expires=n),
    "set ttl": lambda n: calls.set_("k", ttl=n),
    "set timestamp": lambda n: calls.set_("k", timestamp=n),
    "get lease_us": lambda n: calls.get("k", lease_us=n),
    "get expires": lambda n: calls.get("k", expires=n),
    "delete token": lambda n: calls.delete("k", token=n),
    "delete timestamp": lambda n: calls.delete("k", timestamp=n),
    "add timestamp": lambda n: calls.add("k", timestamp=n),
    "flip timestamp": lambda n: calls.flip("k", timestamp=n),
    "truncate size": lambda n: calls.truncate("k", n),
    "truncate timestamp": lambda n: calls.truncate("k", 1, timestamp=n),
    "rename timestamp": lambda n: calls.rename("k", "l", timestamp=n),
    "lock timeout_us": lambda n: calls.lock("k", timeout_us=n),
    "next count": lambda n: calls.next_(count=n),
    "next lease_us": lambda n: calls.next_(lease_us=n),
    "next wait_us": lambda n: calls.next_(wait_us=n),
    "release token": lambda n: calls.release("k", n),
    "release delay_us": lambda n: calls.release("k", 1, delay_us=n),
    "touch token": lambda n: calls.touch("k", n, ttl_us=1),
    "touch ttl_us": lambda n: calls.touch("k", ttl_us=n),
    "bury token": lambda n: calls.bury("k", n),
    "kick_domain count": lambda n: calls.kick_domain("d", count=n),
    "pause ttl_us": lambda n: calls.pause("d", n),
    "snapshot keep": lambda n: calls.snapshot(keep=n),
    "range page": lambda n: calls.range_(page=n),
    "range lease_us": lambda n: calls.range_(lease_us=n),
    "range expires": lambda n: calls.range_(expires=n),
    "prefix page": lambda n: calls.prefix("p", page=n),
    "regex page": lambda n: calls.regex("p", page=n),
    "regex lease_us": lambda n: calls.regex("p", lease_us=n),
    "jobs count": lambda n: options(count=n),
    "jobs lease_us": lambda n: options(lease_us=n),
    "jobs wait_us": lambda n: options(wait_us=n),
    "jobs retry_delay_us": lambda n: options(retry_delay_us=n),
    "reply_bytes_max": lambda n: SyncClient(reply_bytes_max=n),
    "trio reply_bytes_max": lambda n: Client(reply_bytes_max=n),
}
BOOLEAN_OR_NO_NUMBER = [True, 1.0, 1.5, math.nan, math.inf, "1", b"1", [1]]


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("value", BOOLEAN_OR_NO_NUMBER, ids=repr)
def test_number_that_is_no_integer_is_a_type_error(name: str, value: object) -> None:
    with pytest.raises(TypeError, match="is an int, not"):
        INTEGERS[name](value)


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("value", [-1, 2**64, 10**30])
def test_integer_out_of_range_is_a_bad_request(name: str, value: int) -> None:
    with pytest.raises(BadRequestError, match=r"is not \d+ to \d"):
        INTEGERS[name](value)


def test_integer_of_another_library_is_one() -> None:
    assert check_integer("n", Indexed(), 0, 9) == 7
    assert build_journal_key("d", "x", priority=Indexed()) == build_journal_key(
        "d", "x", priority=7
    )


SECONDS: dict[str, Callable[[Any], object]] = {
    "connect_timeout_s": lambda s: SyncClient(connect_timeout_s=s),
    "reply_timeout_s": lambda s: SyncClient(reply_timeout_s=s),
    "trio connect_timeout_s": lambda s: Client(connect_timeout_s=s),
    "trio reply_timeout_s": lambda s: Client(reply_timeout_s=s),
    "first_pause_s": lambda s: Reconnect(first_pause_s=s),
    "longest_pause_s": lambda s: Reconnect(longest_pause_s=s),
    "patience_s": lambda s: Reconnect(patience_s=s),
    "wait": lambda s: SyncClient().listen("k").wait(s),
}


@pytest.mark.parametrize("name", SECONDS)
@pytest.mark.parametrize("value", [True, "1", [1]], ids=repr)
def test_seconds_that_are_no_number_are_a_type_error(name: str, value: object) -> None:
    with pytest.raises(TypeError, match="is a number of seconds, not"):
        SECONDS[name](value)


@pytest.mark.parametrize("name", SECONDS)
@pytest.mark.parametrize("value", [-1, -0.5, math.nan, math.inf])
def test_seconds_that_are_negative_or_not_finite_are_a_bad_request(name: str, value: float) -> None:
    with pytest.raises(BadRequestError, match="is not a number of seconds"):
        SECONDS[name](value)
