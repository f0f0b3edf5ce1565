"""What a GET of many keys asks to be looked through, from its first page to its last."""

from __future__ import annotations

import msgspec

from fastjournal.limits import COMPILE_WORK, COMPILED_BYTE_WORK, KEY_BYTES_MAX
from fastjournal.protocol import ErrorCode, Query, Request
from fastjournald.engine.context import Context
from fastjournald.engine.handlers.scan.cursor import EXPRESSION, RANGE, decode_cursor
from fastjournald.engine.key_filter import Selection, select_matching, select_range

BAD_CURSOR = f"{ErrorCode.BAD_CURSOR} not from this version of the daemon, or damaged"


class Plan(msgspec.Struct, gc=False):
    """What a request asks to be looked through."""

    selection: Selection
    kind: int
    text: bytes
    """The last key of the range, or the expression."""
    count: int
    """Pairs of a reply at most; 0: as many as fit."""


def plan_of(context: Context, request: Request) -> Plan | str:
    """Return what a GET of a range, an expression or a cursor is about, or the error."""
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
        selection = select_matching(text)
    else:
        selection = select_range(request.key if cursor is None else b"", text)
    if isinstance(selection, str):
        return selection if cursor is None else BAD_CURSOR
    if cursor is not None:
        selection.start = max(selection.start, cursor.next_key)
    return Plan(selection, kind, text, count)
