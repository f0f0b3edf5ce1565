"""Native leaves: functions in C that stand in for functions in Python with the same results.

Each leaf has its function in Python, which is the fallback, the oracle of the tests and the
documentation. A leaf carries out what is plain and stops before the first that is not; the function
in Python carries that one out, so errors and rare rules exist once. No leaf knows a file, a clock
or a policy.

Two modules: ``leaves`` is pure (codec, records, bulk, replay); ``rounds`` receives from sockets and
sends, and only ``fastjournald.net`` uses it. Both are there, or both are None: ``status`` and
``reason`` say why. The variable ``FASTJOURNAL_NATIVE`` turns them off (``0``), or names the
directory of other builds of them. Sources: ``*.c`` of this directory; ``hatch_build.py`` compiles
them.

A module has the fingerprint of the sources that it was compiled from. They lie beside it, in a
checkout and where a wheel is installed, so a module that the callers here do not know is not used.
"""

from __future__ import annotations

import os
import sys
import zlib
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Final

SWITCH: Final = "FASTJOURNAL_NATIVE"
NAMES: Final = ("_leaves", "_rounds")
"""Modules in C. Their names are not those of ``leaves`` and ``rounds``: an import of one by its
name, as in a walk over all modules, sets the attribute of that name, and must turn nothing on."""

_HERE: Final = Path(__file__).parent
_ENDINGS: Final = (".so", ".dylib", ".pyd")


class Status(StrEnum):
    """Whether the native leaves run."""

    ON = "on"
    OFF = "off"
    """``FASTJOURNAL_NATIVE=0``."""
    NOT_BUILT = "not-built"
    """A pure wheel, or a Python for which they are not built."""
    MISMATCH = "mismatch"
    """There are modules, but of another version, or for another interpreter: build them again."""


def fingerprint(sources: Path) -> str:
    """Return the checksum of the C sources of a directory."""
    total = 0
    for path in sorted(sources.glob("*.[ch]")):
        total = zlib.crc32(path.read_bytes(), zlib.crc32(path.name.encode(), total))
    return f"{total:08x}"


def _load() -> tuple[list[ModuleType | None], Status, str]:
    """Return the modules, or None for each, with the status and a sentence about it."""
    none: list[ModuleType | None] = [None] * len(NAMES)
    switch = os.environ.get(SWITCH, "")
    if switch == "0":
        return none, Status.OFF, f"{SWITCH}=0"
    if "t" in getattr(sys, "abiflags", ""):
        return none, Status.NOT_BUILT, "not built for a free-threaded Python"
    if switch:
        __path__[:] = [switch]
    directory = Path(switch) if switch else _HERE
    loaded = list[ModuleType]()
    for name in NAMES:
        try:
            module = import_module(f"{__name__}.{name}")
        except ModuleNotFoundError:
            others = [path for path in directory.glob(f"{name}.*") if path.suffix in _ENDINGS]
            if not others:
                return none, Status.NOT_BUILT, "not built"
            return none, Status.MISMATCH, f"{others[0]} is for another interpreter"
        except ImportError as error:
            # of another machine or C library
            return none, Status.MISMATCH, str(error)
        wanted = fingerprint(_HERE)
        found = getattr(module, "BUILD", "none")
        if found != wanted:
            text = f"{module.__file__} is of another version: fingerprint {found}, not {wanted}"
            return none, Status.MISMATCH, text
        loaded.append(module)
    return [*loaded], Status.ON, ""


(leaves, rounds), status, reason = _load()
