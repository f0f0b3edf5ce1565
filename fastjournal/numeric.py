"""Numeric arguments: checked before anything is sent, so that none is cut or misread silently."""

from __future__ import annotations

import operator

from fastjournal.errors import BadRequestError
from fastjournal.limits import INSTANT_MAX


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
    """Return what stands for an integer (numpy's are such) as one.

    Raises:
        TypeError: It stands for none: neither a float does, however whole, nor a bool.
    """
    if not isinstance(value, bool) and hasattr(value, "__index__"):
        return operator.index(value)
    raise TypeError(f"{name} is an int, not {type(value).__name__}")
