"""Screenshots of the nightly report in headless Chromium: wide, and on a phone.

    python -m tests.spark.report_screenshots docs

writes those of the documentation, of the four weeks of the demonstration.
"""

from __future__ import annotations

import os
import sys
import tempfile
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fastjournal.cmdlog.snapshot import take_snapshot
from fastjournal.disk import OsDisk
from fastjournal.spark.nightly.day_store import DayStore
from fastjournal.spark.nightly.preparation import Night
from fastjournal.spark.nightly.run import run_night
from fastjournal.spark.session import SMALL_OPTIONS, start_session
from fj_cli.demo.history import CHANGES, DAYS, HistoryLedger, Simulation
from fj_cli.demo.players import PageChange, load_changes
from tests.integration.browser import Browser

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UNTIL_US = int(datetime(2026, 11, 22, 2, 30, tzinfo=UTC).timestamp()) * 1_000_000
DAY = date(2026, 11, 21)


class Screen(NamedTuple):
    """Size of a screen in CSS pixels."""

    width: int
    height: int
    phone: bool = False


SCREENS = {
    "nightly-report": Screen(1160, 900),
    "nightly-report-phone": Screen(390, 844, phone=True),
}
"""Screens by the name of their file."""
HEIGHTS = {"nightly-report": 1500, "nightly-report-phone": 1640}
"""Height of the part of the page that the documentation shows, in CSS pixels."""


class Weeks(NamedTuple):
    """Simulated weeks as a nightly run finds them."""

    ledger: HistoryLedger
    archive: Path
    snapshot: str


def simulate(directory: Path, changes: list[PageChange], days: int) -> Weeks:
    """Return the simulation of some days, with their archive and a snapshot."""
    log, archive = directory / "log", directory / "archive"
    ledger = Simulation(log, changes, until_us=UNTIL_US, days=days).run()
    archive.mkdir()
    for info in ledger.segments:
        os.link(log / info.name, archive / f"{info.number:09d}-{info.crc32c:08x}.log")
    snapshots = directory / "snapshots"
    snapshot = take_snapshot(OsDisk(), str(log), str(snapshots), ledger.segments, UNTIL_US)
    return Weeks(ledger, archive, snapshot)


LOOK = """
(() => {
  const box = element => element.getBoundingClientRect();
  const drawn = element => box(element).width + box(element).height > 0;
  const isCut = (text, svg) => box(text).left < box(svg).left - 1
    || box(text).right > box(svg).right + 1;
  const text = element => element.innerText.trim();
  const all = (selector, within) => [...(within || document).querySelectorAll(selector)];
  return {
    width: document.documentElement.clientWidth,
    needed: document.documentElement.scrollWidth,
    beyond: all("body *:not(.scroll *)").filter(one => box(one).right > innerWidth + 1).map(text),
    wide: all(".card b").filter(one => one.scrollWidth > one.clientWidth).map(text),
    charts: all("figure svg").map(svg => ({
      label: svg.getAttribute("aria-label"),
      width: box(svg).width,
      marks: all("rect, path, circle", svg).filter(drawn).length,
      cut: all("text", svg).filter(one => isCut(one, svg)).map(one => one.textContent),
      told: all("title", svg).map(one => one.textContent),
    })),
    cards: all(".card").map(text),
    slow: all(".slow").map(text),
    tables: all("table").map(one => [...one.rows].map(row => [...row.cells].map(text))),
  };
})()
"""
"""Expression of JavaScript: a report as the browser has it."""


def look(page: Path) -> dict[str, dict[str, Any]]:
    """Return what a browser makes of a report, by screen; it loads nothing else, and is content."""
    found = {}
    with Browser() as browser:
        for name, screen in SCREENS.items():
            browser.view(screen.width, screen.height, phone=screen.phone)
            browser.open(page.as_uri())
            found[name] = browser.evaluate(LOOK)
            assert browser.complaints() == []
            assert set(browser.requested()) == {page.as_uri()}
    return found


def screenshots(page: Path, directory: Path) -> list[Path]:
    """Write a screenshot of a report on each screen, the table by hour folded."""
    files = []
    with Browser() as browser:
        for name, screen in SCREENS.items():
            files.append(directory / f"{name}.png")
            browser.view(screen.width, screen.height, phone=screen.phone)
            browser.open(page.as_uri())
            browser.evaluate('document.querySelector("details").open = false')
            browser.screenshot(files[-1], height=HEIGHTS[name])
    return files


def main() -> None:
    """Write the screenshots to the directory of the first argument."""

    def start() -> SparkSession:
        return start_session("local[2]", options=SMALL_OPTIONS)

    with tempfile.TemporaryDirectory() as directory:
        weeks = simulate(Path(directory), load_changes()[-CHANGES:], DAYS)
        output = f"{directory}/out"
        night = Night(DAY, DayStore(output), output, str(weeks.archive), weeks.snapshot)
        page = Path(run_night(start, night).report)
        for file in screenshots(page, Path(sys.argv[1])):
            print(file, file.stat().st_size)
        start().stop()


if __name__ == "__main__":
    main()
