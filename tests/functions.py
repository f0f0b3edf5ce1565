"""Functions of the protocol, as tests need them: which there are, and numbers that are none."""

from __future__ import annotations

from fastjournal.protocol.functions import Function, Scope

NO_FUNCTION = max(Function) + 1
"""A number that no function has: one more than the last."""

NO_FUNCTIONS = (*sorted(set(range(NO_FUNCTION)) - set(Function))[::50], NO_FUNCTION, 0xFFFF)
"""Some of them, between the functions and behind the last."""


def functions_for(*scopes: Scope) -> list[Function]:
    """Return the functions whose right has to be for this place of a request."""
    declared = [(function, function.declared.access) for function in Function]
    return [function for function, access in declared if access and access.scope in scopes]


LISTS = functions_for(Scope.NAMES)
"""Functions that list names, page by page."""

OF_DOMAINS = functions_for(Scope.DOMAIN, Scope.DOMAIN_OR_ALL, Scope.NAMES)
"""Functions whose key is the name of a domain, or what it begins with."""
