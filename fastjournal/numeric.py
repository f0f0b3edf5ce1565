"""Numbers: checks of numeric arguments before anything is sent, and exponential back-off."""

from __future__ import annotations

import operator
from typing import TypeVar

from fastjournal.errors import BadRequestError
from fastjournal.limits import INSTANT_MAX

Number = TypeVar("Number", int, float)

_DOUBLINGS_MAX = 64
"""More would give numbers that are slow to make, or too large for a float."""


def check_integer(
    name: str, value: int, smallest: int, largest: int, code: str = BadRequestError.code
) -> int:
    """Return an integer argument that is within its bounds.

    Args:
        name: Name of the value, for the error.
        value: It.
        smallest: The smallest that is taken.
        largest: The largest that is taken.
        code: Code of the error.

    Raises:
        TypeError: It is no integer: neither a float is one, however whole, nor a bool.
        BadRequestError: It is outside of the bounds.
    """
    if type(value) is not int:
        value = integer_of(name, value)
    if not smallest <= value <= largest:
        most = "2**64 - 1" if largest == INSTANT_MAX else largest
        raise BadRequestError(f"{name} {value} is not {smallest} to {most}", code=code)
    return value


def integer_of(name: str, value: object) -> int:
    """Return an integer object (numpy's too) as an int.

    Raises:
        TypeError: It is none: a float, even a whole one, or a bool.
    """
    if not isinstance(value, bool) and hasattr(value, "__index__"):
        return operator.index(value)
    raise TypeError(f"{name} is an int, not {type(value).__name__}")


def exponential_backoff(first: Number, longest: Number, tries_before: int) -> Number:
    """Return the delay after a failed try: doubled for each earlier one, up to a bound."""
    return min(first * (1 << min(tries_before, _DOUBLINGS_MAX)), longest)
