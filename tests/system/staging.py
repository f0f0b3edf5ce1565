"""Places of tests: units that are installed into a directory, and virtual environments."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Sequence
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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


def make_environment(directory: Path, *extras: str) -> None:
    """Make a virtual environment with a pip and what fastjournal needs, without fastjournal itself.

    These are copies of what is installed here: an index and ``python -m venv`` take seconds.

    Args:
        directory: Its place.
        extras: Extras of pyproject.toml whose dependencies get into it, beside those of the base.
            The 400 MB of Spark are links.
    """
    command = [sys.executable, "-m", "venv", "--without-pip", str(directory)]
    subprocess.run(command, check=True)
    theirs = Path(sysconfig.get_path("purelib", "venv", {"base": str(directory)}))
    for name in {"pip"} | needed(extras):
        for place in places_of(name):
            if "spark" in extras:
                (theirs / place.name).symlink_to(place)
                continue
            # with its bytecode, which the time of each file keeps valid
            copy = shutil.copytree if place.is_dir() else shutil.copy2
            copy(place, theirs / place.name)
    script = directory / "bin" / "pip"
    script.write_text(f'#!/bin/sh\nexec {directory}/bin/python -m pip "$@"\n')
    script.chmod(0o755)


def places_of(name: str) -> set[Path]:
    """Return the packages, modules and metadata of a distribution that is installed here."""
    found = distribution(name)
    files = found.files or []
    tops = {file.parts[0] for file in files if file.parts[0] not in ("..", "__pycache__")}
    return {Path(str(found.locate_file(top))) for top in tops}


def needed(extras: Sequence[str]) -> set[str]:
    """Return the names of the distributions that extras need, by what pyproject.toml says."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines: list[str] = project["dependencies"]
    for extra in extras:
        lines += project["optional-dependencies"][extra]
    found = set[str]()
    while lines:
        requirement = Requirement(lines.pop())
        name, marker = canonicalize_name(requirement.name), requirement.marker
        if name not in found and (marker is None or marker.evaluate({"extra": ""})):
            found.add(name)
            lines.extend(distribution(name).requires or [])
    return found
