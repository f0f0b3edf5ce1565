"""Programs of examples/ in other languages: how each is built, and run where that can be done."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

TOOLS = {".sh": "sh", ".php": "php", ".js": "node", ".go": "go", ".c": "cc"}
"""Suffix of an example to the program that runs or compiles it."""

_COMPILE = {".go": ("build",), ".c": ("-Wall", "-Wextra", "-Werror")}


class ExamplePrograms:
    """Examples that are built at most once.

    Args:
        directory: For what is compiled.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._commands: dict[str, list[str]] = {}

    def command(self, example: str) -> list[str]:
        """Return the command that runs ``producers/producer.c``; skip the test if it cannot be."""
        if example not in self._commands:
            self._commands[example] = self._build(example)
        return self._commands[example]

    def _build(self, example: str) -> list[str]:
        source = EXAMPLES / example
        tool = shutil.which(TOOLS[source.suffix])
        if tool is None:
            pytest.skip(f"examples/{example} is left out: no {TOOLS[source.suffix]} here")
        options = _COMPILE.get(source.suffix)
        if options is None:
            return [tool, str(source)]
        program = str(self._directory / source.name.replace(".", "-"))
        subprocess.run([tool, *options, "-o", program, str(source)], check=True)
        return [program]
