"""Build hook: writes the commit into wheels and source distributions (fastjournal/commit.txt).

An editable installation asks git each time instead: see fastjournal/build_info.py.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMMIT_FILE = "fastjournal/commit.txt"


class CommitHook(BuildHookInterface[Any]):
    """Adds the commit of the tree; a source distribution has its own, a tree without git none."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the file before the archive is written.

        Args:
            version: Kind of build: ``standard`` or ``editable``.
            build_data: Files to add, by path, under ``force_include``.
        """
        if version == "editable" or (Path(self.root) / COMMIT_FILE).exists():
            return
        commit = commit_of(self.root)
        if commit is None:
            self.app.display_warning("no commit is known: this is no git checkout")
            return
        self._directory = tempfile.TemporaryDirectory()
        file = Path(self._directory.name) / "commit.txt"
        file.write_text(f"{commit}\n", encoding="ascii")
        build_data["force_include"][str(file)] = COMMIT_FILE


def commit_of(directory: str) -> str | None:
    """Return the commit of a checkout, with ``-dirty`` behind it where files differ."""
    if not (Path(directory) / ".git").exists():
        return None
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    return described.stdout.strip() or None
