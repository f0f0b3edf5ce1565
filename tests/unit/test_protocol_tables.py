"""The numbers of the protocol, against a copy of its tables written out by hand."""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from fastjournal.protocol import (
    QUERY_MASK,
    VALUE_MASK,
    VERSION,
    ErrorCode,
    Flag,
    Function,
    Meta,
    Query,
    Request,
    State,
    ValueType,
    decode_request,
    encode_request,
)
from fastjournal.protocol.functions import LogEffect
from fastjournald.engine.context import Context
from fastjournald.engine.handlers.table import HANDLERS, VALUE_HANDLERS, Outcome
from fastjournald.tables.value_cache import Unreadable

DOCUMENT = Path(__file__).parents[2] / "docs" / "protocol.md"

FLAGS = {
    "KEY16": 0, "TIMEOUT": 3, "UPDATE_TIMEOUT": 4, "OVERWRITE": 5, "WORKED_ON": 6, "TWO_KEYS": 7,
    "CURSOR": 8, "PERSIST": 9, "DATA": 10, "LISTEN": 11, "PERSIST_ALIAS": 12, "COUNT": 13,
    "TTL": 14, "META": 15,
}  # fmt: skip
ERROR_CODES = (
    "not-found exists stale worked-on lease-lost locked not-owner type-mismatch overflow bad-key "
    "bad-value bad-regex bad-cursor bad-request too-large unknown-function unsupported-version "
    "clock-skew read-only not-persisted not-readable auth-required auth-failed forbidden busy "
    "shutting-down"
)


def test_flag_has_its_bit() -> None:
    assert {str(flag.name): flag.value for flag in Flag} == {
        name: 1 << bit for name, bit in FLAGS.items()
    }
    assert VALUE_MASK == 0b110
    assert QUERY_MASK == 0b1_1000_0000
    named = sum({flag.value for flag in Flag} | {VALUE_MASK, QUERY_MASK})
    assert named - Flag.TWO_KEYS - Flag.CURSOR == 0xFFFF, "a bit without a name, or with two"


def test_queries_value_types_and_states_have_their_numbers() -> None:
    assert [(query.name, query.value) for query in Query] == [
        ("KEY", 0),
        ("RANGE", 1),
        ("REGEX", 2),
        ("CURSOR", 3),
    ]
    assert [(kind.name, kind.value) for kind in ValueType] == [
        ("VOID", 0),
        ("BUFFER", 1),
        ("STRING", 2),
        ("INTEGER", 3),
        ("FLOAT", 4),
        ("BOOLEAN", 5),
    ]
    assert [(state.name, state.value) for state in State] == [
        ("PERSISTENT", 1),
        ("LOCKED", 2),
        ("BURIED", 4),
        ("JOURNAL", 8),
        ("PAUSED", 16),
    ]


def test_error_codes_are_all_there() -> None:
    assert [str(code) for code in ErrorCode] == ERROR_CODES.split()
    assert VERSION == 1


def test_metadata_has_its_fields_in_order() -> None:
    assert Meta.__struct_fields__ == (
        "timestamp_us",
        "created_us",
        "modified_us",
        "accessed_us",
        "expires_us",
        "ttl_us",
        "worked_on_until_us",
        "not_before_us",
        "priority",
        "state",
        "attempts",
    )


@pytest.mark.parametrize("function", Function)
@pytest.mark.parametrize("query", Query)
def test_function_and_query_are_framed_by_the_same_rules(function: Function, query: Query) -> None:
    second_key = b"second" if query is Query.RANGE else None
    request = Request(
        function, 1, query << 7, 2, b"key", second_key, 2, b"value", timeout=3, ttl=4, count=5
    )
    decoded = decode_request(encode_request(request))
    assert decoded.query == query
    request.flags = decoded.flags
    assert decoded == request


def section(title: str) -> str:
    """Return what stands under a heading of the document, up to the next one."""
    found = re.search(rf"^#+ {title}[^\n]*\n(.*?)(?=^#)", DOCUMENT.read_text(), re.M | re.S)
    assert found, title
    return found[1]


def numbered_rows(title: str) -> dict[str, int]:
    """Return the rows ``| number | name | ...`` of a section's tables."""
    rows = re.findall(r"^\| (\d+) \| ([a-zA-Z0-9_]+) \|", section(title), re.M)
    return {name: int(number) for number, name in rows}


def test_document_has_every_function_flag_value_type_and_error() -> None:
    functions = {function.name: int(function) for function in Function}
    assert numbered_rows("Functions") == functions
    not_in_replies = ("UPDATE_TIMEOUT", "OVERWRITE", "PERSIST", "DATA", "PERSIST_ALIAS")
    assert numbered_rows("Flags of a reply") == {
        name: bit for name, bit in FLAGS.items() if name not in not_in_replies
    }
    not_in_requests = ("TWO_KEYS", "CURSOR", "PERSIST_ALIAS")
    assert numbered_rows("Flags of a request") == {
        name: bit for name, bit in FLAGS.items() if name not in not_in_requests
    }
    assert numbered_rows("Values") == {kind.name.lower(): kind.value for kind in ValueType}
    assert re.findall(r"^\| `([a-z-]+)` \|", section("Errors"), re.M) == ERROR_CODES.split()


def test_engine_has_a_handler_for_every_function_that_is_declared_as_its_own() -> None:
    assert set(HANDLERS) == {function for function in Function if function.declared.by_engine}
    for function, handler in HANDLERS.items():
        *arguments, returned = get_type_hints(handler).values()
        unreadable = [Unreadable] if function in VALUE_HANDLERS else []
        assert arguments == [Context, Hashable, Request, int, *unreadable], handler
        assert set(get_args(returned) or [returned]) <= {*get_args(Outcome)}, handler


def test_function_that_changes_nothing_is_no_write_and_is_repeated() -> None:
    for function in Function:
        declared = function.declared
        if not declared.retry.changes:
            assert declared.retry.repeat, function.name
            assert not declared.locked, function.name
            assert not declared.spoolable, function.name
            assert declared.log in (LogEffect.NONE, LogEffect.GROWS_BY_LEASE), function.name
