"""Text of the comparison with peers in docs/performance.md, made from the JSON of a run.

python -m tests.bench.peers.page FILE.json
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from tests.bench.peers import filled, throughput
from tests.bench.peers.rows import (
    BEANSTALKD,
    ECHOES,
    GENERATOR,
    LUA,
    MACHINE,
    OTHER_WORK,
    OURS,
    PROCESSOR,
    PURE,
    STREAMS,
    SYNCS,
    Aim,
    Measured,
    Report,
    Row,
    disturbances,
    verdicts,
)

ROWS = throughput.ROWS + filled.ROWS + filled.LATENCY_ROWS
"""All rows, in the order of the table."""

PAGE = Path(__file__).parents[3] / "docs" / "performance.md"

COLUMNS = (OURS, PURE, STREAMS, LUA, BEANSTALKD)
GENERATOR_MAX = 0.9
"""Share of a processor from which on the generator may be the bottleneck."""

LINE_CHARACTERS = 118

_GENERATED = re.compile(r"(<!-- generated: peers -->\n).*?(<!-- end -->)", re.DOTALL)


def with_report(page: str, report: Report) -> str:
    """Return the page with the text of a report.

    Raises:
        ValueError: The page has no place for it.
    """
    if len(_GENERATED.findall(page)) != 1:
        raise ValueError("the page needs exactly one place for the comparison with peers")
    text = render(report)
    return _GENERATED.sub(lambda found: found[1] + text + found[2], page)


def render(report: Report) -> str:
    """Return the text of a report."""
    parts = (
        _method(report),
        _figures(report),
        "Processor time of the server for each operation, in microseconds:\n",
        _values(report, PROCESSOR, COLUMNS),
        _generator(report),
    )
    return "\n" + "\n".join(part for part in parts if part) + "\n"


def _method(report: Report) -> str:
    peers = f" Not installed: {', '.join(report.missing)}." if report.missing else ""
    sentences = [
        f"Measured at {report.commit} on {report.machine}: medians of {report.rounds} interleaved "
        f"rounds in {report.seconds / 60:.0f} minutes, least and greatest value in parentheses. "
        f"The large queue has {report.jobs:,} waiting jobs.{peers}"
    ]
    limits = [report.find(MACHINE, "", unit) for unit in (SYNCS, ECHOES, OTHER_WORK)]
    measured = [f"{_with_range(each)} {each.unit}" for each in limits if each is not None]
    if measured:
        sentences.append(f"Limits of the machine: {'; '.join(measured)}.")
    reasons = disturbances(report)
    if reasons:
        sentences.append(f"**The machine was not quiet:** {'; '.join(reasons)}.")
    else:
        sentences.append("The machine was quiet.")
    return "".join(map(_paragraph, sentences))


def _figures(report: Report) -> str:
    lines = []
    for row in ROWS:
        found = [report.find(row.key, server, row.unit) for server in COLUMNS]
        if any(found):
            figures = (_with_range(each) if each is not None else "" for each in found)
            lines.append((row.title, row.unit, *figures, _aims(report, row)))
    return _table(("row", "unit", *COLUMNS, "aim: measured (**not met**)"), lines)


def _values(report: Report, unit: str, servers: Sequence[str]) -> str:
    lines = []
    for row in ROWS:
        found = [report.find(row.key, server, unit) for server in servers]
        if any(found):
            figures = (number(each.median) if each is not None else "" for each in found)
            lines.append((row.title, *figures))
    return _table(("row", *servers), lines)


def _generator(report: Report) -> str:
    shares = [each for each in report.measured if each.unit == GENERATOR]
    if not shares:
        return ""
    titles = {row.key: row.title for row in ROWS}
    busy = [
        f"{titles[each.row]} of {each.server} ({each.median:.0%})"
        for each in shares
        if each.median > GENERATOR_MAX
    ]
    ours = max((each.median for each in shares if each.server in (OURS, PURE)), default=0.0)
    text = (
        f"The load generator had at most {ours:.0%} of one processor beside fastjournald, and "
        f"{max(each.median for each in shares):.0%} beside a peer. "
    )
    if busy:
        return _paragraph(f"{text}It may be the bottleneck of: {'; '.join(busy)}.")
    return _paragraph(f"{text}It was never the bottleneck.")


def _aims(report: Report, row: Row) -> str:
    aims = []
    for verdict in verdicts(report, [row]):
        value = number(verdict.value)
        aims.append(f"{aim_text(row, verdict.aim)}: {value if verdict.met else f'**{value}**'}")
    return "; ".join(aims)


def aim_text(row: Row, aim: Aim) -> str:
    """Return an aim in words."""
    limit = number(aim.limit)
    if aim.peer:
        return f"at {'most' if aim.most else 'least'} {limit} x {aim.peer}"
    return f"at {'least' if aim.least else 'most'} {limit} {aim.unit or row.unit}"


def number(value: float) -> str:
    """Return a value with three digits or more."""
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _with_range(measured: Measured) -> str:
    low, high = min(measured.values), max(measured.values)
    if low == high:
        return number(measured.median)
    return f"{number(measured.median)} ({number(low)}, {number(high)})"


def _paragraph(text: str) -> str:
    return textwrap.fill(text, LINE_CHARACTERS, break_on_hyphens=False) + "\n"


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main() -> None:
    """Write the text of a run into the page."""
    report = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Report)
    PAGE.write_text(with_report(PAGE.read_text(encoding="utf-8"), report), encoding="utf-8")


if __name__ == "__main__":
    main()
