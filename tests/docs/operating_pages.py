"""Table of options in docs/operating.md: names, values and defaults, from the declarations.

``make pages`` writes them, and a test compares them; the meaning of an option is written by hand.
The page has the options that change guarantees; the reference of the site has all.
"""

from __future__ import annotations

import re
from pathlib import Path

from fastjournal.options import flag
from fastjournald.config.options import DECLARED, DeclaredOption

PAGE = Path(__file__).parents[2] / "docs" / "operating.md"
HEAD = "| option | default | meaning |\n| --- | --- | --- |\n"
MIB = 2**20


def default_of(option: DeclaredOption) -> str:
    """Return the default that the help names, bytes in MiB where there are that many."""
    if option.kind is bool:
        return "off"
    if option.unit == "BYTES" and option.default >= MIB:
        return f"{option.default // MIB} MiB"
    found = option.shown.strip("[]") if option.shown.startswith("[") else ""
    return f"`{found}`" if "<" in found else found


def row(line: str) -> str:
    """Return a row of the table with names and defaults as the daemon has them."""
    first, _, meaning = line.strip("| ").split(" | ", 2)
    known = {flag(option.name): option for option in DECLARED.values()}
    found = [known[name] for name in re.findall(r"--[\w-]+", first)]
    names = [f"`{flag(o.name)} {o.unit}".rstrip() + "`" for o in found]
    defaults = [text for option in found if (text := default_of(option))]
    shown = defaults[:1] if len(set(defaults)) == 1 else defaults
    cells = ", ".join(names).replace("|", "\\|"), ", ".join(shown) or "none", meaning
    return f"| {' | '.join(cells)} |"


def operating_page() -> str:
    """Return docs/operating.md as it should be."""
    before, head, after = PAGE.read_text(encoding="utf-8").partition(HEAD)
    assert head
    table, blank, rest = after.partition("\n\n")
    rows = "\n".join(row(line) for line in table.splitlines())
    return f"{before}{head}{rows}{blank}{rest}"


if __name__ == "__main__":
    PAGE.write_text(operating_page(), encoding="utf-8")
