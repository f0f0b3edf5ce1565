"""Scripted answers of a daemon: by function, one after the other."""

from __future__ import annotations

from fastjournal.protocol import Function, Reply, Request
from fastjournal.testing.scripted_daemon import Answer, Do


class ScriptedAnswers:
    """Answers that a test has prepared.

    Args:
        answers: By name of a function: an error, an end of the connection, or nothing (None);
            empty: the script has no answer of its own, as behind the last one.
    """

    def __init__(self, answers: dict[str, list[str | Do | None]]) -> None:
        self._answers = answers

    def next(self, request: Request) -> Answer | None:
        """Return the next answer to a request; None: it is up to the daemon."""
        left = self._answers.get(Function(request.function).name)
        answer = left.pop(0) if left else ""
        if answer is None:
            return []
        if isinstance(answer, Do):
            return [answer]
        return [Reply(request.identifier, error=answer)] if answer else None


NOW_US = 1_000_000_000_000
"""Clock of these daemons; that of the clients shows another time."""


def renewed_lease(request: Request) -> Reply:
    """Return the reply to a TOUCH that is carried out."""
    assert request.ttl is not None
    return Reply(request.identifier, timestamp=NOW_US, timeout=NOW_US + request.ttl)
