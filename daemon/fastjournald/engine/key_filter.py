"""Key filter (predicate): a range in byte order, or the keys that a regular expression matches.

Expressions are RE2's, over bytes (Latin-1), searched for anywhere in the key. Their cost is
bounded. Compiling is tried first with little memory. Matching is bounded by the size of the
program: at the worst RE2 takes time in proportion to that size times the length of the key. A match
that may take long runs in a thread.
"""

from __future__ import annotations

from typing import Any

from fastjournal.limits import (
    EXPRESSION_BYTES_MAX,
    EXPRESSION_CLASSES_MAX,
    EXPRESSION_INSTRUCTIONS_MAX,
    EXPRESSION_MEMORY_BYTES,
    KEY_BYTES_MAX,
    LONG_MATCH_WORK,
)
from fastjournal.protocol import ErrorCode

_TRIAL_MEMORY_BYTES = 64 * 1024
"""Enough for the largest program that is allowed; larger ones are refused within 8 ms."""

_BAD_BOUND = f"{ErrorCode.BAD_KEY} a bound has at most {KEY_BYTES_MAX} bytes"
_TOO_LONG = f"{ErrorCode.BAD_REGEX} an expression has at most {EXPRESSION_BYTES_MAX} bytes"
_TOO_COMPLEX = (
    f"{ErrorCode.BAD_REGEX} too complex: its program has more than "
    f"{EXPRESSION_INSTRUCTIONS_MAX} instructions"
)
_TOO_MANY_CLASSES = (
    f"{ErrorCode.BAD_REGEX} too complex: it has more than {EXPRESSION_CLASSES_MAX} Unicode classes "
    "(\\p); keys are bytes, for which [a-z] and the like are enough"
)

_SPECIAL = frozenset(b"\\.+*?()|[]{}^$")
_QUANTIFIERS = frozenset(b"*+?{")
_PLAIN_ESCAPES = frozenset(b"!\"#%&',-/:;<=>@`~ ") | _SPECIAL


class KeyFilter:
    """The keys from ``start`` up to ``stop`` that the expression, if there is one, matches.

    Args:
        start: Lower bound, included.
        stop: Upper bound, excluded; None: no bound.
        expression: Source of the expression; None: all keys of the range.
        pattern: The compiled expression.
    """

    __slots__ = ("_pattern", "expression", "instructions", "start", "stop")

    def __init__(
        self,
        start: bytes,
        stop: bytes | None,
        expression: bytes | None = None,
        pattern: Any = None,
    ) -> None:
        self.start = start
        self.stop = stop
        self.expression = expression
        self._pattern = pattern
        self.instructions: int = 0 if pattern is None else pattern.programsize
        """Size of the compiled program: cost of a match per byte of a key."""

    def matches(self, key: bytes) -> bool:
        """Whether the filter contains a key."""
        if key < self.start or (self.stop is not None and key >= self.stop):
            return False
        return self._pattern is None or self._pattern.search(key) is not None

    def matches_inside(self, key: bytes) -> bool:
        """Whether the filter contains a key between ``start`` and ``stop``."""
        return self._pattern is None or self._pattern.search(key) is not None

    def takes_long(self, key: bytes) -> bool:
        """Whether matching a key may take over a millisecond: a thread does it."""
        return self.instructions * len(key) > LONG_MATCH_WORK

    def after(self, key: bytes) -> KeyFilter:
        """Return the filter for the keys after ``key``."""
        start = max(self.start, key + b"\0")
        return KeyFilter(start, self.stop, self.expression, self._pattern)


class LongMatches:
    """Keys to match with an expression in a thread, because that may take long.

    Args:
        key_filter: Filter with the expression.
        keys: Keys between its bounds.
    """

    __slots__ = ("_filter", "_keys", "found")

    def __init__(self, key_filter: KeyFilter, keys: list[bytes]) -> None:
        self._filter = key_filter
        self._keys = keys
        self.found: dict[bytes, bool] = {}
        """Key to whether it matches; empty before ``run``."""

    def run(self) -> None:
        """Match the keys; any thread may call it, and RE2 releases the GIL."""
        matches = self._filter.matches_inside
        self.found.update((key, matches(key)) for key in self._keys)


def range_filter(first: bytes, last: bytes) -> KeyFilter | str:
    """Return the keys from ``first`` to ``last``, both included, or the error.

    An empty ``last`` is no upper end.
    """
    if len(first) > KEY_BYTES_MAX or len(last) > KEY_BYTES_MAX:
        return _BAD_BOUND
    return KeyFilter(first, last + b"\0" if last else None)


def expression_filter(expression: bytes) -> KeyFilter | str:
    """Return the keys in which an expression is found, or the error."""
    import re2  # noqa: PLC0415 - a start is faster; the first expression loads it

    if len(expression) > EXPRESSION_BYTES_MAX:
        return _TOO_LONG
    if expression.count(b"\\p") + expression.count(b"\\P") > EXPRESSION_CLASSES_MAX:
        return _TOO_MANY_CLASSES
    try:
        trial = re2.compile(expression, re2_options(_TRIAL_MEMORY_BYTES))
        if trial.programsize > EXPRESSION_INSTRUCTIONS_MAX:
            return _TOO_COMPLEX
        pattern = re2.compile(expression, re2_options(EXPRESSION_MEMORY_BYTES))
    except re2.error as error:
        reason = error.args[0]
        if isinstance(reason, bytes):
            reason = reason.decode("latin-1")
        if "too large" in reason:
            return _TOO_COMPLEX
        return f"{ErrorCode.BAD_REGEX} {reason}"
    prefix = literal_prefix(expression)
    return KeyFilter(prefix, prefix_stop(prefix), expression, pattern)


def re2_options(memory_bytes: int) -> Any:
    """Return the options of RE2: bytes are Latin-1, with a bound on its memory."""
    import re2  # noqa: PLC0415 - as above

    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.log_errors = False
    options.never_capture = True
    options.max_mem = memory_bytes
    return options


def prefix_stop(prefix: bytes) -> bytes | None:
    """Return the smallest key greater than all keys with this prefix; None: there is none."""
    prefix = prefix.rstrip(b"\xff")
    return prefix[:-1] + bytes([prefix[-1] + 1]) if prefix else None


def literal_prefix(expression: bytes) -> bytes:
    """Return a prefix of every key that a valid expression matches; empty: none is known.

    It is the literal text after ``^`` or ``\\A`` at the very start, up to the first character with
    a special meaning. There must be no other branch at the outermost level.
    """
    if expression.startswith(b"^"):
        at = 1
    elif expression.startswith(b"\\A"):
        at = 2
    else:
        return b""
    prefix = bytearray()
    end = len(expression)
    while at < end:
        byte = expression[at]
        if byte == 0x5C and at + 1 < end and expression[at + 1] in _PLAIN_ESCAPES:
            byte = expression[at + 1]
            at += 2
        elif byte in _SPECIAL:
            break
        else:
            at += 1
        prefix.append(byte)
    if at < end and expression[at] in _QUANTIFIERS:
        del prefix[-1:]
    return b"" if _has_branches(expression, at) else bytes(prefix)


def _has_branches(expression: bytes, at: int) -> bool:
    """Whether, from ``at`` on, a ``|`` is outside all parentheses, or might be."""
    depth = 0
    end = len(expression)
    while at < end:
        byte = expression[at : at + 1]
        if byte == b"\\":
            if expression[at + 1 : at + 2] == b"Q":
                return True
            at += 1
        elif byte == b"[":
            at = _class_end(expression, at)
        elif byte == b"(":
            depth += 1
        elif byte == b")":
            depth -= 1
        elif byte == b"|" and depth == 0:
            return True
        at += 1
    return False


def _class_end(expression: bytes, at: int) -> int:
    """Return the offset of the ``]`` that ends the class which begins at ``at``."""
    at += 1
    if expression[at : at + 1] == b"^":
        at += 1
    if expression[at : at + 1] == b"]":
        at += 1
    end = len(expression)
    while at < end:
        byte = expression[at : at + 1]
        if byte == b"]":
            return at
        if byte == b"\\":
            at += 1
        elif expression[at : at + 2] == b"[:":
            named = expression.find(b":]", at + 2)
            if named >= 0:
                at = named + 1
        at += 1
    return end
