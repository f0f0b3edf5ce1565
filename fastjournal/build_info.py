"""Build information: version, commit, Python, native leaves, for ``--version`` and metrics."""

from __future__ import annotations

import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import NamedTuple

from fastjournal import _native

PACKAGE = Path(__file__).parent
COMMIT_NAME = "commit.txt"
"""File in the package, which hatch_build.py writes into wheels."""

UNKNOWN = "unknown"
GIT_SECONDS_MAX = 5


class BuildInfo(NamedTuple):
    """Build of the distribution that runs."""

    version: str
    commit: str
    """Twelve digits, and ``-dirty`` where files of a checkout differ; else ``unknown``."""
    python: str
    native: str
    """``on``: the native leaves run; else ``off``, ``not-built`` or ``mismatch``."""

    def __str__(self) -> str:
        native = self.native
        if native == _native.Status.MISMATCH:
            native = f"{native}: {_native.reason}"
        return (
            f"{self.version} (commit {self.commit}, Python {self.python}, native leaves {native})"
        )


@cache
def build_info() -> BuildInfo:
    """Return what runs here; a checkout is asked once."""
    return BuildInfo(
        version("fastjournal"), _commit(PACKAGE), python_version(), str(_native.status)
    )


def _commit(package: Path) -> str:
    """Return the commit that was written at the build, or that of the checkout around a package."""
    try:
        return (package / COMMIT_NAME).read_text(encoding="ascii").strip()
    except FileNotFoundError:
        pass
    if not (package.parent / ".git").exists():
        return UNKNOWN
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"],
            cwd=package.parent,
            capture_output=True,
            text=True,
            check=False,
            timeout=GIT_SECONDS_MAX,
        )
    except (OSError, subprocess.TimeoutExpired):
        return UNKNOWN
    return described.stdout.strip() or UNKNOWN
