"""Counters of requests and of error replies, for metrics. Pure."""

from __future__ import annotations

from fastjournal.protocol import Function

UNKNOWN = -1
"""Counts as the function of requests whose function has no name."""

_FUNCTIONS = frozenset(map(int, Function))


class RequestCounters:
    """Numbers of requests by function, and of error replies by function and error code."""

    __slots__ = ("errors", "requests")

    def __init__(self) -> None:
        self.requests = dict.fromkeys((*_FUNCTIONS, UNKNOWN), 0)
        """Function to the number of its requests so far."""
        self.errors: dict[tuple[int, str], int] = {}
        """Function and error code to the number of such replies so far."""

    def count_refused(self, function: int, error: str) -> None:
        """Count a request that was not carried out, and its error."""
        known = function if function in _FUNCTIONS else UNKNOWN
        self.requests[known] += 1
        self.count_error(known, error)

    def count_error(self, function: int, error: str) -> None:
        """Count an error: its code and what follows it."""
        about = function, error.partition(" ")[0]
        self.errors[about] = self.errors.get(about, 0) + 1
