"""Methods that take over the arguments and the docstring of the call that they send."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_SELF = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)


def wrap(method: F, build: Callable[..., Any]) -> F:
    """Give a method the docstring of ``build``, and its signature with ``self`` before it."""
    functools.update_wrapper(method, build)
    method.__name__ = {"listening": "listen"}.get(build.__name__, build.__name__.rstrip("_"))
    signature = inspect.signature(build)
    method.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[_SELF, *signature.parameters.values()],
        return_annotation=inspect.Signature.empty,
    )
    return method
