"""Installs the units into a directory of a test, and reads them."""

from __future__ import annotations

import configparser
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def install(stage: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `make install-systemd` with DESTDIR=stage and further variables of it."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    given = [f"{name.upper()}={value}" for name, value in variables.items()]
    return subprocess.run(
        ["make", "install-systemd", f"DESTDIR={stage}", *given],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


class Unit(configparser.ConfigParser):
    """A unit file; of a repeated name the last value counts."""

    def __init__(self, path: Path) -> None:
        super().__init__(interpolation=None, delimiters=["="], comment_prefixes="#", strict=False)
        self.read_string(path.read_text(encoding="utf-8"))

    def optionxform(self, optionstr: str) -> str:
        return optionstr
