"""Expressions of subscriptions, matched many at a time by RE2's sets; equal sets are shared. Pure.

A set has one automaton for all of its expressions, which reads a key once. Its memory is bounded
when it is compiled, and does not grow. A changed set is compiled again. A set is small: one match
of a long key takes no longer than that of the largest single expression.

All expressions of a `Search` are about the same range of keys, for one session.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Generic, TypeVar

from fastjournal.limits import (
    EXPRESSION_SET_INSTRUCTIONS,
    INSTRUCTION_MEMORY_BYTES,
    LONG_MATCH_WORK,
    SET_MEMORY_BYTES_MIN,
)
from fastjournald.engine.key_filter import re2_options

INSTRUCTIONS_A_STEP = 500
"""Program size that takes a step for each byte of a key: mostly a microsecond, 5 at the worst."""

T = TypeVar("T")


def memory_of(instructions: int) -> int:
    """Return the bytes that a set may take whose programs have so many instructions."""
    return max(SET_MEMORY_BYTES_MIN, instructions * INSTRUCTION_MEMORY_BYTES)


class CompiledSet:
    """Expressions that are searched for together; shared by all who have just these.

    Args:
        expressions: Valid ones.
        instructions: Instructions of all of their programs.
    """

    __slots__ = ("_found", "_key", "_set", "bytes", "expressions", "instructions", "users")

    def __init__(self, expressions: tuple[bytes, ...], instructions: int) -> None:
        self.expressions = expressions
        self.instructions = instructions
        self.users = 0
        self.bytes = memory_of(instructions)
        """Memory that the set takes at the most."""
        self._key: bytes | None = None
        self._found: list[int] = []
        self._set: Any = None
        import re2  # noqa: PLC0415 - a start is faster; the first expression loads it

        while self._set is None:
            made = re2.Set.SearchSet(re2_options(self.bytes))
            for expression in expressions:
                made.Add(expression)
            try:
                made.Compile()
            except re2.error:
                # its automaton would not fit
                self.bytes *= 2
            else:
                self._set = made

    def work(self, key: bytes) -> int:
        """Return the largest number of steps of ``search`` for a key."""
        return (
            1
            if key is self._key and self.users > 1
            else 1 + self.instructions * len(key) // INSTRUCTIONS_A_STEP
        )

    def takes_long(self, key: bytes) -> bool:
        """Whether a match may take more than a millisecond."""
        return self.instructions * len(key) > LONG_MATCH_WORK and (
            key is not self._key or self.users == 1
        )

    def match(self, key: bytes) -> list[int]:
        """Return which of the expressions are found in a key; any thread may call it."""
        return self._set.Match(key) or []

    def search(self, key: bytes, found: list[int] | None = None) -> list[int]:
        """Return which of the expressions are found in a key, by their places.

        Args:
            key: It.
            found: The same, where it is known already.
        """
        if self.users == 1:
            return self.match(key) if found is None else found
        if key is not self._key:
            self._found = self.match(key) if found is None else found
            self._key = key
        return self._found


class CompiledSets:
    """Compiled sets that are in use, each once."""

    def __init__(self) -> None:
        self._sets: dict[tuple[bytes, ...], CompiledSet] = {}
        self.bytes = 0
        """Memory that all sets take at the most."""

    def __len__(self) -> int:
        return len(self._sets)

    def take(self, expressions: tuple[bytes, ...], instructions: int) -> CompiledSet:
        """Return the set of these expressions; it is ``release`` what is taken."""
        compiled = self._sets.get(expressions)
        if compiled is None:
            compiled = self._sets[expressions] = CompiledSet(expressions, instructions)
            self.bytes += compiled.bytes
        compiled.users += 1
        return compiled

    def release(self, compiled: CompiledSet) -> None:
        """Count one user of a set less; the last one removes the set."""
        compiled.users -= 1
        if not compiled.users:
            del self._sets[compiled.expressions]
            self.bytes -= compiled.bytes


class Part(Generic[T]):
    """Some expressions of a search, and who asked for each."""

    __slots__ = ("compiled", "instructions", "members")

    def __init__(self) -> None:
        self.members: dict[bytes, dict[T, None]] = {}
        self.instructions: dict[bytes, int] = {}
        self.compiled: CompiledSet | None = None

    def found_in(self, key: bytes, found: list[int] | None = None) -> list[T]:
        """Return who asked for an expression that a key contains; ``found`` as for ``search``."""
        compiled = self.compiled
        if compiled is None:
            return []
        expressions = compiled.expressions
        return [one for at in compiled.search(key, found) for one in self.members[expressions[at]]]

    def compile(self, sets: CompiledSets) -> None:
        """Compile the set of the members again, after they changed."""
        before = self.compiled
        self.compiled = (
            sets.take(tuple(self.members), sum(self.instructions.values()))
            if self.members
            else None
        )
        if before is not None:
            sets.release(before)


class SetSearch(Generic[T]):
    """The expressions of one session about one range of keys.

    Args:
        session: Session of the client.
        sets: Where compiled ones are shared.
    """

    __slots__ = ("_instructions", "_part_of", "_sets", "live", "parts", "session")

    def __init__(self, session: Hashable, sets: CompiledSets) -> None:
        self.session = session
        self.live = True
        """Not retired; a retired search must only be ``clear``ed."""
        self.parts: list[Part[T]] = []
        self._part_of: dict[bytes, Part[T]] = {}
        self._sets = sets
        self._instructions = 0

    def work(self, key: bytes) -> int:
        """Return the largest number of steps of all expressions for a key. O(1)."""
        return len(self.parts) + self._instructions * len(key) // INSTRUCTIONS_A_STEP

    def found_in(self, key: bytes) -> list[T]:
        """Return who asked for an expression that a key contains."""
        return [one for part in self.parts for one in part.found_in(key)]

    def __bool__(self) -> bool:
        return self.live and bool(self.parts)

    def add(self, expression: bytes, instructions: int, one: T) -> None:
        """Add an expression to a set with room, which is compiled again."""
        part = self._part_of.get(expression)
        if part is not None:
            part.members[expression][one] = None
            return
        part = self.parts[-1] if self.parts else None
        if (
            part is None
            or sum(part.instructions.values()) + instructions > EXPRESSION_SET_INSTRUCTIONS
        ):
            part = Part()
            self.parts.append(part)
        part.members[expression] = {one: None}
        part.instructions[expression] = instructions
        self._instructions += instructions
        self._part_of[expression] = part
        part.compile(self._sets)

    def remove(self, expression: bytes, one: T) -> None:
        """Search no more for an expression on behalf of one of those who asked."""
        part = self._part_of[expression]
        of_expression = part.members[expression]
        del of_expression[one]
        if of_expression:
            return
        self._instructions -= part.instructions[expression]
        del part.members[expression], part.instructions[expression], self._part_of[expression]
        part.compile(self._sets)
        if not part.members:
            self.parts.remove(part)

    def clear(self) -> None:
        """Search for nothing any more."""
        for part in self.parts:
            part.members.clear()
            part.compile(self._sets)
        self.parts.clear()
        self._instructions = 0
        self._part_of.clear()
