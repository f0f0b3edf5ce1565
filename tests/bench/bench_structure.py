"""Structure of the code, measured from the code itself, so that it is known and does not rot.

    python -m tests.bench.bench_structure [--files]

Prints a line for each measure: the figure, its limit and the aim. ``--files`` also lists what is
behind each figure: the files that a request enters, cycles, functions, pages. ``MEASURES`` is the
one place to change when a figure gets better; tests/docs/test_structure.py holds the code to it.

- *Files entered* by a request: see entered_files.py.
- *Import cycles*: groups of modules that import each other; imports for type checkers and inside
  functions count.
- *Modules in no layer*, *names in contracts*: read from the import contracts in pyproject.toml.
- *Long functions*: over 60 lines of code, without docstrings, comments and blank lines.
- *Modules over 600 lines*: all lines count; ``LONG_MODULES`` has those that stay, with the reason.
- *Names of two classes*: in one program, which is a package and the modules of the library that it
  imports; ``_Name`` is no other name than ``Name``.
- *Terms*: terms of the glossary that are missing at their place: see glossary.py.
- *Decision pages*, and those that no other page and no source file names.
- *Record layout*: modules that take something from a record of the log at a literal offset, as in
  ``data[body + 21 :]``: a heuristic, see source_measures.py for the names that it goes by.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.bench import entered_files, glossary, source_measures


@cache
def _entered() -> dict[str, list[str]]:
    # a disk in memory, if there is one: a slow disk is synced by a thread, which is one file more
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as directory:
        return entered_files.measure(Path(directory))


def files_entered(request: str) -> list[str]:
    """Return the source files that a request enters."""
    return _entered()[request]


class Measure(NamedTuple):
    """A figure: the number of findings."""

    findings: Callable[[], list[str]]
    limit: int
    """The code is held to this."""
    aim: int

    def holds(self, figure: int) -> bool:
        """Whether a figure keeps to the limit."""
        return figure <= self.limit


MEASURES: dict[str, Measure] = {
    "files entered by a SET into an empty domain": Measure(
        lambda: files_entered(entered_files.SET_INTO_EMPTY), 28, 18
    ),
    "files entered by a SET beside a waiting entry": Measure(
        lambda: files_entered(entered_files.SET_BESIDE), 27, 18
    ),
    "files entered by a NEXT": Measure(lambda: files_entered(entered_files.NEXT), 27, 20),
    "files entered by the DELETE that completes a job": Measure(
        lambda: files_entered(entered_files.DELETE), 28, 18
    ),
    "files entered by a GET": Measure(lambda: files_entered(entered_files.GET), 16, 14),
    "import cycles": Measure(source_measures.import_cycles, 0, 0),
    "modules in no layer": Measure(source_measures.modules_in_no_layer, 0, 0),
    "names of modules in import contracts": Measure(source_measures.contract_mentions, 33, 32),
    "long functions": Measure(source_measures.long_functions, 0, 0),
    "long hot loops": Measure(source_measures.long_hot_loops, 2, 3),
    "modules over 600 lines": Measure(source_measures.long_modules, 0, 0),
    "names of two classes of a program": Measure(source_measures.classes_of_one_name, 0, 0),
    "terms that do not lead to their place": Measure(glossary.terms_without_place, 0, 0),
    "decision pages": Measure(source_measures.decision_page_names, 20, 20),
    "decision pages linked from nowhere": Measure(
        source_measures.decisions_linked_from_nowhere, 0, 0
    ),
    "modules that know the record layout by numbers": Measure(
        source_measures.layout_by_numbers, 0, 1
    ),
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure the structure of the code.")
    parser.add_argument("--files", action="store_true", help="list what is behind each figure")
    given = parser.parse_args()
    for name, measure in MEASURES.items():
        findings = measure.findings()
        print(f"{name}: {len(findings)} (held to {measure.limit}, aim {measure.aim})", flush=True)
        if given.files:
            print("".join(f"    {finding}\n" for finding in findings), end="")


if __name__ == "__main__":
    main()
