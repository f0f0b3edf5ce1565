"""Query plan of a scan: the keys that a GET asks to be looked through, page after page. Pure."""

from __future__ import annotations

import msgspec

from fastjournal.limits import COMPILE_WORK, COMPILED_BYTE_WORK, KEY_BYTES_MAX
from fastjournal.protocol import ErrorCode, Query, Request
from fastjournald.engine.context import Context
from fastjournald.engine.handlers.scan.cursor import EXPRESSION, RANGE, decode_cursor
from fastjournald.engine.key_filter import KeyFilter, expression_filter, range_filter

BAD_CURSOR = f"{ErrorCode.BAD_CURSOR} not from this version of the daemon, or damaged"


class QueryPlan(msgspec.Struct, gc=False):
    """Keys and number of pairs that a request asks for."""

    keys: KeyFilter
    kind: int
    text: bytes
    """The last key of the range, or the expression."""
    count: int
    """Pairs of a reply at most; 0: as many as fit."""


def plan_of(context: Context, request: Request) -> QueryPlan | str:
    """Return the plan of a GET of a range, an expression or a cursor, or the error."""
    if request.query == Query.CURSOR:
        cursor = decode_cursor(request.key, RANGE, EXPRESSION)
        if cursor is None or len(cursor.next_key) > KEY_BYTES_MAX + 1:
            return BAD_CURSOR
        kind, text, count = cursor.kind, cursor.text, cursor.count
    else:
        cursor = None
        kind = RANGE if request.query == Query.RANGE else EXPRESSION
        text = (request.second_key or b"") if kind == RANGE else request.key
        count = request.count or 0
    if kind == EXPRESSION:
        context.store.work += COMPILE_WORK + COMPILED_BYTE_WORK * len(text)
        keys = expression_filter(text)
    else:
        keys = range_filter(request.key if cursor is None else b"", text)
    if isinstance(keys, str):
        return keys if cursor is None else BAD_CURSOR
    if cursor is not None:
        keys.start = max(keys.start, cursor.next_key)
    return QueryPlan(keys, kind, text, count)
