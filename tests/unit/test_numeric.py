"""Numeric arguments: what is no number of their kind is refused before anything is sent."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from fastjournal import BadRequestError, Client, SyncClient, build_journal_key
from fastjournal.client.core import calls
from fastjournal.client.core.worker_options import WorkerOptions, worker_options
from fastjournal.numeric import check_integer


class Indexed:
    """An integer of another library, as numpy has them."""

    def __index__(self) -> int:
        return 7


def options(**fields: Any) -> WorkerOptions:
    return worker_options(**({"domain": "d", "count": 1, "lease": 1, "wait": None} | fields))


INTEGERS: dict[str, Callable[[Any], object]] = {
    "priority": lambda n: build_journal_key("d", "x", priority=n),
    "not_before_us": lambda n: build_journal_key("d", "x", not_before_us=n),
    "set timestamp": lambda n: calls.set_("k", timestamp_us=n),
    "delete token": lambda n: calls.delete("k", token=n),
    "delete timestamp": lambda n: calls.delete("k", timestamp_us=n),
    "add timestamp": lambda n: calls.add("k", timestamp_us=n),
    "flip timestamp": lambda n: calls.flip("k", timestamp_us=n),
    "truncate size": lambda n: calls.truncate("k", n),
    "truncate timestamp": lambda n: calls.truncate("k", 1, timestamp_us=n),
    "rename timestamp": lambda n: calls.rename("k", "l", timestamp_us=n),
    "next count": lambda n: calls.next_(count=n),
    "release token": lambda n: calls.release("k", n),
    "touch token": lambda n: calls.touch("k", n, ttl=1),
    "bury token": lambda n: calls.bury("k", n),
    "kick_domain count": lambda n: calls.kick_domain("d", count=n),
    "snapshot keep": lambda n: calls.snapshot(keep=n),
    "range page": lambda n: calls.range_(page=n),
    "prefix page": lambda n: calls.prefix("p", page=n),
    "regex page": lambda n: calls.regex("p", page=n),
    "jobs count": lambda n: options(count=n),
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
    with pytest.raises(BadRequestError, match=r"is not \d+ to \d|is negative|after the year"):
        INTEGERS[name](value)


def test_integer_of_another_library_is_one() -> None:
    assert check_integer("n", Indexed(), 0, 9) == 7
    assert build_journal_key("d", "x", priority=Indexed()) == build_journal_key(
        "d", "x", priority=7
    )
