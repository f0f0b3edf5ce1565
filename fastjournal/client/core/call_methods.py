"""Methods that take over the arguments and the docstring of the call that they send."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_SELF = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)


def wrap(method: F, build: Callable[..., Any], returns: str | None = None) -> F:
    """Give a method the docstring of ``build``, and its signature with ``self`` before it.

    Args:
        method: What becomes the method.
        build: Of ``fastjournal.client.core.calls``.
        returns: The name of what the method returns; None: what the ``Call`` of ``build`` gives.
    """
    functools.update_wrapper(method, build)
    method.__name__ = {"listening": "listen"}.get(build.__name__, build.__name__.rstrip("_"))
    signature = inspect.signature(build)
    returns = returns or signature.return_annotation.removeprefix("Call[").removesuffix("]")
    method.__annotations__ = {**build.__annotations__, "return": returns}
    method.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[_SELF, *signature.parameters.values()],
        return_annotation=returns,
    )
    return method
