"""Handler table: one handler for each function that is declared, found by its name.

The handler of SET is ``set_`` or ``set``, in one of the modules of this package, wherever that is.
It takes the context, the session, the request and the instant. It returns an error (a code and
optionally a sentence), the empty string for plain success, a reply, bytes that are encoded already
(a ``DeliveringReply`` where the reply delivers work), a scan that is to be carried out, the values
that are missing from memory for it, or None where the request waits. One that may miss values takes
a last argument more: the reads that failed, where it is asked again after them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from importlib import import_module
from inspect import signature
from pkgutil import walk_packages
from typing import TypeAlias, cast

from fastjournal.protocol import Function, Reply, Request
from fastjournald.engine import handlers
from fastjournald.engine.authorization import Grant
from fastjournald.engine.context import Context
from fastjournald.engine.handlers.delete import complete
from fastjournald.engine.handlers.next import next_work, nothing_due
from fastjournald.engine.handlers.scan.scan import Scan
from fastjournald.engine.handlers.set_bulk import set_waiting
from fastjournald.engine.undelivered import DeliveringReply
from fastjournald.tables.value_cache import Missing, Unreadable

__all__ = ["HANDLERS", "VALUE_HANDLERS", "Scan", "next_work", "nothing_due"]

Outcome: TypeAlias = str | Reply | bytes | DeliveringReply | Scan | Missing | None
Handler: TypeAlias = Callable[[Context, Hashable, Request, int], Outcome]
ValueHandler: TypeAlias = Callable[[Context, Hashable, Request, int, Unreadable], Outcome]
BulkHandler: TypeAlias = Callable[[Context, Iterable[Request], int, Grant | None], int]


def _functions() -> Iterator[tuple[str, Handler]]:
    """Yield the public functions of the modules of this package, with their names."""
    for found in walk_packages(handlers.__path__, f"{handlers.__name__}."):
        if found.name != __name__:
            module = import_module(found.name)
            for name, function in vars(module).items():
                if getattr(function, "__module__", None) == found.name and not name.startswith("_"):
                    yield name, function


def _find_handlers() -> dict[int, Handler]:
    """Return the handler of each function that the engine carries out."""
    named = list(_functions())
    handlers_found: dict[int, Handler] = {}
    for function in Function:
        if function.declared.by_engine:
            names = (function.name.lower(), f"{function.name.lower()}_")
            found = [handler for name, handler in named if name in names]
            assert len(found) == 1, f"{function.name} has {len(found)} handlers"
            handlers_found[int(function)] = found[0]
    return handlers_found


def _find_value_handlers() -> dict[int, ValueHandler]:
    """Return those handlers that may miss values."""
    return {
        function: cast("ValueHandler", handler)
        for function, handler in HANDLERS.items()
        if "unreadable" in signature(handler).parameters
    }


BULK_HANDLERS: dict[int, BulkHandler] = {
    int(Function.SET): set_waiting,
    int(Function.DELETE): complete,
}
"""Carry out several requests of one function together, from the first on, as far as each does what
such a request mostly does, and succeeds; they return how many. All others go to ``HANDLERS``. The
last argument is the grant that has to cover what they ask for, and has the rights for the first
request: they carry out none that needs other rights than the first one. None: all is covered."""
HANDLERS = _find_handlers()
"""All others answer ``unknown-function``."""

VALUE_HANDLERS = _find_value_handlers()
