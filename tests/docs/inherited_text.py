"""Extension of griffe: a method without a docstring has that of the class that it inherits from.

``help()`` and editors do the same; mkdocstrings reads the sources, where nothing stands.
"""

from __future__ import annotations

from typing import Any

import griffe


class InheritedText(griffe.Extension):
    """Docstrings of methods that override others."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Give the methods of a package that was loaded the docstrings that they inherit."""
        _inherit(pkg)


def _inherit(outer: griffe.Module | griffe.Class) -> None:
    for member in outer.members.values():
        if isinstance(member, griffe.Module | griffe.Class):
            _inherit(member)
        elif (
            isinstance(outer, griffe.Class)
            and isinstance(member, griffe.Function)
            and member.docstring is None
            and not member.name.startswith("_")
        ):
            bases = (base.members.get(member.name) for base in outer.mro())
            member.docstring = next((base.docstring for base in bases if base), None)
