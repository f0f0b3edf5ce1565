"""Table of options in docs/operating.md: names, values and defaults, from the declarations.

``make pages`` writes them, and a test compares them; the meaning of an option is written by hand.
The page has the options that change guarantees; the reference of the site has all.
"""

from __future__ import annotations

import re
from pathlib import Path

import click

from fastjournald.main import new_command

PAGE = Path(__file__).parents[2] / "docs" / "operating.md"
HEAD = "| option | default | meaning |\n| --- | --- | --- |\n"
MIB = 2**20


def options() -> dict[str, click.Option]:
    """Return the options of the daemon, by their names on the command line."""
    return {o.opts[0]: o for o in new_command().params if isinstance(o, click.Option)}


def default_of(option: click.Option) -> str:
    """Return the default that the help names, bytes in MiB where there are that many."""
    found = re.search(r"\[(.+)\]$", option.help or "")
    if found is None:
        return "off" if option.is_flag else ""
    is_many = option.metavar == "BYTES" and int(found[1]) >= MIB
    if is_many:
        return f"{int(found[1]) // MIB} MiB"
    return f"`{found[1]}`" if "<" in found[1] else found[1]


def row(line: str) -> str:
    """Return a row of the table with names and defaults as the daemon has them."""
    first, _, meaning = line.strip("| ").split(" | ", 2)
    known = options()
    found = [known[name] for name in re.findall(r"--[\w-]+", first)]
    names = [f"`{o.opts[0]} {o.metavar or ''}".rstrip() + "`" for o in found]
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
