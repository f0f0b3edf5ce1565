"""Waivers of checks, and handlers of all exceptions: each has its reason beside it."""

from __future__ import annotations

import re

from tests.bench.source_measures import PACKAGES, ROOT, paths_below

WAIVER = re.compile(
    r"# (?:noqa: [A-Z0-9]+(?:, ?[A-Z0-9]+)*(?P<noqa> - \w)?"
    r"|type: ignore\[[\w-]+\](?P<ignore> +# \w)?|pragma:?(?P<pragma>.* - \w)?)"
)
EVERYTHING = re.compile(r"^\s*except (?:Base)?Exception\b(?!Group)[^#]*(?P<reason>#.*\w)?$")


def unexplained(text: str) -> list[str]:
    """Return the lines that waive a check or handle every exception, and do not say why.

    The reason of a handler may be the comment in the next line.
    """
    lines = text.splitlines()
    found = []
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        waiver, handler = WAIVER.search(line), EVERYTHING.match(line)
        if (waiver and not any(waiver.groupdict().values())) or (
            handler and not handler["reason"] and not below.lstrip().startswith("#")
        ):
            found.append(line)
    return found


def test_waivers_have_their_reason() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for folder in [*PACKAGES.values(), ROOT / "tests"]
        for _, path in paths_below(folder.name, folder)
        for line in unexplained(path.read_text(encoding="utf-8"))
    ]
    assert not found


def test_waivers_without_reason_are_found() -> None:
    bad = [
        "import x  # no" + "qa: PLC0415",
        "f(x)  # type: ig" + "nore[arg-type]",
        "    except Base" + "Exception:",
        "except Exception" + " as error:",
    ]
    assert unexplained("\n".join(bad)) == bad
    good = [
        "import x  # no" + "qa: PLC0415 - slow to load",
        "f(x)  # type: ig" + "nore[arg-type] # see above",
        "    except Base" + "Exception:  # cancelled too",
        "except BaseExceptionGroup:",
        "except Exception" + ":",
        "    # whatever it raises",
    ]
    assert not unexplained("\n".join(good))
